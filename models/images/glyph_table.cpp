#include "models/images/glyph_table.h"

namespace nestgrad::detail {

namespace {

using P = ControlPoint;
constexpr bool kCorner = true;

// One line of the table: a stroke of which the points are named after the character and its number.
constexpr P k0[] = {{.36, .02}, {.12, .16}, {.04, .50}, {.14, .85}, {.36, .98},
                    {.57, .84}, {.66, .50}, {.57, .15}, {.33, .03}};
constexpr P k1[] = {{.16, .22}, {.40, .02, kCorner}, {.38, .98}};
constexpr P k2[] = {{.08, .24}, {.17, .07}, {.38, .02},          {.58, .12},
                    {.60, .34}, {.40, .62}, {.06, .97, kCorner}, {.66, .95}};
constexpr P k3[] = {{.10, .12}, {.34, .02}, {.57, .13}, {.54, .35}, {.29, .47, kCorner},
                    {.55, .55}, {.64, .76}, {.46, .95}, {.22, .97}, {.05, .86}};
constexpr P k4a[] = {{.34, .02}, {.05, .62, kCorner}, {.68, .62}};
constexpr P k4b[] = {{.50, .34}, {.47, .98}};
constexpr P k5a[] = {{.16, .05}, {.10, .44, kCorner}, {.34, .38}, {.57, .50},
                     {.62, .72}, {.46, .93},          {.24, .97}, {.06, .87}};
constexpr P k5b[] = {{.16, .05}, {.62, .03}};
constexpr P k6[] = {{.53, .04}, {.26, .22}, {.08, .56}, {.12, .84}, {.34, .98},
                    {.57, .86}, {.58, .63}, {.36, .51}, {.10, .68}};
constexpr P k7a[] = {{.05, .06}, {.64, .04, kCorner}, {.42, .48}, {.26, .98}};
constexpr P k7b[] = {{.22, .50}, {.56, .48}};
constexpr P k8[] = {{.55, .14}, {.34, .02}, {.13, .14}, {.20, .36}, {.48, .56}, {.60, .78},
                    {.36, .98}, {.10, .80}, {.22, .56}, {.50, .36}, {.55, .14}};
constexpr P k9[] = {{.60, .22}, {.42, .04},          {.16, .10}, {.10, .34}, {.28, .48},
                    {.52, .38}, {.61, .16, kCorner}, {.58, .55}, {.50, .98}};

constexpr P kAa[] = {{.04, .98}, {.34, .02, kCorner}, {.66, .98}};
constexpr P kAb[] = {{.16, .66}, {.55, .65}};
constexpr P kC[] = {{.60, .16}, {.40, .02}, {.14, .16}, {.05, .50}, {.15, .85}, {.40, .98}, {.62, .84}};
constexpr P kEa[] = {{.58, .04}, {.10, .03, kCorner}, {.09, .97, kCorner}, {.60, .96}};
constexpr P kEb[] = {{.10, .49}, {.50, .48}};
constexpr P kFa[] = {{.60, .04}, {.12, .03, kCorner}, {.10, .98}};
constexpr P kFb[] = {{.11, .47}, {.50, .46}};
constexpr P kHa[] = {{.09, .02}, {.08, .98}};
constexpr P kHb[] = {{.60, .02}, {.61, .98}};
constexpr P kHc[] = {{.09, .50}, {.60, .49}};
constexpr P kJa[] = {{.46, .04}, {.47, .60}, {.42, .88}, {.22, .98}, {.05, .82}};
constexpr P kJb[] = {{.22, .04}, {.66, .03}};
constexpr P kKa[] = {{.10, .02}, {.09, .98}};
constexpr P kKb[] = {{.60, .04}, {.11, .54, kCorner}, {.64, .97}};
constexpr P kL[] = {{.10, .02}, {.09, .96, kCorner}, {.60, .96}};
constexpr P kM[] = {{.04, .98}, {.10, .03, kCorner}, {.38, .66, kCorner}, {.66, .03, kCorner}, {.74, .98}};
constexpr P kN[] = {{.08, .98}, {.09, .03, kCorner}, {.60, .97, kCorner}, {.61, .02}};
constexpr P kPa[] = {{.11, .02}, {.10, .98}};
constexpr P kPb[] = {{.11, .05}, {.42, .03}, {.62, .20}, {.58, .42}, {.34, .53}, {.11, .52}};
constexpr P kRb[] = {{.11, .05}, {.42, .03},          {.60, .18},          {.56, .40},
                     {.34, .50}, {.12, .50, kCorner}, {.36, .52, kCorner}, {.64, .98}};
constexpr P kTa[] = {{.04, .05}, {.66, .04}};
constexpr P kTb[] = {{.35, .05}, {.34, .98}};
constexpr P kU[] = {{.08, .03}, {.07, .60}, {.16, .90}, {.35, .98}, {.54, .89}, {.62, .58}, {.61, .02}};
constexpr P kV[] = {{.04, .03}, {.34, .98, kCorner}, {.64, .02}};
constexpr P kW[] = {{.02, .03}, {.20, .97, kCorner}, {.40, .34, kCorner}, {.60, .97, kCorner}, {.80, .02}};
constexpr P kXa[] = {{.06, .03}, {.62, .98}};
constexpr P kXb[] = {{.61, .02}, {.05, .97}};
constexpr P kYa[] = {{.05, .03}, {.34, .48}};
constexpr P kYb[] = {{.64, .02}, {.34, .48, kCorner}, {.33, .98}};
constexpr P kQa[] = {{.36, .02}, {.12, .16}, {.04, .48}, {.14, .80}, {.36, .92},
                     {.57, .79}, {.66, .48}, {.57, .15}, {.33, .03}};
constexpr P kQb[] = {{.36, .66}, {.70, 1.0}};

constexpr Stroke s0[] = {k0}, s1[] = {k1}, s2[] = {k2}, s3[] = {k3}, s4[] = {k4a, k4b}, s5[] = {k5a, k5b},
                 s6[] = {k6}, s7[] = {k7a, k7b}, s8[] = {k8}, s9[] = {k9}, sA[] = {kAa, kAb}, sC[] = {kC},
                 sE[] = {kEa, kEb}, sF[] = {kFa, kFb}, sH[] = {kHa, kHb, kHc}, sJ[] = {kJa, kJb},
                 sK[] = {kKa, kKb}, sL[] = {kL}, sM[] = {kM}, sN[] = {kN}, sP[] = {kPa, kPb},
                 sR[] = {kPa, kRb}, sT[] = {kTa, kTb}, sU[] = {kU}, sV[] = {kV}, sW[] = {kW},
                 sX[] = {kXa, kXb}, sY[] = {kYa, kYb}, sQ[] = {kQa, kQb};
constexpr Character kCharacters[] = {
    Character{"0", s0}, {"1", s1}, {"2", s2}, {"3", s3}, {"4", s4}, {"5", s5}, {"6", s6}, {"7", s7},
    {"8", s8},          {"9", s9}, {"A", sA}, {"C", sC}, {"E", sE}, {"F", sF}, {"H", sH}, {"J", sJ},
    {"K", sK},          {"L", sL}, {"M", sM}, {"N", sN}, {"P", sP}, {"Q", sQ}, {"R", sR}, {"T", sT},
    {"U", sU},          {"V", sV}, {"W", sW}, {"X", sX}, {"Y", sY}};

}  // namespace

std::span<const Character> characters() { return kCharacters; }

}  // namespace nestgrad::detail

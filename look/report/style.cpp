// Colours. Series follow each other so that neighbours differ in lightness as well as in hue; scales are
// ramps of OKLab lightness, from the colour of the page to what stands out from it most: light pages darken,
// dark pages light up.
#include <array>

#include "look/report/drawing.h"

namespace nestgrad::drawing {

namespace {

constexpr std::string_view kBase = R"(
.picture{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:13px;
font-variant-numeric:tabular-nums}
.picture .small{font-size:12px}.picture .title{font-size:16px;font-weight:600}.picture .strong{font-weight:600}
.picture .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.picture .reference{stroke-width:1.5;stroke-dasharray:2 4}.picture .cells{shape-rendering:crispEdges;stroke-width:1}
.picture .thin,.picture .frame,.picture .arrow,.picture .gap,.picture .cross{fill:none}
.picture .gap,.picture .cross{stroke-width:1}
.picture .dot{fill:none;stroke-width:6.5;stroke-linecap:round;stroke-opacity:.75}
.picture .square{fill:none;stroke-width:6;stroke-linecap:square;stroke-opacity:.75}
.picture .mark{fill:none;stroke-width:1.8;stroke-opacity:.85}
.picture .arrow{stroke-width:1.8}.picture .forward{stroke-width:1.3}.picture .cut{stroke-dasharray:5 4}
.picture .danger{fill:#d62f2f;fill-opacity:.13}
.picture .halo{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}
)";

struct Theme {
  std::string_view back, ink, soft, grid, axis, reference, box, missing;
  std::array<std::string_view, kColours> series;
  std::array<std::string_view, kLevels> levels;
  std::array<std::string_view, 3> arrows;  // forward, inner gradient, meta gradient
};

constexpr Theme kLight{
    .back = "#fdfdfc",
    .ink = "#1c1c1a",
    .soft = "#5c5b57",
    .grid = "#e6e5e1",
    .axis = "#a9a8a2",
    .reference = "#6f6e69",
    .box = "#f5f5f2",
    .missing = "#a3a29c",
    .series = {"#2a78d6", "#d9571f", "#12805c", "#a8308c", "#b07500", "#4a3aa7", "#4d7c0f", "#7c5a46"},
    .levels = {"#54534f", "#0f8a8a", "#b07500", "#7a4fb5", "#4d7c0f", "#7c5a46"},
    .arrows = {"#7c7b75", "#2a78d6", "#cf4a12"}};
constexpr Theme kDark{
    .back = "#1a1a19",
    .ink = "#f2f1ed",
    .soft = "#b5b4ad",
    .grid = "#31312e",
    .axis = "#6b6a65",
    .reference = "#a3a29b",
    .box = "#242422",
    .missing = "#75746e",
    .series = {"#5a9df0", "#f0834f", "#3cc093", "#e58ad0", "#e0a526", "#a59cf2", "#a3c94a", "#c9a48d"},
    .levels = {"#b5b4ad", "#3fbdbd", "#e0a526", "#b99aec", "#a3c94a", "#c9a48d"},
    .arrows = {"#96958e", "#5a9df0", "#f58a55"}};

struct Lab {
  double lightness, a, b;
};

// Björn Ottosson's OKLab, to sRGB.
std::string hex(const Lab& c) {
  const double l = std::pow(c.lightness + 0.3963377774 * c.a + 0.2158037573 * c.b, 3);
  const double m = std::pow(c.lightness - 0.1055613458 * c.a - 0.0638541728 * c.b, 3);
  const double s = std::pow(c.lightness - 0.0894841775 * c.a - 1.2914855480 * c.b, 3);
  const auto byte = [](double linear) {
    const double x = std::clamp(linear, 0.0, 1.0);
    const double v = x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055;
    return static_cast<int>(std::lround(255 * v));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", byte(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
                     byte(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
                     byte(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s));
}

struct Stop {
  double at, a, b;
};

// Lightness goes evenly from first to last; the hue passes through the stops, which begin at 0 and end at 1.
template <std::size_t N>
std::string ramp_colour(double t, double first, double last, const std::array<Stop, N>& stops) {
  std::size_t i = 1;
  while (i + 1 < N && t > stops[i].at) ++i;
  const Stop &from = stops[i - 1], &to = stops[i];
  const double w = (t - from.at) / (to.at - from.at);
  return hex({first + t * (last - first), from.a + w * (to.a - from.a), from.b + w * (to.b - from.b)});
}

// From a neutral through green, blue and violet.
std::string sequential(double t, bool dark) {
  static constexpr std::array<Stop, 5> kOnLight{{{0, -0.008, 0.006},
                                                 {0.28, -0.088, 0.012},
                                                 {0.5, -0.072, -0.05},
                                                 {0.74, -0.012, -0.115},
                                                 {1, 0.03, -0.085}}};
  static constexpr std::array<Stop, 5> kOnDark{{{0, 0.004, -0.012},
                                                {0.2, 0.022, -0.095},
                                                {0.42, -0.022, -0.105},
                                                {0.7, -0.1, -0.005},
                                                {1, -0.05, 0.075}}};
  return dark ? ramp_colour(t, 0.3, 0.94, kOnDark) : ramp_colour(t, 0.94, 0.28, kOnLight);
}

// Below 0 blue, above 0 orange, neutral at 0.
std::string diverging(double t, bool dark) {
  static constexpr std::array<Stop, 3> kBlue{{{0, 0, 0.002}, {0.55, -0.03, -0.1}, {1, -0.015, -0.13}}};
  static constexpr std::array<Stop, 3> kOrange{{{0, 0, 0.002}, {0.55, 0.075, 0.09}, {1, 0.1, 0.085}}};
  static constexpr std::array<Stop, 3> kBlueOnDark{{{0, 0, 0.002}, {0.5, -0.02, -0.12}, {1, -0.05, -0.085}}};
  static constexpr std::array<Stop, 3> kOrangeOnDark{{{0, 0, 0.002}, {0.5, 0.085, 0.1}, {1, 0.06, 0.115}}};
  if (dark) return ramp_colour(std::abs(t), 0.27, 0.82, t < 0 ? kBlueOnDark : kOrangeOnDark);
  return ramp_colour(std::abs(t), 0.955, 0.4, t < 0 ? kBlue : kOrange);
}

std::string colours(const Theme& theme) {
  std::string css = fmt::format(
      ".picture .back{{fill:{0}}}.picture text{{fill:{2}}}.picture "
      ".title,.picture .name,.picture .value{{fill:{1}}}.picture "
      ".grid,.picture .frame{{stroke:{3}}}.picture "
      ".axis{{stroke:{4}}}.picture .reference{{stroke:{5}}}.picture "
      ".box{{fill:{6};stroke:{4}}}.picture .missing{{stroke:{7}}}.picture "
      ".gap,.picture .cross{{stroke:{0}}}.picture "
      ".nothing{{stroke:{0}}}.picture .halo{{stroke:{0}}}\n",
      theme.back, theme.ink, theme.soft, theme.grid, theme.axis, theme.reference, theme.box, theme.missing);
  for (std::size_t i = 0; i < kColours; ++i)
    css += fmt::format(".c{0}{{stroke:{1}}}.f{0}{{fill:{1}}}", i, theme.series[i]);
  css += '\n';
  for (std::size_t i = 0; i < theme.levels.size(); ++i)
    css += fmt::format(".l{}{{fill:{}}}", i, theme.levels[i]);
  for (std::size_t i = 0; i < theme.arrows.size(); ++i)
    css += fmt::format(".a{0}{{stroke:{1}}}.h{0}{{fill:{1};stroke:{1}}}", i, theme.arrows[i]);
  return css + '\n';
}

std::string shade_colours(bool dark) {
  std::string css;
  for (int i = 0; i < kShades; ++i) {
    const double t = i / (kShades - 1.0);
    css += fmt::format(".q{0}{{stroke:{1}}}.d{0}{{stroke:{2}}}", i, sequential(t, dark),
                       diverging(2 * t - 1, dark));
  }
  return css + '\n';
}

}  // namespace

std::string picture_style(bool shades) {
  std::string css(kBase);
  css += colours(kLight) + (shades ? shade_colours(false) : "");
  css += "@media screen and (prefers-color-scheme:dark){\n";
  return css + colours(kDark) + (shades ? shade_colours(true) : "") + "}\n";
}

}  // namespace nestgrad::drawing

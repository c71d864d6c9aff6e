// The strokes of written characters, for models/images/glyphs.cpp. Not for use outside this folder.
#pragma once

#include <span>
#include <string_view>

namespace nestgrad::detail {

// A control point in a box that is 1 high, y downwards; most characters are 0.6 to 0.7 wide. A pen goes through the
// points of a stroke in smooth curves (Catmull and Rom's), and turns a corner where `corner` is set.
struct ControlPoint {
  double x, y;
  bool corner = false;
};
using Stroke = std::span<const ControlPoint>;

struct Character {
  std::string_view name;
  std::span<const Stroke> strokes;
};

// The digits 0 to 9, then letters that cannot be taken for one of them.
std::span<const Character> characters();

}  // namespace nestgrad::detail

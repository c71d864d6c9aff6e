#include "models/images/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/numerics/functions.h"

namespace nestgrad::detail {

Affine Affine::inverse() const {
  const double d = xx * yy - xy * yx;
  Affine out{yy / d, -xy / d, -yx / d, xx / d, 0, 0};
  out.x = -(out.xx * x + out.xy * y);
  out.y = -(out.yx * x + out.yy * y);
  return out;
}

Affine turned(double scale_x, double scale_y, double shear, double angle) {
  const double c = m::cos(angle), s = m::sin(angle);
  // Rotation times [scale_x, -shear scale_y; 0, scale_y].
  return {
      c * scale_x, -c * shear * scale_y - s * scale_y, s * scale_x, -s * shear * scale_y + c * scale_y, 0, 0};
}

double squared_distance(const std::vector<Point>& points, Point p) {
  double least = std::numeric_limits<double>::infinity();
  for (const Point& q : points)
    least = std::min(least, (p.x - q.x) * (p.x - q.x) + (p.y - q.y) * (p.y - q.y));
  return least;
}

Point free_place(Draws& draws, const std::vector<Point>& there, double size, double radius, double apart) {
  constexpr int kTries = 16;
  Point best{};
  double furthest = -1;
  for (int i = 0; i < kTries; ++i) {
    const Point p{draws.between(radius, size - radius), draws.between(radius, size - radius)};
    const double distance = squared_distance(there, p);
    if (furthest < apart * apart && distance > furthest) best = p, furthest = distance;
  }
  return best;
}

void check_options(const GlyphOptions& o, const char* who) {
  const auto check = [who](bool fine, const std::string& what) {
    if (!fine) throw ConfigError(fmt::format("[{}] {}", who, what));
  };
  check(o.size >= 8 && o.size <= 4096,
        fmt::format("size is {}: an image must be 8 to 4096 pixels high", o.size));
  check(o.distractors >= 0 && o.distractors <= 100,
        fmt::format("distractors is {}: there can be 0 to 100", o.distractors));
  check(
      0.1 <= o.smallest && o.smallest <= o.largest && o.largest <= 1,
      fmt::format(
          "smallest is {} and largest {}: heights of characters must be shares of the image, from 0.1 to 1, the "
          "smallest first",
          o.smallest, o.largest));
  check(
      0 < o.thinnest && o.thinnest <= o.thickest && o.thickest <= 0.5,
      fmt::format(
          "thinnest is {} and thickest {}: strokes must be shares of the image, above 0 and up to 0.5, the thinnest "
          "first",
          o.thinnest, o.thickest));
  check(0 <= o.rotation && o.rotation <= 3.2,
        fmt::format("rotation is {}; it must be 0 to 3.2 radians", o.rotation));
  check(0 <= o.shear && o.shear <= 1, fmt::format("shear is {}; it must be 0 to 1", o.shear));
  check(0 <= o.jitter && o.jitter <= 0.2,
        fmt::format("jitter is {}; it must be 0 to 0.2 of a character's height", o.jitter));
}

}  // namespace nestgrad::detail

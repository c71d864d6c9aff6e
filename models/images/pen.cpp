#include "models/images/pen.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/index.h"

namespace nestgrad::detail {

namespace {

constexpr int kSteps = 6;            // lines between two control points
constexpr double kHalfWidth = 0.34;  // of an average character, over its height
constexpr double kFar = 1e30;

// Catmull and Rom's curve through points 1 and 2, at t of the way, 0 to 1.
Point on_curve(const Point p[4], double t) {
  const auto at = [t](double a, double b, double c, double d) {
    return b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)));
  };
  return {at(p[0].x, p[1].x, p[2].x, p[3].x), at(p[0].y, p[1].y, p[2].y, p[3].y)};
}

// The way through the control points of a stroke; no curve reaches beyond a corner, or beyond an end.
Line way_of(std::span<const ControlPoint> stroke, const Line& moved) {
  Line out{moved[0]};
  for (std::size_t i = 0; i + 1 < moved.size(); ++i) {
    const bool begins = i == 0 || stroke[i].corner, ends = i + 2 == moved.size() || stroke[i + 1].corner;
    const Point p[4] = {moved[begins ? i : i - 1], moved[i], moved[i + 1], moved[ends ? i + 1 : i + 2]};
    for (int k = 1; k <= kSteps; ++k) out.push_back(on_curve(p, static_cast<double>(k) / kSteps));
  }
  return out;
}

}  // namespace

std::vector<Line> written(const Character& character, double jitter, Draws& draws) {
  const double wide = draws.between(0.85, 1.15);
  std::vector<Line> out;
  std::vector<std::pair<ControlPoint, Point>> seen;
  for (const Stroke& stroke : character.strokes) {
    Line moved;
    for (const ControlPoint& p : stroke) {
      const auto same =
          std::ranges::find_if(seen, [&](const auto& s) { return s.first.x == p.x && s.first.y == p.y; });
      const double dx = jitter * draws.normal(), dy = jitter * draws.normal();
      moved.push_back(same != seen.end() ? same->second
                                         : Point{wide * (p.x - kHalfWidth) + dx, p.y - 0.5 + dy});
      if (same == seen.end()) seen.emplace_back(p, moved.back());
    }
    out.push_back(way_of(stroke, moved));
  }
  return out;
}

Line transformed(const Affine& pose, const Line& line) {
  Line out;
  for (const Point& p : line) out.push_back(pose(p));
  return out;
}

double squared_distance_to_segment(Point p, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
  double t = length > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length : 0;
  t = std::clamp(t, 0.0, 1.0);
  const double x = a.x + t * dx - p.x, y = a.y + t * dy - p.y;
  return x * x + y * y;
}

Ink::Ink(std::int64_t size) : size_(size), squared_(uz(size * size), kFar) {}

void Ink::draw(const Line& line, double half, float* image) {
  std::ranges::fill(squared_, kFar);
  const double reach = half + 1;
  for (std::size_t i = 0; i + 1 < line.size(); ++i) {
    const Point a = line[i], b = line[i + 1];
    const std::int64_t left = bound(std::min(a.x, b.x) - reach), right = bound(std::max(a.x, b.x) + reach),
                       top = bound(std::min(a.y, b.y) - reach), bottom = bound(std::max(a.y, b.y) + reach);
    for (std::int64_t y = top; y < bottom; ++y)
      for (std::int64_t x = left; x < right; ++x) {
        const Point centre{static_cast<double>(x) + 0.5, static_cast<double>(y) + 0.5};
        double& least = squared_[uz(y * size_ + x)];
        least = std::min(least, squared_distance_to_segment(centre, a, b));
      }
  }
  for (std::size_t i = 0; i < squared_.size(); ++i) {
    if (squared_[i] == kFar) continue;
    const double cover = std::clamp(half + 0.5 - std::sqrt(squared_[i]), 0.0, 1.0);
    image[i] = std::max(image[i], static_cast<float>(cover));
  }
}

std::int64_t Ink::bound(double at) const {
  return std::clamp(static_cast<std::int64_t>(std::floor(at)), std::int64_t{0}, size_);
}

Posed posed(const std::vector<Line>& lines, const GlyphOptions& o, Draws& draws) {
  const double height = static_cast<double>(o.size) * draws.between(o.smallest, o.largest),
               lean = draws.around(o.shear);
  Posed out{.pose = turned(height, height, lean, draws.around(o.rotation))};
  for (const Line& line : lines)
    for (const Point& p : line) {
      const Point q = out.pose(p);
      out.left = std::min(out.left, q.x), out.right = std::max(out.right, q.x);
      out.top = std::min(out.top, q.y), out.bottom = std::max(out.bottom, q.y);
    }
  return out;
}

}  // namespace nestgrad::detail

#include "models/images/glyphs.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "models/images/canvas.h"
#include "models/images/glyph_table.h"

namespace nestgrad {

namespace {

using detail::Affine;
using detail::Character;
using detail::ControlPoint;
using detail::Draws;
using detail::Point;

constexpr std::uint32_t kOrder = 0x67'6c'79'01, kLook = 0x67'6c'79'02;  // purposes of draws
constexpr int kSteps = 6;                                               // lines between two control points
constexpr double kHalfWidth = 0.34;  // of an average character, over its height

using Line = std::vector<Point>;  // a pen's way, as points that lines join

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

// A character as a hand writes it, 1 high, its middle at 0. Points of different strokes that coincide are moved
// together.
std::vector<Line> written(const Character& character, double jitter, Draws& draws) {
  const double wide = draws.between(0.85, 1.15);
  std::vector<Line> out;
  std::vector<std::pair<ControlPoint, Point>> seen;
  for (const detail::Stroke& stroke : character.strokes) {
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

// Where ink may come to lie, and how near to it each pixel's centre is.
class Ink {
 public:
  explicit Ink(std::int64_t size) : size_(size), squared_(uz(size * size), kFar) {}

  // A stroke of half so many pixels' thickness. Ink is full up to the edge less half a pixel, and none from half a
  // pixel on.
  void draw(const Line& line, double half, float* image) {
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

 private:
  static constexpr double kFar = 1e30;
  std::int64_t bound(double at) const {
    return std::clamp(static_cast<std::int64_t>(std::floor(at)), std::int64_t{0}, size_);
  }
  std::int64_t size_;
  std::vector<double> squared_;
};

// Part of a stroke of another character, its middle at 0.
Line fragment(int label, const GlyphOptions& o, Draws& draws) {
  const int other = (label + 1 + draws.below(std::max(o.classes - 1, 1))) % o.classes;
  const std::vector<Line> lines = written(detail::characters()[uz(other)], o.jitter, draws);
  const Line& line = lines[uz(draws.below(static_cast<int>(lines.size())))];
  double length = 0;
  for (std::size_t i = 0; i + 1 < line.size(); ++i)
    length += std::sqrt(squared_distance_to_segment(line[i], line[i + 1], line[i + 1]));
  const double wanted = draws.between(0.35, 0.6), begin = draws.unit() * std::max(length - wanted, 0.0);
  Line out;
  double at = 0;
  for (std::size_t i = 0; i + 1 < line.size(); ++i) {
    at += std::sqrt(squared_distance_to_segment(line[i], line[i + 1], line[i + 1]));
    if (at >= begin && at <= begin + wanted) out.push_back(line[i + 1]);
  }
  if (out.size() < 2) out = {line[0], line[1]};
  Point middle{0, 0};
  for (const Point& p : out)
    middle.x += p.x / static_cast<double>(out.size()), middle.y += p.y / static_cast<double>(out.size());
  for (Point& p : out) p.x -= middle.x, p.y -= middle.y;
  return out;
}

// The pose of a character: where it can lie without leaving the image.
Affine pose_of(const std::vector<Line>& lines, const GlyphOptions& o, double half, Draws& draws) {
  const auto size = static_cast<double>(o.size);
  const double height = size * draws.between(o.smallest, o.largest), lean = draws.around(o.shear);
  Affine pose = detail::turned(height, height, lean, draws.around(o.rotation));
  double left = 1e9, right = -1e9, top = 1e9, bottom = -1e9;
  for (const Line& line : lines)
    for (const Point& p : line) {
      const Point q = pose(p);
      left = std::min(left, q.x), right = std::max(right, q.x), top = std::min(top, q.y),
      bottom = std::max(bottom, q.y);
    }
  const auto place = [&](double low,
                         double high) {  // a margin of half a pixel, or the middle where it does not fit
    const double from = half + 0.5 - low, to = size - half - 0.5 - high, u = draws.unit();
    return from < to ? from + (to - from) * u : 0.5 * (from + to);
  };
  pose.x = place(left, right), pose.y = place(top, bottom);
  return pose;
}

void draw_image(const GlyphOptions& o, std::int32_t label, std::uint64_t seed, std::uint64_t index,
                float* image) {
  const auto size = static_cast<double>(o.size);
  Draws draws(seed, kLook, index);
  Ink ink(o.size);
  const double half = 0.5 * size * draws.between(o.thinnest, o.thickest);
  const std::vector<Line> lines = written(detail::characters()[uz(label)], o.jitter, draws);
  const Affine pose = pose_of(lines, o, half, draws);
  std::vector<Point> there;
  for (const Line& line : lines) {
    const Line way = transformed(pose, line);
    ink.draw(way, half, image);
    there.insert(there.end(), way.begin(), way.end());
  }
  for (int i = 0; i < o.distractors; ++i) {
    const double height = size * draws.between(o.smallest, o.largest), lean = draws.around(o.shear);
    Affine at = detail::turned(height, height, lean, draws.around(3.14159));
    const Line line = fragment(label, o, draws);
    const Point place = detail::free_place(draws, there, size, 0.08 * size, 0.2 * size);
    at.x = place.x, at.y = place.y;
    const Line way = transformed(at, line);
    ink.draw(way, half, image);
    there.insert(there.end(), way.begin(), way.end());
  }
}

// Place of image `index` in its run of all classes.
std::int32_t label_of(int classes, std::uint64_t seed, std::uint64_t index) {
  const auto n = static_cast<std::uint64_t>(classes);
  Draws draws(seed, kOrder, index / n);
  std::vector<std::int32_t> order(uz(classes));
  std::iota(order.begin(), order.end(), 0);
  for (int i = classes - 1; i > 0; --i) std::swap(order[uz(i)], order[uz(draws.below(i + 1))]);
  return order[index % n];
}

}  // namespace

LabelledImages glyphs(const GlyphOptions& options, std::uint64_t seed, std::uint64_t first,
                      std::int64_t count) {
  detail::check_options(options, "glyphs");
  const auto most = static_cast<int>(detail::characters().size());
  if (options.classes < 1 || options.classes > most)
    throw ConfigError(
        fmt::format("[glyphs] there are 1 to {} classes; {} were asked for", most, options.classes));
  if (options.classes < 2 && options.distractors > 0)
    throw ConfigError(
        "[glyphs] distractors are of other classes; ask for two classes, or for no distractors");
  if (count < 0) throw ConfigError(fmt::format("[glyphs] {} images cannot be drawn", count));
  LabelledImages out;
  out.images = Array::zeros(DType::f32, {count, options.size, options.size, 1});
  out.labels = Array(DType::i32, {count});
  for (int c = 0; c < options.classes; ++c) out.classes.emplace_back(detail::characters()[uz(c)].name);
  float* const images = out.images.as<float>().data();
  std::int32_t* const labels = out.labels.as<std::int32_t>().data();
  in_parallel(static_cast<int>(count), thread_count(), [&](int i, int) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(i);
    labels[i] = label_of(options.classes, seed, index);
    draw_image(options, labels[i], seed, index, images + i * options.size * options.size);
  });
  return out;
}

}  // namespace nestgrad

#include "models/images/glyphs.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "models/images/canvas.h"
#include "models/images/pen.h"

namespace nestgrad {

namespace {

using detail::Affine;
using detail::Draws;
using detail::Ink;
using detail::Line;
using detail::Point;

constexpr std::uint32_t kOrder = 0x67'6c'79'01, kLook = 0x67'6c'79'02;  // purposes of draws

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
  detail::Posed at = detail::posed(lines, o, draws);
  // A margin of half a pixel, or the middle where it does not fit.
  const auto place = [&](double low, double high) {
    const double from = half + 0.5 - low, to = static_cast<double>(o.size) - half - 0.5 - high,
                 u = draws.unit();
    return from < to ? from + (to - from) * u : 0.5 * (from + to);
  };
  at.pose.x = place(at.left, at.right), at.pose.y = place(at.top, at.bottom);
  return at.pose;
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

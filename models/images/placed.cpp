// Digits of a data set on a larger ground (models/images/glyphs.h).
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "models/images/canvas.h"

namespace nestgrad {

namespace {

using detail::Affine;
using detail::Draws;
using detail::Point;

constexpr std::uint32_t kLook = 0x70'6c'61'01;  // purpose of draws
constexpr float kInk = 0.5f;                    // from here on a pixel belongs to a stroke
constexpr double kPiece = 0.21;                 // radius of a distractor, over the height of a digit
constexpr int kMostTries = 50;

// One image of the data set.
struct Digit {
  const float* pixels;
  std::int64_t height, width;
  double left, right, top, bottom;  // of its ink

  Digit(const float* from, std::int64_t rows, std::int64_t columns)
      : pixels(from), height(rows), width(columns) {
    left = static_cast<double>(columns), top = static_cast<double>(rows), right = 0, bottom = 0;
    for (std::int64_t y = 0; y < rows; ++y)
      for (std::int64_t x = 0; x < columns; ++x) {
        if (from[y * columns + x] < kInk) continue;
        left = std::min(left, static_cast<double>(x)), right = std::max(right, static_cast<double>(x + 1));
        top = std::min(top, static_cast<double>(y)), bottom = std::max(bottom, static_cast<double>(y + 1));
      }
    if (left >= right)
      left = 0, right = static_cast<double>(columns), top = 0, bottom = static_cast<double>(rows);
  }
  Point middle() const { return {0.5 * (left + right), 0.5 * (top + bottom)}; }

  // Between the centres of pixels; 0 outside.
  double at(Point p) const {
    const double fx = std::floor(p.x - 0.5), fy = std::floor(p.y - 0.5), tx = p.x - 0.5 - fx,
                 ty = p.y - 0.5 - fy;
    const auto x = static_cast<std::int64_t>(fx), y = static_cast<std::int64_t>(fy);
    const auto pixel = [&](std::int64_t row, std::int64_t column) {
      if (row < 0 || row >= height || column < 0 || column >= width) return 0.0;
      return static_cast<double>(pixels[row * width + column]);
    };
    const double above = pixel(y, x) + tx * (pixel(y, x + 1) - pixel(y, x)),
                 below = pixel(y + 1, x) + tx * (pixel(y + 1, x + 1) - pixel(y + 1, x));
    return above + ty * (below - above);
  }
};

// Puts what is within `radius` of `from` in the digit (all of it for an infinite one) onto the image: the mean of two
// by two samples of each pixel, or what is there, whichever is more.
void put(const Digit& digit, const Affine& pose, Point from, double radius, std::int64_t size, float* image) {
  const Affine back = pose.inverse();
  for (std::int64_t y = 0; y < size; ++y)
    for (std::int64_t x = 0; x < size; ++x) {
      double sum = 0;
      for (int sample = 0; sample < 4; ++sample) {
        const Point p = back({static_cast<double>(x) + (sample % 2 == 0 ? 0.25 : 0.75),
                              static_cast<double>(y) + (sample < 2 ? 0.25 : 0.75)});
        const Point q{p.x + from.x, p.y + from.y};
        if (p.x * p.x + p.y * p.y <= radius * radius) sum += digit.at(q);
      }
      float& pixel = image[y * size + x];
      const auto drawn = static_cast<float>(0.25 * sum);
      if (std::isnan(drawn) || drawn > pixel) pixel = drawn;  // a NaN of either stays
    }
}

class Placing {
 public:
  Placing(const LabelledImages& digits, const GlyphOptions& options, std::uint64_t seed)
      : options_(options),
        seed_(seed),
        images_(digits.images.as<float>()),
        labels_(digits.labels.as<std::int32_t>()),
        height_(digits.images.shape()[1]),
        width_(digits.images.shape()[2]) {}

  std::int32_t label(std::uint64_t index) const { return labels_[index % labels_.size()]; }

  void draw(std::uint64_t index, float* image) const {
    const auto size = static_cast<double>(options_.size);
    Draws draws(seed_, kLook, index);
    const Digit digit = this->digit(index % labels_.size());
    const double height = size * draws.between(options_.smallest, options_.largest),
                 scale = height / std::max(digit.bottom - digit.top, 0.7 * (digit.right - digit.left));
    Affine pose = detail::turned(scale, scale, 0, draws.around(options_.rotation));
    const double reach_x = 0.5 * (std::abs(pose.xx) * (digit.right - digit.left) +
                                  std::abs(pose.xy) * (digit.bottom - digit.top)),
                 reach_y = 0.5 * (std::abs(pose.yx) * (digit.right - digit.left) +
                                  std::abs(pose.yy) * (digit.bottom - digit.top));
    pose.x = place(draws, size, reach_x), pose.y = place(draws, size, reach_y);
    put(digit, pose, digit.middle(), 1e9, options_.size, image);

    std::vector<Point> there;
    for (std::int64_t i = 0; i < options_.size * options_.size; ++i)
      if (image[i] >= kInk)
        there.push_back(
            {static_cast<double>(i % options_.size) + 0.5, static_cast<double>(i / options_.size) + 0.5});
    for (int i = 0; i < options_.distractors; ++i)
      put_piece(label(index), scale, kPiece * height, there, draws, image);
  }

 private:
  Digit digit(std::size_t which) const {
    return {images_.data() + which * uz(height_ * width_), height_, width_};
  }
  static double place(Draws& draws, double size, double reach) {
    const double u = draws.unit();
    return reach < 0.5 * size ? reach + (size - 2 * reach) * u : 0.5 * size;
  }

  // A round piece of this radius, at the scale of the digit that it is to be mistaken for.
  void put_piece(std::int32_t label, double scale, double radius, std::vector<Point>& there, Draws& draws,
                 float* image) const {
    std::size_t other = 0;
    for (int tries = 0; tries < kMostTries; ++tries) {
      other = uz(draws.below(static_cast<int>(labels_.size())));
      if (labels_[other] != label) break;
    }
    while (labels_[other] == label) other = (other + 1) % labels_.size();
    const Digit digit = this->digit(other);
    Point from = digit.middle();  // or a point of a stroke
    for (int tries = 0; tries < kMostTries; ++tries) {
      const Point p{draws.between(digit.left, digit.right), draws.between(digit.top, digit.bottom)};
      if (digit.at(p) < static_cast<double>(kInk)) continue;
      from = p;
      break;
    }
    Affine pose = detail::turned(scale, scale, 0, draws.around(3.14159));
    const auto size = static_cast<double>(options_.size);
    const Point at = detail::free_place(draws, there, size, 0.8 * radius, 1.2 * radius + 0.04 * size);
    pose.x = at.x, pose.y = at.y;
    put(digit, pose, from, radius / scale, options_.size, image);
    there.push_back(at);
  }

  const GlyphOptions& options_;
  std::uint64_t seed_;
  std::span<const float> images_;
  std::span<const std::int32_t> labels_;
  std::int64_t height_, width_;
};

}  // namespace

LabelledImages placed(const LabelledImages& digits, const GlyphOptions& options, std::uint64_t seed,
                      std::uint64_t first, std::int64_t count) {
  detail::check_options(options, "placed");
  const Shape& shape = digits.images.shape();
  if (shape.size() != 4 || shape[3] != 1 || digits.images.size() == 0 ||
      digits.labels.shape() != Shape{shape[0]})
    throw ShapeError(
        fmt::format("[placed] the digits are {} with labels {}; need [n, height, width, 1] with [n]",
                    to_string(digits.images.spec()), to_string(digits.labels.spec())));
  if (count < 0) throw ConfigError(fmt::format("[placed] {} images cannot be drawn", count));
  const auto labels = digits.labels.as<std::int32_t>();
  if (options.distractors > 0 && std::ranges::all_of(labels, [&](std::int32_t l) { return l == labels[0]; }))
    throw ConfigError(
        "[placed] distractors are of other classes; give digits of two, or ask for no distractors");
  LabelledImages out{Array::zeros(DType::f32, {count, options.size, options.size, 1}),
                     Array(DType::i32, {count}), digits.classes};
  const Placing placing(digits, options, seed);
  float* const images = out.images.as<float>().data();
  std::int32_t* const to = out.labels.as<std::int32_t>().data();
  in_parallel(static_cast<int>(count), thread_count(), [&](int i, int) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(i);
    to[i] = placing.label(index);
    placing.draw(index, images + i * options.size * options.size);
  });
  return out;
}

}  // namespace nestgrad

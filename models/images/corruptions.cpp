#include "models/images/corruptions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "models/images/draws.h"
#include "models/images/resized.h"
#include "models/images/warp.h"
#include "ops/numerics/functions.h"

namespace nestgrad {

namespace {

using detail::Draws;
using detail::ImageSize;

constexpr std::uint32_t kPurpose = 0x63'6f'72'00, kAugmentation = 0x61'75'67'01;  // purposes of draws
constexpr double kSide = 28;  // pixels, in which blur is measured
using BySeverity = std::array<double, 5>;

float clipped(double v) { return static_cast<float>(std::clamp(v, 0.0, 1.0)); }

void add_noise(float* image, const ImageSize& size, double deviation, Draws& draws) {
  for (std::int64_t i = 0; i < size.numbers(); ++i)
    image[i] = clipped(static_cast<double>(image[i]) + deviation * draws.normal());
}

void move_to_grey(float* image, const ImageSize& size, double left) {
  for (std::int64_t i = 0; i < size.numbers(); ++i)
    image[i] = clipped(0.5 + left * (static_cast<double>(image[i]) - 0.5));
}

// One way along rows or columns: lines of `count` pixels, `step` numbers apart. Beyond the ends as the ends.
void blur_line(float* line, std::int64_t count, std::int64_t step, const std::vector<double>& bell,
               std::vector<double>& before) {
  for (std::int64_t i = 0; i < count; ++i) before[uz(i)] = static_cast<double>(line[i * step]);
  const auto reach = static_cast<std::int64_t>(bell.size()) - 1;
  for (std::int64_t i = 0; i < count; ++i) {
    double sum = bell[0] * before[uz(i)];
    for (std::int64_t k = 1; k <= reach; ++k)
      sum += bell[uz(k)] *
             (before[uz(std::max<std::int64_t>(i - k, 0))] + before[uz(std::min(i + k, count - 1))]);
    line[i * step] = clipped(sum);
  }
}

void blur(float* image, const ImageSize& size, double deviation) {
  std::vector<double> bell{1};
  double total = 1;
  for (int k = 1; k <= 3 * deviation + 1; ++k) {
    bell.push_back(m::exp(-0.5 * k * k / (deviation * deviation)));
    total += 2 * bell.back();
  }
  for (double& weight : bell) weight /= total;
  std::vector<double> before(uz(std::max(size.height, size.width)));
  const std::int64_t row = size.width * size.channels;
  for (std::int64_t y = 0; y < size.height; ++y)
    for (std::int64_t c = 0; c < size.channels; ++c)
      blur_line(image + y * row + c, size.width, size.channels, bell, before);
  for (std::int64_t x = 0; x < row; ++x) blur_line(image + x, size.height, row, bell, before);
}

// fn(number, x, y) of every number, x and y the place of its pixel's centre as shares of width and height.
template <class Fn>
void at_every(float* image, const ImageSize& size, Fn fn) {
  for (std::int64_t row = 0; row < size.height; ++row)
    for (std::int64_t column = 0; column < size.width; ++column)
      for (std::int64_t c = 0; c < size.channels; ++c, ++image)
        *image = clipped(fn(static_cast<double>(*image),
                            (static_cast<double>(column) + 0.5) / static_cast<double>(size.width),
                            (static_cast<double>(row) + 0.5) / static_cast<double>(size.height)));
}

void invert(float* image, const ImageSize& size, double share, Draws& draws) {
  const int side = draws.below(4);
  at_every(image, size, [&](double v, double x, double y) {
    const double from_side = side == 0 ? x : side == 1 ? 1 - x : side == 2 ? y : 1 - y;
    return from_side < share ? 1 - v : v;
  });
}

void shear(float* image, const ImageSize& size, double slope, Draws& draws) {
  const std::vector<float> before(image, image + size.numbers());
  detail::Affine back;
  const double lean = draws.below(2) == 0 ? slope : -slope;
  (draws.below(2) == 0 ? back.xy : back.yx) = lean;
  warp(before.data(), size,
       around(back, {0.5 * static_cast<double>(size.width), 0.5 * static_cast<double>(size.height)}), image);
}

void occlude(float* image, const ImageSize& size, double side, Draws& draws) {
  const double shorter = static_cast<double>(std::min(size.height, size.width));
  const double wide = side * shorter / static_cast<double>(size.width),
               high = side * shorter / static_cast<double>(size.height);
  // The share of the room that is left of it is the same at all severities, and so the square grows on all sides.
  const double left = draws.unit() * (1 - wide), top = draws.unit() * (1 - high);
  at_every(image, size, [&](double v, double x, double y) {
    return x >= left && x < left + wide && y >= top && y < top + high ? 0.5 : v;
  });
}

void fog(float* image, const ImageSize& size, double most, Draws& draws) {
  double cosine, sine;
  cos_sin_of_turns(draws.unit(), cosine, sine);
  const double reach = 0.5 * (std::abs(cosine) + std::abs(sine));
  at_every(image, size, [&](double v, double x, double y) {
    const double t = 0.5 + 0.5 * ((x - 0.5) * cosine + (y - 0.5) * sine) / reach;
    return v + most * t * (1 - v);
  });
}

void enlarge_pixels(float* image, const ImageSize& size, std::int64_t blocks) {
  Array whole(DType::f32, {size.height, size.width, size.channels});
  std::copy_n(image, size.numbers(), whole.as<float>().data());
  const std::int64_t rows = std::min(blocks, size.height), columns = std::min(blocks, size.width);
  const Array few = resized(whole, rows, columns);
  const float* const from = few.as<float>().data();
  for (std::int64_t y = 0; y < size.height; ++y)
    for (std::int64_t x = 0; x < size.width; ++x)
      for (std::int64_t c = 0; c < size.channels; ++c) {
        // The block of the pixel's centre.
        const std::int64_t row = (2 * y + 1) * rows / (2 * size.height),
                           column = (2 * x + 1) * columns / (2 * size.width);
        *image++ = clipped(static_cast<double>(from[(row * columns + column) * size.channels + c]));
      }
}

void corrupt(float* image, const ImageSize& size, Corruption corruption, std::size_t s, Draws& draws) {
  switch (corruption) {
    case Corruption::noise:
      return add_noise(image, size, BySeverity{0.08, 0.14, 0.21, 0.3, 0.4}[s], draws);
    case Corruption::blur:
      return blur(image, size,
                  BySeverity{0.6, 0.9, 1.3, 1.8, 2.4}[s] / kSide *
                      static_cast<double>(std::min(size.height, size.width)));
    case Corruption::low_contrast:
      return move_to_grey(image, size, BySeverity{0.7, 0.5, 0.36, 0.24, 0.15}[s]);
    case Corruption::inverted_ground:
      return invert(image, size, BySeverity{0.2, 0.4, 0.6, 0.8, 1}[s], draws);
    case Corruption::shear:
      return shear(image, size, BySeverity{0.15, 0.3, 0.45, 0.6, 0.75}[s], draws);
    case Corruption::occlusion:
      return occlude(image, size, BySeverity{0.15, 0.22, 0.3, 0.37, 0.45}[s], draws);
    case Corruption::fog_ramp:
      return fog(image, size, BySeverity{0.3, 0.45, 0.6, 0.78, 0.95}[s], draws);
    case Corruption::pixels:
      return enlarge_pixels(image, size, std::array<std::int64_t, 5>{14, 11, 9, 7, 6}[s]);
  }
}

ImageSize checked_size(const char* who, const Array& images) {
  if (images.dtype() != DType::f32)
    throw DTypeError(fmt::format("[{}] the images are {}; cast them to f32", who, to_string(images.spec())));
  const Shape& s = images.shape();
  if (s.size() != 4 || s[1] < 1 || s[2] < 1 || s[3] < 1)
    throw ShapeError(fmt::format("[{}] the images are {}; need [count, height, width, channels]", who,
                                 to_string(images.spec())));
  return {s[1], s[2], s[3]};
}

// A copy of the images of which fn(image, number) changes each, in parallel.
template <class Fn>
Array changed(const Array& images, const ImageSize& size, std::uint64_t first, Fn fn) {
  Array out = images.clone();
  float* const to = out.as<float>().data();
  in_parallel(static_cast<int>(images.shape()[0]), thread_count(),
              [&](int i, int) { fn(to + i * size.numbers(), first + static_cast<std::uint64_t>(i)); });
  return out;
}

}  // namespace

const std::vector<CorruptionRow>& corruptions() {
  static const auto& rows =
      *new std::vector<CorruptionRow>{{Corruption::noise, "noise", "noise"},
                                      {Corruption::blur, "blur", "blur"},
                                      {Corruption::low_contrast, "low_contrast", "low contrast"},
                                      {Corruption::inverted_ground, "inverted_ground", "inverted ground"},
                                      {Corruption::shear, "shear", "shear"},
                                      {Corruption::occlusion, "occlusion", "occlusion"},
                                      {Corruption::fog_ramp, "fog_ramp", "fog ramp"},
                                      {Corruption::pixels, "pixels", "pixels"}};
  return rows;
}

std::string_view name(Corruption corruption) {
  return std::ranges::find(corruptions(), corruption, &CorruptionRow::corruption)->name;
}

Corruption corruption_named(std::string_view name) {
  const auto at = std::ranges::find(corruptions(), name, &CorruptionRow::name);
  if (at != corruptions().end()) return at->corruption;
  std::string names;
  for (const CorruptionRow& row : corruptions())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  throw ConfigError(fmt::format("[corruption] there is no '{}'; need one of {}", name, names));
}

Array corrupted(const Array& images, Corruption corruption, int severity, std::uint64_t seed,
                std::uint64_t first) {
  const ImageSize size = checked_size("corrupted", images);
  if (severity < 1 || severity > 5)
    throw ConfigError(fmt::format("[corrupted] severities are 1 to 5; {} was asked for", severity));
  return changed(images, size, first, [&](float* image, std::uint64_t number) {
    Draws draws(seed, kPurpose + static_cast<std::uint32_t>(corruption), number);
    corrupt(image, size, corruption, static_cast<std::size_t>(severity - 1), draws);
  });
}

Array augmented(const Array& images, std::uint64_t seed, std::uint64_t first, const Augmentation& how) {
  const ImageSize size = checked_size("augmented", images);
  for (const auto& [value, below, what] : {std::tuple{how.shift, 1.0, "shift"},
                                           {how.rotation, 3.2, "rotation"},
                                           {how.scale, 1.0, "scale"},
                                           {how.contrast, 1.0, "contrast"},
                                           {how.noise, 10.0, "noise"}})
    if (!(value >= 0 && value < below))
      throw ConfigError(
          fmt::format("[augmented] {} must be from 0 to below {}; it is {}", what, below, value));
  const double shorter = static_cast<double>(std::min(size.height, size.width));
  return changed(images, size, first, [&](float* image, std::uint64_t number) {
    Draws draws(seed, kAugmentation, number);
    const std::vector<float> before(image, image + size.numbers());
    const double scale = 1 / (1 + draws.around(how.scale));
    detail::Affine back =
        around(detail::turned(scale, scale, 0, draws.around(how.rotation)),
               {0.5 * static_cast<double>(size.width), 0.5 * static_cast<double>(size.height)});
    back.x += shorter * draws.around(how.shift);
    back.y += shorter * draws.around(how.shift);
    warp(before.data(), size, back, image);
    move_to_grey(image, size, 1 + draws.around(how.contrast));
    if (how.noise > 0) add_noise(image, size, how.noise, draws);
  });
}

Array repeated(const Array& image, std::int64_t n) {
  if (image.shape().size() != 3 || n < 0)
    throw ShapeError(
        fmt::format("[repeated] {} times {}; need [height, width, channels]", n, to_string(image.spec())));
  Array out(image.dtype(), {n, image.shape()[0], image.shape()[1], image.shape()[2]});
  std::byte* to = out.data();
  for (std::int64_t i = 0; i < n; ++i) to = std::copy_n(image.data(), image.bytes(), to);
  return out;
}

}  // namespace nestgrad

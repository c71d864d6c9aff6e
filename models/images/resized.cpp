#include "models/images/resized.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/core/index.h"
#include "engine/core/threads.h"

namespace nestgrad {

namespace {

// An output pixel is the sum of weights[i] times input pixel first + i.
struct Taps {
  std::int64_t first;
  std::vector<double> weights;
};

std::vector<Taps> taps(std::int64_t from, std::int64_t to) {
  std::vector<Taps> out;
  for (std::int64_t j = 0; j < to; ++j) {
    if (to <= from) {  // lengths in units of 1 / to: input pixels have `to`, output pixels `from`
      const std::int64_t begin = j * from, end = begin + from;
      Taps one{begin / to, {}};
      for (std::int64_t i = one.first; i * to < end; ++i)
        one.weights.push_back(static_cast<double>(std::min(end, (i + 1) * to) - std::max(begin, i * to)) /
                              static_cast<double>(from));
      out.push_back(std::move(one));
    } else {  // the centre of the output pixel in units of 1 / (2 to), from the centre of the first
      const std::int64_t centre = std::clamp((2 * j + 1) * from - to, std::int64_t{0}, 2 * to * (from - 1));
      const double share = static_cast<double>(centre % (2 * to)) / static_cast<double>(2 * to);
      Taps one{centre / (2 * to), {1 - share}};
      if (share > 0) one.weights.push_back(share);
      out.push_back(std::move(one));
    }
  }
  return out;
}

}  // namespace

Array resized(const Array& images, std::int64_t height, std::int64_t width) {
  const Shape& shape = images.shape();
  if (images.dtype() != DType::f32)
    throw DTypeError(fmt::format("[resized] the images are {}; cast them to f32", to_string(images.spec())));
  if (shape.size() < 3 || images.size() == 0 || height < 1 || width < 1)
    throw ShapeError(
        fmt::format("[resized] {} to {} x {}; need [.., height, width, channels], nothing of it 0",
                    to_string(images.spec()), height, width));
  const std::size_t axis = shape.size() - 3;
  const std::int64_t rows = shape[axis], columns = shape[axis + 1], channels = shape[axis + 2];
  Shape out_shape = shape;
  out_shape[axis] = height, out_shape[axis + 1] = width;
  Array out(DType::f32, out_shape);
  const std::vector<Taps> down = taps(rows, height), across = taps(columns, width);
  const float* const from = images.as<float>().data();
  float* const to = out.as<float>().data();

  const auto resize = [&](int image, int) {
    const float* const in = from + image * rows * columns * channels;
    float* at = to + image * height * width * channels;
    std::vector<double> row(uz(columns * channels));  // of the output's rows, the input's columns
    for (const Taps& y : down) {
      std::ranges::fill(row, 0.0);
      for (std::size_t i = 0; i < y.weights.size(); ++i) {
        const float* const line = in + (y.first + static_cast<std::int64_t>(i)) * columns * channels;
        for (std::size_t k = 0; k < row.size(); ++k) row[k] += y.weights[i] * static_cast<double>(line[k]);
      }
      for (const Taps& x : across)
        for (std::int64_t c = 0; c < channels; ++c) {
          double sum = 0;
          for (std::size_t i = 0; i < x.weights.size(); ++i)
            sum += x.weights[i] * row[uz((x.first + static_cast<std::int64_t>(i)) * channels + c)];
          *at++ = static_cast<float>(sum);
        }
    }
  };
  in_parallel(static_cast<int>(images.size() / (rows * columns * channels)), thread_count(), resize);
  return out;
}

}  // namespace nestgrad

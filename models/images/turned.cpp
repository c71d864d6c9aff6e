#include "models/images/turned.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/index.h"

namespace nestgrad {

Array turned(const Array& images, const Array& quarters) {
  if (images.dtype() != DType::f32 || quarters.dtype() != DType::i32)
    throw DTypeError(fmt::format("[turned] images are {}, quarters {}; they must be f32 and i32",
                                 to_string(images.spec()), to_string(quarters.spec())));
  const Shape& shape = images.shape();
  if (shape.size() != 4 || shape[1] != shape[2] || quarters.shape() != Shape{shape[0]})
    throw ShapeError(
        fmt::format("[turned] images are {}, quarters {}; they must be [n, size, size, channels] and [n]",
                    to_string(images.spec()), to_string(quarters.spec())));
  const std::int64_t size = shape[1], channels = shape[3];
  Array out(DType::f32, shape);
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    const std::int32_t turns = quarters.as<std::int32_t>()[uz(i)];
    if (turns < 0 || turns > 3)
      throw ValueError(
          fmt::format("[turned] image {} is to be turned by {} quarters; there are 0 to 3", i, turns));
    for (std::int64_t y = 0; y < size; ++y)
      for (std::int64_t x = 0; x < size; ++x) {
        // Which pixel comes to (y, x): the first column becomes the last row, read from the top.
        std::int64_t from_y = y, from_x = x;
        for (std::int32_t t = 0; t < turns; ++t) {
          const std::int64_t row = from_y;
          from_y = from_x, from_x = size - 1 - row;
        }
        for (std::int64_t c = 0; c < channels; ++c)
          out.as<float>()[uz(((i * size + y) * size + x) * channels + c)] =
              images.as<float>()[uz(((i * size + from_y) * size + from_x) * channels + c)];
      }
  }
  return out;
}

}  // namespace nestgrad

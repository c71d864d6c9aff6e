// Images under affine maps. Not for use outside this folder.
#pragma once

#include <algorithm>
#include <cstdint>

#include "models/images/canvas.h"

namespace nestgrad::detail {

struct ImageSize {
  std::int64_t height, width, channels;
  std::int64_t numbers() const { return height * width * channels; }
};

// to(p) = from(back(p)) for the centre p of each pixel: linear between centres of pixels; beyond an edge as the edge.
inline void warp(const float* from, const ImageSize& size, const Affine& back, float* to) {
  for (std::int64_t row = 0; row < size.height; ++row)
    for (std::int64_t column = 0; column < size.width; ++column) {
      const Point p = back({static_cast<double>(column) + 0.5, static_cast<double>(row) + 0.5});
      const double x = std::clamp(p.x - 0.5, 0.0, static_cast<double>(size.width - 1)),
                   y = std::clamp(p.y - 0.5, 0.0, static_cast<double>(size.height - 1));
      const auto left = static_cast<std::int64_t>(x), top = static_cast<std::int64_t>(y);
      const std::int64_t right = std::min(left + 1, size.width - 1),
                         bottom = std::min(top + 1, size.height - 1);
      const double tx = x - static_cast<double>(left), ty = y - static_cast<double>(top);
      const auto at = [&](std::int64_t r, std::int64_t c, std::int64_t channel) {
        return static_cast<double>(from[(r * size.width + c) * size.channels + channel]);
      };
      for (std::int64_t c = 0; c < size.channels; ++c) {
        const double above = at(top, left, c) + tx * (at(top, right, c) - at(top, left, c)),
                     below = at(bottom, left, c) + tx * (at(bottom, right, c) - at(bottom, left, c));
        *to++ = static_cast<float>(above + ty * (below - above));
      }
    }
}

// Of a map that is to leave this point where it is: p -> map(p - middle) + middle.
inline Affine around(Affine map, Point middle) {
  map.x += middle.x - (map.xx * middle.x + map.xy * middle.y);
  map.y += middle.y - (map.yx * middle.x + map.yy * middle.y);
  return map;
}

}  // namespace nestgrad::detail

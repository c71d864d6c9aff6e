// Numbers of one element type as another.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>

#include "engine/core/array.h"
#include "engine/core/error.h"
#include "ops/numerics/number.h"

namespace nestgrad {

// v rounded to nearest, or towards zero where To is i32. ValueError, in the name of `who`, for NaN and
// numbers that no i32 is near to.
template <class To, class From>
To converted(From v, std::string_view who) {
  if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>)
    if (!has_i32(v))
      throw ValueError(fmt::format("[{}] {} is no i32, which goes from -2147483648 to 2147483647", who,
                                   static_cast<double>(v)));
  return static_cast<To>(v);
}

// The largest finite number of a floating type.
inline double largest_finite(DType dtype) {
  return dtype == DType::f32 ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
}

// Is it finite, and infinite as an f32?
inline bool is_beyond_f32(double v) { return std::isfinite(v) && std::isinf(static_cast<float>(v)); }

// As converted(), for a number that a user wrote: ValueError too if it has a fraction and To is i32, or is beyond the largest f32.
template <class To>
To exactly(double v, std::string_view who) {
  const To t = converted<To>(v, who);
  if constexpr (std::is_integral_v<To>)
    if (t != v) throw ValueError(fmt::format("[{}] {} is no i32, but lies between two", who, v));
  if constexpr (std::is_same_v<To, float>)
    if (is_beyond_f32(v)) throw ValueError(fmt::format("[{}] {} is no f32, which ends at 3.4e38", who, v));
  return t;
}

}  // namespace nestgrad

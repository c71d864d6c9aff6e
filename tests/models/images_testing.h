// What tests of drawn images share.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "engine/core/array.h"
#include "engine/core/hash.h"

namespace nestgrad::testing {

// FNV-1a of the bytes.
inline std::string digest(const Array& a) {
  return fmt::format("{:016x}", fnv1a(std::span(reinterpret_cast<const std::uint8_t*>(a.data()), a.bytes())));
}

// Rows begin to end of the first axis.
inline Array rows(const Array& a, std::int64_t begin, std::int64_t end) {
  Shape shape = a.shape();
  const std::size_t bytes = a.bytes() / static_cast<std::size_t>(shape[0]);
  shape[0] = end - begin;
  Array out(a.dtype(), shape);
  std::copy(a.data() + static_cast<std::size_t>(begin) * bytes,
            a.data() + static_cast<std::size_t>(end) * bytes, out.data());
  return out;
}

inline double sum_of(const Array& a) {
  double sum = 0;
  for (const double v : a.to_vector()) sum += v;
  return sum;
}

inline void check_in_unit(const Array& a) {
  const std::vector<double> values = a.to_vector();
  CHECK(std::ranges::all_of(values, [](double v) { return v >= 0 && v <= 1; }));
}

}  // namespace nestgrad::testing

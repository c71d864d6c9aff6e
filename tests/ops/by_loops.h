// What naive loops over indices need.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/grad.h"
#include "engine/core/index.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "tests/ops/sweep.h"

namespace nestgrad::testing {

inline Array call(const TraceFn& fn, const std::vector<Array>& x) {
  std::vector<Spec> specs;
  for (const Array& a : x) specs.push_back(a.spec());
  return trace(fn, specs)(x).at(0);
}
template <class Fn>
Array call1(Fn fn, const Array& x) {
  return trace(fn, x.spec())(x);
}

using Index = std::vector<std::int64_t>;

inline Index unravel(std::int64_t flat, const Shape& shape) {
  Index out(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; flat /= shape[d]) out[d] = flat % shape[d];
  return out;
}

// The element of a that index means, its last axes aligned with a's; extents of 1 repeat.
inline double at(const Array& a, const Index& index) {
  std::int64_t flat = 0;
  const std::size_t skip = index.size() - a.shape().size();
  for (std::size_t d = 0; d < a.shape().size(); ++d)
    flat = flat * a.shape()[d] + (a.shape()[d] == 1 ? 0 : index[skip + d]);
  return a.at(flat);
}

// An array whose element at each index is value(index).
template <class Value>
Array filled(DType dtype, const Shape& shape, Value value) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < numel(shape); ++i) values.push_back(value(unravel(i, shape)));
  return Array::of(values, shape, dtype);
}

inline bool equal_arrays(const Array& a, const Array& b) { return difference(a, b) == 0; }

}  // namespace nestgrad::testing

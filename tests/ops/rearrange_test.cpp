// Ops that move, choose or count elements, against what their documentation says.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "autograd/grad.h"
#include "ops/ops.h"
#include "tests/ops/sweep.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

template <class Fn>
Array call1(Fn fn, const Array& x) {
  return trace(fn, x.spec())(x);
}
template <class Fn>
Array leaf(Fn fn) {
  return trace([&](const std::vector<Tensor>&) { return std::vector<Tensor>{fn()}; },
               {})(std::vector<Array>{})[0];
}

// 0, 1, 2, .. in the given shape.
Array counting(const Shape& shape, DType dtype = DType::f64) {
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  std::iota(values.begin(), values.end(), 0.0);
  return Array::of(values, shape, dtype);
}

using V = std::vector<double>;

}  // namespace

TEST_CASE("slice and pad take and surround ranges of any axis") {
  for (const DType dtype : {DType::f32, DType::f64, DType::i32}) {
    const Array x = counting({2, 3, 2}, dtype);
    CHECK(call1([](Tensor t) { return slice(t, 1, 1, 3); }, x).to_vector() == V{2, 3, 4, 5, 8, 9, 10, 11});
    CHECK(call1([](Tensor t) { return slice(t, -1, 1, 2); }, x).to_vector() == V{1, 3, 5, 7, 9, 11});
    CHECK(call1([](Tensor t) { return slice(t, 0, 1, 2); }, x).to_vector() == V{6, 7, 8, 9, 10, 11});
    CHECK(call1([](Tensor t) { return slice(t, 0, 1, 1); }, x).shape() == Shape{0, 3, 2});
    CHECK(call1([](Tensor t) { return pad(slice(t, 1, 1, 2), 1, 1, 2); }, x).to_vector() ==
          V{0, 0, 2, 3, 0, 0, 0, 0, 0, 0, 8, 9, 0, 0, 0, 0});
    CHECK(call1([](Tensor t) { return pad(slice(t, 0, 1, 1), 0, 1, 0); }, x).to_vector() == V(6, 0.0));
  }
}

TEST_CASE("permute, reshape and broadcast_to move elements where they say") {
  const Array x = counting({2, 3, 4});
  // Also of more elements than are moved at once, in both sizes of an element.
  for (const Array& from :
       {x, counting({2, 19, 3, 35}), counting({37, 2, 50}, DType::f32), counting({600, 700}, DType::f32)}) {
    const Shape strides = strides_of(from.shape());
    std::vector<int> order(from.shape().size());
    for (std::iota(order.begin(), order.end(), 0);;) {
      const Array y = call1([&](Tensor t) { return permute(t, order); }, from);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < y.size(); ++i) {
        std::int64_t source = 0, rest = i;
        for (std::size_t d = order.size(); d-- > 0; rest /= y.shape()[d])
          source += rest % y.shape()[d] * strides[static_cast<std::size_t>(order[d])];
        wrong += y.at(i) != static_cast<double>(source);
      }
      CHECK(wrong == 0);
      if (!std::ranges::next_permutation(order).found) break;
    }
  }
  CHECK(call1([](Tensor t) { return transpose(t); }, counting({2, 2, 2})).to_vector() ==
        V{0, 2, 1, 3, 4, 6, 5, 7});
  CHECK(call1([](Tensor t) { return reshape(t, {4, -1}); }, x).same_bits(x.reshaped({4, 6})));
  CHECK(call1(
            [](Tensor t) {
              return broadcast_to(t, {2, 2, 3});
            },
            counting({2, 1}))
            .to_vector() == V{0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1});
  CHECK(call1([](Tensor t) { return broadcast_to(t, {2, 0, 3}); }, counting({1, 3})).size() == 0);
}

TEST_CASE("sum_to undoes a broadcast") {
  const Array x = counting({2, 2, 3});
  CHECK(call1([](Tensor t) { return sum_to(t, {2, 2, 3}); }, x).same_bits(x));
  CHECK(call1([](Tensor t) { return sum_to(t, {2, 3}); }, x).to_vector() == V{6, 8, 10, 12, 14, 16});
  CHECK(call1([](Tensor t) { return sum_to(t, {2, 1}); }, x).to_vector() == V{24, 42});
  CHECK(call1([](Tensor t) { return sum_to(t, {2, 1, 1}); }, x).to_vector() == V{15, 51});
  CHECK(call1([](Tensor t) { return sum_to(t, {}); }, x).item() == 66);
}

TEST_CASE("concat joins any number of parts, and each part gets its own derivative") {
  for (const int parts : {1, 2, 32, 33, 64, 65, 200, 1100}) {
    CAPTURE(parts);
    const std::int64_t n = parts;
    const Array x = counting({2, 2 * n});
    const auto pieces = [&](Tensor t) {
      std::vector<Tensor> out;
      for (std::int64_t i = 0; i < n; ++i) out.push_back(slice(t, 1, 2 * (n - 1 - i), 2 * (n - i)));
      return out;
    };
    const Array y = call1([&](Tensor t) { return concat(pieces(t), -1); }, x);
    bool right = y.shape() == x.shape();
    for (std::int64_t i = 0; right && i < y.size(); ++i) {
      const std::int64_t row = i / (2 * n), column = i % (2 * n);
      right = y.at(i) == static_cast<double>(row * 2 * n + 2 * (n - 1 - column / 2) + column % 2);
    }
    CHECK(right);
    if (parts > 200) continue;
    const Array g = call1([&](Tensor t) { return grad(sum(square(concat(pieces(t), 1))), t); }, x);
    bool twice = true;
    for (std::int64_t i = 0; i < g.size(); ++i) twice = twice && g.at(i) == 2 * x.at(i);
    CHECK(twice);
  }
}

TEST_CASE("tril keeps what its diagonal says") {
  const Array x = call1([](Tensor t) { return t + 1.0; }, counting({2, 3, 4}));
  for (int diagonal = -4; diagonal <= 5; ++diagonal) {
    const Array y = call1([&](Tensor t) { return tril(t, diagonal); }, x);
    for (std::int64_t i = 0; i < y.size(); ++i)
      CHECK(y.at(i) == (i % 4 <= i / 4 % 3 + diagonal ? x.at(i) : 0));
  }
  // What is cut off is gone, whatever it was.
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(call1([](Tensor t) { return tril(t); }, Array::of({1, inf, 2, 3}, {2, 2})).to_vector() ==
        V{1, 0, 2, 3});
}

TEST_CASE("iota counts along its axis, cumsum adds up from either end") {
  CHECK(leaf([] { return iota(DType::i32, {2, 3}, 1); }).to_vector() == V{0, 1, 2, 0, 1, 2});
  CHECK(leaf([] { return iota(DType::f32, {2, 3}, 0); }).to_vector() == V{0, 0, 0, 1, 1, 1});
  CHECK(leaf([] { return iota(DType::f64, {2, 2, 2}, -2); }).to_vector() == V{0, 0, 1, 1, 0, 0, 1, 1});
  CHECK(leaf([] { return iota(DType::i32, {0, 3}, 1); }).size() == 0);
  CHECK_THROWS_AS(leaf([] { return iota(DType::i32, {2}, 1); }), ShapeError);
  // A negative extent of what has no operands: nothing stands behind the shape but the line.
  const auto refused = [&](const auto& make) { return message_of<ShapeError>([&] { leaf(make); }); };
  CHECK(contains(refused([] { return eye(DType::f64, -3); }),
                 "[eye: iota] negative extent in f64[-3,-3] (at "));
  for (const DType dtype : {DType::f32, DType::f64, DType::i32}) {
    const Array x = counting({2, 3}, dtype);
    CHECK(call1([](Tensor t) { return cumsum(t, 1); }, x).to_vector() == V{0, 1, 3, 3, 7, 12});
    CHECK(call1([](Tensor t) { return cumsum(t, 1, true); }, x).to_vector() == V{3, 3, 2, 12, 9, 5});
    CHECK(call1([](Tensor t) { return cumsum(t, 0); }, x).to_vector() == V{0, 1, 2, 3, 5, 7});
    // More lines than are added up side by side.
    const Array wide = counting({3, 70, 131}, dtype);
    for (const bool reverse : {false, true})
      for (int axis = 0; axis < 3; ++axis) {
        const Array y = call1([&](Tensor t) { return cumsum(t, axis, reverse); }, wide);
        const std::int64_t extent = wide.shape()[static_cast<std::size_t>(axis)],
                           stride = strides_of(wide.shape())[static_cast<std::size_t>(axis)];
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < y.size(); ++i) {
          const std::int64_t place = i / stride % extent, before = reverse ? extent - 1 - place : place;
          double sum = 0;
          for (std::int64_t k = before; k >= 0; --k) sum += wide.at(i + (reverse ? k : -k) * stride);
          wrong += y.at(i) != sum;
        }
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE("cast rounds as documented, and derivatives come back in the type of the input") {
  const Array x = Array::of({1.7, -1.7, 0.1, 3}, {4});
  CHECK(call1([](Tensor t) { return cast(t, DType::i32); }, x).to_vector() == V{1, -1, 0, 3});
  CHECK(call1([](Tensor t) { return cast(t, DType::f32); }, x).at(2) == static_cast<double>(0.1f));
  CHECK(call1([](Tensor t) { return cast(t, DType::f64); }, counting({3}, DType::i32))
            .same_bits(counting({3})));
  const Array g =
      call1([](Tensor t) { return grad(sum(square(cast(t, DType::f64))), t); }, x.cast(DType::f32));
  CHECK(g.dtype() == DType::f32);
  CHECK(g.at(3) == 6);
  CHECK_THROWS_WITH_AS(call1([](Tensor t) { return grad(sum(cast(cast(t, DType::i32), DType::f64)), t); }, x),
                       doctest::Contains("integer"), GradError);
}

TEST_CASE("reductions, slices and casts accept a scalar or an empty array") {
  const Array one = Array::scalar(3);
  CHECK(call1([](Tensor t) { return sum(t); }, one).item() == 3);
  CHECK(call1([](Tensor t) { return mean(t); }, one).item() == 3);
  CHECK(call1([](Tensor t) { return max(t, {}, false); }, one).item() == 3);
  CHECK(call1([](Tensor t) { return permute(t, {}); }, one).item() == 3);
  CHECK(call1([](Tensor t) { return grad(sum(square(t)), t); }, one).item() == 6);
  const Array none = Array::zeros(DType::f64, {0, 3});
  CHECK(call1([](Tensor t) { return sum(t); }, none).item() == 0);
  CHECK(call1([](Tensor t) { return sum(t, {0}); }, none).to_vector() == V{0, 0, 0});
  CHECK(call1([](Tensor t) { return exp(t) * 2.0 + t; }, none).size() == 0);
  CHECK(call1([](Tensor t) { return grad(sum(square(t)), t); }, none).shape() == Shape{0, 3});
  CHECK(call1([](Tensor t) { return tril(t); }, none).size() == 0);
  CHECK(call1([](Tensor t) { return cumsum(t, 0); }, none).size() == 0);
}

TEST_CASE("arrays of more axes than the loops are made for are refused, not mishandled") {
  Shape shape(24, 1);
  for (std::size_t d = 0; d < shape.size(); d += 2) shape[d] = 2;  // 12 axes that do not merge: fine
  const Array x = uniform({DType::f64, shape}, 3);
  std::vector<int> order(shape.size());
  std::iota(order.rbegin(), order.rend(), 0);
  const Array back = call1([&](Tensor t) { return permute(exp(permute(t, order)) * 1.5, order); }, x);
  CHECK(back.same_bits(call1([](Tensor t) { return exp(t) * 1.5; }, x)));
  const Shape too_many(18, 2);
  std::vector<int> reversed(too_many.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const Array y = uniform({DType::f32, too_many}, 3);
  CHECK_THROWS_WITH_AS(call1([&](Tensor t) { return permute(t, reversed); }, y),
                       doctest::Contains("more than 16 axes"), ShapeError);
  Shape even, odd, both(36, 2);
  for (int d = 0; d < 36; ++d) even.push_back(d % 2 ? 1 : 2), odd.push_back(d % 2 ? 2 : 1);
  const Spec in[] = {{DType::f64, even}, {DType::f64, odd}};
  const Op& add_op = *find_op("add");
  const Attrs none;
  CHECK_THROWS_WITH_AS(add_op.cpu({add_op, in, none, {DType::f64, both}}),
                       doctest::Contains("more than 16 axes"), ShapeError);
}

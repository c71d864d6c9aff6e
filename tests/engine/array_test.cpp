// Arrays and sizes: what no number can count is refused, and no number is changed in silence.
#include "engine/core/array.h"

#include <limits>

#include "engine/run/function.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t k2To32 = std::int64_t{1} << 32, k2To61 = std::int64_t{1} << 61;

}  // namespace

TEST_CASE("An extent below zero, and a size that no memory has, are refused by arrays, inputs and ops") {
  message_of<ShapeError>([] { Array(DType::f64, {k2To61}); });
  message_of<ShapeError>([] { Array(DType::f32, {k2To32, k2To32}); });
  message_of<ShapeError>([] { Array(DType::f32, {0, k2To32, k2To32}); });  // its strides overflow
  CHECK(contains(message_of<ShapeError>([] { Array(DType::f64, {2, -3}); }), "f64[2,-3]"));
  CHECK(Array(DType::f64, {3, 0, 2}).size() == 0);
  CHECK(contains(message_of<ShapeError>([] { numel({k2To32, k2To32}); }), "[4294967296,4294967296]"));

  Graph g;
  const GraphScope scope(g);
  message_of<ShapeError>([&] { g.input(f64({-3})); });
  message_of<ShapeError>([&] { g.input(f64({k2To61})); });
  const Tensor x = g.input(f64({2}));
  const std::string text = message_of<ShapeError>([&] { broadcast_to(x, {k2To32, k2To32, 2}); });
  CHECK(contains(text, "[broadcast_to]"));
  CHECK(contains(text, "array_test.cpp:"));
  message_of<ShapeError>([&] { reshape(x, {k2To32, k2To32, 2}); });
  message_of<ShapeError>([&] { reshape(x, {k2To32, k2To32, -1}); });
  message_of<ShapeError>([&] { pad(x, 0, -3, 0); });
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  message_of<ShapeError>([&] { pad(x, 0, kLargest, kLargest); });
  message_of<ShapeError>([&] { slice(x, 0, -kLargest, kLargest); });
}

TEST_CASE("A loop of more steps than can be counted is refused") {
  Graph g;
  const GraphScope scope(g);
  const Tensor x = g.input(f64());
  const StepFn twice = [](const Tensors& c, const Tensors&) { return StepOutput{{c[0] * 2.0}, {}}; };
  const std::string text = message_of<ShapeError>([&] { scan(twice, {x}, {}, {.steps = k2To32 + 3}); });
  CHECK(contains(text, "4294967299"));
}

TEST_CASE("A number that is no i32 is refused where it would become one") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {1e12, -2147483649.0, 2147483648.0, 0.5, nan}) {
    INFO(bad);
    message_of<ValueError>([&] { Array::full(DType::i32, {2}, bad); });
    message_of<ValueError>([&] { Array::of({1, bad}, {2}, DType::i32); });
  }
  CHECK(Array::full(DType::i32, {1}, -2147483648.0).item() == -2147483648.0);

  Graph g;
  const Tensor whole = g.input(i32({2}));
  for (const double bad : {1e12, 0.5}) message_of<DTypeError>([&] { whole + bad; });

  for (const DType from : {DType::f32, DType::f64}) {
    const Function f = trace([](Tensor x) { return cast(x, DType::i32); }, Spec{from, {3}});
    CHECK(f(Array::of({1.9, -1.9, 1e9}, {3}, from)).to_vector() == std::vector<double>{1, -1, 1e9});
    for (const double bad : {3e9, -3e9, nan}) {
      INFO(name(from), " ", bad);
      const Array x = Array::of({0, bad, 0}, {3}, from);
      CHECK(contains(message_of<ValueError>([&] { f(x); }), "is no i32"));
      message_of<ValueError>([&] { x.cast(DType::i32); });
    }
    const Array first = Array::of({0, 2147483648, 0}, {3}, from);  // the first that is none
    CHECK(contains(message_of<ValueError>([&] { f(first); }), "2147483648 is no i32"));
  }
}

TEST_CASE("A number that a user writes beyond the largest f32 is refused as one; infinity is not") {
  const double inf = std::numeric_limits<double>::infinity(), most = std::numeric_limits<float>::max();
  for (const double bad : {1e300, -1e39, 2 * most}) {
    INFO(bad);
    CHECK(contains(message_of<ValueError>([&] { Array::full(DType::f32, {2}, bad); }), "is no f32"));
    message_of<ValueError>([&] { Array::of({1, bad}, {2}, DType::f32); });
    message_of<ValueError>(
        [&] { trace([&](Tensor x) { return x + full(DType::f32, {3}, bad); }, f32({3})); });
    CHECK(contains(message_of<DTypeError>([&] { trace([&](Tensor x) { return x * bad; }, f32({3})); }),
                   "too large to meet"));
    CHECK(trace([&](Tensor x) { return x * bad; }, f64({3}))(Array::full(DType::f64, {3}, 1)).at(2) == bad);
  }
  for (const double good : {inf, -inf, most, -most, 1e-300})
    CHECK(trace([&](Tensor x) { return x * good; }, f32({1}))(Array::full(DType::f32, {1}, 1)).item() ==
          static_cast<float>(good));
}

TEST_CASE("A graph's numbers are its own: the caller's array may be used again") {
  Array x = Array::of({3}, {1});
  const auto write = [&](double v) { x.as<double>()[0] = v; };
  {
    Graph eager(GraphMode::eager);
    const Tensor a = eager.input(x);
    write(5);
    CHECK(eval(a * 2.0).item() == 6);
  }
  write(1);
  const Function f = trace(
      [&](Tensor y) {
        Tensor sum = y;
        for (int i = 0; i < 3; ++i) {
          write(i + 1);
          sum = sum + constant(x);
        }
        return sum;
      },
      f64({1}));
  write(100);
  CHECK(f(Array::zeros(DType::f64, {1})).item() == 6);
}

TEST_CASE("Constants of equal numbers are one node, however many they are") {
  Graph g;
  const Array numbers = random(f64({100}), 1);
  CHECK(g.constant(numbers) == g.constant(numbers.clone()));
  CHECK(g.constant(numbers) != g.constant(random(f64({100}), 2)));
}

TEST_CASE(
    "An array without numbers is refused wherever some are wanted, and is the same as another without") {
  const Array none, some = Array::zeros(DType::f64, {});
  const std::function<void()> uses[] = {[&] { none.clone(); },
                                        [&] { none.cast(DType::f32); },
                                        [&] { none.cast(DType::f64); },
                                        [&] {
                                          Array to = some.clone();
                                          copy(none, to);
                                        },
                                        [&] {
                                          Array to;
                                          copy(some, to);
                                        },
                                        [&] {
                                          Graph g(GraphMode::eager);
                                          g.input(none);
                                        }};
  for (const auto& use : uses) CHECK(contains(message_of<ValueError>(use), "holds no numbers"));
  CHECK(none.same_bits(Array()));
  CHECK_FALSE(none.same_bits(some));
  CHECK_FALSE(some.same_bits(none));
  message_of<ShapeError>([] { Array::zeros(DType::f64, {4}).reshaped({-2, -2}); });
}

TEST_CASE("What is empty costs nothing, whatever its other extents are") {
  const std::int64_t large = std::int64_t{1} << 40;
  const Function f = trace(
      [](Tensor x, Tensor a, Tensor b) {
        return std::vector<Tensor>{sum(x, {0}), max(x, {0}), matmul(a, b)};
      },
      Spec{DType::f32, {large, 0}}, Spec{DType::f32, {large, 0, 2, 3}}, Spec{DType::f32, {large, 0, 3, 2}});
  const Arrays out = f(Arrays{Array(DType::f32, {large, 0}), Array(DType::f32, {large, 0, 2, 3}),
                              Array(DType::f32, {large, 0, 3, 2})});
  CHECK(out[0].shape() == Shape{0});
  CHECK(out[2].size() == 0);
}

TEST_CASE("A view of an array without numbers is refused") {
  message_of<ValueError>([] { static_cast<void>(Array().reshaped({1})); });
  message_of<ValueError>([] { static_cast<void>(Array().reshaped({})); });
}

TEST_CASE("A view has a shape that an array can have") {
  const Array empty = Array::zeros(DType::f32, {0});
  CHECK(empty.reshaped({4, 0, 2}).shape() == Shape{4, 0, 2});
  message_of<ShapeError>([&] { empty.reshaped({0, std::int64_t{1} << 62, 8}); });
  message_of<ShapeError>([&] { empty.reshaped({std::int64_t{1} << 62, 8, 0}); });
  message_of<ShapeError>([&] { empty.reshaped({0, -1}); });
}

TEST_CASE("The least of integers is found, also the least that there is") {
  const Function f = trace([](Tensor x) { return min(x); }, Spec{DType::i32, {3}});
  for (const double least : {-2147483648.0, -5.0, 2147483646.0})
    CHECK(f(Array::of({2147483647, least, 2147483647}, {3}, DType::i32)).item() == least);
}

TEST_CASE("The relative error of numbers that are not finite, on either side or on both, is infinite") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto error = [](std::vector<double> a, std::vector<double> b) {
    return relative_error(Array::of(a, {2}), Array::of(b, {2}));
  };
  CHECK(error({1, 3}, {1, 2}) == 0.5);
  for (const double bad : {kInf, -kInf, std::nan("")}) {
    CHECK(error({bad, 1}, {2, 1}) == kInf);
    CHECK(error({2, 1}, {bad, 1}) == kInf);
    CHECK(error({bad, 1}, {bad, 1}) == kInf);
    CHECK(error({bad, 7}, {bad, 1}) == kInf);
  }
}

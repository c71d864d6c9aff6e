// The CUDA backend against the CPU: every kernel, whole programs, arrays. Runs on a GPU, and on the emulator.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/grad.h"
#include "cuda/strided.h"
#include "tests/cuda/rounded.h"
#include "tests/fuzz/compare.h"
#include "tests/ops/sweep.h"
#include "tests/ttt/system_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_SUITE_BEGIN("cuda");

namespace {

Device gpu() { return Device::cuda(); }

// One op, as a program of its own.
Arrays on(const Device& device, const Case& c, const Arrays& inputs) {
  std::vector<Spec> specs;
  for (const Array& a : inputs) specs.push_back(a.spec());
  return trace(c.fn(), specs).to(device)(inputs);
}

// What is no finite number on the CPU is the same on the GPU; numbers are within `tolerance`.
double error_of(const Array& found, const Array& expected) { return difference(found, expected); }

// Are all elements the same, zeros of one sign, NaN where there is NaN? Says which is the first that is not.
bool same_numbers(const Arrays& found, const Arrays& expected) {
  for (std::size_t k = 0; k < expected.size(); ++k)
    for (std::int64_t i = 0; i < expected[k].size(); ++i) {
      const double x = found[k].at(i), y = expected[k].at(i);
      if ((std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y))) continue;
      MESSAGE("output ", k, ", element ", i, ": ", x, " against ", y);
      return false;
    }
  return true;
}

// Each value of `values` against each.
Arrays pairs(const std::vector<double>& values, DType dtype) {
  std::vector<double> a, b, c;
  for (double x : values)
    for (double y : values) a.push_back(x), b.push_back(y), c.push_back(x - y);
  const auto n = static_cast<std::int64_t>(a.size());
  return {Array::of(a, {n}, dtype), Array::of(b, {n}, dtype), Array::of(c, {n}, dtype)};
}

}  // namespace

TEST_CASE("CUDA: every row of the table has a kernel or an expansion") {
  gpu();  // fills in the column
  for (const Op* op : op_table()) {
    if (op->kind != OpKind::value || op->is_alias) continue;
    INFO(op->name);
    CHECK((op->cuda || op->expand));
    CHECK((op->expand || (op->cuda != nullptr) == (op->cpu != nullptr)));
  }
}

TEST_CASE("CUDA: every kernel computes what the CPU's computes") {
  for (const Op* op : op_table())
    for (const DType dtype : {DType::f32, DType::f64})
      for (const Case& c : positive_cases(*op, dtype)) {
        if (op->kind != OpKind::value || op->processes != OpProcesses::none) continue;  // those are the CPU's
        const Arrays inputs = c.draw(7);
        INFO(c.what, " ", name(dtype));
        const double tolerance = (dtype == DType::f32 ? 2e-6 : 1e-14) * c.sample.tolerance;
        CHECK(error_of(on(gpu(), c, inputs)[0], on(Device::cpu(), c, inputs)[0]) < tolerance);
      }
}

TEST_CASE("CUDA: elementwise kernels have the CPU's bits, of infinities, zeros and large numbers too") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Arrays values = pairs({0.0,  -0.0,  1.0,  -1.0, 0.3, 0.61, -0.7, 1.9,  -2.6,  5.1, -7.5, 9.9,
                                 30.0, -80.0, 88.5, -95., 1e4, -1e9, 1e-9, 3e30, 1e-39, inf, -inf, nan},
                                dtype);
    for (const Op* op : op_table()) {
      if (!op->element_loop) continue;
      const auto cases = positive_cases(*op, dtype);
      const std::size_t operands = cases.at(0).sample.inputs.size();
      const Arrays inputs(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(operands));
      INFO(op->name, " ", name(dtype));
      CHECK(same_numbers(on(gpu(), cases[0], inputs), on(Device::cpu(), cases[0], inputs)));
    }
  }
}

TEST_CASE("CUDA: linear systems have the CPU's bits, with equal pivots and singular matrices too") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t n : {1, 3, 8, 17, 40})
      for (const std::int64_t m : {1, 5, 33}) {
        const Spec matrices{dtype, {3, n, n}}, sides{dtype, {3, n, m}};
        const Array a = random_normal(matrices, 0, 1, 5, static_cast<std::uint64_t>(n));
        const Array b = random_normal(sides, 0, 1, 6, static_cast<std::uint64_t>(m));
        const Arrays whole{a.cast(DType::i32).cast(dtype), b};  // small integers: pivots tie, or all are zero
        const Function systems = trace(
            [](Tensor matrix, Tensor side) {
              return std::vector<Tensor>{solve(matrix, side), solve(matrix, side, {.transpose = true}),
                                         triangular_solve(matrix, side),
                                         triangular_solve(matrix, side, {.transpose = true}),
                                         triangular_solve(matrix, side, {.unit = true})};
            },
            matrices, sides);
        INFO(name(dtype), " n ", n, " m ", m);
        for (const Arrays& inputs : {Arrays{a, b}, whole})
          CHECK(same_numbers(systems.to(gpu())(inputs), systems(inputs)));
      }
}

TEST_CASE("CUDA: a number that no i32 holds is reported, and is none") {
  for (const DType from : {DType::f32, DType::f64}) {
    const Function f = trace([](Tensor x) { return cast(x, DType::i32); }, Spec{from, {3}}).to(gpu());
    CHECK(f(Array::of({1.9, -1.9, -2147483648.0}, {3}, from)).to_vector() ==
          std::vector<double>{1, -1, -2147483648.0});
    for (const double bad : {3e9, -3e9, 2147483648.0, std::nan("")}) {
      INFO(name(from), " ", bad);
      CHECK(contains(message_of<ValueError>([&] { f(Array::of({0, bad, 0}, {3}, from)); }), "is no i32"));
    }
    if (from == DType::f64)  // each by itself, and not the nearest f32
      for (const double bad : {-2147483649.0, 3e300, 1e17})
        CHECK(contains(message_of<ValueError>([&] {
                         f(Array::of({0, bad, 0}, {3}, from));
                       }),
                       fmt::format("[cast] {} is no i32", bad)));
  }
}

TEST_CASE("CUDA: elementwise kernels of integers") {
  const Arrays values = pairs({0, 1, -1, 5, -7, 1000}, DType::i32);
  for (const std::string_view op :
       {"add", "sub", "mul", "max", "min", "neg", "abs", "square", "sign", "greater", "equal"}) {
    const Case c{*find_op(op), find_op(op)->samples().at(0), DType::i32, std::string(op)};
    const Arrays inputs(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(c.sample.inputs.size()));
    INFO(op);
    CHECK(on(gpu(), c, inputs)[0].same_bits(on(Device::cpu(), c, inputs)[0]));
  }
}

TEST_CASE("CUDA: sums and maxima over any axes of many sizes") {
  for (const Shape& shape : {Shape{1}, {7}, {33, 65}, {3, 1, 40}, {2, 300, 5}, {4, 3, 2, 70}, {1025, 3}})
    for (unsigned mask = 1; mask < 1u << shape.size(); ++mask)
      for (const DType dtype : {DType::f64, DType::i32}) {
        std::vector<int> axes;
        for (std::size_t d = 0; d < shape.size(); ++d)
          if (mask >> d & 1) axes.push_back(static_cast<int>(d));
        const Function f = trace(TraceFn([&](const Tensors& in) {
                                   return std::vector<Tensor>{sum(in[0], axes), max(in[0], axes, kKeep),
                                                              in[0] - max(in[0], axes, kKeep)};
                                 }),
                                 {{dtype, shape}});
        const Array x = random(f64(shape), 3, -50, 50).cast(dtype);
        INFO(to_string(shape), " axes ", mask, " ", name(dtype));
        CHECK(max_error(f.to(gpu())({x}), f({x})) < 1e-13);
      }
}

TEST_CASE("CUDA: many terms of few outputs, in parts, are added up as if in double") {
  struct Case {
    Shape shape;
    std::vector<int> axes;
  };
  for (const Case& c : {Case{{20'011}, {0}},
                        {{3, 9'001}, {1}},
                        {{9'001, 3}, {0}},
                        {{40, 17, 37}, {0, 2}},
                        {{5'000, 2, 3}, {0}},
                        {{4'097}, {0}}}) {
    const Shape& shape = c.shape;
    const std::vector<int>& axes = c.axes;
    const auto reduce = [&](const Tensors& in) {
      return std::vector<Tensor>{sum(in[0], axes), max(in[0], axes, kKeep), -max(-in[0], axes, kKeep)};
    };
    const Function f = trace(TraceFn(reduce), {f32(shape)}), in_double = trace(TraceFn(reduce), {f64(shape)});
    const Array x = random(f32(shape), 3, -50, 50);
    INFO(to_string(shape));
    const Arrays found = f.to(gpu())({x}), expected = f({x});
    CHECK(relative_error(found[0], in_double({x.cast(DType::f64)})[0].cast(DType::f32)) < 1e-7);
    CHECK(found[1].same_bits(expected[1]));
    CHECK(found[2].same_bits(expected[2]));
    CHECK(same_bits(f.to(gpu())({x}), found));
    const Function whole =
        trace(TraceFn([&](const Tensors& in) { return std::vector<Tensor>{sum(in[0], axes)}; }),
              {{DType::i32, shape}});
    CHECK(whole.to(gpu())({x.cast(DType::i32)})[0].same_bits(whole({x.cast(DType::i32)})[0]));
  }
}

TEST_CASE(
    "CUDA: rearrangements and elementwise ops of sizes that no 16 bytes divide, and of those that they do") {
  for (const DType dtype : {DType::f32, DType::f64, DType::i32})
    for (const std::int64_t inner : {1, 3, 4, 6, 8}) {
      const Spec spec{dtype, {3, 5, 2, inner}};
      const Function f = trace(
          TraceFn([&](const Tensors& in) {
            const Tensor x = in[0], turned = permute(x, {2, 0, 1, 3});
            return Tensors{
                turned,          slice(x, 3, 0, inner), square(slice(x, 1, 1, 4)),  pad(x, 3, 1, 2),
                pad(x, 1, 4, 4), concat({x, x}, 3),     concat({x, x}, 0),          permute(x, {3, 2, 1, 0}),
                turned + turned, x * slice(x, 3, 0, 1), max(x, sum(x, {-1}, kKeep))};
          }),
          {spec});
      const Array x = random(f64(spec.shape), 1, -9, 9).cast(dtype);
      INFO(to_string(spec));
      CHECK(max_error(f.to(gpu())({x}), f({x})) < 1e-5);
    }
}

TEST_CASE("walks of CUDA's kernels divide without divisions") {
  for (const std::int64_t by : {1L, 2L, 3L, 7L, 64L, 192L, 641L, 65'535L, 65'537L, 1'000'003L, (1L << 30) + 1,
                                (1L << 31) - 1, 1L << 31, 1L << 40}) {
    const cuda::Divisor divisor(by);
    for (std::int64_t k = 0; k < 40; ++k)
      for (const std::int64_t n : {k, k * by, k * by + by - 1, (1L << 31) - 1 - k})
        if (n >= 0 && n < 1L << 31) {
          CAPTURE(by);
          CAPTURE(n);
          CHECK(divisor.quotient(static_cast<std::uint32_t>(n)) == n / by);
        }
  }
  // Over axes, small and beyond 32 bits.
  cuda::Strided walk;
  for (const auto& axis : {std::pair{100'000L, 3L}, {70'000L, 1'000'000L}, {7L, 5L}})
    REQUIRE(cuda::append(axis.first, {{walk, axis.second}}));
  for (const std::int64_t index :
       {0L, 6L, 7L, 489'999L, 490'000L, 2'147'483'647L, 2'147'483'648L, 48'999'999'999L}) {
    const std::int64_t a = index / 490'000, b = index / 7 % 70'000, c = index % 7;
    CHECK(walk.at(index) == a * 3 + b * 1'000'000 + c * 5);
  }
}

TEST_CASE("CUDA: axes change places, in matrices of any size, with every element") {
  for (const DType dtype : {DType::f32, DType::f64, DType::i32})
    for (const Shape& shape :
         {Shape{33, 65}, Shape{3, 16, 40}, Shape{2, 31, 3, 70}, Shape{20, 17, 33}, Shape{15, 64}})
      for (const int order : {0, 1, 2}) {
        std::vector<int> axes(shape.size());
        std::iota(axes.begin(), axes.end(), 0);
        if (order == 0) std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
        else if (order == 1) std::rotate(axes.begin(), axes.end() - 1, axes.end());
        else std::reverse(axes.begin(), axes.end());
        const Function f = trace([&](Tensor x) { return permute(x, axes); }, Spec{dtype, shape});
        const Array x = (random(Spec{DType::f64, shape}, 1, -1e6, 1e6)).cast(dtype);
        CAPTURE(to_string(x.spec()));
        CHECK(f.to(gpu())(x).same_bits(f.to(Device::cpu())(x)));
      }
}

TEST_CASE("CUDA: a maximum over a row with NaN is NaN") {
  const Function f = trace([](Tensor x) { return max(x, std::vector<int>{-1}); }, f32({2, 70}));
  Array x = random(f32({2, 70}), 1);
  x.as<float>()[69] = std::nanf("");
  const Array y = f.to(gpu())(x);
  CHECK(std::isnan(y.at(0)));
  CHECK(y.at(1) == f(x).at(1));
}

TEST_CASE("CUDA: products in tf32 and bf16 round their operands, and nothing else") {
  for (const bool transposed : {false, true}) {
    const Array a = random(f32({3, 17, 33}), 1), b = random(f32(transposed ? Shape{9, 33} : Shape{33, 9}), 2);
    const auto product = [&](Tensor x, Tensor y) { return matmul(x, y, {.b = transposed}); };
    const Function f = trace(product, a.spec(), b.spec());
    const auto run = [&](Precision precision) {
      return f.plan({.device = gpu(), .precision = precision}).run({a, b})[0];
    };
    const Array exact = f.plan({.device = Device::cpu()}).run({a, b})[0];
    CHECK(relative_error(run(Precision::f32), exact) < 2e-6);
    const Array bf16 = run(Precision::bf16);
    CHECK(relative_error(bf16, f.plan({.device = Device::cpu()}).run({rounded(a, 7), rounded(b, 7)})[0]) <
          2e-6);
    CHECK(relative_error(bf16, exact) > 1e-4);
    // How a GPU rounds to tf32 is not written down, and cuBLAS may keep all bits where that is as fast.
    CHECK(relative_error(run(Precision::tf32), exact) < 2e-3);
    // One operand twice.
    const Function square_of = trace([](Tensor x) { return matmul(x, x, {.b = true}); }, a.spec());
    const auto squared = [&](const Array& x, const Device& device, Precision precision) {
      return square_of.plan({.device = device, .precision = precision}).run({x})[0];
    };
    CHECK(relative_error(squared(a, gpu(), Precision::bf16),
                         squared(rounded(a, 7), Device::cpu(), Precision::f32)) < 2e-6);
    // f64 keeps its precision.
    const Function g = trace(product, Spec{DType::f64, a.shape()}, Spec{DType::f64, b.shape()});
    const Arrays wide{a.cast(DType::f64), b.cast(DType::f64)};
    CHECK(relative_error(g.plan({.device = gpu(), .precision = Precision::bf16}).run(wide)[0],
                         g.plan({.device = Device::cpu()}).run(wide)[0]) < 1e-14);
  }
  CHECK(precision_named("tf32") == Precision::tf32);
  CHECK(contains(message_of<ConfigError>([] { precision_named("f16"); }), "f32, tf32 or bf16"));
}

TEST_CASE("CUDA: programs drawn at random, with their gradients, under any schedule") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    INFO("program ", seed);
    fuzz::Draws draws(seed);
    const fuzz::Subject s = fuzz::random_subject(draws);
    CHECK_NOTHROW(fuzz::check_cuda(s, fuzz::numbers_for(s.specs, seed), draws));
  }
}

TEST_CASE("CUDA: every published system, with gradients" * doctest::test_suite("cuda;slow")) {
  for (const ttt::System& s : ttt::systems()) {
    const Function f = system_derivatives(s, {.batch = 2, .heads = 2, .dim = 4, .time = 6, .chunk = 3},
                                          system_in(FormChoice::automatic), 1);
    const Arrays inputs = ttt::numbers_for(f, 1);
    INFO(s.name);
    CHECK(worst_error(f.to(gpu())(inputs), f.to(Device::cpu())(inputs)) < 1e-9);
  }
}

TEST_CASE("CUDA: arrays go there and back with every bit, and say where they are") {
  const Array x = random(f32({1000, 7}), 1), there = x.to(gpu());
  CHECK(there.device() == gpu());
  CHECK(there.device().name() == "cuda:0");
  CHECK(x.device().name() == "cpu");
  CHECK(there.to(Device::cpu()).same_bits(x));
  CHECK(there.same_bits(x));
  CHECK(there.clone().device() == gpu());
  CHECK(there.clone().same_bits(x));
  CHECK(there.at(5) == x.at(5));
  CHECK(there.reshaped({7000}).to_vector() == x.to_vector());
  CHECK(there.cast(DType::f64).same_bits(x.cast(DType::f64)));
  CHECK(relative_error(there, x) == 0);
  CHECK(Array::of({}, {0, 3}).to(gpu()).to(Device::cpu()).size() == 0);
  const std::string message = message_of<DeviceError>([&] { there.as<float>(); });
  CHECK(contains(message, "f32[1000,7] lies on cuda:0"));
  CHECK(contains(message, "to(Device::cpu())"));
}

TEST_CASE("CUDA: random numbers are filled on the device, bit for bit those of the CPU") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{1}, Shape{7, 3}, Shape{2, 50'000}}) {
      const Spec spec{dtype, shape};
      CAPTURE(to_string(spec));
      const Array uniform = random_uniform(spec, -2, 3, 5, 1ULL << 40, gpu()),
                  normal = random_normal(spec, 1, 2, 1ULL << 50, 7, gpu());
      CHECK(uniform.device() == gpu());
      CHECK(uniform.same_bits(random_uniform(spec, -2, 3, 5, 1ULL << 40)));
      CHECK(normal.same_bits(random_normal(spec, 1, 2, 1ULL << 50, 7)));
    }
  CHECK_FALSE(random_normal(f64({64}), 0, 1, 1, 0, gpu()).same_bits(random_normal(f64({64}), 0, 1, 2, 0)));
}

TEST_CASE("CUDA: an array larger than the pinned buffers arrives whole") {
  const Array x = random(f32({3 << 20}), 1);
  CHECK(x.to(gpu()).to(Device::cpu()).same_bits(x));
}

TEST_CASE("CUDA: results stay on the device when an input lies there") {
  const Function f = trace([](Tensor x) { return x * 2.0 + 1.0; }, f64({3})).to(gpu());
  const Array x = Array::of({1, 2, 3}, {3});
  CHECK(f(x).device().is_cpu());
  Array y = x.to(gpu());
  for (int i = 0; i < 10; ++i) y = f(y);
  CHECK(y.device() == gpu());
  CHECK(y.to_vector() == std::vector<double>{2047, 3071, 4095});
  CHECK(x.to_vector() == std::vector<double>{1, 2, 3});
}

TEST_CASE("CUDA: an index outside of its table is found, with op, index, line; then the device goes on") {
  const Function read =
      trace([](Tensor t, Tensor i) { return gather(t, i); }, f64({4, 3}), i32({2})).to(gpu());
  const Array table = random(f64({4, 3}), 1);
  const std::string message = message_of<ValueError>([&] {
    read(table, Array::of({1, 9}, {2}, DType::i32));
  });
  CHECK(contains(message, "[gather] index 9 is outside of the table's 4 rows (at device_test.cpp:"));
  CHECK(read(table, Array::of({1, 3}, {2}, DType::i32)).at(3) == table.at(9));
  const Function nothing =
      trace([](Tensor t, Tensor i) { return gather(t, i); }, f64({4, 0}), i32({2})).to(gpu());
  CHECK(contains(message_of<ValueError>([&] {
                   nothing(Array(f64({4, 0})), Array::of({1, 9}, {2}, DType::i32));
                 }),
                 "index 9 is outside"));
  const Function add =
      trace([](Tensor i, Tensor u) { return scatter_add(i, u, 4); }, i32({2}), f64({2, 3})).to(gpu());
  CHECK(contains(message_of<ValueError>([&] {
                   add(Array::of({-1, 0}, {2}, DType::i32), random(f64({2, 3}), 1));
                 }),
                 "[scatter_add] index -1 is outside"));
  const Array rows = random(f64({2, 3}), 2);
  CHECK(add(Array::of({2, 0}, {2}, DType::i32), rows).at(6) == rows.at(0));
}

TEST_CASE("CUDA: rows are added up in the order of their indices") {
  const Function f =
      trace([](Tensor i, Tensor u) { return scatter_add(i, u, 5); }, i32({200}), f32({200, 40}));
  Array index(DType::i32, {200});
  for (std::size_t i = 0; i < 200; ++i) index.as<std::int32_t>()[i] = static_cast<std::int32_t>(i * i % 5);
  const Array updates = random(f32({200, 40}), 2);
  CHECK(f.to(gpu())(index, updates).same_bits(f(index, updates)));
}

TEST_CASE(
    "CUDA: rows of a large table are added up in the order of their indices too, seldom ones and frequent ones") {
  constexpr std::int64_t kRows = 3000, kCount = 1100;
  const Function f =
      trace([](Tensor i, Tensor u) { return scatter_add(i, u, kRows); }, i32({kCount}), f32({kCount, 5}));
  Array index(DType::i32, {kCount});
  for (std::int64_t i = 0; i < kCount;
       ++i)  // one row 100 times, one 32 times, one 33 times, the last row, others once
    index.as<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % 11 == 0   ? 7
                                                                                      : i % 34 == 1 ? 9
                                                                                      : i % 33 == 2 ? 11
                                                                                      : i == 3 ? kRows - 1
                                                                                               : i * 2);
  const Array updates = random(f32({kCount, 5}), 2);
  CHECK(f.to(gpu())(index, updates).same_bits(f(index, updates)));
  index.as<std::int32_t>()[500] = kRows;
  CHECK(contains(message_of<ValueError>([&] { f.to(gpu())(index, updates); }), "index 3000 is outside"));
  index.as<std::int32_t>()[500] = 0;
  CHECK(f.to(gpu())(index, updates).same_bits(f(index, updates)));
}

TEST_CASE(
    "CUDA: rows are added to a table in the order of their indices, few and many, in the table's place and beside it") {
  for (const auto& sizes : {std::pair{5, 200}, {300, 40}, {3000, 1100}}) {
    const int rows = sizes.first, count = sizes.second;
    CAPTURE(rows);
    const auto fn = [](bool in_place) {
      return [=](Tensor t, Tensor i, Tensor u) {
        const Tensor table = t * 2.0;
        return Tensors{index_add(table, i, u), in_place ? t : table};
      };
    };
    Array index(DType::i32, {count});
    for (std::int64_t i = 0; i < count; ++i)
      index.as<std::int32_t>()[static_cast<std::size_t>(i)] =
          static_cast<std::int32_t>(i % 7 == 0 ? 3 : i * i % rows);
    const Arrays args{random(f32({rows, 40}), 1), index, random(f32({count, 40}), 2)};
    for (const bool in_place : {false, true}) {
      const Function f = trace(fn(in_place), f32({rows, 40}), i32({count}), f32({count, 40}));
      CHECK(same_bits(f.to(gpu())(args), f(args)));
    }
    Arrays wrong = args;
    wrong[1].as<std::int32_t>()[9] = rows;
    CHECK(contains(message_of<ValueError>([&] {
                     trace(fn(true), f32({rows, 40}), i32({count}), f32({count, 40})).to(gpu())(wrong);
                   }),
                   "[index_add] index"));
  }
}

TEST_CASE("CUDA: a missing device is an error that says which there are") {
  const std::string message = message_of<DeviceError>([] { Device::cuda(77); });
  CHECK(contains(message, "cuda:77 was asked for, there"));
  CHECK(contains(message_of<ConfigError>([] { Device::of("gpu"); }),
                 "'gpu' is no device; say cpu, cuda or cuda:1"));
  for (const std::string name : {"cuda:", "cuda:x", "cuda:-1", "cuda:1x", ""})
    CHECK_THROWS_AS(Device::of(name), ConfigError);
  CHECK(Device::of("cpu").is_cpu());
  CHECK(Device::of("cuda") == gpu());
  CHECK(Device::of("cuda:0") == gpu());
}

TEST_SUITE_END();

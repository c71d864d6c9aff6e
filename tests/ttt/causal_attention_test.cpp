// The promise: the kernels of causal attention compute what is written in ops beside them, for every length,
// window and width, with the same bits for any number of threads and under every instruction set.
#include "ttt/causal_attention.h"

#include <cmath>
#include <limits>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "ops/attrs.h"
#include "ops/kernels.h"
#include "ops/table.h"
#include "tests/ops/check_grads.h"
#include "tests/testing.h"
#include "ttt/attention.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

struct Sizes {
  std::int64_t time, window = 0, dim = 4, out = 3, heads = 2;
  std::int64_t each = 1;  // heads of queries that read the same keys
  std::int64_t batch = 1;
  std::vector<Spec> specs(DType dtype = DType::f64) const {
    const std::int64_t groups = heads / each;
    return {{dtype, {batch, heads, time, dim}},
            {dtype, {batch, groups, time, dim}},
            {dtype, {batch, groups, time, out}}};
  }
};

const Sizes kSizes[] = {
    {1},
    {2, 1},
    {63},
    {64},
    {65},
    {64, 64},
    {65, 64},
    {130, 1},
    {130, 2},
    {130, 5},
    {200, 63},
    {200, 64},
    {200, 65},
    {200, 127},
    {200, 129},
    {150, 150},
    {150, 1000},
    {70, 0, 1, 1},
    {140, 9, 1},
    {140, 0, 3, 1},
    {140, 0, 1, 7},
    {300, 70, 5},
    {257, 0, 64, 64},
    {129, 0, 16, 70},
    {129, 100, 64, 16},
    {330, 0, 24, 40},
    {65, 0, 3, 2, 2, 2},
    {200, 65, 4, 3, 4, 2},
    {200, 0, 5, 7, 6, 2, 2},
    {130, 20, 16, 16, 3, 3, 2},
    {1030, 0, 3, 2, 1},
    {1030, 150, 3, 2, 1},
    {1030, 700, 2, 3, 3, 3},
    {2049, 0, 2, 1, 4, 2},
};

// The op and, of its sum with weights, the derivatives; or the same of the op's expansion.
TraceFn program(const Sizes& s, bool in_ops) {
  return [=](const Tensors& in) {
    const Attrs attrs = CausalAttentionAttrs{s.window};
    const Tensor y = in_ops ? causal_attention_op.expand(in, attrs) : emit(causal_attention_op, in, attrs);
    const Tensor ct = constant(random(f64(y.shape()), 9).cast(y.dtype()));
    const Tensors operands{in[0], in[1], in[2], y, ct};
    const Op& derivative = causal_attention_derivative_op;
    return Tensors{y, in_ops ? derivative.expand(operands, attrs) : emit(derivative, operands, attrs)};
  };
}

// What `fn` computes under every instruction set and with 1, 2 and 3 threads.
template <class Fn>
void everywhere(Fn fn) {
  const std::string before(kernels().name);
  const int threads = thread_count();
  for (const std::string_view isa : instruction_sets())
    for (const int n : {1, 2, 3}) {
      set_instruction_set(isa);
      set_thread_count(n);
      CAPTURE(isa);
      CAPTURE(n);
      fn();
    }
  set_instruction_set(before);
  set_thread_count(threads);
}

}  // namespace

TEST_CASE("causal attention and its derivative are what is written in ops") {
  const DeviceScope on(Device::cpu());  // which has the kernels
  for (const Sizes& s : kSizes) {
    CAPTURE(s.time);
    CAPTURE(s.window);
    CAPTURE(s.dim);
    CAPTURE(s.out);
    CAPTURE(s.heads);
    CAPTURE(s.each);
    for (const DType dtype : {DType::f64, DType::f32}) {
      Arrays in;
      for (const Array& a : random(s.specs(), 3, -1.5, 1.5)) in.push_back(a.cast(dtype));
      const Arrays is = trace(program(s, false), s.specs(dtype))(in),
                   should = trace(program(s, true), s.specs(dtype))(in);
      const double tolerance = dtype == DType::f64 ? 1e-13 : 1e-5;
      CHECK(relative_error(is[0], should[0]) < tolerance);
      CHECK(relative_error(is[1], should[1]) < tolerance);
    }
  }
}

TEST_CASE("heads that share keys read what they would read of keys repeated for each, at orders 0 to 3") {
  for (const Sizes& s : {Sizes{70, 0, 3, 2, 4, 2}, Sizes{133, 66, 2, 1, 3, 3}, Sizes{5, 2, 2, 3, 6, 3, 2}}) {
    CAPTURE(s.time);
    const auto program_of = [&](bool repeated) {
      return trace(
          [&](const Tensors& in) {
            const auto of_heads = [&](Tensor x) {
              if (!repeated) return x;
              const Shape each{x.dim(0), x.dim(1), s.each, x.dim(2), x.dim(3)};
              return reshape(broadcast_to(reshape(x, {x.dim(0), x.dim(1), 1, x.dim(2), x.dim(3)}), each),
                             {x.dim(0), s.heads, x.dim(2), x.dim(3)});
            };
            const Tensor y = ttt::causal_attention(in[0], of_heads(in[1]), of_heads(in[2]), s.window);
            Tensors out{y};
            Tensor of = sum(square(y) + sin(y));
            for (int order = 1; order <= 3; ++order) {
              const Tensors g = grad(of, in);
              out.insert(out.end(), g.begin(), g.end());
              of = sum(square(g[0])) + sum(square(g[1])) + sum(square(g[2]));
            }
            return out;
          },
          s.specs());
    };
    const Arrays in = random(s.specs(), 7, -1, 1), is = program_of(false)(in), should = program_of(true)(in);
    for (std::size_t i = 0; i < is.size(); ++i) CHECK(relative_error(is[i], should[i]) < 1e-12);
  }
}

TEST_CASE("derivatives of causal attention over several tiles agree with differences, at orders 1 and 2") {
  for (const Sizes& s : {Sizes{70, 0, 3, 2}, Sizes{130, 66, 2, 1}, Sizes{70, 0, 2, 1, 2, 2}}) {
    const Subject subject{
        .what = fmt::format("window {}", s.window),
        .fn =
            [&](const Tensors& in) { return Tensors{ttt::causal_attention(in[0], in[1], in[2], s.window)}; },
        .inputs = random(s.specs(), 5, -1.5, 1.5),
        .active = {},
        .tolerance = 4,
        .orders = 2};
    const Failures failures = check_every_way(subject);
    INFO(join(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("causal attention has the same bits under every instruction set and with any number of threads") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Sizes& s : {Sizes{400, 0, 20, 33, 3}, Sizes{300, 90, 64, 64, 5}, Sizes{300, 90, 64, 16, 4, 2},
                           Sizes{1100, 0, 40, 33, 2, 2}, Sizes{1100, 400, 40, 33, 1}}) {
      // They would take most of a minute; how parts are cut depends on no type.
      if (s.time > (kSanitized ? 300 : dtype == DType::f64 ? 400 : 1100)) continue;
      Arrays in, first;
      for (const Array& a : random(s.specs(), 4, -1.5, 1.5)) in.push_back(a.cast(dtype));
      everywhere([&] {
        const Arrays now = trace(program(s, false), s.specs(dtype))(in);
        if (first.empty()) first = now;
        CHECK(same_bits(now, first));
      });
    }
}

TEST_CASE("causal attention: scores of any size, and what is not a number reaches who reads it") {
  const DeviceScope on(Device::cpu());  // which has the kernels
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  constexpr std::int64_t time = 150, dim = 2, at = 70;
  for (const std::int64_t window : {0, 75})
    for (const DType dtype : {DType::f32, DType::f64})
      for (const double odd : {nan, inf, -inf})
        for (const std::size_t operand : {0, 1, 2}) {
          const Sizes s{time, window, dim, dim, 1};
          Arrays in;
          for (const Array& a : random(s.specs(), 6, 0.5, 1.5)) in.push_back(a.cast(dtype).clone());
          dispatch(dtype, [&]<class T>(T) { in[operand].as<T>()[at * dim] = static_cast<T>(odd); });
          const Array y = trace(program(s, false), s.specs(dtype))(in)[0],
                      in_ops = trace(program(s, true), s.specs(dtype))(in)[0];
          CAPTURE(window);
          CAPTURE(odd);
          CAPTURE(operand);
          for (std::int64_t t = 0; t < time; ++t)
            for (std::int64_t c = 0; c < dim + 2; ++c) {
              const double is = y.at(t * (dim + 2) + c), should = in_ops.at(t * (dim + 2) + c);
              const bool reads = operand == 0 ? t == at : at <= t && (window == 0 || t - at < window);
              // A zero weight in the same block makes NaN of it too.
              if (reads && !std::isfinite(should)) CHECK_FALSE(std::isfinite(is));
              if (operand == 0 && !reads) CHECK(std::isfinite(is));
              if (t < 64) CHECK(std::isfinite(is));
            }
        }
  // Equal keys weigh the same, however large the scores.
  const Array large = Array::of({1e4, 1e4, 1e4}, {1, 1, 3, 1}, DType::f32),
              v = Array::of({1, 2, 6}, {1, 1, 3, 1}, DType::f32);
  const Array y = trace([](Tensor q, Tensor k, Tensor x) { return ttt::causal_attention(q, k, x, 0); },
                        large.spec(), large.spec(), v.spec())(large, large, v);
  CHECK(y.at(0) == 1);
  CHECK(y.at(3) == doctest::Approx(1.5));
  CHECK(y.at(6) == doctest::Approx(3));
}

namespace {

// Queries [1, large] and keys [x, 1], whose scores x + large are exact, x few small multiples of `unit`: many are equal.
Arrays with_large_scores(const Sizes& s, DType dtype, double large, double unit) {
  Arrays in;
  for (const Array& a : random(s.specs(), 8, -1, 1)) in.push_back(a.clone());
  for (std::int64_t i = 0; i < in[0].spec().size() / 2; ++i)
    in[0].as<double>()[uz(2 * i)] = 1, in[0].as<double>()[uz(2 * i + 1)] = large;
  for (std::int64_t i = 0; i < in[1].spec().size() / 2; ++i) {
    double& x = in[1].as<double>()[uz(2 * i)];
    x = std::round(2 * x) * unit, in[1].as<double>()[uz(2 * i + 1)] = 1;
  }
  for (Array& a : in) a = a.cast(dtype);
  return in;
}

// In one matrix of scores for each head: the derivative of softmax() takes its own weights, and none from a logarithm.
Tensor attention_at_once(const Tensors& in, const Sizes& s) {
  const DType dtype = in[0].dtype();
  const auto of_heads = [&](Tensor x) {
    const Shape each{x.dim(0), x.dim(1), s.each, x.dim(2), x.dim(3)};
    return reshape(broadcast_to(reshape(x, {x.dim(0), x.dim(1), 1, x.dim(2), x.dim(3)}), each),
                   {x.dim(0), s.heads, x.dim(2), x.dim(3)});
  };
  const Tensor back = iota(dtype, {s.time, 1}, 0) - iota(dtype, {1, s.time}, 1);
  const double window = static_cast<double>(s.window == 0 ? s.time : s.window);
  const Tensor scores = matmul(in[0], of_heads(in[1]), {.b = true});
  const Tensor reads = less_equal(0.0, back) * less(back, window);
  return matmul(softmax(select(reads, scores, -1e30), -1), of_heads(in[2]));
}

// The output and its derivatives of orders 1 to `orders`: of each order those of a weighted sum of the elements of the order
// before, with which large numbers are divided by `large`.
Function of_orders(const Sizes& s, DType dtype, int orders, double large,
                   const std::function<Tensor(const Tensors&)>& attend) {
  return trace(
      [&](const Tensors& in) {
        const auto sum_of = [&](Tensor x, std::uint64_t seed, double share) {
          Array weights = random(f64(x.shape()), seed, 0.5, 1.5).clone();
          if (share != 1)
            for (std::int64_t i = 1; i < weights.spec().size(); i += 2) weights.as<double>()[uz(i)] *= share;
          return sum(x * constant(weights.cast(dtype)));
        };
        Tensors out{attend(in)};
        Tensor of = sum_of(out[0], 9, 1);
        for (int order = 1; order <= orders; ++order) {
          const Tensors g = grad(of, in);
          out.insert(out.end(), g.begin(), g.end());
          of = sum_of(g[0], 10, 1) + sum_of(g[1], 11, 1 / large) + sum_of(g[2], 12, 1);
        }
        return out;
      },
      s.specs(dtype));
}

// The largest difference in a column of the last axis, relative to the largest number of that column, or to 1, of the
// second column to `least_of_second`, where that is larger.
double error_of_columns(const Array& a, const Array& b, double least_of_second = 1) {
  const std::int64_t columns = a.shape().back(), rows = a.spec().size() / columns;
  double worst = 0;
  for (std::int64_t c = 0; c < columns; ++c) {
    double difference = 0, most = c == 1 ? least_of_second : 1;
    for (std::int64_t i = c; i < rows * columns; i += columns) {
      if (!std::isfinite(a.at(i))) return std::numeric_limits<double>::infinity();
      difference = std::max(difference, std::abs(a.at(i) - b.at(i)));
      most = std::max(most, std::abs(b.at(i)));
    }
    worst = std::max(worst, difference / most);
  }
  return worst;
}

}  // namespace

TEST_CASE(
    "derivatives of causal attention are as exact for large scores as for small ones, at orders 1 to 3") {
  struct Case {
    DType dtype;
    double large, unit;
  };
  for (const auto& [dtype, large, unit] : {Case{DType::f32, 1e3, 0.25},
                                           {DType::f32, 1e5, 0.5},
                                           {DType::f32, 1e7, 1},
                                           {DType::f32, 1e8, 8},
                                           {DType::f32, -1e6, 0.5},
                                           {DType::f64, 1e8, 0.5},
                                           {DType::f64, 1e16, 2},
                                           {DType::f64, -1e15, 0.5}})
    for (const Sizes& s : {Sizes{5, 0, 2, 3, 2}, Sizes{6, 3, 2, 2, 4, 2}, Sizes{70, 0, 2, 3, 2, 2},
                           Sizes{133, 66, 2, 1, 3, 3}}) {
      CAPTURE_BOUND(large);
      CAPTURE(s.time);
      CAPTURE(s.window);
      const int orders = s.time < 10 ? 3 : 2;
      const double bound = dtype == DType::f32 ? 2e-6 : 1e-14;
      const Arrays in = with_large_scores(s, dtype, large, unit);
      Arrays wide;
      for (const Array& a : in) wide.push_back(a.cast(DType::f64));
      const auto attend = [&](const Tensors& x) {
        return ttt::attention(x[0], x[1], x[2], {.window = s.window, .scale = 1});
      };
      const auto at_once = [&](const Tensors& x) { return attention_at_once(x, s); };
      const Arrays is = of_orders(s, dtype, orders, large, attend)(in),
                   should = of_orders(s, DType::f64, orders, large, at_once)(wide);
      for (std::size_t i = 0; i < is.size(); ++i) {
        CAPTURE(i);
        const std::size_t order = (i + 2) / 3;  // of which each multiplies with keys as large as the unit
        const double of_order = bound * (order < 2 ? 1 : 10) * std::pow(std::max(1.0, unit), order);
        // The derivative by the keys' second column is that of the scores, times `large`.
        const double least = i % 3 == 2 ? std::abs(large) : 1;
        CHECK(error_of_columns(is[i].cast(DType::f64), should[i], least) < of_order);
      }
      // The kernels are what is written in ops.
      const DeviceScope on(Device::cpu());
      const Arrays kernels_are = trace(program(s, false), s.specs(dtype))(in),
                   in_ops = trace(program(s, true), s.specs(dtype))(in);
      CHECK(relative_error(kernels_are[0], in_ops[0]) < bound);
      CHECK(relative_error(kernels_are[1], in_ops[1]) < bound * std::max(1.0, unit));
    }
}

TEST_CASE("two equal keys weigh a half each, forward and backward, however large their scores") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const double b : {0.0, 1.0, 1e3, 1e5, 1e8, 1e16, 1e30, -1e5, -1e8, -1e30}) {
      CAPTURE(b);
      const Array q = Array::of({1, 1}, {1, 1, 2, 1}, dtype), k = Array::of({b, b}, {1, 1, 2, 1}, dtype),
                  v = Array::of({1, 2}, {1, 1, 2, 1}, dtype);
      const Array dv = trace(
          [](Tensor query, Tensor keys, Tensor values) {
            return grad(sum(slice(ttt::attention(query, keys, values, {.scale = 1}), 2, 1, 2)), {values})[0];
          },
          q.spec(), k.spec(), v.spec())(q, k, v);
      for (const std::int64_t s : {0, 1})
        CHECK(dv.at(s) == doctest::Approx(0.5).epsilon(dtype == DType::f32 ? 3e-7 : 1e-15));
    }
}

TEST_CASE("long causal attention needs memory for its rows alone, forward and backward") {
  const DeviceScope on(Device::cpu());  // which has the kernels
  const auto bytes = [](std::int64_t time) {
    const Sizes s{time, 0, 16, 16, 1};
    return trace(
               [](const Tensors& in) {
                 return grad(sum(square(ttt::attention(in[0], in[1], in[2]))), {in[0], in[1], in[2]});
               },
               s.specs(DType::f32))
        .plan()
        .stats()
        .arena_bytes;
  };
  CHECK(bytes(4096) <= 2.1 * static_cast<double>(bytes(2048)));
}

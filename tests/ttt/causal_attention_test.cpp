// The promise: the kernels of causal attention compute what is written in ops beside them, for every length,
// window and width, with the same bits for any number of threads and under every instruction set.
#include "ttt/causal_attention.h"

#include <cmath>
#include <limits>

#include "engine/core/threads.h"
#include "ops/attrs.h"
#include "ops/kernels.h"
#include "ops/table.h"
#include "tests/ops/check_grads.h"
#include "tests/testing.h"

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
      if (kSanitized && s.time > 300) continue;
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
            for (std::int64_t c = 0; c <= dim; ++c) {
              const double is = y.at(t * (dim + 1) + c), should = in_ops.at(t * (dim + 1) + c);
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
  CHECK(y.at(2) == doctest::Approx(1.5));
  CHECK(y.at(4) == doctest::Approx(3));
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

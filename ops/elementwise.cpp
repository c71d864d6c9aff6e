// Elementwise ops: a row of the table for every line of
// elementwise.def. Their kernels are in ops/kernels/elementwise.cpp.
#include "ops/elementwise.h"

#include <fmt/format.h>

#include "engine/core/index.h"
#include "engine/core/spread_operand.h"
#include "ops/kernels.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/simplify.h"

namespace nestgrad {

Shape broadcast_shapes(const OpCall& call, const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const std::int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1)
      call.shape_error(
          fmt::format("shapes do not broadcast at axis -{} ({} against {}); reshape one, or make an extent 1",
                      i + 1, x, y));
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

BroadcastLoop::BroadcastLoop(const OpCall& call) {
  const int rank = call.out.rank();
  std::vector<std::int64_t> sizes;
  std::vector<std::vector<std::int64_t>> strides;  // [dim][operand]
  for (int d = rank; d-- > 0;) {
    const auto du = uz(d);
    const std::int64_t size = call.out.shape[du];
    if (size == 1) continue;
    std::vector<std::int64_t> s;
    for (const Spec& in : call.in) {
      const int axis = d - (rank - in.rank());
      const bool repeats = axis < 0 || in.shape[uz(axis)] == 1;
      s.push_back(repeats ? 0 : strides_of(in.shape)[uz(axis)]);
    }
    // Merge into the dimension inside this one if every operand walks on without a jump.
    bool merge = !sizes.empty();
    for (std::size_t k = 0; merge && k < s.size(); ++k) merge = s[k] == strides.back()[k] * sizes.back();
    if (merge) {
      sizes.back() *= size;
    } else {
      sizes.push_back(size);
      strides.push_back(std::move(s));
    }
  }
  if (sizes.empty()) {
    sizes.push_back(call.out.size() == 0 ? 0 : 1);
    strides.emplace_back(call.in.size(), 0);
  }
  inner = sizes[0];
  for (std::int64_t s : strides[0]) stretched.push_back(s == 0);
  for (std::size_t d = 1; d < sizes.size(); ++d)
    outer_sizes.push_back(sizes[d]), outer_strides.push_back(strides[d]);
  for (std::int64_t s : sizes)
    if (s == 0) inner = 0;
  if (outer_sizes.size() > kMaxOuter)
    call.shape_error("broadcasting leaves more than 16 axes apart; reshape() some together");
}

namespace {

template <Formula formula>
ElementLoop element_loop(DType dtype, const std::vector<char>& stretched) {
  unsigned choice = 0;
  for (std::size_t k = 0; k < stretched.size(); ++k) choice |= static_cast<unsigned>(stretched[k] != 0) << k;
  return kernels().elementwise->of[static_cast<int>(formula)][static_cast<int>(dtype)][choice];
}

// With runs that are shorter than what it takes to begin one: operands are spread in memory, block by block.
class ShortRuns {
 public:
  static constexpr std::int64_t kMostInner = 16;

  explicit ShortRuns(const OpCall& call) : size_(call.out.size()) {
    for (const Spec& in : call.in) {
      stretched.push_back(in.size() == 1);
      is_whole_.push_back(in.size() == size_);
      operands_.emplace_back(in, call.out);
    }
  }

  // U: as large as an element.
  template <int N, class U>
  void run(const std::byte* const* in, std::byte* out, ElementLoop loop) const {
    in_blocks(size_, kGrain, [&](std::int64_t begin, std::int64_t end) {
      U memory[N][kBlock];
      for (std::int64_t at = begin; at < end; at += kBlock) {
        const std::int64_t n = std::min(kBlock, end - at);
        const std::byte* p[N];
        for (int k = 0; k < N; ++k) {
          const U* x = reinterpret_cast<const U*>(in[k]);
          const bool spread = !is_whole_[uz(k)] && !stretched[uz(k)];
          if (spread) operands_[uz(k)].expand(x, at, at + n, memory[k]);
          p[k] = reinterpret_cast<const std::byte*>(spread ? memory[k] : x + (is_whole_[uz(k)] ? at : 0));
        }
        loop(p, out + uz(at) * sizeof(U), n);
      }
    });
  }

  std::vector<char> stretched;  // per operand: it is one element

 private:
  static constexpr std::int64_t kBlock = 512;  // elements

  std::int64_t size_;
  std::vector<char> is_whole_;  // per operand: it has the output's shape
  std::vector<SpreadOperand> operands_;
};

template <Formula formula, int N>
OpKernel make_kernel(const OpCall& call) {
  BroadcastLoop loop(call);
  if (!loop.outer_sizes.empty() && loop.inner > 0 && loop.inner <= ShortRuns::kMostInner) {
    ShortRuns runs(call);
    if (const ElementLoop each = element_loop<formula>(call.out.dtype, runs.stretched))
      return [runs = std::move(runs), each, wide = size_of(call.out.dtype) == 8](const std::byte* const* in,
                                                                                 std::byte* out) {
        if (wide) runs.run<N, std::uint64_t>(in, out, each);
        else runs.run<N, std::uint32_t>(in, out, each);
      };
  }
  const ElementLoop inner = element_loop<formula>(call.out.dtype, loop.stretched);
  if (!inner) call.dtype_error("integers are not supported; cast() to f32 or f64 first");
  return [loop = std::move(loop), inner, size = size_of(call.out.dtype)](
             const std::byte* const* in, std::byte* out) { loop.run<N>(in, out, size, inner); };
}

template <int N, bool Integers>
Spec infer_elementwise(const OpCall& call) {
  Shape shape = call.in[0].shape;
  for (int k = 1; k < N; ++k) {
    const auto& in = call.in[uz(k)];
    if (in.dtype != call.in[0].dtype) call.dtype_error("element types differ; cast() one of them");
    shape = broadcast_shapes(call, shape, in.shape);
  }
  if (!Integers && !is_float(call.in[0].dtype))
    call.dtype_error("integers are not supported; cast() to f32 or f64 first");
  return {call.in[0].dtype, std::move(shape)};
}

int elementwise_axes(const OpCall& call, int input, int axis) {
  const Spec& in = call.in[uz(input)];
  const int to = axis + call.out.rank() - in.rank();
  return in.shape[uz(axis)] == call.out.shape[uz(to)] ? to : -1;
}

bool reuse_same_shape(const OpCall& call, int input) { return call.in[uz(input)] == call.out; }

std::vector<OpSample> unary_samples(double low, double high) {
  return {{.inputs = {{{3, 5}, low, high, {}}}}, {.inputs = {{{}, low, high, {}}}}};
}

std::vector<OpSample> binary_samples(double la, double ha, double lb, double hb) {
  return {{.inputs = {{{2, 3}, la, ha, {}}, {{2, 3}, lb, hb, {}}}},
          {.inputs = {{{3, 1, 2}, la, ha, {}}, {{4, 1}, lb, hb, {}}}},
          {.inputs = {{{}, la, ha, {}}, {{3}, lb, hb, {}}}},
          {.inputs = {{{2, 3}, la, ha, {}}, {{4}, lb, hb, {}}},
           .error = "do not broadcast at axis -1 (3 against 4)"},
          {.inputs = {{{3}, la, ha, {}}, {{3}, lb, hb, DType::i32}}, .error = "element types differ"}};
}

// Slopes written in ops, so that derivatives of every order follow.
Tensor silu_slope(Tensor x) {
  const Tensor s = sigmoid(x);
  return s * (1.0 + x * (1.0 - s));
}

Tensor gelu_tanh_slope(Tensor x) {
  const double c = 0.7978845608028654;
  const Tensor t = tanh(x * c + x * square(x) * (c * 0.044715));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - square(t)) * (c + square(x) * (3 * c * 0.044715));
}

// 2/sqrt(pi) e^(-x^2)
Tensor erf_slope(Tensor x) { return exp(-square(x)) * 1.1283791670955126; }

// Phi(x) + x phi(x), of the normal distribution.
Tensor gelu_slope(Tensor x) {
  const Tensor density = exp(square(x) * -0.5) * 0.3989422804014327;
  return 0.5 * (1.0 + erf(x * 0.7071067811865476)) + x * density;
}

// b - 1, and 0 where a = b = 0: the slope of a^0 at a = 0 is then 0 * 0^0, which is 0, and not 0 * 0^-1. The
// derivatives of x^n come here at order n + 1.
Tensor one_less(Tensor a, Tensor b) { return select(equal(a, 0.0) * equal(b, 0.0), 1.0, b) - 1.0; }

// log a, and 0 at a = 0, where a^b has slope 0 in b for every b > 0.
Tensor log_or_zero(Tensor a) {
  const Tensor positive = greater(a, 0.0);
  return positive * log(select(positive, a, 1.0));
}

// The slope of a^b in a. Where b is known, one that ends: of x^2 it is constant at order 2, and zero from order 3 on.
// Otherwise 0 x^-1 would follow, which is NaN where x^-1 is no longer finite.
Tensor pow_slope(Tensor a, Tensor b) {
  const auto n = known_number(b);
  if (!n) return b * pow(a, one_less(a, b));
  if (*n == 0) return zero_like(a);
  return *n == 1 ? b : b * pow(a, constant(*n - 1, b.dtype()));
}

// ct, and 0 where the mask holds, whatever ct is there: an infinite one times a mask would be NaN.
Tensor unless(Tensor mask, Tensor ct) { return select(mask, zero_like(ct), ct); }

using Simplify = Tensor (*)(Tensor);
constexpr Simplify _ = nullptr;

template <Simplify rule>
Tensor simplified(Tensor t) {
  if constexpr (!std::is_same_v<std::integral_constant<Simplify, rule>, std::integral_constant<Simplify, _>>)
    if (const Tensor simpler = rule(t); simpler.defined()) return simpler;
  return simplify_elementwise(t);
}

constexpr bool FLOAT = false, ANY = true;

// What is only for floats is a division, a root or a series: as much work as some twenty sums.
template <bool Any>
OpCost cost_of(const OpCall& call) {
  OpCost cost = elementwise_cost(call);
  if (!Any) cost.flops *= 20;
  return cost;
}

}  // namespace

// What the column `affine` says besides the inputs.
constexpr int LINEAR = 256, PRODUCT = 512, SUM = 1024;
#define ROW(NAME, DOC, ARITY, KIND) .name = #NAME, .doc = DOC, .infer = infer_elementwise<ARITY, KIND>
#define STEP_WHY "it is piecewise constant"

#define UNARY(NAME, ...) \
  Tensor NAME(Operand x) { return emit(NAME##_op, {x.tensor()}, {}, x.loc); }
#define BINARY(NAME, ...) \
  Tensor NAME(Operand a, Operand b) { return emit(NAME##_op, {as_tensor(a, b), as_tensor(b, a)}, {}, a.loc); }
#define TERNARY(...)
#include "ops/elementwise.def"

#define UNARY(NAME, DOC, KERNEL, VJP, LOW, HIGH, KIND, AFFINE, SIMPLIFY)                          \
  constinit const Op NAME##_op{ROW(NAME, DOC, 1, KIND),                                           \
                               .vjp = [](const VjpCall& c) -> Tensor {                            \
                                 [[maybe_unused]] const Tensor x = c.in[0], y = c.out, ct = c.ct; \
                                 return VJP;                                                      \
                               },                                                                 \
                               .simplify = simplified<SIMPLIFY>,                                  \
                               .linear_in = [](const OpCall&, int) { return ((AFFINE)&1) != 0; }, \
                               .is_linear = ((AFFINE)&LINEAR) != 0,                               \
                               .axes = elementwise_axes,                                          \
                               .broadcasts = true,                                                \
                               .may_reuse = reuse_same_shape,                                     \
                               .cost = cost_of<KIND>,                                             \
                               .cpu = make_kernel<Formula::NAME, 1>,                              \
                               .element_loop = element_loop<Formula::NAME>,                       \
                               .samples = [] { return unary_samples(LOW, HIGH); }};
#define UNARY_STEP(NAME, DOC, KERNEL, LOW, HIGH, KIND)                      \
  constinit const Op NAME##_op{ROW(NAME, DOC, 1, KIND),                     \
                               .why_no_derivative = STEP_WHY,               \
                               .axes = elementwise_axes,                    \
                               .broadcasts = true,                          \
                               .may_reuse = reuse_same_shape,               \
                               .cost = cost_of<KIND>,                       \
                               .cpu = make_kernel<Formula::NAME, 1>,        \
                               .element_loop = element_loop<Formula::NAME>, \
                               .samples = [] { return unary_samples(LOW, HIGH); }};
#define BINARY(NAME, DOC, KERNEL, VJP_A, VJP_B, LOW_A, HIGH_A, LOW_B, HIGH_B, KIND, AFFINE, SIMPLIFY)      \
  constinit const Op NAME##_op{ROW(NAME, DOC, 2, KIND),                                                    \
                               .vjp = [](const VjpCall& c) -> Tensor {                                     \
                                 [[maybe_unused]] const Tensor a = c.in[0], b = c.in[1];                   \
                                 [[maybe_unused]] const Tensor y = c.out, ct = c.ct;                       \
                                 if (c.input == 0) return VJP_A;                                           \
                                 return VJP_B;                                                             \
                               },                                                                          \
                               .simplify = simplified<SIMPLIFY>,                                           \
                               .linear_in = [](const OpCall&, int i) { return ((AFFINE) >> i & 1) != 0; }, \
                               .is_linear = ((AFFINE)&LINEAR) != 0,                                        \
                               .is_product = ((AFFINE)&PRODUCT) != 0,                                      \
                               .is_addition = ((AFFINE)&SUM) != 0,                                         \
                               .axes = elementwise_axes,                                                   \
                               .broadcasts = true,                                                         \
                               .may_reuse = reuse_same_shape,                                              \
                               .cost = cost_of<KIND>,                                                      \
                               .cpu = make_kernel<Formula::NAME, 2>,                                       \
                               .element_loop = element_loop<Formula::NAME>,                                \
                               .samples = [] { return binary_samples(LOW_A, HIGH_A, LOW_B, HIGH_B); }};
#define BINARY_STEP(NAME, DOC, KERNEL, LOW_A, HIGH_A, LOW_B, HIGH_B, KIND)  \
  constinit const Op NAME##_op{ROW(NAME, DOC, 2, KIND),                     \
                               .why_no_derivative = STEP_WHY,               \
                               .axes = elementwise_axes,                    \
                               .broadcasts = true,                          \
                               .may_reuse = reuse_same_shape,               \
                               .cost = cost_of<KIND>,                       \
                               .cpu = make_kernel<Formula::NAME, 2>,        \
                               .element_loop = element_loop<Formula::NAME>, \
                               .samples = [] { return binary_samples(LOW_A, HIGH_A, LOW_B, HIGH_B); }};
#define TERNARY(...)
#include "ops/elementwise.def"

constinit const Op select_op = {
    .name = "select",
    .doc = "b where a is not zero, else c",
    .infer = infer_elementwise<3, ANY>,
    .vjp = [](const VjpCall& c) -> Tensor {
      const Tensor zero = zero_like(c.ct);
      return c.input == 1 ? select(c.in[0], c.ct, zero) : select(c.in[0], zero, c.ct);
    },
    .why_no_derivative_in = [](int input) -> std::string_view {
      return input == 0 ? "a mask only chooses" : "";
    },
    .simplify = simplify_elementwise,
    .linear_in = [](const OpCall&, int i) { return i > 0; },
    .axes = elementwise_axes,
    .broadcasts = true,
    .may_reuse = reuse_same_shape,
    .cost = elementwise_cost,
    .cpu = make_kernel<Formula::select, 3>,
    .element_loop = element_loop<Formula::select>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 1}, 1, 2, {}}, {{2, 3}, -1, 1, {}}, {{3}, -1, 1, {}}}},
              {.inputs = {{{2, 3}, 0, 0, {}}, {{2, 3}, -1, 1, {}}, {{}, -1, 1, {}}}}};
    }};

Tensor select(Operand mask, Operand yes, Operand no) {
  const Operand& like = mask.is_number ? (yes.is_number ? no : yes) : mask;
  return emit(select_op, {as_tensor(mask, like), as_tensor(yes, like), as_tensor(no, like)}, {}, mask.loc);
}

Tensor operator+(Operand a, Operand b) { return add(a, b); }
Tensor operator-(Operand a, Operand b) { return sub(a, b); }
Tensor operator*(Operand a, Operand b) { return mul(a, b); }
Tensor operator/(Operand a, Operand b) { return div(a, b); }
Tensor operator-(Operand x) { return neg(x); }
Tensor& operator+=(Tensor& a, Operand b) { return a = add({a, b.loc}, b); }
Tensor& operator-=(Tensor& a, Operand b) { return a = sub({a, b.loc}, b); }
Tensor& operator*=(Tensor& a, Operand b) { return a = mul({a, b.loc}, b); }
Tensor& operator/=(Tensor& a, Operand b) { return a = div({a, b.loc}, b); }
Tensor operator>(Operand a, Operand b) { return greater(a, b); }
Tensor operator>=(Operand a, Operand b) { return greater_equal(a, b); }
Tensor operator<(Operand a, Operand b) { return less(a, b); }
Tensor operator<=(Operand a, Operand b) { return less_equal(a, b); }
Tensor where(Operand mask, Operand a, Operand b) {
  const CompositeCall call("where");
  return select(mask, a, b);
}
Tensor clip(Operand x, Operand low, Operand high) {
  const CompositeCall call("clip");
  return min({max(x, low), x.loc}, high);
}

}  // namespace nestgrad

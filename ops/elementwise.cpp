// Elementwise ops: one kernel template for all formulas of elementwise.def.
#include "ops/elementwise.h"

#include <fmt/format.h>

#include "ops/ops.h"
#include "ops/pack.h"
#include "ops/rules.h"
#include "ops/simplify.h"

namespace nestgrad {

Shape broadcast_shapes(const Call& call, const Shape& a, const Shape& b) {
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

BroadcastLoop::BroadcastLoop(const Call& call) {
  const int rank = call.out.rank();
  std::vector<std::int64_t> sizes;
  std::vector<std::vector<std::int64_t>> strides;  // [dim][operand]
  for (int d = rank; d-- > 0;) {
    const auto du = static_cast<std::size_t>(d);
    const std::int64_t size = call.out.shape[du];
    if (size == 1) continue;
    std::vector<std::int64_t> s;
    for (const Spec& in : call.in) {
      const int axis = d - (rank - in.rank());
      const bool repeats = axis < 0 || in.shape[static_cast<std::size_t>(axis)] == 1;
      s.push_back(repeats ? 0 : strides_of(in.shape)[static_cast<std::size_t>(axis)]);
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

template <class T>
struct Lane {
  using type = Pack<T>;
  static constexpr int size = Pack<T>::size;
  static type load(const T* p) { return Pack<T>::load(p); }
  static type splat(T v) { return Pack<T>(static_cast<double>(v)); }
  static void store(type v, T* p) { v.store(p); }
};
template <>
struct Lane<std::int32_t> {
  using type = std::int32_t;
  static constexpr int size = 1;
  static type load(const std::int32_t* p) { return *p; }
  static type splat(std::int32_t v) { return v; }
  static void store(type v, std::int32_t* p) { *p = v; }
};

// out[0..n) = formula(in...); an operand whose flag is set is one element, used for all.
template <class F, class T, bool... Stretched, std::size_t... I>
void inner_loop(const T* const* in, T* out, std::int64_t n, std::index_sequence<I...>) {
  using L = Lane<T>;
  constexpr int w = L::size;
  const typename L::type fixed[] = {L::splat(*in[I])...};
  const auto at = [&](auto index, std::int64_t i) {
    constexpr std::size_t k = decltype(index)::value;
    constexpr bool flags[] = {Stretched...};
    if constexpr (flags[k]) return fixed[k];
    else return L::load(in[k] + i);
  };
  const auto one = [&](std::int64_t i) {
    L::store(F{}(at(std::integral_constant<std::size_t, I>{}, i)...), out + i);
  };
  std::int64_t i = 0;
  if constexpr (sizeof...(I) > 1) {  // mostly a single instruction, beside which counting would be seen
#pragma GCC unroll 4
    for (; i + w <= n; i += w) one(i);
  } else {
    for (; i + w <= n; i += w) one(i);
  }
  if (i == n) return;
  // The rest goes through the same instructions, in a padded copy.
  T rest[sizeof...(I)][w], result[w];
  const T* padded[sizeof...(I)] = {rest[I]...};
  constexpr bool flags[] = {Stretched...};
  for (std::size_t k = 0; k < sizeof...(I); ++k)
    for (int j = 0; j < w; ++j) rest[k][j] = flags[k] ? *in[k] : in[k][std::min(i + j, n - 1)];
  L::store(F{}(L::load(padded[I])...), result);
  std::copy_n(result, n - i, out + i);
}

template <class F, class T, int N, bool... Stretched>
ElementLoop choose(const std::vector<char>& stretched) {
  if constexpr (sizeof...(Stretched) == N)
    return [](const std::byte* const* in, std::byte* out, std::int64_t n) {
      const T* p[N];
      for (int k = 0; k < N; ++k) p[k] = reinterpret_cast<const T*>(in[k]);
      inner_loop<F, T, Stretched...>(p, reinterpret_cast<T*>(out), n, std::make_index_sequence<N>{});
    };
  else
    return stretched[sizeof...(Stretched)] ? choose<F, T, N, Stretched..., true>(stretched)
                                           : choose<F, T, N, Stretched..., false>(stretched);
}

template <class F, int N, bool Integers>
ElementLoop element_loop(DType dtype, const std::vector<char>& stretched) {
  switch (dtype) {
    case DType::f32:
      return choose<F, float, N>(stretched);
    case DType::f64:
      return choose<F, double, N>(stretched);
    case DType::i32:
      if constexpr (Integers) return choose<F, std::int32_t, N>(stretched);
  }
  return nullptr;
}

template <class F, class T, int N>
Kernel typed_kernel(const Call& call) {
  BroadcastLoop loop(call);
  const ElementLoop inner = choose<F, T, N>(loop.stretched);
  return [loop = std::move(loop), inner](const std::byte* const* in, std::byte* out) {
    loop.run<N>(in, out, sizeof(T), inner);
  };
}

template <class F, int N, bool Integers>
Kernel make_kernel(const Call& call) {
  switch (call.out.dtype) {
    case DType::f32:
      return typed_kernel<F, float, N>(call);
    case DType::f64:
      return typed_kernel<F, double, N>(call);
    case DType::i32:
      if constexpr (Integers) return typed_kernel<F, std::int32_t, N>(call);
  }
  call.dtype_error("integers are not supported; cast() to f32 or f64 first");
}

template <int N, bool Integers>
Spec infer_elementwise(const Call& call) {
  Shape shape = call.in[0].shape;
  for (int k = 1; k < N; ++k) {
    const auto& in = call.in[static_cast<std::size_t>(k)];
    if (in.dtype != call.in[0].dtype) call.dtype_error("element types differ; cast() one of them");
    shape = broadcast_shapes(call, shape, in.shape);
  }
  if (!Integers && !is_float(call.in[0].dtype))
    call.dtype_error("integers are not supported; cast() to f32 or f64 first");
  return {call.in[0].dtype, std::move(shape)};
}

int elementwise_axes(const Call& call, int input, int axis) {
  const Spec& in = call.in[static_cast<std::size_t>(input)];
  const int to = axis + call.out.rank() - in.rank();
  return in.shape[static_cast<std::size_t>(axis)] == call.out.shape[static_cast<std::size_t>(to)] ? to : -1;
}

bool reuse_same_shape(const Call& call, int input) {
  return call.in[static_cast<std::size_t>(input)] == call.out;
}

std::vector<Sample> unary_samples(double low, double high) {
  return {{.inputs = {{{3, 5}, low, high, {}}}}, {.inputs = {{{}, low, high, {}}}}};
}

std::vector<Sample> binary_samples(double la, double ha, double lb, double hb) {
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

// b - 1, and 0 where a = b = 0: the slope of a^0 at a = 0 is then 0 * 0^0, which is 0, and not 0 * 0^-1. The
// derivatives of x^n come here at order n + 1.
Tensor one_less(Tensor a, Tensor b) { return select(equal(a, 0.0) * equal(b, 0.0), 1.0, b) - 1.0; }

// log a, and 0 at a = 0, where a^b has slope 0 in b for every b > 0.
Tensor log_or_zero(Tensor a) {
  const Tensor positive = greater(a, 0.0);
  return positive * log(select(positive, a, 1.0));
}

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
Cost cost_of(const Call& call) {
  Cost cost = elementwise_cost(call);
  if (!Any) cost.flops *= 20;
  return cost;
}

}  // namespace

// A formula as a functor. (Never named like the math function: the call inside would find itself.)
#define FORMULA(NAME, ARGS, EXPRESSION) \
  struct Formula_##NAME {               \
    template <class X>                  \
    X operator() ARGS const {           \
      return EXPRESSION;                \
    }                                   \
  };                                    \
  extern const Op& op_##NAME;

constexpr int L = 256;
#define ROW(NAME, DOC, ARITY, KIND) .name = #NAME, .doc = DOC, .infer = infer_elementwise<ARITY, KIND>
#define STEP_WHY "it is piecewise constant"

namespace {
#define UNARY(NAME, DOC, KERNEL, ...) FORMULA(NAME, (X x), KERNEL)
#define UNARY_STEP(NAME, DOC, KERNEL, ...) FORMULA(NAME, (X x), KERNEL)
#define BINARY(NAME, DOC, KERNEL, ...) FORMULA(NAME, (X a, X b), KERNEL)
#define BINARY_STEP(NAME, DOC, KERNEL, ...) FORMULA(NAME, (X a, X b), KERNEL)
#include "ops/elementwise.def"
#undef UNARY
#undef UNARY_STEP
#undef BINARY
#undef BINARY_STEP
}  // namespace

#define UNARY(NAME, ...) \
  Tensor NAME(Operand x) { return emit(op_##NAME, {as_tensor(x, {})}, {}, x.loc); }
#define UNARY_STEP UNARY
#define BINARY(NAME, ...)                                                                \
  Tensor NAME(Operand a, Operand b) {                                                    \
    return emit(op_##NAME, {as_tensor(a, b.tensor), as_tensor(b, a.tensor)}, {}, a.loc); \
  }
#define BINARY_STEP BINARY
#include "ops/elementwise.def"
#undef UNARY
#undef UNARY_STEP
#undef BINARY
#undef BINARY_STEP

namespace {
#define UNARY(NAME, DOC, KERNEL, VJP, LOW, HIGH, KIND, AFFINE, SIMPLIFY)                           \
  const Op& op_##NAME = register_op(                                                               \
      {ROW(NAME, DOC, 1, KIND),                                                                    \
       .vjp = [](const VjpCall& c) -> Tensor {                                                     \
         [[maybe_unused]] const Tensor x = c.in[0], y = c.out, ct = c.ct;                          \
         return VJP;                                                                               \
       },                                                                                          \
       .cpu = make_kernel<Formula_##NAME, 1, KIND>, .loop = element_loop<Formula_##NAME, 1, KIND>, \
       .linear_in = [](const Call&, int) { return ((AFFINE)&1) != 0; }, .axes = elementwise_axes,  \
       .may_reuse = reuse_same_shape, .cost = cost_of<KIND>, .simplify = simplified<SIMPLIFY>,     \
       .samples = [] { return unary_samples(LOW, HIGH); }, .linear = ((AFFINE)&L) != 0,            \
       .broadcasts = true});
#define UNARY_STEP(NAME, DOC, KERNEL, LOW, HIGH, KIND)                                                       \
  const Op& op_##NAME = register_op(                                                                         \
      {ROW(NAME, DOC, 1, KIND), .not_differentiable = STEP_WHY, .cpu = make_kernel<Formula_##NAME, 1, KIND>, \
       .loop = element_loop<Formula_##NAME, 1, KIND>, .axes = elementwise_axes,                              \
       .may_reuse = reuse_same_shape, .cost = cost_of<KIND>,                                                 \
       .samples = [] { return unary_samples(LOW, HIGH); }, .broadcasts = true});
#define BINARY(NAME, DOC, KERNEL, VJP_A, VJP_B, LOW_A, HIGH_A, LOW_B, HIGH_B, KIND, AFFINE, SIMPLIFY)      \
  const Op& op_##NAME = register_op(                                                                       \
      {ROW(NAME, DOC, 2, KIND),                                                                            \
       .vjp = [](const VjpCall& c) -> Tensor {                                                             \
         [[maybe_unused]] const Tensor a = c.in[0], b = c.in[1];                                           \
         [[maybe_unused]] const Tensor y = c.out, ct = c.ct;                                               \
         if (c.input == 0) return VJP_A;                                                                   \
         return VJP_B;                                                                                     \
       },                                                                                                  \
       .cpu = make_kernel<Formula_##NAME, 2, KIND>, .loop = element_loop<Formula_##NAME, 2, KIND>,         \
       .linear_in = [](const Call&, int i) { return ((AFFINE) >> i & 1) != 0; }, .axes = elementwise_axes, \
       .may_reuse = reuse_same_shape, .cost = cost_of<KIND>, .simplify = simplified<SIMPLIFY>,             \
       .samples = [] { return binary_samples(LOW_A, HIGH_A, LOW_B, HIGH_B); },                             \
       .adds = std::string_view(#NAME) == "add", .linear = ((AFFINE)&L) != 0, .broadcasts = true});
#define BINARY_STEP(NAME, DOC, KERNEL, LOW_A, HIGH_A, LOW_B, HIGH_B, KIND)                                   \
  const Op& op_##NAME = register_op(                                                                         \
      {ROW(NAME, DOC, 2, KIND), .not_differentiable = STEP_WHY, .cpu = make_kernel<Formula_##NAME, 2, KIND>, \
       .loop = element_loop<Formula_##NAME, 2, KIND>, .axes = elementwise_axes,                              \
       .may_reuse = reuse_same_shape, .cost = cost_of<KIND>,                                                 \
       .samples = [] { return binary_samples(LOW_A, HIGH_A, LOW_B, HIGH_B); }, .broadcasts = true});
#include "ops/elementwise.def"
#undef UNARY
#undef UNARY_STEP
#undef BINARY
#undef BINARY_STEP

FORMULA(select, (X mask, X yes, X no), where(mask == X(0), no, yes))
const Op& op_select =
    register_op({.name = "select",
                 .doc = "b where a is not zero, else c",
                 .infer = infer_elementwise<3, ANY>,
                 .vjp = [](const VjpCall& c) -> Tensor {
                   const Tensor zero = zero_like(c.ct);
                   return c.input == 1 ? select(c.in[0], c.ct, zero) : select(c.in[0], zero, c.ct);
                 },
                 .cut = [](int input) -> std::string_view { return input == 0 ? "a mask only chooses" : ""; },
                 .cpu = make_kernel<Formula_select, 3, ANY>,
                 .loop = element_loop<Formula_select, 3, ANY>,
                 .linear_in = [](const Call&, int i) { return i > 0; },
                 .axes = elementwise_axes,
                 .may_reuse = reuse_same_shape,
                 .cost = elementwise_cost,
                 .simplify = simplify_elementwise,
                 .samples = []() -> std::vector<Sample> {
                   return {{.inputs = {{{2, 1}, 1, 2, {}}, {{2, 3}, -1, 1, {}}, {{3}, -1, 1, {}}}},
                           {.inputs = {{{2, 3}, 0, 0, {}}, {{2, 3}, -1, 1, {}}, {{}, -1, 1, {}}}}};
                 },
                 .broadcasts = true});
}  // namespace

Tensor select(Operand mask, Operand yes, Operand no) {
  const Tensor like = mask.tensor.defined() ? mask.tensor : yes.tensor;
  return emit(op_select, {as_tensor(mask, like), as_tensor(yes, like), as_tensor(no, like)}, {}, mask.loc);
}

Tensor operator+(Operand a, Operand b) { return add(a, b); }
Tensor operator-(Operand a, Operand b) { return sub(a, b); }
Tensor operator*(Operand a, Operand b) { return mul(a, b); }
Tensor operator/(Operand a, Operand b) { return div(a, b); }
Tensor operator-(Operand x) { return neg(x); }

}  // namespace nestgrad

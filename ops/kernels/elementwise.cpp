// Elementwise kernels: one loop for all formulas of elementwise.def.
#include <type_traits>
#include <utility>

#include "ops/kernels/table.h"
#include "ops/numerics/formulas.h"
#include "ops/numerics/pack.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace {

// What a formula is computed on at once: a register of floats, or one integer.
template <class T>
struct Operand {
  using type = Pack<T>;
  static constexpr int size = Pack<T>::size;
  static type load(const T* p) { return Pack<T>::load(p); }
  static type repeat(T v) { return Pack<T>::load_repeated(&v); }
  static void store(type v, T* p) { v.store(p); }
};
template <>
struct Operand<std::int32_t> {
  using type = std::int32_t;
  static constexpr int size = 1;
  static type load(const std::int32_t* p) { return *p; }
  static type repeat(std::int32_t v) { return v; }
  static void store(type v, std::int32_t* p) { *p = v; }
};

// Stretched: bit k is set where one element of operand k serves for all.
template <class F, class T, unsigned Stretched, std::size_t... I>
void loop(const T* const* in, T* out, std::int64_t n, std::index_sequence<I...>) {
  using O = Operand<T>;
  constexpr int w = O::size;
  const typename O::type fixed[] = {O::repeat(*in[I])...};
  const auto at = [&](auto index, std::int64_t i) {
    constexpr std::size_t k = decltype(index)::value;
    if constexpr ((Stretched >> k & 1) != 0) return fixed[k];
    else return O::load(in[k] + i);
  };
  const auto one = [&](std::int64_t i) {
    O::store(F::of(at(std::integral_constant<std::size_t, I>{}, i)...), out + i);
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
  for (std::size_t k = 0; k < sizeof...(I); ++k)
    for (int j = 0; j < w; ++j)
      rest[k][j] = (Stretched >> k & 1) != 0 ? *in[k] : in[k][i + j < n ? i + j : n - 1];
  O::store(F::of(O::load(rest[I])...), result);
  for (int j = 0; j < n - i; ++j) out[i + j] = result[j];
}

template <class F, class T, unsigned Stretched>
void kernel(const std::byte* const* in, std::byte* out, std::int64_t n) {
  const T* p[F::operands];
  for (int k = 0; k < F::operands; ++k) p[k] = reinterpret_cast<const T*>(in[k]);
  loop<F, T, Stretched>(p, reinterpret_cast<T*>(out), n, std::make_index_sequence<F::operands>{});
}

template <class F, class T, unsigned... Stretched>
constexpr void fill(ElementKernel (&row)[1 << kMostOperands], std::integer_sequence<unsigned, Stretched...>) {
  ((row[Stretched] = kernel<F, T, Stretched>), ...);
}

template <class F>
constexpr void add(ElementKernels& table, Formula formula) {
  auto& rows = table.of[static_cast<int>(formula)];
  using Choices = std::make_integer_sequence<unsigned, 1u << F::operands>;
  fill<F, float>(rows[0], Choices{});
  fill<F, double>(rows[1], Choices{});
  if constexpr (F::integers) fill<F, std::int32_t>(rows[2], Choices{});
}

constexpr ElementKernels all_kernels() {
  ElementKernels table{};
#define UNARY(NAME, ...) add<formula::NAME>(table, Formula::NAME);
#include "ops/elementwise.def"
  return table;
}

}  // namespace

constinit const ElementKernels elementwise = all_kernels();

}  // namespace nestgrad::inline NESTGRAD_ISA

// Pack<T>: one register of elements under the operators of a number, so that
// a formula is written once. Made of the compilers' vector types, at the
// width that the instruction set has. Owns nothing; a value like a number.
//
//   Pack<float> x = Pack<float>::load(p);
//   where(x < Pack<float>(0), Pack<float>(0), x).store(p);
//
// Every operation is an IEEE 754 one on each lane, so a result depends on its operands alone: not on the
// lane, the width or the instruction set. (Which NaN an operation makes is not defined.)
#pragma once

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "ops/numerics/number.h"

namespace nestgrad::inline NESTGRAD_ISA {

#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

// Lanes that a sum or a comparison of many elements keeps side by side: 64 bytes of them whatever the
// register's width, so that the order of its steps is the same for every instruction set.
template <class T>
constexpr int kLanes = 64 / static_cast<int>(sizeof(T));

#define NESTGRAD_MEMBER_FN inline __attribute__((always_inline))
#define NESTGRAD_PACK_FN friend NESTGRAD_MEMBER_FN

// The compilers' types. (g++ ignores vector_size on a type that depends on a template's argument.)
template <class T>
struct Register;
template <>
struct Register<float> {
  typedef float Raw __attribute__((vector_size(kRegisterBytes)));
  typedef std::int32_t RawInt __attribute__((vector_size(kRegisterBytes)));
  typedef std::uint32_t RawUnsigned __attribute__((vector_size(kRegisterBytes)));
};
template <>
struct Register<double> {
  typedef double Raw __attribute__((vector_size(kRegisterBytes)));
  typedef std::int64_t RawInt __attribute__((vector_size(kRegisterBytes)));
  typedef std::uint64_t RawUnsigned __attribute__((vector_size(kRegisterBytes)));
};

// a b + c in every lane, rounded once; the square roots. Compilers do not
// always make one instruction of a loop over the lanes, so these are written
// as such. (With g++ 12 _mm512_sqrt_ps warns of its own undefined operand.)
#if defined(__AVX512F__)
NESTGRAD_MEMBER_FN __m512 fma_lanes(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
NESTGRAD_MEMBER_FN __m512d fma_lanes(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
NESTGRAD_MEMBER_FN __m512 sqrt_lanes(__m512 a) { return _mm512_maskz_sqrt_ps(0xffff, a); }
NESTGRAD_MEMBER_FN __m512d sqrt_lanes(__m512d a) { return _mm512_maskz_sqrt_pd(0xff, a); }
// Where either is NaN, these instructions give the second one.
NESTGRAD_MEMBER_FN __m512 smaller_lanes(__m512 a, __m512 b) { return _mm512_maskz_min_ps(0xffff, a, b); }
NESTGRAD_MEMBER_FN __m512d smaller_lanes(__m512d a, __m512d b) { return _mm512_maskz_min_pd(0xff, a, b); }
NESTGRAD_MEMBER_FN __m512 larger_lanes(__m512 a, __m512 b) { return _mm512_maskz_max_ps(0xffff, a, b); }
NESTGRAD_MEMBER_FN __m512d larger_lanes(__m512d a, __m512d b) { return _mm512_maskz_max_pd(0xff, a, b); }
// a 2^n for an integer n, rounded once.
NESTGRAD_MEMBER_FN __m512 scale_lanes(__m512 a, __m512 n) { return _mm512_maskz_scalef_ps(0xffff, a, n); }
NESTGRAD_MEMBER_FN __m512d scale_lanes(__m512d a, __m512d n) { return _mm512_maskz_scalef_pd(0xff, a, n); }
#elif defined(__FMA__)
NESTGRAD_MEMBER_FN __m256 fma_lanes(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
NESTGRAD_MEMBER_FN __m256d fma_lanes(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
NESTGRAD_MEMBER_FN __m256 sqrt_lanes(__m256 a) { return _mm256_sqrt_ps(a); }
NESTGRAD_MEMBER_FN __m256d sqrt_lanes(__m256d a) { return _mm256_sqrt_pd(a); }
NESTGRAD_MEMBER_FN __m256 smaller_lanes(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
NESTGRAD_MEMBER_FN __m256d smaller_lanes(__m256d a, __m256d b) { return _mm256_min_pd(a, b); }
NESTGRAD_MEMBER_FN __m256 larger_lanes(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
NESTGRAD_MEMBER_FN __m256d larger_lanes(__m256d a, __m256d b) { return _mm256_max_pd(a, b); }
#elif defined(__aarch64__)
NESTGRAD_MEMBER_FN float32x4_t fma_lanes(float32x4_t a, float32x4_t b, float32x4_t c) {
  return vfmaq_f32(c, a, b);
}
NESTGRAD_MEMBER_FN float64x2_t fma_lanes(float64x2_t a, float64x2_t b, float64x2_t c) {
  return vfmaq_f64(c, a, b);
}
NESTGRAD_MEMBER_FN float32x4_t sqrt_lanes(float32x4_t a) { return vsqrtq_f32(a); }
NESTGRAD_MEMBER_FN float64x2_t sqrt_lanes(float64x2_t a) { return vsqrtq_f64(a); }
#else
template <class Raw>
NESTGRAD_MEMBER_FN Raw fma_lanes(Raw a, Raw b, Raw c) {
  for (unsigned i = 0; i < sizeof(Raw) / sizeof(a[0]); ++i)
    a[i] = fma(decltype(+a[0])(a[i]), decltype(+b[0])(b[i]), decltype(+c[0])(c[i]));
  return a;
}
template <class Raw>
NESTGRAD_MEMBER_FN Raw sqrt_lanes(Raw a) {
  for (unsigned i = 0; i < sizeof(Raw) / sizeof(a[0]); ++i) a[i] = square_root(decltype(+a[0])(a[i]));
  return a;
}
#endif

#if !defined(__FMA__)
template <class Raw>
NESTGRAD_MEMBER_FN Raw smaller_lanes(Raw a, Raw b) {
  return a < b ? a : b;
}
template <class Raw>
NESTGRAD_MEMBER_FN Raw larger_lanes(Raw a, Raw b) {
  return a > b ? a : b;
}
#endif

// Is any bit set?
#if defined(__AVX512F__)
template <class Raw>
NESTGRAD_MEMBER_FN bool any_lanes(Raw a) {
  return _mm512_test_epi64_mask(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(a)) != 0;
}
#elif defined(__AVX__)
template <class Raw>
NESTGRAD_MEMBER_FN bool any_lanes(Raw a) {
  return !_mm256_testz_si256(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(a));
}
#else
template <class Raw>
NESTGRAD_MEMBER_FN bool any_lanes(Raw a) {
  typedef long long Halves __attribute__((vector_size(16)));
  const Halves h = reinterpret_cast<Halves>(a);
  return (h[0] | h[1]) != 0;
}
#endif

// Integers as wide as T, a register of them.
template <class T>
struct IntPack {
  using Lane = typename Number<T>::Int;
  using Raw = typename Register<T>::RawInt;
  using Unsigned = typename Register<T>::RawUnsigned;
  Raw raw;
  IntPack() = default;
  NESTGRAD_MEMBER_FN explicit IntPack(Raw r) : raw(r) {}
  NESTGRAD_MEMBER_FN explicit IntPack(Lane v) : raw(v - Raw{}) {}
  NESTGRAD_PACK_FN IntPack operator+(IntPack a, IntPack b) { return IntPack(a.raw + b.raw); }
  NESTGRAD_PACK_FN IntPack operator-(IntPack a, IntPack b) { return IntPack(a.raw - b.raw); }
  // Modulo 2^32 or 2^64, for what may overflow.
  NESTGRAD_PACK_FN IntPack wrapped_sum(IntPack a, IntPack b) {
    return IntPack(Raw(Unsigned(a.raw) + Unsigned(b.raw)));
  }
  NESTGRAD_PACK_FN IntPack wrapped_difference(IntPack a, IntPack b) {
    return IntPack(Raw(Unsigned(a.raw) - Unsigned(b.raw)));
  }
  NESTGRAD_PACK_FN IntPack operator&(IntPack a, IntPack b) { return IntPack(a.raw & b.raw); }
  NESTGRAD_PACK_FN IntPack operator|(IntPack a, IntPack b) { return IntPack(a.raw | b.raw); }
  NESTGRAD_PACK_FN IntPack operator^(IntPack a, IntPack b) { return IntPack(a.raw ^ b.raw); }
  NESTGRAD_PACK_FN IntPack operator<<(IntPack a, int by) { return IntPack(a.raw << by); }
  NESTGRAD_PACK_FN IntPack operator>>(IntPack a, int by) { return IntPack(a.raw >> by); }  // keeps the sign
};

template <class T>
struct Pack {
  using Int = IntPack<T>;
  static constexpr int size = kRegisterBytes / static_cast<int>(sizeof(T));
  using Raw = typename Register<T>::Raw;

  Raw raw;
  Pack() = default;
  NESTGRAD_MEMBER_FN explicit Pack(Raw r) : raw(r) {}
  NESTGRAD_MEMBER_FN explicit Pack(double v) : raw(static_cast<T>(v) - Raw{}) {}
  NESTGRAD_MEMBER_FN explicit Pack(int v) : Pack(static_cast<double>(v)) {}
  NESTGRAD_MEMBER_FN static Pack load(const T* p) {
    Pack x;
    __builtin_memcpy(&x.raw, p, sizeof x.raw);
    return x;
  }
  NESTGRAD_MEMBER_FN static Pack load_repeated(const T* p) { return Pack(*p - Raw{}); }
  NESTGRAD_MEMBER_FN void store(T* p) const { __builtin_memcpy(p, &raw, sizeof raw); }

  NESTGRAD_PACK_FN Pack operator+(Pack a, Pack b) { return Pack(a.raw + b.raw); }
  NESTGRAD_PACK_FN Pack operator-(Pack a, Pack b) { return Pack(a.raw - b.raw); }
  NESTGRAD_PACK_FN Pack operator*(Pack a, Pack b) { return Pack(a.raw * b.raw); }
  NESTGRAD_PACK_FN Pack operator/(Pack a, Pack b) { return Pack(a.raw / b.raw); }
  NESTGRAD_PACK_FN Pack operator-(Pack a) { return Pack(-a.raw); }

  // Of each lane: all bits set, or none.
  struct Mask {
    typename Int::Raw raw;
    NESTGRAD_PACK_FN Mask operator&(Mask a, Mask b) { return {a.raw & b.raw}; }
    NESTGRAD_PACK_FN Mask operator|(Mask a, Mask b) { return {a.raw | b.raw}; }
    NESTGRAD_PACK_FN Mask operator!(Mask a) { return {~a.raw}; }
    NESTGRAD_PACK_FN bool any(Mask a) { return any_lanes(a.raw); }
  };
  NESTGRAD_PACK_FN Mask operator<(Pack a, Pack b) { return {a.raw < b.raw}; }
  NESTGRAD_PACK_FN Mask operator<=(Pack a, Pack b) { return {a.raw <= b.raw}; }
  NESTGRAD_PACK_FN Mask operator==(Pack a, Pack b) { return {a.raw == b.raw}; }
  NESTGRAD_PACK_FN Mask operator!=(Pack a, Pack b) { return {a.raw != b.raw}; }
  NESTGRAD_PACK_FN Mask operator>(Pack a, Pack b) { return {a.raw > b.raw}; }
  NESTGRAD_PACK_FN Mask operator>=(Pack a, Pack b) { return {a.raw >= b.raw}; }
  NESTGRAD_PACK_FN Pack where(Mask m, Pack yes, Pack no) { return Pack(m.raw ? yes.raw : no.raw); }

  NESTGRAD_PACK_FN Int bits(Pack a) { return Int(reinterpret_cast<typename Int::Raw>(a.raw)); }
  // a b + c, rounded once.
  NESTGRAD_PACK_FN Pack fma(Pack a, Pack b, Pack c) { return Pack(Raw(fma_lanes(a.raw, b.raw, c.raw))); }
  NESTGRAD_PACK_FN Pack square_root(Pack a) { return Pack(Raw(sqrt_lanes(a.raw))); }
  // The smaller and the larger of a number and a bound; NaN stays NaN.
  NESTGRAD_PACK_FN Pack at_most(Pack x, Pack bound) { return Pack(Raw(smaller_lanes(bound.raw, x.raw))); }
  NESTGRAD_PACK_FN Pack at_least(Pack x, Pack bound) { return Pack(Raw(larger_lanes(bound.raw, x.raw))); }
#if defined(__AVX512F__)
  // a 2^n for whole numbers n, rounded once.
  NESTGRAD_PACK_FN Pack times_power_of_two(Pack a, Pack n) { return Pack(Raw(scale_lanes(a.raw, n.raw))); }
#endif
  // fn on every lane.
  template <class Fn>
  NESTGRAD_PACK_FN Pack each_lane(Pack a, Fn fn) {
    for (int i = 0; i < size; ++i) a.raw[i] = fn(T(a.raw[i]));
    return a;
  }
  // Integers of a mask's lanes.
  NESTGRAD_PACK_FN Int where(Mask m, Int yes, Int no) { return Int(m.raw ? yes.raw : no.raw); }
};

template <class T>
struct Number<Pack<T>> {
  using Lane = T;
  using Int = IntPack<T>;
  NESTGRAD_MEMBER_FN static Pack<T> of_bits(Int i) {
    return Pack<T>(reinterpret_cast<typename Pack<T>::Raw>(i.raw));
  }
};

}  // namespace nestgrad::inline NESTGRAD_ISA

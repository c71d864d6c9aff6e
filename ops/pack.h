// One element or one SIMD register of elements, under the same operators, so that a formula is written once.
// Wraps Eigen's packets. A result depends on its operands only, never on where in an array the element
// stands.
#pragma once

#include <Eigen/Core>
#include <cmath>

namespace nestgrad {

template <class T>
struct Pack {
  using Traits = Eigen::internal::packet_traits<T>;
  using Raw = typename Traits::type;
  static constexpr int size = Traits::size;

  Raw raw;
  Pack() = default;
  explicit Pack(Raw r) : raw(r) {}
  explicit Pack(double v) : raw(Eigen::internal::pset1<Raw>(static_cast<T>(v))) {}
  explicit Pack(int v) : Pack(static_cast<double>(v)) {}
  static Pack load(const T* p) { return Pack(Eigen::internal::ploadu<Raw>(p)); }
  static Pack load_repeated(const T* p) { return Pack(Eigen::internal::pload1<Raw>(p)); }
  void store(T* p) const { Eigen::internal::pstoreu(p, raw); }

  friend Pack operator+(Pack a, Pack b) { return Pack(Eigen::internal::padd(a.raw, b.raw)); }
  friend Pack operator-(Pack a, Pack b) { return Pack(Eigen::internal::psub(a.raw, b.raw)); }
  friend Pack operator*(Pack a, Pack b) { return Pack(Eigen::internal::pmul(a.raw, b.raw)); }
  friend Pack operator/(Pack a, Pack b) { return Pack(Eigen::internal::pdiv(a.raw, b.raw)); }
  friend Pack operator-(Pack a) { return Pack(Eigen::internal::pnegate(a.raw)); }
  // a b + c; rounded once where the processor can.
  friend Pack fma(Pack a, Pack b, Pack c) { return Pack(Eigen::internal::pmadd(a.raw, b.raw, c.raw)); }

  struct Mask {
    Raw raw;
  };
  friend Mask operator<(Pack a, Pack b) { return {Eigen::internal::pcmp_lt(a.raw, b.raw)}; }
  friend Mask operator<=(Pack a, Pack b) { return {Eigen::internal::pcmp_le(a.raw, b.raw)}; }
  friend Mask operator==(Pack a, Pack b) { return {Eigen::internal::pcmp_eq(a.raw, b.raw)}; }
  friend Mask operator>(Pack a, Pack b) { return b < a; }
  friend Mask operator>=(Pack a, Pack b) { return b <= a; }
  friend Pack where(Mask m, Pack yes, Pack no) {
    return Pack(Eigen::internal::pselect(m.raw, yes.raw, no.raw));
  }
};

template <class T>
requires std::is_arithmetic_v<T> T where(bool condition, T yes, T no) { return condition ? yes : no; }

namespace m {

// fn on every lane, for functions that the instruction set has no vector form of.
template <class T, class Fn>
Pack<T> lanes(Pack<T> x, Fn fn) {
  T v[Pack<T>::size];
  x.store(v);
  for (T& e : v) e = fn(e);
  return Pack<T>::load(v);
}

#define NESTGRAD_MATH(name, has, packet)                                                \
  inline float name(float x) { return std::name(x); }                                   \
  inline double name(double x) { return std::name(x); }                                 \
  template <class T>                                                                    \
  Pack<T> name(Pack<T> x) {                                                             \
    if constexpr (Pack<T>::Traits::has) return Pack<T>(Eigen::internal::packet(x.raw)); \
    else return lanes(x, [](T e) { return std::name(e); });                             \
  }
NESTGRAD_MATH(log, HasLog, plog)
NESTGRAD_MATH(log1p, HasLog1p, plog1p)
NESTGRAD_MATH(tanh, HasTanh, ptanh)
NESTGRAD_MATH(sin, HasSin, psin)
NESTGRAD_MATH(cos, HasCos, pcos)
#undef NESTGRAD_MATH

// Eigen's e^x never falls below 3e-39 (f32), not even at -infinity; here what is not a normal number is 0.
inline float exp(float x) { return std::exp(x); }
inline double exp(double x) { return std::exp(x); }
template <class T>
Pack<T> exp(Pack<T> x) {
  if constexpr (Pack<T>::Traits::HasExp)
    return where(x < Pack<T>(sizeof(T) == 4 ? -87.3365 : -708.396), Pack<T>(0),
                 Pack<T>(Eigen::internal::pexp(x.raw)));
  else return lanes(x, [](T e) { return std::exp(e); });
}

// Eigen's f32 root is an estimate (3 ulp, NaN at infinity, 0 for denormals, other bits on another make of
// processor); the instruction is exact.
template <class Raw>
Raw exact_sqrt(Raw x) {
  return Eigen::internal::psqrt(x);
}
#ifdef EIGEN_VECTORIZE_SSE
inline __m128 exact_sqrt(__m128 x) { return _mm_sqrt_ps(x); }
#endif
#ifdef EIGEN_VECTORIZE_AVX
inline __m256 exact_sqrt(__m256 x) { return _mm256_sqrt_ps(x); }
#endif
#ifdef EIGEN_VECTORIZE_AVX512
inline __m512 exact_sqrt(__m512 x) { return _mm512_sqrt_ps(x); }
#endif
inline float sqrt(float x) { return std::sqrt(x); }
inline double sqrt(double x) { return std::sqrt(x); }
template <class T>
Pack<T> sqrt(Pack<T> x) {
  if constexpr (Pack<T>::Traits::HasSqrt) return Pack<T>(exact_sqrt(x.raw));
  else return lanes(x, [](T e) { return std::sqrt(e); });
}

template <class T>
requires std::is_arithmetic_v<T> T abs(T x) { return x < 0 ? -x : x; }
template <class T>
Pack<T> abs(Pack<T> x) {
  return Pack<T>(Eigen::internal::pabs(x.raw));
}

// NaN where either is: C's pow(NaN, 0) and pow(1, NaN) are 1.
inline float pow(float a, float b) { return std::isnan(a) || std::isnan(b) ? a + b : std::pow(a, b); }
inline double pow(double a, double b) { return std::isnan(a) || std::isnan(b) ? a + b : std::pow(a, b); }
template <class T>
Pack<T> pow(Pack<T> a, Pack<T> b) {
  T x[Pack<T>::size], y[Pack<T>::size];
  a.store(x);
  b.store(y);
  for (int i = 0; i < Pack<T>::size; ++i) x[i] = pow(x[i], y[i]);
  return Pack<T>::load(x);
}

}  // namespace m
}  // namespace nestgrad

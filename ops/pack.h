// One element or one SIMD register of elements, under the same operators, so that a formula is written once.
// Wraps Eigen's packets. A result depends on its operands only, never on where in an array the element stands.
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
  void store(T* p) const { Eigen::internal::pstoreu(p, raw); }

  friend Pack operator+(Pack a, Pack b) { return Pack(Eigen::internal::padd(a.raw, b.raw)); }
  friend Pack operator-(Pack a, Pack b) { return Pack(Eigen::internal::psub(a.raw, b.raw)); }
  friend Pack operator*(Pack a, Pack b) { return Pack(Eigen::internal::pmul(a.raw, b.raw)); }
  friend Pack operator/(Pack a, Pack b) { return Pack(Eigen::internal::pdiv(a.raw, b.raw)); }
  friend Pack operator-(Pack a) { return Pack(Eigen::internal::pnegate(a.raw)); }

  struct Mask {
    Raw raw;
  };
  friend Mask operator<(Pack a, Pack b) { return {Eigen::internal::pcmp_lt(a.raw, b.raw)}; }
  friend Mask operator<=(Pack a, Pack b) { return {Eigen::internal::pcmp_le(a.raw, b.raw)}; }
  friend Mask operator==(Pack a, Pack b) { return {Eigen::internal::pcmp_eq(a.raw, b.raw)}; }
  friend Mask operator>(Pack a, Pack b) { return b < a; }
  friend Mask operator>=(Pack a, Pack b) { return b <= a; }
  friend Pack where(Mask m, Pack yes, Pack no) { return Pack(Eigen::internal::pselect(m.raw, yes.raw, no.raw)); }
};

template <class T>
  requires std::is_arithmetic_v<T>
T where(bool condition, T yes, T no) {
  return condition ? yes : no;
}

namespace m {

// fn on every lane, for functions that the instruction set has no vector form of.
template <class T, class Fn>
Pack<T> lanes(Pack<T> x, Fn fn) {
  T v[Pack<T>::size];
  x.store(v);
  for (T& e : v) e = fn(e);
  return Pack<T>::load(v);
}

#define NESTGRAD_MATH(name, has, packet)                            \
  inline float name(float x) { return std::name(x); }               \
  inline double name(double x) { return std::name(x); }             \
  template <class T>                                                \
  Pack<T> name(Pack<T> x) {                                         \
    if constexpr (Pack<T>::Traits::has)                             \
      return Pack<T>(Eigen::internal::packet(x.raw));               \
    else                                                            \
      return lanes(x, [](T e) { return std::name(e); });            \
  }
NESTGRAD_MATH(exp, HasExp, pexp)
NESTGRAD_MATH(log, HasLog, plog)
NESTGRAD_MATH(log1p, HasLog1p, plog1p)
NESTGRAD_MATH(tanh, HasTanh, ptanh)
NESTGRAD_MATH(sqrt, HasSqrt, psqrt)
NESTGRAD_MATH(sin, HasSin, psin)
NESTGRAD_MATH(cos, HasCos, pcos)
#undef NESTGRAD_MATH

template <class T>
  requires std::is_arithmetic_v<T>
T abs(T x) {
  return x < 0 ? -x : x;
}
template <class T>
Pack<T> abs(Pack<T> x) {
  return Pack<T>(Eigen::internal::pabs(x.raw));
}

inline float pow(float a, float b) { return std::pow(a, b); }
inline double pow(double a, double b) { return std::pow(a, b); }
template <class T>
Pack<T> pow(Pack<T> a, Pack<T> b) {
  T x[Pack<T>::size], y[Pack<T>::size];
  a.store(x);
  b.store(y);
  for (int i = 0; i < Pack<T>::size; ++i) x[i] = std::pow(x[i], y[i]);
  return Pack<T>::load(x);
}

}  // namespace m
}  // namespace nestgrad

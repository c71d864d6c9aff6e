// One vector register as a value: lanes of T that GCC and Clang add and multiply as they do numbers. AVX-512
// gives 16 floats, AVX2 8; in double half as many. Which of them is a matter of -march.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#define FLOORS_INLINE [[gnu::always_inline]] inline

namespace nestgrad::floors {

#ifdef __AVX512F__
inline constexpr int kRegisterBytes = 64, kRegisters = 32;
#else
inline constexpr int kRegisterBytes = 32, kRegisters = 16;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kRegisterBytes)));
};
template <class T>
using Vec = typename VectorOf<T>::type;
template <class T>
inline constexpr int lanes = kRegisterBytes / static_cast<int>(sizeof(T));

template <class T>
FLOORS_INLINE Vec<T> load(const T* p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
FLOORS_INLINE void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof v);
}
template <class T>
FLOORS_INLINE Vec<T> all(T x) {
  return x - Vec<T>{};
}

// Lanes of a and b in a new order: lane i is lane Pick::at(i) of a and b side by side.
template <class Pick, class V, std::size_t... lane>
FLOORS_INLINE V shuffled_lanes(V a, V b, std::index_sequence<lane...>) {
  return __builtin_shufflevector(a, b, Pick::at(static_cast<int>(lane))...);
}
template <class T, class Pick>
FLOORS_INLINE Vec<T> shuffled(Vec<T> a, Vec<T> b) {
  return shuffled_lanes<Pick>(a, b, std::make_index_sequence<lanes<T>>{});
}

// Groups of `width` lanes, even and odd ones by turns. For width 1, of a = a0 a1 a2 a3 and b = b0 b1 b2 b3:
template <class T, int width>
struct EvenEven {  // a0 b0 a2 b2
  static constexpr int at(int i) { return i & width ? lanes<T> + i - width : i; }
};
template <class T, int width>
struct OddOdd {  // a1 b1 a3 b3
  static constexpr int at(int i) { return i & width ? lanes<T> + i : i + width; }
};
template <class T, int width>
struct EvenOdd {  // a0 b1 a2 b3
  static constexpr int at(int i) { return i & width ? lanes<T> + i : i; }
};
template <class T, int width>
struct OddEven {  // a1 b0 a3 b2
  static constexpr int at(int i) { return i & width ? lanes<T> + i - width : i + width; }
};

// The square of registers transposed: swaps the blocks off the diagonal, of half the size, of a quarter, ..
template <class T, int width = lanes<T> / 2>
FLOORS_INLINE void transpose_square(Vec<T> (&rows)[lanes<T>]) {
  if constexpr (width > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes<T>; ++i)
      if (!(i & width)) {
        const Vec<T> a = rows[i], b = rows[i + width];
        rows[i] = shuffled<T, EvenEven<T, width>>(a, b);
        rows[i + width] = shuffled<T, OddOdd<T, width>>(a, b);
      }
    transpose_square<T, width / 2>(rows);
  }
}

// The sum of the lanes of each register: lane i is that of rows[i]. In the first step two registers become one
// that has two lanes less to add for each of them, and so on.
template <class T, int width = 1>
FLOORS_INLINE Vec<T> sums_of(const Vec<T> (&rows)[lanes<T> / width]) {
  if constexpr (width == lanes<T>) {
    return rows[0];
  } else {
    Vec<T> sums[lanes<T> / width / 2];
#pragma GCC unroll 16
    for (int i = 0; i < lanes<T> / width; i += 2)
      sums[i / 2] = shuffled<T, EvenOdd<T, width>>(rows[i], rows[i + 1]) +
                    shuffled<T, OddEven<T, width>>(rows[i], rows[i + 1]);
    return sums_of<T, 2 * width>(sums);
  }
}

// The sum of one register's lanes: halves onto each other.
template <class T, int width = lanes<T> / 2>
FLOORS_INLINE T sum(Vec<T> v) {
  if constexpr (width == 0) return v[0];
  else return sum<T, width / 2>(v + shuffled<T, OddEven<T, width>>(v, v));
}

template <class T>
FLOORS_INLINE Vec<T> larger(Vec<T> a, Vec<T> b) {
  return a > b ? a : b;
}
template <class T, int width = lanes<T> / 2>
FLOORS_INLINE T largest(Vec<T> v) {
  if constexpr (width == 0) return v[0];
  else return largest<T, width / 2>(larger<T>(v, shuffled<T, OddEven<T, width>>(v, v)));
}

template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  using Integer = std::int32_t;
  static constexpr int terms = 7, bias = 127, mantissa = 23;
  static constexpr float smallest = -87, ln2_high = 0.693359375F, ln2_low = -2.12194440e-4F;
};
template <>
struct ExpConstants<double> {
  using Integer = std::int64_t;
  static constexpr int terms = 13, bias = 1023, mantissa = 52;
  static constexpr double smallest = -708, ln2_high = 0.69314718036912382, ln2_low = 1.9082149292705877e-10;
};

// e^x = 2^n e^r with x = n ln 2 + r, |r| <= ln 2 / 2: a Taylor polynomial of r, and n into the exponent. A
// large number with a mantissa of 1.1000.. rounds what is added to it to an integer, in its lowest bits.
template <class T>
FLOORS_INLINE Vec<T> exp(Vec<T> x) {
  using C = ExpConstants<T>;
  using Integers = Vec<typename C::Integer>;
  x = larger<T>(x, all(C::smallest));
  const Vec<T> rounder = all(T{1.5} * static_cast<T>(std::int64_t{1} << C::mantissa));
  const Vec<T> shifted = x * T{1.4426950408889634} + rounder;
  const Vec<T> n = shifted - rounder;
  const Vec<T> r = x - n * C::ln2_high - n * C::ln2_low;
  Vec<T> y = all(T{1});
#pragma GCC unroll 16
  for (int i = C::terms; i > 0; --i) y = y * (r * (T{1} / static_cast<T>(i))) + T{1};
  const Integers exponent = (Integers)shifted - (Integers)rounder + C::bias;
  return y * (Vec<T>)(exponent << C::mantissa);
}

}  // namespace nestgrad::floors

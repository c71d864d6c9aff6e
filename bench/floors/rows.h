// Rows of 64 numbers in registers, with the arithmetic of numbers: of each two elements at the same place.
#pragma once

#include <cmath>

#include "bench/floors/lanes.h"

namespace nestgrad::floors {

inline constexpr int kDim = 64;

// A matrix of rows of kDim: m[i][j]. T may be const.
template <class T>
using Rows = T (*)[kDim];

template <class T>
struct Row {
  static constexpr int size = kDim / lanes<T>;
  Vec<T> part[size];
};

template <class T, class Fn>
FLOORS_INLINE Row<T> by_part(Fn fn) {
  Row<T> out;
#pragma GCC unroll 16
  for (int j = 0; j < Row<T>::size; ++j) out.part[j] = fn(j);
  return out;
}

template <class T>
FLOORS_INLINE Row<T> row(const T* p) {
  return by_part<T>([=](int j) { return load(p + j * lanes<T>); });
}
template <class T>
FLOORS_INLINE void store(T* p, const Row<T>& a) {
#pragma GCC unroll 16
  for (int j = 0; j < Row<T>::size; ++j) store(p + j * lanes<T>, a.part[j]);
}
// Has the caches fetch `count` rows that will be read soon.
template <class T>
FLOORS_INLINE void prefetch(Rows<const T> rows, int count) {
  const char* p = reinterpret_cast<const char*>(rows);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count) * sizeof(T[kDim]); i += 64)
    __builtin_prefetch(p + i);
}
template <class T>
FLOORS_INLINE void add_to(T* p, const Row<T>& a) {
  store(p, row(p) + a);
}

template <class T>
FLOORS_INLINE Row<T> operator+(const Row<T>& a, const Row<T>& b) {
  return by_part<T>([&](int j) { return a.part[j] + b.part[j]; });
}
template <class T>
FLOORS_INLINE Row<T> operator-(const Row<T>& a, const Row<T>& b) {
  return by_part<T>([&](int j) { return a.part[j] - b.part[j]; });
}
template <class T>
FLOORS_INLINE Row<T> operator*(const Row<T>& a, const Row<T>& b) {
  return by_part<T>([&](int j) { return a.part[j] * b.part[j]; });
}
template <class T>
FLOORS_INLINE Row<T> operator-(const Row<T>& a, T b) {
  return by_part<T>([&](int j) { return a.part[j] - b; });
}
template <class T>
FLOORS_INLINE Row<T> operator*(T a, const Row<T>& b) {
  return by_part<T>([&](int j) { return a * b.part[j]; });
}

// The sum of all elements: four sums side by side (size is at least 4), so that few additions wait for others.
template <class T>
FLOORS_INLINE T sum(const Row<T>& a) {
  Vec<T> sums[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) sums[j] = a.part[j];
#pragma GCC unroll 16
  for (int j = 4; j < Row<T>::size; ++j) sums[j % 4] += a.part[j];
  return sum<T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}
template <class T>
FLOORS_INLINE T dot(const Row<T>& a, const Row<T>& b) {
  return sum(a * b);
}
template <class T>
FLOORS_INLINE T mean(const Row<T>& a) {
  return sum(a) / kDim;
}
template <class T>
FLOORS_INLINE T mean_of_product(const Row<T>& a, const Row<T>& b) {
  return dot(a, b) / kDim;
}

// ---- layer norm: x = (z - mean z) r, r = 1 / sqrt(mean (z - mean z)^2 + epsilon) ----

// z becomes x. -> r
template <class T>
FLOORS_INLINE T normalise(Row<T>& z) {
  z = z - mean(z);
  const T r = T{1} / std::sqrt(mean_of_product(z, z) + T{1e-6});
  z = r * z;
  return r;
}

// What x hands back to z: g is the gradient with respect to x.
template <class T>
FLOORS_INLINE Row<T> norm_gradient(const Row<T>& g, const Row<T>& x, T r) {
  return r * (g - mean(g) - mean_of_product(g, x) * x);
}

}  // namespace nestgrad::floors

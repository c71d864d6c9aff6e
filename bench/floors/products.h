// Products of small matrices of sizes known to the compiler. A tile of the result stays in registers from its
// first term to its last:
//
//   product<16>(Y, each_row(b), times(q, W), times(A, G));    Y = b + q W + A G, 16 rows
//   product<64>(W, from(W), transposed_times<16>(k, G));      W = W + k' G, 64 rows; k has 16
#pragma once

#include "bench/floors/lanes.h"

namespace nestgrad::floors {

// ---- what a sum starts with: the lanes from column j of row i ----

struct Zero {
  template <class T>
  FLOORS_INLINE Vec<T> at(int, int) const {
    return Vec<T>{};
  }
};
inline constexpr Zero zero;

template <class T>
struct EachRow {
  const T* bias;
  template <class>
  FLOORS_INLINE Vec<T> at(int, int j) const {
    return load(bias + j);
  }
};
template <class T>
EachRow<T> each_row(const T* bias) {
  return {bias};
}

template <class T, int width>
struct From {
  const T (*matrix)[width];
  template <class>
  FLOORS_INLINE Vec<T> at(int i, int j) const {
    return load(&matrix[i][j]);
  }
};
template <class T, int width>
From<T, width> from(const T (*matrix)[width]) {
  return {matrix};
}

// ---- what is added: left (i, k) times right[k][j], for k < depth ----

template <class T, int depth_, int width>
struct Times {
  static constexpr int depth = depth_;
  const T (*matrix)[depth_];
  const T (*right)[width];
  FLOORS_INLINE T left(int i, int k) const { return matrix[i][k]; }
};
template <class T, int depth, int width>
Times<T, depth, width> times(const T (*left)[depth], const T (*right)[width]) {
  return {left, right};
}

template <class T, int depth_, int rows, int width>
struct TransposedTimes {
  static constexpr int depth = depth_;
  const T (*matrix)[rows];
  const T (*right)[width];
  FLOORS_INLINE T left(int i, int k) const { return matrix[k][i]; }
};
template <int depth, class T, int rows, int width>
TransposedTimes<T, depth, rows, width> transposed_times(const T (*left)[rows], const T (*right)[width]) {
  return {left, right};
}

// ---- the product ----

template <class T, int rows, int columns, class Term>
FLOORS_INLINE void add_products(Vec<T> (&sums)[rows][columns], int i0, int j0, const Term& term) {
#pragma GCC unroll 2
  for (int k = 0; k < Term::depth; ++k) {
    Vec<T> right[columns];
#pragma GCC unroll 16
    for (int j = 0; j < columns; ++j) right[j] = load(&term.right[k][j0 + j * lanes<T>]);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Vec<T> left = all(term.left(i0 + i, k));
#pragma GCC unroll 16
      for (int j = 0; j < columns; ++j) sums[i][j] += left * right[j];
    }
  }
}

template <int rows, int columns, class T, int width, class Start, class... Terms>
FLOORS_INLINE void tile(T (*out)[width], int i0, int j0, const Start& start, const Terms&... terms) {
  Vec<T> sums[rows][columns];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < columns; ++j) sums[i][j] = start.template at<T>(i0 + i, j0 + j * lanes<T>);
  (add_products<T, rows, columns>(sums, i0, j0, terms), ...);
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < columns; ++j) store(&out[i0 + i][j0 + j * lanes<T>], sums[i][j]);
}

// out = start + the sum of the terms, `rows` rows of it. Tiles are two registers wide and at most so high that
// three or more registers are left for the factors: 12 sums of 16 registers, 24 of 32. Their heights differ by
// one at most: 16 rows are 6 + 5 + 5 of them, or 8 + 8.
template <int rows, class T, int width, class Start, class... Terms>
[[gnu::noinline]] void product(T (*out)[width], Start start, Terms... terms) {
  constexpr int columns = width >= 2 * lanes<T> ? 2 : 1;
  constexpr int highest = kRegisters == 32 ? 12 : 6;
  constexpr int tiles = (rows + highest - 1) / highest, height = rows / tiles, higher = rows % tiles;
  for (int j = 0; j < width; j += columns * lanes<T>) {
    int i = 0;
    if constexpr (higher > 0)
      for (; i < higher * (height + 1); i += height + 1)
        tile<height + 1, columns>(out, i, j, start, terms...);
    for (; i < rows; i += height) tile<height, columns>(out, i, j, start, terms...);
  }
}

// to = from', from has `rows` rows.
template <int rows, class T, int columns>
void transpose(const T (*from)[columns], T (*to)[rows]) {
  for (int i = 0; i < rows; i += lanes<T>)
    for (int j = 0; j < columns; j += lanes<T>) {
      Vec<T> square[lanes<T>];
#pragma GCC unroll 16
      for (int a = 0; a < lanes<T>; ++a) square[a] = load(&from[i + a][j]);
      transpose_square<T>(square);
#pragma GCC unroll 16
      for (int a = 0; a < lanes<T>; ++a) store(&to[j + a][i], square[a]);
    }
}

}  // namespace nestgrad::floors

// Substitution and LU factors.
#include "ops/kernels/table.h"
#include "ops/numerics/pack.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace {

// A triangle of op(A): element (i, j) is a[i * row + j * column]. Rows are solved from the first to the last,
// or from the last to the first.
template <class T>
struct Triangle {
  const T* a;
  std::int64_t n, row, column;
  bool lower, unit;
  T at(std::int64_t i, std::int64_t j) const { return a[i * row + j * column]; }
  // The row that is solved as number k.
  std::int64_t nth(std::int64_t k) const { return lower ? k : n - 1 - k; }
};

// Several rows are solved together: the rows solved before enter all of them in one walk, with as many sums
// under way.
constexpr int kRowsTogether = 4;

template <class X, class T>
X load(const T* p) {
  if constexpr (sizeof(X) == sizeof(T)) return *p;
  else return X::load(p);
}
template <class X, class T>
X repeated(T v) {
  if constexpr (sizeof(X) == sizeof(T)) return v;
  else return X::load_repeated(&v);
}
template <class X, class T>
void store(X v, T* p) {
  if constexpr (sizeof(X) == sizeof(T)) *p = v;
  else v.store(p);
}

// As many columns of x as X has lanes. stride: from one row of x to the next.
template <class X, class T>
void substitute_columns(const Triangle<T>& t, T* x, std::int64_t stride) {
  for (std::int64_t done = 0; done < t.n; done += kRowsTogether) {
    const int rows = static_cast<int>(t.n - done < kRowsTogether ? t.n - done : kRowsTogether);
    X sum[kRowsTogether];
    for (int r = 0; r < rows; ++r) sum[r] = load<X>(x + t.nth(done + r) * stride);
    if (rows == kRowsTogether) {
      for (std::int64_t k = 0; k < done; ++k) {
        const X earlier = load<X>(x + t.nth(k) * stride);
#pragma GCC unroll 4
        for (int r = 0; r < kRowsTogether; ++r)
          sum[r] = fma(repeated<X>(-t.at(t.nth(done + r), t.nth(k))), earlier, sum[r]);
      }
    } else {
      for (std::int64_t k = 0; k < done; ++k) {
        const X earlier = load<X>(x + t.nth(k) * stride);
        for (int r = 0; r < rows; ++r)
          sum[r] = fma(repeated<X>(-t.at(t.nth(done + r), t.nth(k))), earlier, sum[r]);
      }
    }
    for (int r = 0; r < rows; ++r) {
      const std::int64_t row = t.nth(done + r);
      for (int k = 0; k < r; ++k) sum[r] = fma(repeated<X>(-t.at(row, t.nth(done + k))), sum[k], sum[r]);
      if (!t.unit) sum[r] = sum[r] / repeated<X>(t.at(row, row));
      store(sum[r], x + row * stride);
    }
  }
}

template <class T>
void substitute(const T* a, T* x, std::int64_t n, std::int64_t m, bool lower, bool transposed, bool unit) {
  const Triangle<T> t{a, n, transposed ? 1 : n, transposed ? n : 1, lower, unit};
  std::int64_t j = 0;
  for (; j + Pack<T>::size <= m; j += Pack<T>::size) substitute_columns<Pack<T>>(t, x + j, m);
  for (; j < m; ++j) substitute_columns<T>(t, x + j, m);
}

// to[i] -= factor * from[i]
template <class T>
inline __attribute__((always_inline)) void subtract(T factor, const T* from, T* to, std::int64_t n) {
  const T minus = -factor;
  const Pack<T> f = Pack<T>::load_repeated(&minus);
  std::int64_t i = 0;
  for (; i + Pack<T>::size <= n; i += Pack<T>::size)
    fma(f, Pack<T>::load(from + i), Pack<T>::load(to + i)).store(to + i);
  for (; i < n; ++i) to[i] = fma(minus, from[i], to[i]);
}

template <class T>
void factor(T* a, std::int64_t* order, std::int64_t n) {
  const auto size = [](T v) { return v < 0 ? -v : v; };
  for (std::int64_t i = 0; i < n; ++i) order[i] = i;
  for (std::int64_t k = 0; k < n; ++k) {
    std::int64_t best = k;
    for (std::int64_t i = k + 1; i < n; ++i) {
      const T now = a[best * n + k], other = a[i * n + k];
      if (now == now && (size(other) > size(now) || other != other)) best = i;
    }
    if (best != k) {
      for (std::int64_t j = 0; j < n; ++j) {
        const T kept = a[k * n + j];
        a[k * n + j] = a[best * n + j], a[best * n + j] = kept;
      }
      const std::int64_t kept = order[k];
      order[k] = order[best], order[best] = kept;
    }
    const T pivot = a[k * n + k];
    if (pivot == 0) continue;  // so is all that is below it
    for (std::int64_t i = k + 1; i < n; ++i) {
      T* row = a + i * n;
      row[k] = row[k] / pivot;
      subtract(row[k], a + k * n + k + 1, row + k + 1, n - k - 1);
    }
  }
}

template <class T>
constexpr SolveKernel<T> kSolve{substitute<T>, factor<T>};

}  // namespace

constinit const SolveKernel<float> solve_f32 = kSolve<float>;
constinit const SolveKernel<double> solve_f64 = kSolve<double>;

}  // namespace nestgrad::inline NESTGRAD_ISA

// Linear systems: triangular_solve by substitution, solve by LU with partial pivoting.
#include <algorithm>

#include "cuda/backend.h"
#include "cuda/batch.h"
#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "ops/attrs.h"

namespace nestgrad::cuda {

namespace {

// Systems of n equations with m right-hand sides each; where the operands of one begin.
struct Systems {
  std::int64_t count, n, m;
  Strided a, b;
};

Systems systems_of(const OpCall& call) {
  const Shape& out = call.out.shape;
  const Batch batch = batch_of(call);
  return {batch.out.count(), out[out.size() - 2], out.back(), batch.a, batch.b};
}

// Columns of x are divided by op(L), lower triangular or (transposed) upper; a thread a column.
template <class T>
__device__ void substitute(const T* l, T* x, std::int64_t n, std::int64_t m, bool lower, bool transposed,
                           bool unit) {
  for (std::int64_t step = 0; step < n; ++step) {
    const std::int64_t row = lower ? step : n - 1 - step;
    T value = x[row * m];
    for (std::int64_t k = 0; k < step; ++k) {
      const std::int64_t column = lower ? k : n - 1 - k;
      value = fma(-(transposed ? l[column * n + row] : l[row * n + column]), x[column * m], value);
    }
    x[row * m] = unit ? value : value / l[row * n + row];
  }
}

template <class T>
__global__ void triangular_solve(const T* l, const T* b, T* x, Systems systems, bool transposed, bool unit) {
  const std::int64_t i = global_thread();
  if (i >= systems.count * systems.m) return;
  const std::int64_t system = i / systems.m, column = i % systems.m, n = systems.n, m = systems.m;
  const T* from = b + systems.b.at(system) + column;
  T* to = x + system * n * m + column;
  for (std::int64_t row = 0; row < n; ++row) to[row * m] = from[row * m];
  substitute(l + systems.a.at(system), to, n, m, !transposed, transposed, unit);
}

// A block a system. lu: memory for op(A) of each.
template <class T>
__global__ void solve(const T* a, const T* b, T* x, T* lu, Systems systems, bool transposed) {
  NESTGRAD_SHARED(std::int64_t, pivot);
  const std::int64_t system = blockIdx.x, n = systems.n, m = systems.m;
  const T* from = a + systems.a.at(system);
  const T* right = b + systems.b.at(system);
  T* matrix = lu + system * n * n;
  T* to = x + system * n * m;
  for (std::int64_t i = threadIdx.x; i < n * n; i += blockDim.x)
    matrix[i] = transposed ? from[i % n * n + i / n] : from[i];
  for (std::int64_t i = threadIdx.x; i < n * m; i += blockDim.x) to[i] = right[i];
  for (std::int64_t k = 0; k < n; ++k) {
    __syncthreads();
    if (threadIdx.x == 0) {
      std::int64_t best = k;
      T largest = matrix[k * n + k] < T(0) ? -matrix[k * n + k] : matrix[k * n + k];
      for (std::int64_t row = k + 1; row < n; ++row) {
        const T value = matrix[row * n + k], size = value < T(0) ? -value : value;
        if (largest == largest && (size > largest || size != size)) largest = size, best = row;
      }
      *pivot = best;
    }
    __syncthreads();
    const std::int64_t other = *pivot;
    if (other != k) {
      for (std::int64_t i = threadIdx.x; i < n + m; i += blockDim.x) {
        T* upper = i < n ? matrix + k * n + i : to + k * m + i - n;
        T* lower = i < n ? matrix + other * n + i : to + other * m + i - n;
        const T value = *upper;
        *upper = *lower, *lower = value;
      }
    }
    __syncthreads();
    if (matrix[k * n + k] == T(0)) continue;  // so is all that is below it
    for (std::int64_t row = k + 1 + threadIdx.x; row < n; row += blockDim.x)
      matrix[row * n + k] /= matrix[k * n + k];
    __syncthreads();
    const std::int64_t rest = n - 1 - k;
    for (std::int64_t i = threadIdx.x; i < rest * (rest + m); i += blockDim.x) {
      const std::int64_t row = k + 1 + i / (rest + m), column = i % (rest + m);
      const T factor = matrix[row * n + k];
      T& below = column < rest ? matrix[row * n + k + 1 + column] : to[row * m + column - rest];
      below = fma(-factor, column < rest ? matrix[k * n + k + 1 + column] : to[k * m + column - rest], below);
    }
  }
  __syncthreads();
  for (std::int64_t column = threadIdx.x; column < m; column += blockDim.x)
    substitute(matrix, to + column, n, m, false, false, false);
}

}  // namespace

OpKernel triangular_solve_kernel(const OpCall& call, Backend& backend) {
  const Systems systems = systems_of(call);
  const bool transposed = call.attrs.as<TriangularSolveAttrs>().transpose;
  const bool unit = call.attrs.as<TriangularSolveAttrs>().unit;
  const auto make = [&]<class T>(T) -> OpKernel {
    return [=, &on = cuda(backend)](const std::byte* const* in, std::byte* out) {
      launch(on, for_each_of(systems.count * systems.m, 64), triangular_solve<T>,
             reinterpret_cast<const T*>(in[0]), reinterpret_cast<const T*>(in[1]), reinterpret_cast<T*>(out),
             systems, transposed, unit);
    };
  };
  return call.out.dtype == DType::f32 ? make(float{}) : make(double{});
}

OpKernel solve_kernel(const OpCall& call, Backend& backend) {
  const Systems systems = systems_of(call);
  const bool transposed = call.attrs.as<SolveAttrs>().transpose;
  const auto make = [&]<class T>(T) -> OpKernel {
    cuda(backend).need_scratch(static_cast<std::size_t>(systems.count * systems.n * systems.n) * sizeof(T));
    return [=, &on = cuda(backend)](const std::byte* const* in, std::byte* out) {
      if (systems.n == 0 || systems.m == 0) return;
      launch(on, {systems.count, 128, sizeof(std::int64_t)}, solve<T>, reinterpret_cast<const T*>(in[0]),
             reinterpret_cast<const T*>(in[1]), reinterpret_cast<T*>(out), scratch_of<T>(in, 2), systems,
             transposed);
    };
  };
  return call.out.dtype == DType::f32 ? make(float{}) : make(double{});
}

}  // namespace nestgrad::cuda

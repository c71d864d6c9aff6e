// Ops that look at positions: iota, tril, cumsum.
#include <algorithm>

#include "cuda/backend.h"
#include "cuda/kernels.h"
#include "cuda/reductions.cuh"
#include "ops/attrs.h"

namespace nestgrad::cuda {

namespace {

template <class T>
__global__ void iota(T* y, std::int64_t n, std::int64_t inner, std::int64_t extent) {
  const std::int64_t i = global_thread();
  if (i < n) y[i] = static_cast<T>(i / inner % extent);
}

template <class T>
__global__ void tril(const T* x, T* y, std::int64_t n, std::int64_t rows, std::int64_t cols,
                     std::int64_t diagonal) {
  const std::int64_t i = global_thread();
  if (i >= n) return;
  const std::int64_t row = i / cols % rows, col = i % cols;
  y[i] = col <= row + diagonal ? x[i] : T(0);
}

// A thread a line.
template <class T>
__global__ void cumsum(const T* x, T* y, std::int64_t lines, std::int64_t extent, std::int64_t stride,
                       bool reverse) {
  const std::int64_t line = global_thread();
  if (line >= lines) return;
  sum_along(x, y, line, extent, stride, reverse);
}

}  // namespace

OpKernel iota_kernel(const OpCall& call, Backend& backend) {
  const auto axis = static_cast<std::size_t>(call.attrs.as<IotaAttrs>().axis);
  const std::int64_t inner = strides_of(call.out.shape)[axis], extent = call.out.shape[axis];
  return dispatch(call.out.dtype, [&]<class T>(T) -> OpKernel {
    return [=, &on = cuda(backend), n = call.out.size()](const std::byte* const*, std::byte* out) {
      launch(on, for_each_of(n), iota<T>, reinterpret_cast<T*>(out), n, inner, extent);
    };
  });
}

OpKernel tril_kernel(const OpCall& call, Backend& backend) {
  const Shape& shape = call.out.shape;
  return dispatch(call.out.dtype, [&]<class T>(T) -> OpKernel {
    return [&on = cuda(backend), n = call.out.size(), rows = shape[shape.size() - 2], cols = shape.back(),
            diagonal = call.attrs.as<TrilAttrs>().diagonal](const std::byte* const* in, std::byte* out) {
      launch(on, for_each_of(n), tril<T>, reinterpret_cast<const T*>(in[0]), reinterpret_cast<T*>(out), n,
             rows, cols, diagonal);
    };
  });
}

OpKernel cumsum_kernel(const OpCall& call, Backend& backend) {
  const auto axis = static_cast<std::size_t>(call.attrs.as<CumsumAttrs>().axis);
  const std::int64_t extent = call.out.shape[axis], stride = strides_of(call.out.shape)[axis];
  return dispatch(call.out.dtype, [&]<class T>(T) -> OpKernel {
    return [=, &on = cuda(backend), lines = call.out.size() / std::max<std::int64_t>(1, extent),
            reverse = call.attrs.as<CumsumAttrs>().reverse](const std::byte* const* in, std::byte* out) {
      launch(on, for_each_of(lines), cumsum<T>, reinterpret_cast<const T*>(in[0]), reinterpret_cast<T*>(out),
             lines, extent, stride, reverse);
    };
  });
}

}  // namespace nestgrad::cuda

// matmul through cuBLAS. cuBLAS counts columns first: a row-major C = op(A) op(B) is its C' = op(B)' op(A)'.
#include <fmt/format.h>

#include <limits>
#include <utility>

#include "cuda/backend.h"
#include "cuda/kernels.h"

namespace nestgrad::cuda {

namespace {

// One axis of the batch, or several that are walked through in one stride.
struct BatchAxis {
  std::int64_t size, a, b, out;  // strides, in elements; 0: the operand repeats
};

std::vector<BatchAxis> batch_axes(const Call& call) {
  const auto stride = [&](const Spec& operand, int axis) {
    const int own = axis - (call.out.rank() - operand.rank());
    if (own < 0 || operand.shape[static_cast<std::size_t>(own)] == 1) return std::int64_t{0};
    return strides_of(operand.shape)[static_cast<std::size_t>(own)];
  };
  std::vector<BatchAxis> axes;
  for (int d = 0; d < call.out.rank() - 2; ++d) {
    const std::int64_t size = call.out.shape[static_cast<std::size_t>(d)];
    if (size == 1) continue;
    const BatchAxis next{size, stride(call.in[0], d), stride(call.in[1], d), stride(call.out, d)};
    if (!axes.empty() && axes.back().a == next.a * size && axes.back().b == next.b * size &&
        axes.back().out == next.out * size)
      axes.back() = {axes.back().size * size, next.a, next.b, next.out};
    else axes.push_back(next);
  }
  return axes;
}

struct Product {
  std::int64_t m, n, k, lda, ldb;
  bool ta, tb;
};

int as_int(const Call& call, std::int64_t extent) {
  if (extent > std::numeric_limits<int>::max())
    call.shape_error(fmt::format("an extent of {} is more than cuBLAS takes; cut it", extent));
  return static_cast<int>(extent);
}

// One strided batch.
template <class T>
void multiply(const CudaBackend& on, const Product& p, const BatchAxis& batch, const T* a, const T* b,
              T* out) {
  const T one = 1, zero = 0;
  const auto i = [](std::int64_t v) { return static_cast<int>(v); };
  const cublasOperation_t tb = p.tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta = p.ta ? CUBLAS_OP_T : CUBLAS_OP_N;
  if constexpr (std::is_same_v<T, float>)
    NESTGRAD_CUDA(cublasSgemmStridedBatched(on.blas(), tb, ta, i(p.n), i(p.m), i(p.k), &one, b, i(p.ldb),
                                            batch.b, a, i(p.lda), batch.a, &zero, out, i(p.n), batch.out,
                                            i(batch.size)));
  else
    NESTGRAD_CUDA(cublasDgemmStridedBatched(on.blas(), tb, ta, i(p.n), i(p.m), i(p.k), &one, b, i(p.ldb),
                                            batch.b, a, i(p.lda), batch.a, &zero, out, i(p.n), batch.out,
                                            i(batch.size)));
}

template <class T>
Kernel typed_matmul(const Call& call, CudaBackend& backend) {
  const auto extent = [](const Spec& s, int from_end) {
    return s.shape[s.shape.size() - static_cast<std::size_t>(from_end)];
  };
  Product p{.m = extent(call.out, 2),
            .n = extent(call.out, 1),
            .k = 0,
            .lda = extent(call.in[0], 1),
            .ldb = extent(call.in[1], 1),
            .ta = call.attrs.ints[0] != 0,
            .tb = call.attrs.ints[1] != 0};
  p.k = extent(call.in[0], p.ta ? 2 : 1);
  std::vector<BatchAxis> axes = batch_axes(call);
  // Rows of all batch members against one right-hand side are one product.
  if (!p.ta && axes.size() == 1 && axes[0].b == 0 && axes[0].a == p.m * p.lda) {
    p.m *= axes[0].size;
    axes.clear();
  }
  for (const std::int64_t e : {p.m, p.n, p.k}) as_int(call, e);
  BatchAxis inner{1, 0, 0, 0};
  if (!axes.empty()) inner = axes.back(), axes.pop_back();
  as_int(call, inner.size);
  if (call.out.size() == 0) return [](const std::byte* const*, std::byte*) {};
  if (p.k == 0)
    return [&backend, bytes = call.out.bytes()](const std::byte* const*, std::byte* out) {
      backend.zero(out, bytes);
    };
  // Where each strided batch begins.
  std::vector<BatchAxis> starts{{1, 0, 0, 0}};
  for (const BatchAxis& axis : axes) {
    std::vector<BatchAxis> next;
    for (const BatchAxis& s : starts)
      for (std::int64_t i = 0; i < axis.size; ++i)
        next.push_back({1, s.a + i * axis.a, s.b + i * axis.b, s.out + i * axis.out});
    starts = std::move(next);
  }
  return [=, &backend, starts = std::move(starts)](const std::byte* const* in, std::byte* out) {
    const T* a = reinterpret_cast<const T*>(in[0]);
    const T* b = reinterpret_cast<const T*>(in[1]);
    T* y = reinterpret_cast<T*>(out);
    for (const BatchAxis& s : starts) multiply(backend, p, inner, a + s.a, b + s.b, y + s.out);
  };
}

}  // namespace

Kernel matmul_kernel(const Call& call, Backend& backend) {
  return call.out.dtype == DType::f32 ? typed_matmul<float>(call, cuda(backend))
                                      : typed_matmul<double>(call, cuda(backend));
}

}  // namespace nestgrad::cuda

// matmul through cuBLAS. cuBLAS counts columns first: a row-major C = op(A) op(B) is its C' = op(B)' op(A)'.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/backend.h"
#include "cuda/batch.h"
#include "cuda/kernels.h"
#include "ops/attrs.h"

namespace nestgrad::cuda {

namespace {

// An axis of the batch that cuBLAS walks through: strides, in elements.
struct BatchAxis {
  std::int64_t size = 1, a = 0, b = 0, out = 0;
};

struct Product {
  std::int64_t m, n, k, lda, ldb;
  bool ta, tb;
};

int as_int(const OpCall& call, std::int64_t extent) {
  if (extent > std::numeric_limits<int>::max())
    call.shape_error(fmt::format("an extent of {} is more than cuBLAS takes; cut it", extent));
  return static_cast<int>(extent);
}

constexpr std::int64_t kCopyAlignment = 256;

// How cuBLAS is to read the operands, and to compute.
struct Reading {
  cudaDataType_t type;
  cublasComputeType_t compute;
  std::int64_t bytes;  // of an element of an operand
};

Reading reading_of(DType dtype, Precision precision) {
  if (dtype == DType::f64) return {CUDA_R_64F, CUBLAS_COMPUTE_64F, 8};
  switch (precision) {
    case Precision::tf32:
      return {CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, 4};
    case Precision::bf16:
      return {CUDA_R_16BF, CUBLAS_COMPUTE_32F, 2};
    case Precision::f32:
      break;
  }
  return {CUDA_R_32F, CUBLAS_COMPUTE_32F, 4};
}

// One strided batch.
template <class T>
void multiply(CudaBackend& on, const Product& p, const Reading& reading, const BatchAxis& batch,
              const std::byte* a, const std::byte* b, T* out) {
  const T one = 1, zero = 0;
  const auto i = [](std::int64_t v) { return static_cast<int>(v); };
  const cublasOperation_t tb = p.tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta = p.ta ? CUBLAS_OP_T : CUBLAS_OP_N;
  constexpr cudaDataType_t kResult = std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_64F;
  NESTGRAD_CUDA(cublasGemmStridedBatchedEx(on.blas(), tb, ta, i(p.n), i(p.m), i(p.k), &one, b, reading.type,
                                           i(p.ldb), batch.b, a, reading.type, i(p.lda), batch.a, &zero, out,
                                           kResult, i(p.n), batch.out, i(batch.size), reading.compute,
                                           CUBLAS_GEMM_DEFAULT));
}

template <class T>
OpKernel typed_matmul(const OpCall& call, CudaBackend& backend) {
  const auto extent = [](const Spec& s, int from_end) {
    return s.shape[s.shape.size() - static_cast<std::size_t>(from_end)];
  };
  Product p{.m = extent(call.out, 2),
            .n = extent(call.out, 1),
            .k = 0,
            .lda = extent(call.in[0], 1),
            .ldb = extent(call.in[1], 1),
            .ta = call.attrs.as<MatmulAttrs>().a,
            .tb = call.attrs.as<MatmulAttrs>().b};
  p.k = extent(call.in[0], p.ta ? 2 : 1);
  if (call.out.size() == 0) return [](const std::byte* const*, std::byte*) {};
  Batch batch = batch_of(call);
  BatchAxis inner;
  // Rows of all batch members that have one right-hand side are one product: arrays are dense, so that these rows follow each other.
  while (batch.out.rank > 0 && !p.ta && batch.b.stride[batch.out.rank - 1] == 0) {
    const int last = batch.out.rank - 1;
    if (p.m > std::numeric_limits<int>::max() / batch.out.size[last]) break;  // more than cuBLAS takes
    p.m *= batch.out.size[last];
    for (Strided* walk : {&batch.a, &batch.b, &batch.out}) walk->remove(last);
  }
  if (batch.out.rank > 0) {
    // cuBLAS goes along one axis of the batch: the longest, and is called for each member of the others.
    const int axis =
        static_cast<int>(std::max_element(batch.out.size, batch.out.size + batch.out.rank) - batch.out.size);
    inner = {batch.out.size[axis], batch.a.stride[axis], batch.b.stride[axis], batch.out.stride[axis]};
    for (Strided* walk : {&batch.a, &batch.b, &batch.out}) walk->remove(axis);
  }
  for (const std::int64_t e : {p.m, p.n, p.k, inner.size}) as_int(call, e);
  if (p.k == 0)
    return [&backend, bytes = call.out.bytes()](const std::byte* const*, std::byte* out) {
      backend.zero(out, bytes);
    };
  backend.blas();
  const Reading reading = reading_of(call.out.dtype, backend.options().precision);
  // Operands in bf16 are copies, one after the other.
  const bool copied = reading.type == CUDA_R_16BF;
  const std::int64_t size_a = call.in[0].size(), size_b = call.in[1].size();
  const std::int64_t second = (size_a * reading.bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
  if (copied) backend.need_scratch(static_cast<std::size_t>(second + size_b * reading.bytes));
  return [=, &backend](const std::byte* const* in, std::byte* out) {
    const std::byte *a = in[0], *b = in[1];
    if (copied) {
      std::byte* const copy = scratch_of<std::byte>(in, 2);
      round_to_bf16(backend, a, copy, size_a);
      // One copy of what both read; where the second reads on from there (a step of an array, and all of it), two.
      const bool shared = b == a && size_b <= size_a;
      if (!shared) round_to_bf16(backend, b, copy + second, size_b);
      b = shared ? copy : copy + second;
      a = copy;
    }
    T* y = reinterpret_cast<T*>(out);
    for (std::int64_t i = 0, n = batch.out.count(); i < n; ++i)
      multiply(backend, p, reading, inner, a + batch.a.at(i) * reading.bytes,
               b + batch.b.at(i) * reading.bytes, y + batch.out.at(i));
  };
}

}  // namespace

OpKernel matmul_kernel(const OpCall& call, Backend& backend) {
  return call.out.dtype == DType::f32 ? typed_matmul<float>(call, cuda(backend))
                                      : typed_matmul<double>(call, cuda(backend));
}

}  // namespace nestgrad::cuda

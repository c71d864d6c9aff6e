// cuBLAS over Eigen: every call becomes one Product, which is checked and queued in one place.
#include <algorithm>

#include "cublas_v2.h"
#include "cuda_emulator/cublas_product.h"
#include "cuda_emulator/queue.h"

using namespace nestgrad::emulator;

struct cublasContext {
  int device;
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
};

namespace {

bool valid(const Matrices& all) { return all.leading >= std::max(1, all.rows) && all.stride >= 0; }

bool supported(const Product& p) {
  const auto types = [&](cudaDataType in, cudaDataType out) {
    return p.a.type == in && p.b.type == in && p.c.type == out;
  };
  switch (p.compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return types(CUDA_R_64F, CUDA_R_64F);
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return types(CUDA_R_32F, CUDA_R_32F);
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return types(CUDA_R_32F, CUDA_R_32F) || types(CUDA_R_16BF, CUDA_R_16BF) ||
             types(CUDA_R_16BF, CUDA_R_32F);
  }
  return false;
}

cublasStatus_t status_of(cudaError_t error) {
  if (error == cudaSuccess) return CUBLAS_STATUS_SUCCESS;
  return error == cudaErrorInvalidResourceHandle ? CUBLAS_STATUS_MAPPING_ERROR
                                                 : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t submit(cublasHandle_t handle, Product p) {
  const std::lock_guard lock(runtime().mutex);
  if (const int planned = planned_failure(p.function)) return cublasStatus_t(planned);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  for (const cublasOperation_t op : {p.op_a, p.op_b})
    if (op < CUBLAS_OP_N || op > CUBLAS_OP_C) return CUBLAS_STATUS_INVALID_VALUE;
  const auto shape = [](Matrices& all, int rows, int columns, cublasOperation_t op) {
    all.rows = op == CUBLAS_OP_N ? rows : columns;
    all.columns = op == CUBLAS_OP_N ? columns : rows;
  };
  shape(p.a, p.m, p.k, p.op_a);
  shape(p.b, p.k, p.n, p.op_b);
  shape(p.c, p.m, p.n, CUBLAS_OP_N);
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0 || !valid(p.a) || !valid(p.b) || !valid(p.c))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (p.alpha == nullptr || p.beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.m == 0 || p.n == 0 || p.batch == 0) return CUBLAS_STATUS_SUCCESS;
  p.device = handle->device;
  p.pointers = handle->pointers;
  if (p.compute == CUBLAS_COMPUTE_32F && p.a.type == CUDA_R_32F && handle->math == CUBLAS_TF32_TENSOR_OP_MATH)
    p.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  if (p.pointers == CUBLAS_POINTER_MODE_HOST) {
    p.alpha_now = scalar_at(p, p.alpha);
    p.beta_now = scalar_at(p, p.beta);
  }
  return status_of(call("cublas", Capturing::allowed, [&] {
    if (const cudaError_t error = load(handle->stream, nullptr); error != cudaSuccess) return error;
    return enqueue(
        handle->stream, [p] { compute(p); }, reinterpret_cast<const void*>(compute));
  }));
}

template <class Change>
cublasStatus_t change(const char* function, cublasHandle_t handle, Change change) {
  const std::lock_guard lock(runtime().mutex);
  if (const int planned = planned_failure(function)) return cublasStatus_t(planned);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  change();
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = nullptr;
  if (const int planned = planned_failure("cublasCreate")) return cublasStatus_t(planned);
  if (call("cublas", Capturing::forbidden, [] { return cudaSuccess; }) != cudaSuccess)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext{current_device()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  return change("cublasDestroy", handle, [&] { delete handle; });
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  return change("cublasSetStream", handle, [&] { handle->stream = stream; });
}
cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  return change("cublasGetStream", handle, [&] { *stream = handle->stream; });
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void*, std::size_t) {
  return change("cublasSetWorkspace", handle, [] {});
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  return change("cublasSetMathMode", handle, [&] { handle->math = mode; });
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  return change("cublasGetMathMode", handle, [&] { *mode = handle->math; });
}
cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
  return change("cublasSetPointerMode", handle, [&] { handle->pointers = mode; });
}
cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t* mode) {
  return change("cublasGetPointerMode", handle, [&] { *mode = handle->pointers; });
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown cuBLAS status";
}
const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

#define NESTGRAD_EMULATOR_GEMM(letter, type, data, compute)                                                  \
  cublasStatus_t cublas##letter##gemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, \
                                      int m, int n, int k, const type* alpha, const type* a, int lda,        \
                                      const type* b, int ldb, const type* beta, type* c, int ldc) {          \
    return submit(handle, {"cublas" #letter "gemm",                                                          \
                           0,                                                                                \
                           op_a,                                                                             \
                           op_b,                                                                             \
                           m,                                                                                \
                           n,                                                                                \
                           k,                                                                                \
                           alpha,                                                                            \
                           beta,                                                                             \
                           {a, data, lda},                                                                   \
                           {b, data, ldb},                                                                   \
                           {c, data, ldc},                                                                   \
                           1,                                                                                \
                           compute});                                                                        \
  }                                                                                                          \
  cublasStatus_t cublas##letter##gemmStridedBatched(                                                         \
      cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,            \
      const type* alpha, const type* a, int lda, long long stride_a, const type* b, int ldb,                 \
      long long stride_b, const type* beta, type* c, int ldc, long long stride_c, int batch) {               \
    return submit(handle, {"cublas" #letter "gemmStridedBatched",                                            \
                           0,                                                                                \
                           op_a,                                                                             \
                           op_b,                                                                             \
                           m,                                                                                \
                           n,                                                                                \
                           k,                                                                                \
                           alpha,                                                                            \
                           beta,                                                                             \
                           {a, data, lda, stride_a},                                                         \
                           {b, data, ldb, stride_b},                                                         \
                           {c, data, ldc, stride_c},                                                         \
                           batch,                                                                            \
                           compute});                                                                        \
  }                                                                                                          \
  cublasStatus_t cublas##letter##gemmBatched(cublasHandle_t handle, cublasOperation_t op_a,                  \
                                             cublasOperation_t op_b, int m, int n, int k, const type* alpha, \
                                             const type* const a[], int lda, const type* const b[], int ldb, \
                                             const type* beta, type* const c[], int ldc, int batch) {        \
    return submit(handle, {"cublas" #letter "gemmBatched",                                                   \
                           0,                                                                                \
                           op_a,                                                                             \
                           op_b,                                                                             \
                           m,                                                                                \
                           n,                                                                                \
                           k,                                                                                \
                           alpha,                                                                            \
                           beta,                                                                             \
                           {a, data, lda, 0, true},                                                          \
                           {b, data, ldb, 0, true},                                                          \
                           {c, data, ldc, 0, true},                                                          \
                           batch,                                                                            \
                           compute});                                                                        \
  }
NESTGRAD_EMULATOR_GEMM(S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
NESTGRAD_EMULATOR_GEMM(D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)
#undef NESTGRAD_EMULATOR_GEMM

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                            int n, int k, const void* alpha, const void* a, cudaDataType type_a, int lda,
                            const void* b, cudaDataType type_b, int ldb, const void* beta, void* c,
                            cudaDataType type_c, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t) {
  return submit(handle, {"cublasGemmEx",
                         0,
                         op_a,
                         op_b,
                         m,
                         n,
                         k,
                         alpha,
                         beta,
                         {a, type_a, lda},
                         {b, type_b, ldb},
                         {c, type_c, ldc},
                         1,
                         compute});
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k, const void* alpha,
                                          const void* a, cudaDataType type_a, int lda, long long stride_a,
                                          const void* b, cudaDataType type_b, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType type_c, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
  return submit(handle, {"cublasGemmStridedBatchedEx",
                         0,
                         op_a,
                         op_b,
                         m,
                         n,
                         k,
                         alpha,
                         beta,
                         {a, type_a, lda, stride_a},
                         {b, type_b, ldb, stride_b},
                         {c, type_c, ldc, stride_c},
                         batch,
                         compute});
}

// cuBLAS, which takes 0.3 s and 200 MB to load.
#include <cublas_v2.h>

#include "cuda/lazy_library.h"

namespace {

const nestgrad::cuda::LazyLibrary& library() {
  static const nestgrad::cuda::LazyLibrary only(fmt::format("cuBLAS {}", CUBLAS_VER_MAJOR),
                                                fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR),
                                                NESTGRAD_CUBLAS_FOLDER);
  return only;
}

}  // namespace

extern "C" {
STANDS_FOR(cublasStatus_t, cublasCreate_v2, (cublasHandle_t * handle), (handle))
STANDS_FOR(cublasStatus_t, cublasDestroy_v2, (cublasHandle_t handle), (handle))
STANDS_FOR(cublasStatus_t, cublasSetStream_v2, (cublasHandle_t handle, cudaStream_t stream), (handle, stream))
STANDS_FOR(cublasStatus_t, cublasSetWorkspace_v2, (cublasHandle_t handle, void* workspace, size_t bytes),
           (handle, workspace, bytes))
STANDS_FOR(const char*, cublasGetStatusString, (cublasStatus_t status), (status))
STANDS_FOR(cublasStatus_t, cublasGemmStridedBatchedEx,
           (cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
            const void* alpha, const void* a, cudaDataType type_a, int lda, long long stride_a, const void* b,
            cudaDataType type_b, int ldb, long long stride_b, const void* beta, void* c, cudaDataType type_c,
            int ldc, long long stride_c, int count, cublasComputeType_t compute, cublasGemmAlgo_t algorithm),
           (handle, ta, tb, m, n, k, alpha, a, type_a, lda, stride_a, b, type_b, ldb, stride_b, beta, c,
            type_c, ldc, stride_c, count, compute, algorithm))
}

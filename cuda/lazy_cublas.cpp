// cuBLAS, loaded when it is first called: linking it would cost every program 0.3 s and 200 MB at its start,
// also those that run on the CPU. Each function here stands for the library's own of the same name.
#include <cublas_v2.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "engine/core/error.h"

namespace {

void* library() {
  static void* const handle = [] {
    const std::string name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
    std::string why;
    for (const std::string& path : {name, std::string(NESTGRAD_CUBLAS_FOLDER "/") + name}) {
      if (void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
      why += fmt::format("{}{}", why.empty() ? "" : "; ", dlerror());
    }
    throw nestgrad::DeviceError(fmt::format(
        "[cuda] cuBLAS {} cannot be loaded ({}); install it, or add its folder to LD_LIBRARY_PATH",
        CUBLAS_VER_MAJOR, why));
  }();
  return handle;
}

template <class F>
F* find(const char* name) {
  void* const symbol = dlsym(library(), name);
  if (!symbol)
    throw nestgrad::DeviceError(fmt::format(
        "[cuda] this cuBLAS has no {}; it is not the version that the program was built with", name));
  return reinterpret_cast<F*>(symbol);
}

}  // namespace

#define STANDS_FOR(result, name, parameters, arguments) \
  result CUBLASWINAPI name parameters {                 \
    using Own = result parameters;                      \
    static Own* const own = find<Own>(#name);           \
    return own arguments;                               \
  }

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

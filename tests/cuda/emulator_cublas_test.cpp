// The promises of the stand-in for cuBLAS.
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include "tests/cuda/emulator_testing.h"

using namespace nestgrad::emulator::testing;
using nestgrad::emulator::Order;
namespace emulator = nestgrad::emulator;

TEST_SUITE_BEGIN("cuda-emulated");

namespace {

struct Blas {
  cublasHandle_t handle = nullptr;
  Blas() { REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS); }
  ~Blas() { cublasDestroy(handle); }
  operator cublasHandle_t() const { return handle; }
};

template <class T>
std::vector<T> values(std::size_t n, int seed) {
  std::vector<T> out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = T((int(i) * 37 + seed * 11) % 17 - 8) / 4;
  return out;
}

// The product by its definition; a and b hold numbers small enough for exact sums.
template <class T>
std::vector<T> product(cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, T alpha,
                       const T* a, int lda, const T* b, int ldb, T beta, std::vector<T> c, int ldc) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      T sum = 0;
      for (int l = 0; l < k; ++l)
        sum += (op_a == CUBLAS_OP_N ? a[l * lda + i] : a[i * lda + l]) *
               (op_b == CUBLAS_OP_N ? b[j * ldb + l] : b[l * ldb + j]);
      T& out = c[std::size_t(j * ldc + i)];
      out = alpha * sum + (beta == 0 ? 0 : beta * out);
    }
  return c;
}

template <class T, class Gemm>
void check_gemm(Gemm gemm) {
  const Blas blas;
  const int m = 3, n = 4, k = 5, leading = 7;
  const std::vector<T> a = values<T>(49, 1), b = values<T>(49, 2), c = values<T>(28, 3);
  for (const cublasOperation_t op_a : {CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C})
    for (const cublasOperation_t op_b : {CUBLAS_OP_N, CUBLAS_OP_T})
      for (const T beta : {T(0), T(0.5)}) {
        const Array<T> on_a(a), on_b(b), on_c(c);
        T alpha = 2, beta_then = beta;
        REQUIRE(gemm(blas, op_a, op_b, m, n, k, &alpha, on_a.data, leading, on_b.data, leading, &beta_then,
                     on_c.data, leading) == CUBLAS_STATUS_SUCCESS);
        alpha = beta_then = 100;
        CHECK(on_c.read() ==
              product<T>(op_a, op_b, m, n, k, 2, a.data(), leading, b.data(), leading, beta, c, leading));
      }
}

}  // namespace

TEST_CASE("Products of column-major matrices, transposed or not, with any leading dimension") {
  const Fresh fresh;
  check_gemm<float>(cublasSgemm);
  check_gemm<double>(cublasDgemm);
}

TEST_CASE("Without beta a product does not read its target") {
  const Fresh fresh;
  const Blas blas;
  const Array<float> a(std::vector<float>{1, 2}), b(std::vector<float>{3, 4}), c(1);
  const float one = 1, zero = 0;
  REQUIRE(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 2, &one, a.data, 1, b.data, 2, &zero, c.data,
                      1) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.read()[0] == 11);
}

TEST_CASE("Batches are strided or listed on the device") {
  const Fresh fresh;
  const Blas blas;
  const std::vector<double> a = values<double>(18, 1), b = values<double>(6, 2);
  const double one = 1, zero = 0;
  std::vector<double> should;
  for (int i = 0; i < 3; ++i) {
    const auto part = product<double>(CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, 1, &a[std::size_t(i) * 6], 2,
                                      b.data(), 3, 0, std::vector<double>(4), 2);
    should.insert(should.end(), part.begin(), part.end());
  }
  const Array<double> on_a(a), on_b(b), strided(12), listed(12);
  REQUIRE(cublasDgemmStridedBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, &one, on_a.data, 2, 6, on_b.data,
                                    3, 0, &zero, strided.data, 2, 4, 3) == CUBLAS_STATUS_SUCCESS);
  CHECK(strided.read() == should);
  const Array<double*> list_a(std::vector<double*>{on_a.data, on_a.data + 6, on_a.data + 12}),
      list_b(std::vector<double*>(3, on_b.data)),
      list_c(std::vector<double*>{listed.data, listed.data + 4, listed.data + 8});
  REQUIRE(cublasDgemmBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, &one, list_a.data, 2, list_b.data, 3,
                             &zero, list_c.data, 2, 3) == CUBLAS_STATUS_SUCCESS);
  CHECK(listed.read() == should);
}

TEST_CASE("Products are queued on their stream, and alpha and beta may be on the device") {
  const Fresh fresh;
  const Blas blas;
  const Stream stream, other;
  const Array<float> x(std::vector<float>{3}), y(std::vector<float>{0}), scalars(std::vector<float>{2, 0});
  REQUIRE(cublasSetStream(blas, stream.handle) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, scalars.data, x.data, 1, x.data, 1,
                      scalars.data + 1, y.data, 1) == CUBLAS_STATUS_SUCCESS);
  CHECK(cudaStreamSynchronize(other.handle) == cudaSuccess);
  CHECK(y.read()[0] == 0);
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  CHECK(y.read()[0] == 18);
}

TEST_CASE(
    "Sizes and leading dimensions that cuBLAS refuses are "
    "refused, matrices that do not fit their memory are faults") {
  const Fresh fresh;
  const Blas blas;
  const Array<float> x(64);
  const float one = 1;
  const auto gemm = [&](cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, int lda, int ldb,
                        int ldc) {
    return cublasSgemm(blas, op_a, op_b, m, n, k, &one, x.data, lda, x.data, ldb, &one, x.data, ldc);
  };
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 4, 2, 4, 2) == CUBLAS_STATUS_SUCCESS);
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 4, 1, 4, 2) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 4, 2, 3, 2) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 4, 2, 4, 1) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(gemm(CUBLAS_OP_T, CUBLAS_OP_N, 2, 3, 4, 3, 4, 2) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_T, 2, 3, 4, 2, 2, 2) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_N, -1, 3, 4, 2, 4, 2) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_N, 0, 3, 4, 1, 4, 1) == CUBLAS_STATUS_SUCCESS);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, 8, 9, 8) == CUBLAS_STATUS_SUCCESS);
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  CHECK(contains(emulator::last_fault(), "[cublasSgemm, matrix B] needs 284 bytes"));
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 4, 2, 4, 2) == CUBLAS_STATUS_EXECUTION_FAILED);
  emulator::reset();
  emulator::fail_call("cublasSgemm", CUBLAS_STATUS_ALLOC_FAILED);
  CHECK(gemm(CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 4, 2, 4, 2) == CUBLAS_STATUS_ALLOC_FAILED);
}

TEST_CASE("Fewer bits of the inputs are kept where the caller allows it") {
  const Fresh fresh;
  const Blas blas;
  const float one = 1, zero = 0, in = 1 + 0x1p-12f + 0x1p-7f;
  const Array<float> x(std::vector<float>{in}), unit(std::vector<float>{1}), y(1);
  const auto multiply = [&](cublasComputeType_t compute) {
    REQUIRE(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, x.data, CUDA_R_32F, 1, unit.data,
                         CUDA_R_32F, 1, &zero, y.data, CUDA_R_32F, 1, compute,
                         CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    return y.read()[0];
  };
  CHECK(multiply(CUBLAS_COMPUTE_32F) == in);
  CHECK(multiply(CUBLAS_COMPUTE_32F_FAST_TF32) == 1 + 0x1p-7f);
  REQUIRE(cublasSetMathMode(blas, CUBLAS_TF32_TENSOR_OP_MATH) == CUBLAS_STATUS_SUCCESS);
  CHECK(multiply(CUBLAS_COMPUTE_32F) == 1 + 0x1p-7f);

  const __nv_bfloat16 third = __float2bfloat16(1 / 3.f);
  const Array<__nv_bfloat16> b(std::vector<__nv_bfloat16>(8, third)), c(1);
  const auto sum = [&](void* out, cudaDataType type) {
    return cublasGemmStridedBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 8, &one, b.data, CUDA_R_16BF, 1,
                                      0, b.data, CUDA_R_16BF, 8, 0, &zero, out, type, 1, 0, 1,
                                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  };
  const float exact = 8 * __bfloat162float(third) * __bfloat162float(third);
  REQUIRE(sum(y.data, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
  CHECK(y.read()[0] == exact);
  REQUIRE(sum(c.data, CUDA_R_16BF) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.read()[0].bits == __float2bfloat16(exact).bits);
  CHECK(sum(c.data, CUDA_R_64F) == CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_SUITE_END();

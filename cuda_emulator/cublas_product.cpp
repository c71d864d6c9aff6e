#include "cuda_emulator/cublas_product.h"

#include <fmt/format.h>

#include <Eigen/Core>
#include <bit>
#include <cmath>

#include "cuda_bf16.h"
#include "cuda_emulator/queue.h"

namespace nestgrad::emulator {

namespace {

std::size_t bytes_of(cudaDataType type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

float to_tf32(float x) {
  if (!std::isfinite(x)) return x;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x1000u) & ~0x1fffu);
}

const void* matrix_at(const Product& p, const Matrices& all, int index) {
  if (!all.listed)
    return static_cast<const char*>(all.first) +
           all.stride * index * static_cast<long long>(bytes_of(all.type));
  require_device_memory(p.device, all.first, std::size_t(p.batch) * sizeof(void*), p.function);
  return static_cast<void* const*>(all.first)[index];
}

void require(const Product& p, const Matrices& all, const void* matrix, char name) {
  if (all.rows == 0 || all.columns == 0) return;
  const std::size_t elements =
      std::size_t(all.columns - 1) * std::size_t(all.leading) + std::size_t(all.rows);
  require_device_memory(p.device, matrix, elements * bytes_of(all.type),
                        fmt::format("{}, matrix {}", p.function, name));
}

template <class Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

template <class Scalar>
Matrix<Scalar> read(const Product& p, const Matrices& all, const void* matrix, cublasOperation_t op) {
  Matrix<Scalar> out(all.rows, all.columns);
  const auto fill = [&]<class Stored>(Stored*, auto convert) {
    const auto* from = static_cast<const Stored*>(matrix);
    for (Eigen::Index j = 0; j < all.columns; ++j)
      for (Eigen::Index i = 0; i < all.rows; ++i)
        out(i, j) = static_cast<Scalar>(convert(from[j * all.leading + i]));
  };
  if (all.type == CUDA_R_16BF) fill(static_cast<__nv_bfloat16*>(nullptr), __bfloat162float);
  else if (all.type == CUDA_R_64F) fill(static_cast<double*>(nullptr), [](double x) { return x; });
  else if (p.compute == CUBLAS_COMPUTE_32F_FAST_TF32) fill(static_cast<float*>(nullptr), to_tf32);
  else fill(static_cast<float*>(nullptr), [](float x) { return x; });
  if (op != CUBLAS_OP_N) out = out.transpose().eval();
  return out;
}

template <class Scalar>
void multiply(const Product& p, int index, Scalar alpha, Scalar beta) {
  const void *a = matrix_at(p, p.a, index), *b = matrix_at(p, p.b, index);
  void* c = const_cast<void*>(matrix_at(p, p.c, index));
  require(p, p.a, a, 'A');
  require(p, p.b, b, 'B');
  require(p, p.c, c, 'C');
  Matrix<Scalar> out = Matrix<Scalar>::Zero(p.m, p.n);
  if (p.k > 0) out.noalias() = read<Scalar>(p, p.a, a, p.op_a) * read<Scalar>(p, p.b, b, p.op_b);
  out *= alpha;
  if (beta != 0) {
    Product exact = p;
    exact.compute = CUBLAS_COMPUTE_32F;  // C is not an input of the product
    out += beta * read<Scalar>(exact, p.c, c, CUBLAS_OP_N);
  }
  for (Eigen::Index j = 0; j < p.n; ++j)
    for (Eigen::Index i = 0; i < p.m; ++i) {
      const Eigen::Index at = j * p.c.leading + i;
      if (p.c.type == CUDA_R_16BF)
        static_cast<__nv_bfloat16*>(c)[at] = __float2bfloat16(static_cast<float>(out(i, j)));
      else if (p.c.type == CUDA_R_64F) static_cast<double*>(c)[at] = static_cast<double>(out(i, j));
      else static_cast<float*>(c)[at] = static_cast<float>(out(i, j));
    }
}

}  // namespace

double scalar_at(const Product& p, const void* pointer) {
  if (computes_double(p)) return *static_cast<const double*>(pointer);
  return double{*static_cast<const float*>(pointer)};
}

void compute(Product p) {
  if (p.pointers == CUBLAS_POINTER_MODE_DEVICE) {
    for (const void* pointer : {p.alpha, p.beta})
      require_device_memory(p.device, pointer, computes_double(p) ? 8 : 4, p.function);
    p.alpha_now = scalar_at(p, p.alpha);
    p.beta_now = scalar_at(p, p.beta);
  }
  for (int i = 0; i < p.batch; ++i)
    if (computes_double(p)) multiply<double>(p, i, p.alpha_now, p.beta_now);
    else multiply<float>(p, i, static_cast<float>(p.alpha_now), static_cast<float>(p.beta_now));
}

}  // namespace nestgrad::emulator

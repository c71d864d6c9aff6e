// A call of the cuBLAS stand-in as a value: what is to be computed, once its turn in the stream comes.
#pragma once

#include "cublas_v2.h"

namespace nestgrad::emulator {

// The matrices of a batch: `stride` elements apart, or, if they are listed, where a list on the device says.
struct Matrices {
  const void* first;
  cudaDataType type;
  int leading;  // elements from one column to the next
  long long stride = 0;
  bool listed = false;
  int rows = 0, columns = 0;  // as stored
};

struct Product {
  const char* function;
  int device = 0;
  cublasOperation_t op_a, op_b;
  int m, n, k;
  const void *alpha, *beta;
  Matrices a, b, c;
  int batch;
  cublasComputeType_t compute;
  // Where alpha and beta are read from when the product is computed: the device, or here.
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
  double alpha_now = 0, beta_now = 0;
};

inline bool computes_double(const Product& p) {
  return p.compute == CUBLAS_COMPUTE_64F || p.compute == CUBLAS_COMPUTE_64F_PEDANTIC;
}
// alpha or beta, from where it is.
double scalar_at(const Product& p, const void* pointer);

// Reads and writes device memory; a Fault if a matrix does not fit its allocation.
void compute(Product p);

}  // namespace nestgrad::emulator

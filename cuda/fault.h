// What kernels report when they are given a number that they cannot do with.
#pragma once

namespace nestgrad::cuda {

// The first such number to be found, such as an index outside of its table.
struct Fault {
  int site = 0;  // 0: nothing; else of CudaBackend::fault_site
  enum class Kind : int { index, f32, f64 } kind = Kind::index;
  int index = 0;  // the number, in the field of its kind: f32 is not made f64 in a kernel
  float f32 = 0;
  double f64 = 0;
};

}  // namespace nestgrad::cuda

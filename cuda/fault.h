// What kernels report when they are given a number that they cannot do with.
#pragma once

namespace nestgrad::cuda {

// The first such number to be found, such as an index outside of its table.
struct Fault {
  int site = 0;  // 0: nothing; else of CudaBackend::fault_site
  bool is_index = false;
  int index = 0;     // the number, if it is one
  float number = 0;  // else
};

}  // namespace nestgrad::cuda

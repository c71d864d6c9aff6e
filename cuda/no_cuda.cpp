// Stands in for the CUDA backend where it is not built.
#include "engine/core/device_memory.h"

namespace nestgrad {

std::shared_ptr<DeviceMemory> cuda_device_memory(int) { return nullptr; }
int cuda_device_count() { return 0; }
std::string why_no_cuda_device() {
  return "this build has no CUDA backend; configure with "
         "-DNESTGRAD_CUDA=ON on a machine with the CUDA toolkit";
}

}  // namespace nestgrad

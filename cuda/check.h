// Every call of the CUDA runtime and of cuBLAS goes through NESTGRAD_CUDA: what fails is a DeviceError that
// names the call, what CUDA says of it, and the line.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "engine/core/source_location.h"

namespace nestgrad::cuda {

void check(cudaError_t status, const char* call, SourceLocation at = SourceLocation::current());
void check(cublasStatus_t status, const char* call, SourceLocation at = SourceLocation::current());

}  // namespace nestgrad::cuda

#define NESTGRAD_CUDA(...) ::nestgrad::cuda::check(__VA_ARGS__, #__VA_ARGS__)

// Every call of the CUDA runtime and of cuBLAS goes through NESTGRAD_CUDA: what fails is a DeviceError that
// names the call, what CUDA says of it, and the line.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <source_location>

namespace nestgrad::cuda {

void check(cudaError_t status, const char* call, std::source_location at = std::source_location::current());
void check(cublasStatus_t status, const char* call,
           std::source_location at = std::source_location::current());

}  // namespace nestgrad::cuda

#define NESTGRAD_CUDA(...) ::nestgrad::cuda::check(__VA_ARGS__, #__VA_ARGS__)

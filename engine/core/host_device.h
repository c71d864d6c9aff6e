// NESTGRAD_HOST_DEVICE: before a function that CUDA kernels call too.
#pragma once

#ifdef __CUDACC__
#define NESTGRAD_HOST_DEVICE __host__ __device__
#else
#define NESTGRAD_HOST_DEVICE
#endif

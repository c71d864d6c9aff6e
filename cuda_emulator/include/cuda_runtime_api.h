// Stand-in for the toolkit's header: the host's side of the runtime, as far as the backend uses it.
// Names, values and meanings are CUDA's; queue.h says what the emulator adds.
#pragma once

#include <cstddef>

#include "vector_types.h"

#define CUDART_VERSION 13000

#define NESTGRAD_EMULATOR_CUDA_ERRORS(X)                                                               \
  X(cudaSuccess, 0, "no error")                                                                        \
  X(cudaErrorInvalidValue, 1, "invalid argument")                                                      \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                                                     \
  X(cudaErrorInitializationError, 3, "initialization error")                                           \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                \
  X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                          \
  X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")   \
  X(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")              \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                     \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                      \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                             \
  X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")  \
  X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                             \
  X(cudaErrorInvalidKernelImage, 200, "device kernel image is invalid")                                \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                    \
  X(cudaErrorSymbolNotFound, 500, "named symbol not found")                                            \
  X(cudaErrorIllegalState, 401, "the operation cannot be performed in the present state")              \
  X(cudaErrorNotReady, 600, "device not ready")                                                        \
  X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                          \
  X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                     \
  X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                            \
  X(cudaErrorAssert, 710, "device-side assert triggered")                                              \
  X(cudaErrorMisalignedAddress, 716, "misaligned address")                                             \
  X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                         \
  X(cudaErrorNotSupported, 801, "operation not supported")                                             \
  X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")        \
  X(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture") \
  X(cudaErrorStreamCaptureUnmatched, 903, "capture was not initiated in this stream")                  \
  X(cudaErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream")   \
  X(cudaErrorStreamCaptureImplicit, 906,                                                               \
    "operation would make the legacy stream depend on a capturing blocking stream")                    \
  X(cudaErrorGraphExecUpdateFailure, 910,                                                              \
    "the graph update was not performed because it included changes which "                            \
    "violated constraints specific to instantiated graph update")                                      \
  X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define NESTGRAD_EMULATOR_VALUE(name, value, text) name = value,
  NESTGRAD_EMULATOR_CUDA_ERRORS(NESTGRAD_EMULATOR_VALUE)
#undef NESTGRAD_EMULATOR_VALUE
};
using cudaError_t = cudaError;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMemoryPoolsSupported = 115
};

struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem;
  std::size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int major;
  int minor;
  int multiProcessorCount;
  int l2CacheSize;
  int maxThreadsPerMultiProcessor;
  std::size_t sharedMemPerMultiprocessor;
  std::size_t sharedMemPerBlockOptin;
};

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
struct cudaFuncAttributes {
  std::size_t sharedSizeBytes;
  std::size_t constSizeBytes;
  std::size_t localSizeBytes;
  int maxThreadsPerBlock;
  int numRegs;
  int ptxVersion;
  int binaryVersion;
  int cacheModeCA;
  int maxDynamicSharedSizeBytes;
};

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
using cudaGraphNode_t = struct CUgraphNode_st*;

using cudaLibrary_t = struct CUlib_st*;
using cudaKernel_t = struct CUkern_st*;
enum cudaJitOption {};
enum cudaLibraryOption {};
using cudaMemPool_t = struct CUmemPool_st*;

enum cudaMemPoolAttr {
  cudaMemPoolAttrReleaseThreshold = 4,
  cudaMemPoolAttrReservedMemCurrent = 5,
  cudaMemPoolAttrUsedMemCurrent = 7
};

enum cudaGraphExecUpdateResult {
  cudaGraphExecUpdateSuccess = 0,
  cudaGraphExecUpdateError = 1,
  cudaGraphExecUpdateErrorTopologyChanged = 2,
  cudaGraphExecUpdateErrorFunctionChanged = 4
};
struct cudaGraphExecUpdateResultInfo {
  cudaGraphExecUpdateResult result;
  cudaGraphNode_t errorNode;
  cudaGraphNode_t errorFromNode;
};

constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaMalloc(void** pointer, std::size_t bytes);
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream);
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int value, std::size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream = nullptr);

cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* result);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption* jit,
                                void** jit_values, unsigned jit_count, cudaLibraryOption* options,
                                void** option_values, unsigned option_count);
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name);

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);

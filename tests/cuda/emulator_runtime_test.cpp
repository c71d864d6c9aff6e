// The promises of cuda_emulator for the host: queues, streams, captures, errors.
#include <cmath>
#include <thread>

#include "tests/cuda/emulator_testing.h"

using namespace nestgrad::emulator::testing;
using nestgrad::emulator::Order;
namespace emulator = nestgrad::emulator;

TEST_SUITE_BEGIN("cuda-emulated");

// --- The queue.

TEST_CASE("Work runs when something waits for it, so results that were not waited for are not there") {
  const Fresh fresh;
  const Array<float> x(std::vector<float>{1, 2});
  float* pinned = nullptr;
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned), 8) == cudaSuccess);
  std::vector<float> pageable{7, 7};
  REQUIRE(launch(add_one, 1, 2, 0, x.data, 2) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(pinned, x.data, 8, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(emulator::launches() == 0);
  CHECK(std::isnan(pinned[0]));
  // Into memory that is not pinned, a copy is made when all before it is done: the call waits for that.
  REQUIRE(cudaMemcpyAsync(pageable.data(), x.data, 8, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(emulator::launches() == 1);
  CHECK(std::isnan(pageable[0]));
  CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
  CHECK(emulator::launches() == 1);
  CHECK(pinned[0] == 2);
  CHECK(pageable[1] == 3);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("An asynchronous copy reads pageable memory now and pinned memory later") {
  const Fresh fresh;
  const Array<float> x(1), y(1);
  float* pinned = nullptr;
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4) == cudaSuccess);
  float pageable = *pinned = 1;
  REQUIRE(cudaMemcpyAsync(x.data, &pageable, 4, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(y.data, pinned, 4, cudaMemcpyHostToDevice) == cudaSuccess);
  pageable = *pinned = 2;
  CHECK(x.read()[0] == 1);
  CHECK(y.read()[0] == 2);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("Kernels run with the arguments of their launch") {
  const Fresh fresh;
  static_assert(emulator::argument_bytes<char, double, int>() ==
                20);  // 4096 at most, or a launch does not compile
  const Array<float> x(std::vector<float>{0, 0});
  int n = 1;
  float* data = x.data;
  void* arguments[] = {&data, &n};
  REQUIRE(cudaLaunchKernel(add_one, 1, 2, arguments) == cudaSuccess);
  n = 2;
  data = nullptr;
  CHECK(x.read() == std::vector<float>{1, 0});
}

TEST_CASE("Copies and fills are checked against the memory that they name") {
  const Fresh fresh;
  const Array<float> x(std::vector<float>{1, 2, 3, 4}), y(4);
  float host[4];
  CHECK(cudaMemcpy(x.data, host, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidMemcpyDirection);
  CHECK(cudaMemcpy(host, x.data, 16, cudaMemcpyHostToDevice) == cudaErrorInvalidMemcpyDirection);
  CHECK(cudaMemcpy(host, x.data, 16, cudaMemcpyHostToHost) == cudaErrorInvalidMemcpyDirection);
  CHECK(cudaMemcpy(y.data, host, 16, cudaMemcpyDeviceToDevice) == cudaErrorInvalidMemcpyDirection);
  CHECK(cudaMemcpy(host, x.data, 17, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host, x.data + 1, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemset(x.data + 1, 0, 16) == cudaErrorInvalidValue);
  CHECK(cudaMemset(host, 0, 16) == cudaErrorInvalidValue);
  CHECK(cudaMemset(x.data + 1, 0, 4) == cudaSuccess);
  CHECK(cudaMemcpy(y.data, x.data, 16, cudaMemcpyDeviceToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(host, y.data, 16, cudaMemcpyDefault) == cudaSuccess);
  CHECK(std::vector<float>(host, host + 4) == std::vector<float>{1, 0, 3, 4});
  CHECK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice) == cudaSuccess);
}

TEST_CASE("Launches outside of CUDA's limits are refused") {
  const Fresh fresh;
  const auto launches = [](dim3 grid, dim3 block) { return launch(nothing, grid, block, 0); };
  CHECK(launches({2, 65535, 1}, {32, 32, 1}) == cudaSuccess);
  emulator::reset();
  for (const dim3 block :
       {dim3(1025), dim3(1, 1025), dim3(1, 1, 65), dim3(33, 32), dim3(0), dim3(1, 0), dim3(1u << 31, 2)})
    CHECK(launches(1, block) == cudaErrorInvalidConfiguration);
  for (const dim3 grid : {dim3(0x80000000u), dim3(1, 65536), dim3(1, 1, 65536), dim3(0), dim3(1, 1, 0)})
    CHECK(launches(grid, 1) == cudaErrorInvalidConfiguration);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaSuccess);
  int not_a_stream = 0;
  CHECK(launch_on(reinterpret_cast<cudaStream_t>(&not_a_stream), nothing, 1, 1, 0) ==
        cudaErrorInvalidResourceHandle);
}

// --- Streams.

namespace {

__global__ void copy_one(float* to, const float* from) { *to = *from; }

}  // namespace

TEST_CASE("Streams are not ordered among each other, unless by events") {
  const Fresh fresh;
  const Stream first, second;
  for (const bool wait : {false, true}) {
    const Array<float> x(std::vector<float>{1}), y(1), z(1);
    cudaEvent_t event;
    REQUIRE(cudaEventCreate(&event) == cudaSuccess);
    launch_on(first.handle, copy_one, 1, 1, 0, y.data, x.data);
    REQUIRE(cudaEventRecord(event, first.handle) == cudaSuccess);
    if (wait) REQUIRE(cudaStreamWaitEvent(second.handle, event) == cudaSuccess);
    launch_on(second.handle, copy_one, 1, 1, 0, z.data, y.data);
    CHECK(cudaStreamSynchronize(second.handle) == cudaSuccess);
    CHECK(cudaStreamSynchronize(first.handle) == cudaSuccess);
    CHECK(std::isnan(z.read()[0]) == !wait);
    CHECK(y.read()[0] == 1);
    CHECK(cudaEventDestroy(event) == cudaSuccess);
  }
}

TEST_CASE("The legacy stream and blocking streams wait for each other, others do not") {
  const Fresh fresh;
  for (const unsigned flags : {cudaStreamDefault, cudaStreamNonBlocking}) {
    const Stream stream(flags);
    const Array<float> x(std::vector<float>{1}), y(1), z(1);
    launch_on(stream.handle, copy_one, 1, 1, 0, y.data, x.data);
    launch(copy_one, 1, 1, 0, z.data, y.data);
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(std::isnan(z.read()[0]) == (flags == cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(y.read()[0] == 1);
  }
}

TEST_CASE("Events take time, and waiting for one runs what is before it") {
  const Fresh fresh;
  const Stream stream;
  const Array<float> x(std::vector<float>{1});
  cudaEvent_t start, end;
  float milliseconds = -1;
  REQUIRE(cudaEventCreate(&start) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  REQUIRE(cudaEventRecord(start, stream.handle) == cudaSuccess);
  launch_on(stream.handle, add_one, 1, 1, 0, x.data, 1);
  REQUIRE(cudaEventRecord(end, stream.handle) == cudaSuccess);
  launch_on(stream.handle, add_one, 1, 1, 0, x.data, 1);
  CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorNotReady);
  CHECK(cudaEventSynchronize(end) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess);
  CHECK(milliseconds >= 0);
  CHECK(emulator::launches() == 1);
  CHECK(cudaStreamQuery(stream.handle) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(stream.handle) == cudaSuccess);
  CHECK(x.read()[0] == 3);
  CHECK(cudaEventDestroy(start) == cudaSuccess);
  CHECK(cudaEventDestroy(end) == cudaSuccess);
}

// --- Capture.

TEST_CASE("Captured work runs when its graph is launched, with the arguments of the capture, as often") {
  const Fresh fresh;
  const Stream stream;
  const Array<float> x(std::vector<float>{1});
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStreamCaptureStatus status;
  std::size_t nodes = 0;
  float host = 0;
  REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(launch_on(stream.handle, add_one, 1, 1, 0, x.data, 1) == cudaSuccess);
  CHECK(cudaMemcpyAsync(&host, x.data, 4, cudaMemcpyDeviceToHost, stream.handle) == cudaSuccess);
  CHECK(cudaStreamIsCapturing(stream.handle, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusActive);
  REQUIRE(cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  CHECK(emulator::launches() == 0);
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 2);
  REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  for (int i = 0; i < 3; ++i) REQUIRE(cudaGraphLaunch(exec, stream.handle) == cudaSuccess);
  CHECK(host == 0);
  REQUIRE(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  CHECK(host == 4);
  CHECK(emulator::launches() == 3);
  CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
}

TEST_CASE("A capture of one thread is not broken by what other threads do") {
  const Fresh fresh;
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
    const Stream stream;
    cudaGraph_t graph;
    REQUIRE(cudaStreamBeginCapture(stream.handle, mode) == cudaSuccess);
    std::thread([] {
      void* memory = nullptr;
      if (cudaMalloc(&memory, 4) == cudaSuccess) cudaFree(memory);
    }).join();
    const bool intact = cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess;
    CHECK(intact == (mode == cudaStreamCaptureModeThreadLocal));
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
}

TEST_CASE("What a capture would miss is refused and ends the capture") {
  const Fresh fresh;
  const Array<float> x(std::vector<float>{1});
  float host = 0;
  void* memory = nullptr;
  const auto after = [&](unsigned flags, auto call) {
    const Stream stream(flags);
    REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeGlobal) == cudaSuccess);
    const cudaError_t error = call(stream.handle);
    CHECK(launch_on(stream.handle, add_one, 1, 1, 0, x.data, 1) == cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(stream.handle, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    return error;
  };
  const unsigned apart = cudaStreamNonBlocking, blocking = cudaStreamDefault;
  CHECK(after(apart, [&](cudaStream_t) { return cudaMalloc(&memory, 4); }) ==
        cudaErrorStreamCaptureUnsupported);
  CHECK(after(apart, [&](cudaStream_t) { return cudaDeviceSynchronize(); }) ==
        cudaErrorStreamCaptureUnsupported);
  CHECK(after(apart, [&](cudaStream_t s) { return cudaStreamSynchronize(s); }) ==
        cudaErrorStreamCaptureUnsupported);
  CHECK(after(apart, [&](cudaStream_t) { return cudaMemcpy(&host, x.data, 4, cudaMemcpyDeviceToHost); }) ==
        cudaErrorStreamCaptureUnsupported);
  CHECK(after(blocking, [&](cudaStream_t) { return cudaMemcpy(&host, x.data, 4, cudaMemcpyDeviceToHost); }) ==
        cudaErrorStreamCaptureImplicit);
  CHECK(after(blocking, [&](cudaStream_t) { return launch(add_one, 1, 1, 0, x.data, 1); }) ==
        cudaErrorStreamCaptureImplicit);
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
  CHECK(x.read()[0] == 1);
}

// --- Errors.

TEST_CASE("After a fault in a kernel every call returns it, and memory can still be given back") {
  const Fresh fresh;
  const std::size_t before = emulator::allocated();
  {
    const Array<unsigned char> x(std::vector<unsigned char>{1});
    REQUIRE(launch(write_bytes, 1, 1, 0, x.data, 1 << 20) == cudaSuccess);
    REQUIRE(launch(write_bytes, 1, 1, 0, x.data, 0) == cudaSuccess);
    unsigned char host = 0;
    CHECK(cudaMemcpy(&host, x.data, 1, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress);
    CHECK(cudaStreamSynchronize(nullptr) == cudaErrorIllegalAddress);
    CHECK(launch(write_bytes, 1, 1, 0, x.data, 0) == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(emulator::launches() == 1);
  }
  CHECK(emulator::allocated() == before);
  emulator::reset();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("Calls and kernels fail when a test says so") {
  const Fresh fresh;
  const Array<float> x(std::vector<float>{1});
  void* memory = nullptr;
  emulator::fail_call("cudaMalloc", cudaErrorMemoryAllocation, 2);
  CHECK(cudaMalloc(&memory, 4) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaMalloc(&memory, 4) == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&memory, 4) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(emulator::calls("cudaMalloc") == 4);
  emulator::fail_call("kernel", cudaErrorLaunchFailure, 3);
  for (int i = 0; i < 4; ++i) CHECK(launch(add_one, 1, 1, 0, x.data, 1) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  CHECK(contains(emulator::last_fault(), "planned failure"));
  emulator::reset();
  CHECK(x.read()[0] == 3);
}

TEST_CASE("A machine may have no device, no driver, an old one, or several devices") {
  const Fresh fresh;
  int n = -1;
  emulator::settings().devices = 0;
  CHECK(cudaGetDeviceCount(&n) == cudaErrorNoDevice);
  CHECK(n == 0);
  CHECK(cudaSetDevice(0) == cudaErrorNoDevice);
  emulator::settings() = {};
  emulator::settings().driver_version = 12020;
  CHECK(cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver);
  CHECK(cudaDriverGetVersion(&n) == cudaSuccess);
  CHECK(n == 12020);
  emulator::settings() = {};
  emulator::settings().devices = 2;
  CHECK(cudaGetDeviceCount(&n) == cudaSuccess);
  CHECK(n == 2);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  const Array<unsigned char> here(std::vector<unsigned char>{3});
  const Stream stream;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 1) == cudaSuccess);
  CHECK(properties.sharedMemPerBlockOptin == 227 * 1024);
  CHECK(launch_on(stream.handle, nothing, 1, 1, 0) == cudaErrorInvalidResourceHandle);
  CHECK(contains(fault_of(cudaErrorIllegalAddress, write_bytes, 1, 1, 0, here.data, 0), "illegal access"));
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  CHECK(here.read()[0] == 3);
}

TEST_CASE("Threads of the host may use the device at the same time") {
  const Fresh fresh;
  std::vector<std::thread> threads;
  std::vector<float> sums(4);
  for (std::size_t t = 0; t < sums.size(); ++t)
    threads.emplace_back([&sum = sums[t]] {
      const Array<float> x(std::vector<float>(100, 1.f));
      for (int i = 0; i < 50; ++i) launch(add_one, 1, 100, 0, x.data, 100);
      for (const float value : x.read()) sum += value;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(sums == std::vector<float>(4, 5100.f));
}

TEST_SUITE_END();

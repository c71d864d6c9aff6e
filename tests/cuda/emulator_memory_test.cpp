// The promises of cuda_emulator for memory: nothing is read
// that was not written, nothing touched that is not there.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>

#include "tests/cuda/emulator_testing.h"

using namespace nestgrad::emulator::testing;
using nestgrad::emulator::Order;
namespace emulator = nestgrad::emulator;

TEST_SUITE_BEGIN("cuda-emulated");

// --- Shared memory.

namespace {

__global__ void read_shared(float* out) {
  out[blockIdx.x] = shared_floats()[3];
  shared_floats()[3] = 1;
}
__global__ void write_shared(int at) { emulator::shared_memory()[at] = 1; }

}  // namespace

TEST_CASE("Shared memory is poisoned before each block") {
  const Fresh fresh;
  const Array<float> out(3);
  REQUIRE(launch(read_shared, 3, 1, 16, out.data) == cudaSuccess);
  for (const float x : out.read()) CHECK(std::isnan(x));
}

TEST_CASE("Writes outside of a block's shared memory are errors") {
  const Fresh fresh;
  CHECK(fault_of(cudaSuccess, write_shared, 1, 1, 100, 99).empty());
  CHECK(
      contains(fault_of(cudaErrorIllegalAddress, write_shared, 1, 1, 100, 100), "outside of its 100 bytes"));
  CHECK(
      contains(fault_of(cudaErrorIllegalAddress, write_shared, 1, 1, 100, 111), "outside of its 100 bytes"));
  CHECK(contains(fault_of(cudaErrorIllegalAddress, write_shared, 1, 1, 100, 112),
                 "thread (0,0,0): illegal access"));
  CHECK(contains(fault_of(cudaErrorIllegalAddress, write_shared, 1, 1, 100, 112),
                 "12 bytes beyond the end of the 100 bytes"));
  CHECK(contains(fault_of(cudaErrorIllegalAddress, write_shared, 1, 1, 100, -1), "outside of its 100 bytes"));
  CHECK(contains(fault_of(cudaErrorIllegalAddress, write_shared, 1, 1, 0, 0), "0 bytes of shared memory"));
}

TEST_CASE("More than 48 KiB of shared memory need the kernel's consent, more than 227 KiB there are not") {
  const Fresh fresh;
  cudaFuncAttributes attributes;
  CHECK(launch(nothing, 1, 1, 48 * 1024) == cudaSuccess);
  CHECK(launch(nothing, 1, 1, 48 * 1024 + 1) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024 + 1) ==
        cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024) ==
        cudaSuccess);
  CHECK(cudaFuncGetAttributes(&attributes, nothing) == cudaSuccess);
  CHECK(attributes.maxDynamicSharedSizeBytes == 227 * 1024);
  CHECK(launch(nothing, 1, 1, 227 * 1024) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

// --- Device memory.

namespace {

// The signal that ends a process that does this, or 0.
template <class Fn>
int signal_of(Fn fn) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int signal : {SIGSEGV, SIGBUS}) std::signal(signal, SIG_DFL);
    fn();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_CASE("The host cannot touch device memory") {
  const Fresh fresh;
  const Array<float> x(std::vector<float>{1, 2, 3});
  volatile float* at = x.data;
  CHECK(signal_of([&] { at[0] = 1; }) == SIGSEGV);
  CHECK(signal_of([&] { std::exit(at[0] == 1); }) == SIGSEGV);
  REQUIRE(launch(add_one, 1, 3, 0, x.data, 3) == cudaSuccess);
  CHECK(x.read() == std::vector<float>{2, 3, 4});
  CHECK(signal_of([&] { at[0] = 1; }) == SIGSEGV);
}

TEST_CASE("New memory holds no numbers") {
  const Fresh fresh;
  for (const float x : Array<float>(1000).read()) CHECK(std::isnan(x));
  float* pinned = nullptr;
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned), 16) == cudaSuccess);
  CHECK(std::isnan(pinned[3]));
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("Accesses outside of an allocation are errors that say whose and how far") {
  const Fresh fresh;
  const Array<unsigned char> x(100), y(5000);
  CHECK(fault_of(cudaSuccess, write_bytes, 1, 1, 0, x.data, 99).empty());
  const std::string far = fault_of(cudaErrorIllegalAddress, write_bytes, 1, 1, 0, x.data, 112);
  CHECK(contains(far, "block (0,0,0), thread (0,0,0): illegal access"));
  CHECK(contains(far, "12 bytes beyond the end of an allocation of 100 bytes"));
  CHECK(contains(fault_of(cudaErrorIllegalAddress, write_bytes, 1, 1, 0, x.data, 1000000000),
                 "illegal access"));
  CHECK(contains(
      fault_of(cudaErrorIllegalAddress, write_bytes, 1, 1, 0, static_cast<unsigned char*>(nullptr), 8),
      "illegal access to 0x8"));
  unsigned char* freed = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&freed), 64) == cudaSuccess);
  REQUIRE(cudaFree(freed) == cudaSuccess);
  CHECK(contains(fault_of(cudaErrorIllegalAddress, write_bytes, 1, 1, 0, freed, 0), "not allocated"));
}

TEST_CASE("Writes just outside of an allocation, where nothing is closed, are found after the kernel") {
  const Fresh fresh;
  for (const int at : {100, 111, -1, -64}) {
    const Array<unsigned char> x(100);
    CHECK(contains(fault_of(cudaErrorIllegalAddress, write_bytes, 1, 1, 0, x.data, at),
                   "an allocation of 100 bytes"));
  }
}

TEST_CASE("A kernel must not be given memory of the host, but pinned memory it may read") {
  const Fresh fresh;
  std::vector<float> pageable(4, 1);
  CHECK(contains(fault_of(cudaErrorIllegalAddress, add_one, 1, 4, 0, pageable.data(), 4),
                 "pointer 0 of its arguments"));
  float* pinned = nullptr;
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned), 16) == cudaSuccess);
  pinned[0] = 1;
  CHECK(fault_of(cudaSuccess, add_one, 1, 1, 0, pinned, 1).empty());
  CHECK(pinned[0] == 2);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE(
    "What is allocated is counted, what is too much is refused, what is not an allocation is not freed") {
  const Fresh fresh;
  const std::size_t before = emulator::allocated();
  emulator::settings().memory = before + 1000;
  std::size_t free = 0, total = 0;
  {
    const Array<char> x(600);
    CHECK(emulator::allocated() == before + 600);
    CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
    CHECK(free == 400);
    void* more = &free;
    CHECK(cudaMalloc(&more, 401) == cudaErrorMemoryAllocation);
    CHECK(more == nullptr);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaMallocAsync(&more, 400, nullptr) == cudaSuccess);
    CHECK(cudaFree(x.data + 1) == cudaErrorInvalidValue);
    CHECK(cudaFreeAsync(more, nullptr) == cudaSuccess);
    CHECK(emulator::allocated() == before + 1000);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }
  CHECK(emulator::allocated() == before);
  CHECK(cudaFree(nullptr) == cudaSuccess);
}

TEST_SUITE_END();

// Devices, streams and the work in them. Work is queued until something
// waits for it; then it runs on the thread that waits, in an order that
// CUDA's rules allow: what the program forgot to order has not happened yet.
// Work that waits for another device (cuda_emulator/nccl.cpp) is asked again
// when other work has run, or another thread has queued some.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "cuda_emulator/emulator.h"
#include "cuda_emulator/kernel.h"
#include "cuda_emulator/memory.h"

struct CUstream_st {
  using Run = std::function<bool()>;  // false: it waits for another device, and is not done
  struct Work {
    std::uint64_t ticket;  // work with a smaller one was queued earlier, whatever the stream
    Run run;
  };
  int device = 0;
  bool waits_for_legacy = true;  // the legacy stream and this one wait for each other
  std::deque<Work> queue;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::thread::id capture_thread;  // that began it
  struct Captured {
    Run run;
    const void* what;  // the function of a kernel; null: something else
  };
  std::vector<Captured> captured;
};

// The pool of a device, out of which cudaMallocAsync gives memory.
struct CUmemPool_st {
  std::map<const void*, std::size_t> used;
  std::size_t used_bytes = 0, reserved_bytes = 0;
  std::uint64_t release_threshold = 0;
  void reserve() { reserved_bytes = std::max(reserved_bytes, used_bytes); }
  // What a wait for the device does.
  void trim() {
    if (reserved_bytes > release_threshold)
      reserved_bytes = std::max<std::size_t>(used_bytes, release_threshold);
  }
};

namespace nestgrad::emulator {

struct Device {
  DeviceMemory memory;
  CUmemPool_st pool;
  CUstream_st legacy;
  cudaError_t error = cudaSuccess;  // of a kernel: all later calls return it
};

struct Runtime {
  struct Failure {
    std::string function;
    int error, calls_left;
  };
  std::recursive_mutex mutex;           // held in every call, while kernels run as well
  std::condition_variable_any changed;  // work was queued, or what another device waits for has happened
  Settings settings;
  std::map<int, Device> devices;
  std::set<CUstream_st*> streams;
  std::map<const unsigned char*, std::size_t> pinned;
  std::map<const void*, int> shared_bytes;  // that a kernel consented to
  std::set<const void*> loaded;             // kernels that ran; cuBLAS as null
  std::vector<Failure> failures;
  std::map<std::string, std::int64_t, std::less<>> calls;
  std::int64_t launches = 0;
  std::string last_fault;
  std::uint64_t tickets = 0;
};
Runtime& runtime();

int current_device();
Device& device(int index);

// Whether a call may be made while a stream captures.
// `legacy`: it may not, and it works on the legacy stream.
enum class Capturing { allowed, forbidden, legacy };

// One call of the runtime: counts it, refuses it (no driver, no device, an earlier fault, a planned failure,
// a capture that it would break), or does `body` and remembers its error. What gives something back does so
// even after a fault.
enum class After { fault, no_fault };
cudaError_t do_call(std::string_view function, Capturing capturing, After after,
                    const std::function<cudaError_t()>& body);

template <class Body>  // returns an error or nothing
cudaError_t call(std::string_view function, Capturing capturing, Body body, After after = After::no_fault) {
  return do_call(function, capturing, after, [&] {
    if constexpr (!std::is_void_v<decltype(body())>) return body();
    else return body(), cudaSuccess;
  });
}
template <class Body>
cudaError_t call_to_release(std::string_view function, Capturing capturing, Body body) {
  return call(function, capturing, body, After::fault);
}

// The error that fail_call() planned for this call, or 0. Counts the call.
int planned_failure(std::string_view function);

// The stream of this handle; null stands for the legacy stream of the current device. Null: there is none.
CUstream_st* find_stream(cudaStream_t handle);
// Queues the work, or captures it.
cudaError_t enqueue(cudaStream_t handle, std::function<void()> run, const void* what = nullptr);
cudaError_t enqueue_until_done(cudaStream_t handle, CUstream_st::Run run, const void* what = nullptr);
// Loads a kernel (null: cuBLAS), which no capture survives.
cudaError_t load(cudaStream_t handle, const void* what);

// These do what can be done now. False: something waits for another device.
// The work of the stream up to this ticket, and what that has to wait for.
constexpr std::uint64_t kAll = ~std::uint64_t{0};
bool run_until(CUstream_st& stream, std::uint64_t ticket = kAll);
bool run_all(int device);
bool run_everything();
// In a call from the host: until done() says so, other devices and threads get their turn.
void wait_until(const std::function<bool()>& done);

// Which memory these bytes are in; nowhere: not all within one allocation.
enum class Place { pageable, pinned, device, nowhere };
Place place_of(const void* pointer, std::size_t bytes);

// Fails unless all these bytes are memory of the device.
void require_device_memory(int device, const void* pointer, std::size_t bytes, std::string_view what);

}  // namespace nestgrad::emulator

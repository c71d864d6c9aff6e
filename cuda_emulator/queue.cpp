#include "cuda_emulator/queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>

namespace nestgrad::emulator {

namespace {

constexpr int kRuntimeVersion = CUDART_VERSION;

thread_local int selected_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

// A kernel that ended like this leaves nothing on the device that could be trusted.
bool ends_all_work(int error) { return error == cudaErrorECCUncorrectable || (error >= 700 && error < 720); }

void drop_work(int index) {
  device(index).legacy.queue.clear();
  for (CUstream_st* stream : runtime().streams)
    if (stream->device == index) stream->queue.clear();
}

void fail(int index, const Fault& fault) {
  Device& broken = device(index);
  broken.error = fault.code;
  std::string& text = runtime().last_fault;
  text = fault.text;
  if (fault.address != nullptr)
    if (const std::string what = broken.memory.describe(fault.address); !what.empty()) text += ": " + what;
  drop_work(index);
}

// Invalidates captures that would miss what happens now.
cudaError_t break_captures(Capturing capturing) {
  cudaError_t error = cudaSuccess;
  if (capturing == Capturing::allowed) return error;
  for (CUstream_st* stream : runtime().streams) {
    if (stream->capture == cudaStreamCaptureStatusNone || stream->device != selected_device) continue;
    const bool implicit = capturing == Capturing::legacy && stream->waits_for_legacy;
    const bool harmless = stream->capture_mode == cudaStreamCaptureModeRelaxed ||
                          (stream->capture_mode == cudaStreamCaptureModeThreadLocal &&
                           stream->capture_thread != std::this_thread::get_id());
    if (!implicit && harmless) continue;
    stream->capture = cudaStreamCaptureStatusInvalidated;
    error = implicit ? cudaErrorStreamCaptureImplicit : cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

bool run(CUstream_st& stream, const CUstream_st::Run& work) {
  try {
    return work();
  } catch (const Fault& fault) {
    fail(stream.device, fault);
    return true;
  }
}

}  // namespace

Settings::Settings() {
  const char* name = std::getenv("NESTGRAD_EMULATOR_ORDER");
  if (name == nullptr) return;
  if (std::string_view(name) == "reverse") order = Order::reverse;
  if (std::string_view(name) == "shuffled") order = Order::shuffled;
}

Settings& settings() { return runtime().settings; }

void fail_call(std::string_view function, int error, int nth) {
  const std::lock_guard lock(runtime().mutex);
  runtime().failures.push_back({std::string(function), error, nth});
}

std::int64_t calls(std::string_view function) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().calls.find(function);
  return found == runtime().calls.end() ? 0 : found->second;
}

std::int64_t launches() {
  const std::lock_guard lock(runtime().mutex);
  return runtime().launches;
}

std::string last_fault() {
  const std::lock_guard lock(runtime().mutex);
  return runtime().last_fault;
}

std::size_t allocated(int index) {
  const std::lock_guard lock(runtime().mutex);
  return device(index).memory.allocated();
}

void reset() {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  for (auto& [index, device] : all.devices) {
    drop_work(index);
    device.error = cudaSuccess;
  }
  for (CUstream_st* stream : all.streams)
    stream->capture = cudaStreamCaptureStatusNone, stream->captured.clear();
  all.settings = Settings();
  all.loaded.clear();
  all.failures.clear();
  all.calls.clear();
  all.launches = 0;
  all.last_fault.clear();
  last_error = cudaSuccess;
  selected_device = 0;
}

// Never destroyed: what is static elsewhere may free its memory late.
Runtime& runtime() {
  static Runtime& only = *new Runtime;
  return only;
}

int current_device() { return selected_device; }

Device& device(int index) {
  const auto [found, added] = runtime().devices.try_emplace(index);
  if (added) found->second.legacy.device = index;
  return found->second;
}

int planned_failure(std::string_view function) {
  Runtime& all = runtime();
  ++all.calls.try_emplace(std::string(function)).first->second;
  int error = 0;
  for (Runtime::Failure& failure : all.failures)
    if (failure.function == function && --failure.calls_left == 0) error = failure.error;
  return error;
}

cudaError_t do_call(std::string_view function, Capturing capturing, After after,
                    const std::function<cudaError_t()>& body) {
  const std::lock_guard lock(runtime().mutex);
  if (const int planned = planned_failure(function)) {
    if (ends_all_work(planned))
      fail(selected_device, {cudaError_t(planned), std::string(function) + ": planned failure"});
    return remember(cudaError_t(planned));
  }
  const Settings& now = runtime().settings;
  if (now.driver_version < kRuntimeVersion) return remember(cudaErrorInsufficientDriver);
  if (selected_device >= now.devices) return remember(cudaErrorNoDevice);
  const cudaError_t& fault = device(selected_device).error;
  if (fault == cudaSuccess)
    if (const cudaError_t broken = break_captures(capturing); broken != cudaSuccess) return remember(broken);
  const cudaError_t error = fault == cudaSuccess || after == After::fault ? body() : fault;
  return remember(fault == cudaSuccess ? error : fault);
}

CUstream_st* find_stream(cudaStream_t handle) {
  if (handle == nullptr) return &device(selected_device).legacy;
  return runtime().streams.contains(handle) && handle->device == selected_device ? handle : nullptr;
}

cudaError_t enqueue(cudaStream_t handle, std::function<void()> run, const void* what) {
  return enqueue_until_done(
      handle, [run = std::move(run)] { return run(), true; }, what);
}

cudaError_t load(cudaStream_t handle, const void* what) {
  CUstream_st* stream = find_stream(handle);
  if (stream == nullptr || !runtime().settings.lazy_loading) return cudaSuccess;
  if (stream->capture != cudaStreamCaptureStatusNone && !runtime().loaded.contains(what)) {
    stream->capture = cudaStreamCaptureStatusInvalidated;
    return cudaErrorStreamCaptureUnsupported;
  }
  runtime().loaded.insert(what);
  return cudaSuccess;
}

cudaError_t enqueue_until_done(cudaStream_t handle, CUstream_st::Run run, const void* what) {
  CUstream_st* stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->capture == cudaStreamCaptureStatusInvalidated) return cudaErrorStreamCaptureInvalidated;
  if (stream->capture == cudaStreamCaptureStatusActive) {
    stream->captured.push_back({std::move(run), what});
    return cudaSuccess;
  }
  if (handle == nullptr) {
    for (CUstream_st* other : runtime().streams)
      if (other->device == stream->device && other->waits_for_legacy &&
          other->capture != cudaStreamCaptureStatusNone) {
        other->capture = cudaStreamCaptureStatusInvalidated;
        return cudaErrorStreamCaptureImplicit;
      }
  }
  stream->queue.push_back({++runtime().tickets, std::move(run)});
  runtime().changed.notify_all();
  return cudaSuccess;
}

bool run_until(CUstream_st& stream, std::uint64_t ticket) {
  if (stream.queue.empty()) return true;
  Device& busy = device(stream.device);
  const DeviceMemory::Open open(busy.memory);
  while (!stream.queue.empty() && stream.queue.front().ticket <= ticket) {
    CUstream_st::Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    bool done = true;
    if (&stream == &busy.legacy) {
      for (CUstream_st* other : runtime().streams)
        if (other->device == stream.device && other->waits_for_legacy)
          done = run_until(*other, work.ticket) && done;
    } else if (stream.waits_for_legacy) {
      done = run_until(busy.legacy, work.ticket);
    }
    if (done && busy.error == cudaSuccess) done = run(stream, work.run);
    if (done) continue;
    stream.queue.push_front(std::move(work));
    return false;
  }
  return true;
}

// Nothing orders one stream before another, so each but the last is late.
bool run_all(int index) {
  const auto has_work = [&](const CUstream_st* stream) {
    return stream->device == index && !stream->queue.empty();
  };
  if (device(index).legacy.queue.empty() && std::ranges::none_of(runtime().streams, has_work)) return true;
  const DeviceMemory::Open open(device(index).memory);
  bool done = true;
  for (CUstream_st* stream : runtime().streams)
    if (stream->device == index) done = run_until(*stream) && done;
  return run_until(device(index).legacy) && done;
}

bool run_everything() {
  bool done = true;
  for (auto& [index, device] : runtime().devices) done = run_all(index) && done;
  return done;
}

void wait_until(const std::function<bool()>& done) {
  while (!done()) {
    run_everything();
    if (done()) return;
    runtime().changed.wait_for(runtime().mutex, std::chrono::milliseconds(20));
  }
}

void require_device_memory(int index, const void* pointer, std::size_t bytes, std::string_view what) {
  if (bytes == 0 || device(index).memory.holds(pointer, bytes)) return;
  throw Fault{
      cudaErrorIllegalAddress,
      fmt::format("[{}] needs {} bytes at {}, which are not all in one allocation", what, bytes, pointer)};
}

}  // namespace nestgrad::emulator

cudaError_t cudaPeekAtLastError() { return nestgrad::emulator::last_error; }

cudaError_t cudaGetLastError() {
  using namespace nestgrad::emulator;
  const std::lock_guard lock(runtime().mutex);
  return std::exchange(last_error, device(selected_device).error);
}

cudaError_t cudaSetDevice(int device) {
  using namespace nestgrad::emulator;
  const std::lock_guard lock(runtime().mutex);
  if (const int planned = planned_failure("cudaSetDevice")) return remember(cudaError_t(planned));
  if (runtime().settings.driver_version < kRuntimeVersion) return remember(cudaErrorInsufficientDriver);
  if (device < 0 || device >= runtime().settings.devices)
    return remember(runtime().settings.devices == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice);
  selected_device = device;
  return cudaSuccess;
}

// The runtime's functions for streams, events and graphs.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "cuda_emulator/queue.h"

using namespace nestgrad::emulator;

struct CUevent_st {
  struct Record {
    CUstream_st* stream;
    std::uint64_t ticket;
    bool captured;
    bool done = false;
    std::chrono::steady_clock::time_point time{};
  };
  bool times = true;
  std::shared_ptr<Record> record;
};
struct CUgraph_st {
  std::vector<CUstream_st::Captured> nodes;
};
struct CUgraphExec_st {
  std::vector<CUstream_st::Captured> nodes;
};

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call("cudaStreamCreateWithFlags", Capturing::allowed, [&] {
    if (flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *stream = new CUstream_st;
    (*stream)->device = current_device();
    (*stream)->waits_for_legacy = flags != cudaStreamNonBlocking;
    runtime().streams.insert(*stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call_to_release("cudaStreamDestroy", Capturing::allowed, [&] {
    if (!runtime().streams.contains(stream)) return cudaErrorInvalidResourceHandle;
    wait_until([&] { return run_until(*stream); });
    runtime().streams.erase(stream);
    delete stream;
    return cudaSuccess;
  });
}

namespace {

// Does what is before the record, unless its stream and with it the work is gone.
bool is_done(const CUevent_st::Record& record) {
  bool exists = runtime().streams.contains(record.stream);
  for (auto& [index, device] : runtime().devices) exists = exists || record.stream == &device.legacy;
  return !exists || record.done || run_until(*record.stream, record.ticket);
}

// The stream, if one may wait for it.
cudaError_t find_to_wait(cudaStream_t handle, CUstream_st*& stream) {
  stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->capture == cudaStreamCaptureStatusNone) return cudaSuccess;
  stream->capture = cudaStreamCaptureStatusInvalidated;
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const Capturing capturing = handle == nullptr ? Capturing::legacy : Capturing::allowed;
  return call("cudaStreamSynchronize", capturing, [&] {
    CUstream_st* stream = nullptr;
    const cudaError_t error = find_to_wait(handle, stream);
    if (error == cudaSuccess) {
      if (handle == nullptr) enqueue(nullptr, [] {});  // it waits for the blocking streams too
      wait_until([&] { return run_until(*stream); });
      device(stream->device).pool.trim();
    }
    return error;
  });
}

// Whoever asks again and again gets the work done.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call("cudaStreamQuery", Capturing::allowed, [&] {
    CUstream_st* stream = nullptr;
    const cudaError_t error = find_to_wait(handle, stream);
    if (error != cudaSuccess || stream->queue.empty()) return error;
    if (!run_until(*stream)) run_everything();
    return cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", Capturing::allowed, [&] {
    CUstream_st* waits = find_stream(stream);
    if (waits == nullptr || event == nullptr) return cudaErrorInvalidResourceHandle;
    if (waits->capture != cudaStreamCaptureStatusNone) return cudaErrorStreamCaptureIsolation;
    if (event->record == nullptr || event->record->done) return cudaSuccess;
    return enqueue_until_done(stream, [record = event->record] { return is_done(*record); });
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", Capturing::allowed, [&] {
    *event = new CUevent_st;
    (*event)->times = (flags & cudaEventDisableTiming) == 0;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return call("cudaEventRecord", Capturing::allowed, [&] {
    CUstream_st* stream = find_stream(handle);
    if (stream == nullptr || event == nullptr) return cudaErrorInvalidResourceHandle;
    const bool captured = stream->capture != cudaStreamCaptureStatusNone;
    const auto record =
        std::make_shared<CUevent_st::Record>(CUevent_st::Record{stream, runtime().tickets + 1, captured});
    event->record = record;
    return enqueue(handle, [record] {
      record->done = true;
      record->time = std::chrono::steady_clock::now();
    });
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", Capturing::allowed, [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->record == nullptr || event->record->done) return cudaSuccess;
    if (event->record->captured) return cudaErrorStreamCaptureUnsupported;
    wait_until([&] { return is_done(*event->record); });
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call("cudaEventElapsedTime", Capturing::allowed, [&] {
    for (cudaEvent_t event : {start, end})
      if (event == nullptr || event->record == nullptr || !event->times)
        return cudaErrorInvalidResourceHandle;
    if (!start->record->done || !end->record->done) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->record->time - start->record->time).count();
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call_to_release("cudaEventDestroy", Capturing::allowed, [&] { delete event; });
}

// --- Capture.

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", Capturing::allowed, [&] {
    if (handle == nullptr) return cudaErrorStreamCaptureUnsupported;
    CUstream_st* stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture != cudaStreamCaptureStatusNone) return cudaErrorIllegalState;
    stream->capture = cudaStreamCaptureStatusActive;
    stream->capture_mode = mode;
    stream->capture_thread = std::this_thread::get_id();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", Capturing::allowed, [&] {
    *graph = nullptr;
    CUstream_st* stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    const cudaStreamCaptureStatus status = std::exchange(stream->capture, cudaStreamCaptureStatusNone);
    auto nodes = std::exchange(stream->captured, {});
    if (status == cudaStreamCaptureStatusNone) return cudaErrorStreamCaptureUnmatched;
    if (status == cudaStreamCaptureStatusInvalidated) return cudaErrorStreamCaptureInvalidated;
    *graph = new CUgraph_st{std::move(nodes)};
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", Capturing::allowed, [&] {
    CUstream_st* stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    *status = stream->capture;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return call("cudaGraphGetNodes", Capturing::allowed, [&] {
    *count = graph->nodes.size();
    return nodes == nullptr ? cudaSuccess : cudaErrorNotSupported;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return call("cudaGraphInstantiate", Capturing::allowed, [&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *exec = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
  });
}

// A graph with the same kinds of nodes, in the same order.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* result) {
  return call("cudaGraphExecUpdate", Capturing::allowed, [&] {
    if (exec == nullptr || graph == nullptr || result == nullptr) return cudaErrorInvalidValue;
    *result = {};
    if (exec->nodes.size() != graph->nodes.size()) result->result = cudaGraphExecUpdateErrorTopologyChanged;
    else if (!std::ranges::equal(exec->nodes, graph->nodes, {}, &CUstream_st::Captured::what,
                                 &CUstream_st::Captured::what))
      result->result = cudaGraphExecUpdateErrorFunctionChanged;
    if (result->result != cudaGraphExecUpdateSuccess) return cudaErrorGraphExecUpdateFailure;
    exec->nodes = graph->nodes;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return call("cudaGraphLaunch", Capturing::allowed, [&] {
    if (exec == nullptr) return cudaErrorInvalidValue;
    cudaError_t error = cudaSuccess;
    for (const CUstream_st::Captured& node : exec->nodes)
      if (error == cudaSuccess) error = enqueue_until_done(stream, node.run, node.what);
    return error;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call_to_release("cudaGraphDestroy", Capturing::allowed, [&] { delete graph; });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return call_to_release("cudaGraphExecDestroy", Capturing::allowed, [&] { delete exec; });
}

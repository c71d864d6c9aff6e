// Context: what ops and plans are given without being told. One for each thread, changed only by the guards below,
// which put it back when they go out of scope.
//
//   const Scope scope("loss");             // nodes appended from here on carry the name
//   const DeviceScope on(Device::cuda());  // plans that this thread makes from here on run there
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/core/tensor.h"

namespace nestgrad {

struct Context {
  // Where new nodes go, and how they are labelled.
  struct Emit {
    Graph* graph = nullptr;  // innermost graph being traced
    int level = 0;
    Tensor vjp_of;  // the node whose derivative is being emitted; noted by the nodes of its own graph
    int region = 0;
    std::optional<Loc> loc;  // overrides the operand's line
    std::string scope;
  };
  Emit emit;
  // Of plans that name none; without a value, the process's (set_default_device, set_default_precision).
  std::optional<Device> device;
  std::optional<Precision> precision;
};

inline Context& context() {
  thread_local Context here;
  return here;
}

// Restores the thread's Context when it goes out of scope.
class ContextGuard {
 public:
  ContextGuard() : saved_(context()) {}
  ~ContextGuard() { context() = std::move(saved_); }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  Context saved_;
};

// Names a stretch of code: nodes appended inside carry the name, and the line of the outermost scope.
class Scope : ContextGuard {
 public:
  explicit Scope(std::string_view name, Loc loc = Loc::current());
};

// Makes g the graph that leaf ops (constants, iota) go to, and that other ops start from.
class GraphScope : ContextGuard {
 public:
  explicit GraphScope(Graph& g) { context().emit.graph = &g; }
};

// The default device of plans that this thread makes.
class DeviceScope : ContextGuard {
 public:
  explicit DeviceScope(Device device) { context().device = std::move(device); }
};

// The default precision of plans that this thread makes.
class PrecisionScope : ContextGuard {
 public:
  explicit PrecisionScope(Precision precision) { context().precision = precision; }
};

}  // namespace nestgrad

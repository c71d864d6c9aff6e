// ThreadContext: the thread's defaults for new nodes and plans. Change it while a guard lives, which puts it back.
//
//   const Scope scope("loss");             // nodes appended from here on carry the name
//   const DeviceScope on(Device::cuda());  // functions that this thread traces, and plans that it makes, from here on run there
#pragma once

#include <optional>
#include <string_view>

#include "engine/core/scope_name.h"
#include "engine/core/tensor.h"

namespace nestgrad {

struct ThreadContext {
  // Where new nodes go, and how they are labelled.
  struct Emit {
    Graph* graph = nullptr;      // innermost graph being traced
    int level = 0;               // see GraphNode::level
    Tensor vjp_of;               // the node that is being differentiated; only nodes of its graph note it
    int region = 0;              // see GraphNode::region
    std::optional<Loc> loc;      // the line of new nodes, instead of that of the op's operand
    ScopeName scope;             // see GraphNode::scope
    std::string_view composite;  // the function of several ops that the user called; empty: none
  };
  Emit emit;
  // Defaults for plans; without a value, those of the process (set_default_device, set_default_precision).
  std::optional<Device> device;
  std::optional<Precision> precision;
};

inline ThreadContext& context() {
  thread_local ThreadContext here;
  return here;
}

// Restores the thread's context when it goes out of scope.
class ContextGuard {
 public:
  ContextGuard() : saved_(context()) {}
  ~ContextGuard() { context() = std::move(saved_); }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  ThreadContext saved_;
};

// Names a stretch of code: nodes appended inside carry the name, and the line of the outermost scope.
class Scope : ContextGuard {
 public:
  explicit Scope(std::string_view name, Loc loc = Loc::current());
};

// A function made of several ops, while it builds them: messages name it before the op inside of it, as in
// [layer_norm: mul]. Of two, one inside of the other, that is the outer one: what the user wrote.
class CompositeCall : ContextGuard {
 public:
  explicit CompositeCall(std::string_view name);  // a literal
};

// The same, whose nodes carry its name too.
class CompositeScope : Scope {
 public:
  CompositeScope(std::string_view name, Loc loc);
};

// Opens g: ops without inputs (constants, iota) go to g, other ops to g or to an ancestor of it (see emit).
class GraphScope : ContextGuard {
 public:
  explicit GraphScope(Graph& g) { context().emit.graph = &g; }
};

// The default device of functions that this thread traces, and of plans that it makes.
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

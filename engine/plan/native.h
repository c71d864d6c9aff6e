// Plans as machine code: the text of clusters (engine/plan/cluster_source.h) and of whole bodies of scans
// (engine/plan/body_source.h) is compiled by the system's C++ compiler and takes the place of the interpreter, with
// the same bits. Until it is there, and wherever there is no compiler, the interpreter runs.
//
// NESTGRAD_COMPILE, or PlanOptions::compile, says when: never; background, in a thread of its own while the
// program runs; now, before a plan is ready. What was compiled is kept in a folder of the user's
// (NESTGRAD_CACHE, or nestgrad in XDG_CACHE_HOME or ~/.cache) under a hash of its text, its flags and the
// compiler. A compiler that is missing, fails or takes longer than a minute costs nothing but the speed.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/native_function.h"
#include "engine/plan/plan_options.h"

namespace nestgrad {

// The function of one text, compiled or to be compiled. Any thread may read it.
struct NativeCode {
  std::atomic<NativeFunction> function = nullptr;  // null: not there, or not yet

  template <class Function>  // CompiledCluster or CompiledBody
  Function as() const {
    return reinterpret_cast<Function>(function.load(std::memory_order_acquire));
  }
};

// The one of this text, for the instruction set that runs. The process keeps it until it ends.
std::shared_ptr<NativeCode> native_code(const std::string& text);

// Has all that native_code() was asked for since the last time compiled, as mode says.
void compile_native(Compile mode);

struct Program;
// Has what the program's instructions and the bodies of its scans do compiled, as mode says.
void use_native(Program& program, Compile mode);

// Until what is being compiled in the background is there, or has failed.
void wait_for_compiler();

// What the process has had compiled so far, in texts; last_failure says why the last ones are not there.
struct NativeReport {
  int compiled = 0, from_cache = 0, failed = 0;
  int ahead = 0;  // found among those compiled ahead of time (engine/plan/loops_ahead.h)
  double seconds = 0;
  std::string last_failure;
};
NativeReport native_report();

// What a text is compiled with; defined with the kernels (ops/native_target.cpp).
struct NativeTarget {
  std::string_view instruction_set;       // v3
  std::vector<std::string_view> flags;    // -march=x86-64-v3; empty: nothing can be compiled for it
  std::vector<std::string_view> headers;  // the text of ops/numerics and ops/kernels, in order
};
NativeTarget native_target();

}  // namespace nestgrad

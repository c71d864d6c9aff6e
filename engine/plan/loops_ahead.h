// Loops that were compiled ahead of time, for machines without a compiler: libraries loops-v3.so, loops-v4.so
// of functions that a process finds by the hash of their text. What they compute has the bits of the
// interpreter, as all compiled loops (engine/plan/native.h); a text that changed is not found any more.
//
// They are looked for in the folders that NESTGRAD_LOOPS lists (absolute paths, with ':' between them), else where
// the build and the installation put them (CMake: NESTGRAD_AHEAD), and used with NESTGRAD_COMPILE=background or now. The program `loops_ahead` makes them.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "engine/plan/cluster_source.h"
#include "engine/plan/native.h"

namespace nestgrad {

// The functions of one folder's library; none if there is no such library. Immutable.
class LoopLibrary {
 public:
  LoopLibrary(const NativeTarget& target, const std::string& folder);
  std::size_t size() const { return loops_.size(); }
  NativeFunction find(const std::string& text) const;  // null: there is none

 private:
  std::string headers_;
  std::map<std::array<std::uint64_t, 2>, NativeFunction> loops_;  // by the hash of headers and text
};

// The function of this text, of the first folder that has a library; null: there is none. Any thread may ask.
NativeFunction loop_ahead(const NativeTarget& target, const std::string& text);

// Compiles the texts into a library of the folder and returns its path. IoError: the compiler failed, or the
// file cannot be written; ConfigError: nothing can be compiled for the target.
std::string compile_ahead(const NativeTarget& target, const std::vector<std::string>& texts,
                          const std::string& folder);

}  // namespace nestgrad

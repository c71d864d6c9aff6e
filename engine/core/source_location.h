// SourceLocation: a line of a program. In place of std::source_location, which clang has from 15 on only:
// what several compilers make of one build (nvcc's host compiler may be another) has to agree.
//
//   void fail(std::string_view why, SourceLocation at = SourceLocation::current());
#pragma once

#include <cstdint>

#include "engine/core/compiler.h"

namespace nestgrad {

class SourceLocation {
 public:
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          std::uint32_t line = __builtin_LINE()) {
    SourceLocation here;
    here.file_ = file, here.line_ = line;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr std::uint32_t line() const { return line_; }

 private:
  const char* file_ = "";
  std::uint32_t line_ = 0;
};

}  // namespace nestgrad

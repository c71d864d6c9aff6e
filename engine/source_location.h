// SourceLocation: std::source_location, or what stands in for it where the compiler has none (clang before
// 15).
//
//   void fail(std::string_view why, SourceLocation at = SourceLocation::current());
#pragma once

#include <cstdint>
#include <source_location>

namespace nestgrad {

#ifdef __cpp_lib_source_location
using SourceLocation = std::source_location;
#else
class SourceLocation {
 public:
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          std::uint32_t line = __builtin_LINE(),
                                          std::uint32_t column = __builtin_COLUMN()) {
    SourceLocation here;
    here.file_ = file, here.line_ = line, here.column_ = column;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr std::uint32_t line() const { return line_; }
  constexpr std::uint32_t column() const { return column_; }

 private:
  const char* file_ = "";
  std::uint32_t line_ = 0, column_ = 0;
};
#endif

}  // namespace nestgrad

#include "engine/plan/loops_ahead.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/plan/native_library.h"

namespace nestgrad {

namespace fs = std::filesystem;

namespace {

#if !defined(NESTGRAD_LOOPS_FOLDERS)
#define NESTGRAD_LOOPS_FOLDERS ""
#endif

using Key = std::array<std::uint64_t, 2>;

// What a library has a table of; the same in the text below.
struct Loop {
  std::uint64_t key[2];
  NativeFunction run;
};
constexpr std::string_view kTable = "struct Loop { unsigned long key[2]; void* run; };\n";

std::string headers_of(const NativeTarget& target) {
  std::string out;
  for (const std::string_view header : target.headers) out += header;
  return out + "using namespace nestgrad;\n";
}

Key key_of(const std::string& headers, const std::string& text) {
  constexpr std::uint64_t kOther = 0x9e3779b97f4a7c15;
  return {fnv1a(text, fnv1a(headers)), fnv1a(text, fnv1a(headers, kOther))};
}

std::string file_name(const NativeTarget& target) {
  return fmt::format("loops-{}.so", target.instruction_set);
}

}  // namespace

LoopLibrary::LoopLibrary(const NativeTarget& target, const std::string& folder)
    : headers_(headers_of(target)) {
  const fs::path path = fs::path(folder) / file_name(target);
  std::error_code none;
  if (!path.is_absolute() || !fs::is_regular_file(path, none)) return;
  const NativeLibrary library = open_library(path.string());
  const auto* const table = static_cast<const Loop*>(library.symbol("nestgrad_loops"));
  const auto* const count = static_cast<const int*>(library.symbol("nestgrad_loop_count"));
  if (!table || !count) return;
  for (int i = 0; i < *count; ++i) loops_[{table[i].key[0], table[i].key[1]}] = table[i].run;
}

NativeFunction LoopLibrary::find(const std::string& text) const {
  if (loops_.empty()) return nullptr;
  const auto known = loops_.find(key_of(headers_, text));
  return known == loops_.end() ? nullptr : known->second;
}

NativeFunction loop_ahead(const NativeTarget& target, const std::string& text) {
  static const LoopLibrary& library = *new LoopLibrary([&] {  // a process has one instruction set
    const char* const asked = std::getenv("NESTGRAD_LOOPS");
    std::istringstream folders(asked ? asked : NESTGRAD_LOOPS_FOLDERS);
    for (std::string folder; std::getline(folders, folder, ':');)
      if (LoopLibrary found(target, folder); found.size() > 0) return found;
    return LoopLibrary(target, "");
  }());
  return library.find(text);
}

std::string compile_ahead(const NativeTarget& target, const std::vector<std::string>& texts,
                          const std::string& folder) {
  if (target.flags.empty())
    throw ConfigError(fmt::format("[compile] loops are not compiled for {}", target.instruction_set));
  const std::string headers = headers_of(target);
  std::string source = headers, table;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Key key = key_of(headers, texts[i]);
    source += "\n" + named(texts[i], fmt::format("loop{}", i));
    table += fmt::format("  {{{{{}UL, {}UL}}, reinterpret_cast<void*>(loop{})}},\n", key[0], key[1], i);
  }
  source += fmt::format("\n{}extern \"C\" const Loop nestgrad_loops[] = {{\n{}}};\n", kTable, table);
  source += fmt::format("extern \"C\" const int nestgrad_loop_count = {};\n", texts.size());
  std::error_code failed;
  fs::create_directories(folder, failed);
  const fs::path path = fs::absolute(fs::path(folder) / file_name(target));
  const std::vector<std::string> flags(target.flags.begin(), target.flags.end());
  if (const std::string why = compile_library(source, flags, path.string()); !why.empty())
    throw IoError(fmt::format("[compile] {}: {}", path.string(), why));
  return path.string();
}

}  // namespace nestgrad

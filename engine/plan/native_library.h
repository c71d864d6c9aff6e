// Libraries made of C++ text by the system's compiler, kept in a folder.
#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <vector>

namespace nestgrad {

// A library that stays open until the process ends.
struct NativeLibrary {
  void* handle = nullptr;  // of dlopen; null: there is none
  bool from_cache = false;
  std::string failure;  // why there is none
  void* symbol(const std::string& name) const;
};

// A head that many texts begin with, then what is this one's own.
struct NativeText {
  std::string own, head = {};
};

// Compiles the text, or opens what was made of it before. Several processes may do so at once. A file in the
// cache is opened only if it is the user's own, nobody else may write it, and it ends with the right checksum.
// A compiler that takes longer than the limit, or that `stop` asks to end, is killed.
// A head is most of the work: the second time that a process compiles a text with it, it is kept as the compiler
// has read it (g++'s precompiled header), in the cache, and later texts begin with that.
NativeLibrary native_library(const NativeText& text, const std::vector<std::string>& flags,
                             std::chrono::milliseconds limit = std::chrono::seconds(60),
                             const std::stop_token& stop = {});

// Opens a library whose path is trusted.
NativeLibrary open_library(const std::string& path);

// Compiles the text to a library of this name, written aside and renamed. Why it failed; empty: it did not.
std::string compile_library(const std::string& text, const std::vector<std::string>& flags,
                            const std::string& path,
                            std::chrono::milliseconds limit = std::chrono::minutes(30));

}  // namespace nestgrad

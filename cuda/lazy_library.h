// LazyLibrary: a shared library that is opened when one of its functions is first called: linking it would cost every program
// time and memory at its start, also those that never use it. STANDS_FOR defines a function that calls the library's own of
// the same name.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "engine/core/error.h"

namespace nestgrad::cuda {

class LazyLibrary {
 public:
  // what: "cuBLAS 13". folder: where it may lie beside the places that are always searched.
  LazyLibrary(std::string what, const std::string& file, const std::string& folder) : what_(std::move(what)) {
    for (const std::string& path : {file, folder + "/" + file}) {
      if ((handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))) return;
      why_ += fmt::format("{}{}", why_.empty() ? "" : "; ", dlerror());
    }
  }

  // DeviceError where there is no such library, or no such function in it. Any thread.
  template <class F>
  F* find(const char* name) const {
    if (!handle_)
      throw DeviceError(fmt::format(
          "[cuda] {} cannot be loaded ({}); install it, or add its folder to LD_LIBRARY_PATH", what_, why_));
    void* const symbol = dlsym(handle_, name);
    if (!symbol)
      throw DeviceError(fmt::format(
          "[cuda] this {} has no {}; it is not the version that the program was built with", what_, name));
    return reinterpret_cast<F*>(symbol);
  }

 private:
  std::string what_, why_;
  void* handle_ = nullptr;
};

}  // namespace nestgrad::cuda

// library(): the LazyLibrary.
#define STANDS_FOR(result, name, parameters, arguments)          \
  result name parameters {                                       \
    using Own = result parameters;                               \
    static Own* const own = library().template find<Own>(#name); \
    return own arguments;                                        \
  }

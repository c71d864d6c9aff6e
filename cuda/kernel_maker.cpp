#include "cuda/kernel_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "cuda/nvrtc_api.h"
#include "engine/core/error.h"
#include "engine/plan/code_cache.h"

extern const char* const nestgrad_native_headers[];  // these: made by cmake/NestgradNative.cmake
extern const int nestgrad_formula_header_count;
extern const char* const nestgrad_cuda_headers[];
extern const int nestgrad_cuda_header_count;

namespace nestgrad::cuda {

namespace {

// NVRTC knows no headers but its own; others know these.
constexpr const char* kPrelude = R"(#define NESTGRAD_ISA device
#ifdef __CUDACC_RTC__
#define __extension__
#define __builtin_fmaf __fmaf_rn
#define __builtin_fma __fma_rn
#define __builtin_sqrtf __fsqrt_rn
#define __builtin_sqrt __dsqrt_rn
namespace std {
using int8_t = signed char;
using uint8_t = unsigned char;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long long;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long;
using size_t = unsigned long;
enum class byte : unsigned char {};
template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;
template <class A>
inline constexpr bool is_integral_v = is_same_v<A, int> || is_same_v<A, unsigned> || is_same_v<A, long long>;
}  // namespace std
#else
#include <cuda_runtime.h>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifndef __CUDACC__
#include "cuda_emulator/emulator.h"
#endif
#endif
)";

void add_without_includes(const char* header, std::string& out) {
  std::istringstream lines(header);
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with("#include")) out += line + "\n";
}

void check(nvrtcResult result, const char* call) {
  if (result != 0) throw DeviceError(fmt::format("{}: {}", call, nvrtcGetErrorString(result)));
}

// A program of NVRTC's, until the end of a scope.
struct Compilation {
  explicit Compilation(const std::string& text) {
    check(nvrtcCreateProgram(&program, text.c_str(), "kernel.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  }
  ~Compilation() { static_cast<void>(nvrtcDestroyProgram(&program)); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;
  nvrtcProgram program = nullptr;
};

// As the kernels that are built before: without contraction, so that formulas have the bits that they have on the CPU. Lines are
// for profilers.
constexpr const char* kOptions[] = {"--std=c++20", "--fmad=false", "--device-int128", "--generate-line-info",
                                    "--disable-warnings"};

std::string compile(const std::string& text, const std::string& architecture) {
  const Compilation compilation(text);
  const std::string target = "--gpu-architecture=" + architecture;
  std::vector<const char*> options(std::begin(kOptions), std::end(kOptions));
  options.push_back(target.c_str());
  const nvrtcResult result =
      nvrtcCompileProgram(compilation.program, static_cast<int>(options.size()), options.data());
  if (result != 0) {
    std::size_t bytes = 0;
    check(nvrtcGetProgramLogSize(compilation.program, &bytes), "nvrtcGetProgramLogSize");
    std::string log(bytes, '\0');
    check(nvrtcGetProgramLog(compilation.program, log.data()), "nvrtcGetProgramLog");
    const std::size_t error = std::min(log.find("error"), log.size()), line = log.rfind('\n', error) + 1;
    throw DeviceError(fmt::format("NVRTC: {}: {}", nvrtcGetErrorString(result),
                                  log.substr(line, log.find('\n', error) - line)));
  }
  std::size_t bytes = 0;
  check(nvrtcGetCUBINSize(compilation.program, &bytes), "nvrtcGetCUBINSize");
  std::string code(bytes, '\0');
  check(nvrtcGetCUBIN(compilation.program, code.data()), "nvrtcGetCUBIN");
  return code;
}

const void* load(const std::string& code, const std::string& name) {
  cudaLibrary_t library = nullptr;
  NESTGRAD_CUDA(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  cudaKernel_t kernel = nullptr;
  NESTGRAD_CUDA(cudaLibraryGetKernel(&kernel, library, name.c_str()));
  return reinterpret_cast<const void*>(kernel);
}

const void* make(const std::string& text, const std::string& name, int device) {
  int major = 0, minor = 0, capability = 0, revision = 0;
  check(nvrtcVersion(&major, &minor), "nvrtcVersion");
  NESTGRAD_CUDA(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device));
  NESTGRAD_CUDA(cudaDeviceGetAttribute(&revision, cudaDevAttrComputeCapabilityMinor, device));
  const std::string architecture = fmt::format("sm_{}{}", capability, revision),
                    all = kernel_headers() + text;
  const CodeCache cache(".cubin");
  const std::string key = CodeCache::key_of(
      fmt::format("nvrtc {}.{} {} {}\n{}", major, minor, architecture, fmt::join(kOptions, " "), all));
  if (const std::string code = cache.read(key); !code.empty()) return load(code, name);
  const std::string code = compile(all, architecture);
  const void* const function = load(code, name);
  cache.keep(key, code);
  return function;
}

}  // namespace

std::string kernel_headers() {
  std::string out = kPrelude;
  for (int i = 0; i < nestgrad_formula_header_count; ++i)
    add_without_includes(nestgrad_native_headers[i], out);
  for (int i = 0; i < nestgrad_cuda_header_count; ++i) add_without_includes(nestgrad_cuda_headers[i], out);
  return out;
}

MadeKernel make_kernel(const std::string& text, const std::string& name, int device) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<int, std::string>, MadeKernel>;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({device, text});
  if (!is_new) return found->second;
  try {
    found->second.function = make(text, name, device);
  } catch (const DeviceError& error) {
    static_cast<void>(cudaGetLastError());
    found->second.why_not = error.what();
  }
  return found->second;
}

}  // namespace nestgrad::cuda

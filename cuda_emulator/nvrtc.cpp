// CUDA's compiler at run time, played by the compiler of this build: what it makes is a shared library, which stands in for machine
// code of a GPU. cudaLibraryLoadData opens it.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cuda_emulator/queue.h"

using namespace nestgrad::emulator;
namespace fs = std::filesystem;

struct _nvrtcProgram {
  std::string text, log, code;
};
using nvrtcProgram = _nvrtcProgram*;
using nvrtcResult = int;

namespace {

constexpr nvrtcResult kInvalidProgram = 4, kCompilation = 6;  // as NVRTC's header numbers them

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

const std::string& flags() {
  static const std::string text =
      fmt::format("-std=c++20 -fPIC -O1 -w -ffp-contract=off {} -I{}/cuda_emulator/include -I{}",
                  NESTGRAD_EMULATOR_FLAGS, NESTGRAD_EMULATOR_ROOT, NESTGRAD_EMULATOR_ROOT);
  return text;
}

std::string new_folder() {
  std::string folder = (fs::temp_directory_path() / "nestgrad_kernel.XXXXXX").string();
  return mkdtemp(folder.data()) == nullptr ? "" : folder;
}

// What texts of kernels begin with, compiled ahead: it is the same for all, and most of what there is to compile. Whoever uses it
// holds the runtime's mutex.
class CompiledHead {
 public:
  ~CompiledHead() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  // The file that has this text; empty: there is none.
  std::string of(const std::string& text) {
    if (text == text_) return file_;
    if (folder_.empty()) folder_ = new_folder();
    if (folder_.empty()) return "";
    text_ = text, file_ = fmt::format("{}/head{}.h", folder_, ++made_);
    std::ofstream(file_) << text;
    const std::string command = fmt::format("{0} -x c++-header {1} -o {2}.gch {2} > /dev/null 2>&1",
                                            NESTGRAD_EMULATOR_COMPILER, flags(), file_);
    static_cast<void>(std::system(command.c_str()));  // where this fails, each kernel compiles the text
    return file_;
  }

 private:
  std::string folder_, text_, file_;
  int made_ = 0;
};

// A planned failure, else what `body` says.
template <class Body>
nvrtcResult answer(const char* function, Body body) {
  const std::lock_guard lock(runtime().mutex);
  if (const int planned = planned_failure(function)) return planned;
  return body();
}

}  // namespace

extern "C" {

// Of the program that emulates: what one build made is not for another.
nvrtcResult nvrtcVersion(int* major, int* minor) {
  return answer("nvrtcVersion", [&] {
    struct stat self {};
    stat("/proc/self/exe", &self);
    *major = 0;
    *minor = static_cast<int>((self.st_mtim.tv_sec * 1000 + self.st_mtim.tv_nsec / 1000000) & 0x7fffffff);
    return 0;
  });
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* text, const char*, int, const char* const*,
                               const char* const*) {
  return answer("nvrtcCreateProgram", [&] {
    *program = new _nvrtcProgram{text, "", ""};
    return 0;
  });
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return 0;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int, const char* const*) {
  return answer("nvrtcCompileProgram", [&] {
    static CompiledHead head;
    const std::string& text = program->text;
    const std::size_t begin = std::min(text.find("extern \"C\" __global__"), text.size());
    const std::string before = head.of(text.substr(0, begin)), folder = new_folder();
    if (before.empty() || folder.empty()) return kCompilation;
    const fs::path work = folder;
    std::ofstream(work / "kernel.cpp") << text.substr(begin);
    const std::string command =
        fmt::format("{0} -shared {1} -include {2} -o {3}/kernel.so {3}/kernel.cpp > {3}/log 2>&1",
                    NESTGRAD_EMULATOR_COMPILER, flags(), before, folder);
    const bool done = std::system(command.c_str()) == 0;
    program->log = read_file(work / "log");
    if (done) program->code = read_file(work / "kernel.so");
    std::error_code ignored;
    fs::remove_all(work, ignored);
    return done ? 0 : kCompilation;
  });
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* bytes) {
  *bytes = program->code.size();
  return program->code.empty() ? kInvalidProgram : 0;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code) {
  std::memcpy(code, program->code.data(), program->code.size());
  return 0;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* bytes) {
  *bytes = program->log.size() + 1;
  return 0;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return 0;
}
const char* nvrtcGetErrorString(nvrtcResult result) {
  return result == 0 ? "NVRTC_SUCCESS" : result == kCompilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}

}  // extern "C"

// --- Loading. A library stays open until the process ends.

// The size of what is loaded stands in its header; here it is an ELF file, whose section table is its end.
static std::size_t size_of_elf(const unsigned char* code) {
  std::uint64_t at = 0;
  std::uint16_t size = 0, count = 0;
  std::memcpy(&at, code + 40, sizeof at);
  std::memcpy(&size, code + 58, sizeof size);
  std::memcpy(&count, code + 60, sizeof count);
  return at + std::size_t{size} * count;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  return call("cudaLibraryLoadData", Capturing::forbidden, [&] {
    const auto* bytes = static_cast<const unsigned char*>(code);
    if (std::memcmp(bytes,
                    "\x7f"
                    "ELF",
                    4) != 0)
      return cudaErrorInvalidKernelImage;
    const int file = memfd_create("kernel", MFD_CLOEXEC);
    if (file < 0) return cudaErrorUnknown;
    for (std::size_t done = 0, size = size_of_elf(bytes); done < size;) {
      const ssize_t n = write(file, bytes + done, size - done);
      if (n <= 0) break;
      done += std::size_t(n);
    }
    // The file stays open: a library of the same name would be taken for this one.
    void* const handle = dlopen(fmt::format("/proc/self/fd/{}", file).c_str(), RTLD_NOW | RTLD_LOCAL);
    *library = reinterpret_cast<cudaLibrary_t>(handle);
    return handle == nullptr ? cudaErrorInvalidKernelImage : cudaSuccess;
  });
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  return call("cudaLibraryGetKernel", Capturing::allowed, [&] {
    void* const found = dlsym(reinterpret_cast<void*>(library), name);
    *kernel = reinterpret_cast<cudaKernel_t>(found);
    return found == nullptr ? cudaErrorSymbolNotFound : cudaSuccess;
  });
}

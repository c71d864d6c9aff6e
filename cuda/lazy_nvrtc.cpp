// NVRTC, CUDA's compiler at run time: 100 MB that only programs with compiled kernels need.
#include <cuda_runtime.h>

#include "cuda/lazy_library.h"
#include "cuda/nvrtc_api.h"

namespace {

const nestgrad::cuda::LazyLibrary& library() {
  static const nestgrad::cuda::LazyLibrary only(fmt::format("NVRTC {}", CUDART_VERSION / 1000),
                                                fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000),
                                                NESTGRAD_NVRTC_FOLDER);
  return only;
}

}  // namespace

extern "C" {
STANDS_FOR(nvrtcResult, nvrtcVersion, (int* major, int* minor), (major, minor))
STANDS_FOR(nvrtcResult, nvrtcCreateProgram,
           (nvrtcProgram * program, const char* text, const char* name, int headers,
            const char* const* header_texts, const char* const* header_names),
           (program, text, name, headers, header_texts, header_names))
STANDS_FOR(nvrtcResult, nvrtcDestroyProgram, (nvrtcProgram * program), (program))
STANDS_FOR(nvrtcResult, nvrtcCompileProgram, (nvrtcProgram program, int count, const char* const* options),
           (program, count, options))
STANDS_FOR(nvrtcResult, nvrtcGetCUBINSize, (nvrtcProgram program, std::size_t* bytes), (program, bytes))
STANDS_FOR(nvrtcResult, nvrtcGetCUBIN, (nvrtcProgram program, char* code), (program, code))
STANDS_FOR(nvrtcResult, nvrtcGetProgramLogSize, (nvrtcProgram program, std::size_t* bytes), (program, bytes))
STANDS_FOR(nvrtcResult, nvrtcGetProgramLog, (nvrtcProgram program, char* log), (program, log))
STANDS_FOR(const char*, nvrtcGetErrorString, (nvrtcResult result), (result))
}

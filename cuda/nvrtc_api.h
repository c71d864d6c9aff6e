// What is used of NVRTC, CUDA's compiler at run time, as its header declares it: some toolkits come without that. Opened when it is
// first used (cuda/lazy_nvrtc.cpp); the emulator has its own.
#pragma once

#include <cstddef>

extern "C" {
using nvrtcProgram = struct _nvrtcProgram*;
using nvrtcResult = int;  // an enumeration there; 0: it went well

nvrtcResult nvrtcVersion(int* major, int* minor);
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* text, const char* name, int headers,
                               const char* const* header_texts, const char* const* header_names);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program);
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* bytes);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* bytes);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log);
const char* nvrtcGetErrorString(nvrtcResult result);
}

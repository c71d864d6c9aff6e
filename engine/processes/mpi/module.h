// What the module for one MPI (libnestgrad_<mpi>.so) gives to engine/processes/mpi.cpp, which opens it at run time: plain
// functions, as each MPI has other types. The module is compiled against its MPI and needs nothing else of nestgrad.
#pragma once

#include <cstddef>

namespace nestgrad {

struct MpiModule {
  static constexpr int kVersion = 1;
  int version;
  const char* (*library)();  // "Open MPI v4.1.4"
  // Why MPI cannot be started; null: it is.
  const char* (*start)();
  int (*rank)();
  int (*size)();
  // One message under way, of at most 2^30 bytes. Null: it failed.
  void* (*send)(const void* bytes, std::size_t count, int to);
  void* (*receive)(void* bytes, std::size_t count, int from);
  // 1: it is done, and must not be asked about again. 0: not yet. -1: it failed, or had another length.
  int (*done)(void* message);
  void (*finish)();         // when all processes are done
  void (*abort)(int code);  // ends the processes of the whole run
};

}  // namespace nestgrad

// The one symbol of the module.
extern "C" const nestgrad::MpiModule* nestgrad_mpi_module();

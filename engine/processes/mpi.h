// The processes that mpirun (or Slurm) started: MPI carries the bytes. MPI is opened when a program is started by it, as
// cuBLAS is: a machine without it runs the same program alone.
#pragma once

#include <memory>

#include "engine/processes/transport.h"

namespace nestgrad {

// What started this process, as the environment says.
struct Launch {
  std::string mpi;     // "openmpi", "mpich"; empty: nothing that starts several processes
  int size = 1;        // processes in all
  int local = 1;       // of these on this machine
  int rank = 0;        // of all
  int local_rank = 0;  // of those on this machine
};
Launch launch();

// The processes of this run: those that mpirun started, or this one alone. The first call starts MPI; any later one gives
// the same. ProcessError in one line where several were started and this build has no module for their MPI
// (scripts/setup.sh --mpi brings one): each would take itself for the only one, and write over the others.
//   NESTGRAD_MPI          openmpi, mpich: take this one; none: run alone, whatever started the process
//   NESTGRAD_STALL_LIMIT  seconds that others may be silent, 600 unless said
std::shared_ptr<Transport> open_processes();

// Has it been opened, or begun to be, with others? Then an error of one process must end all: end_all_processes(1).
bool among_others();
[[noreturn]] void end_all_processes(int code);
// Waits for the others, and ends MPI: whatever is exchanged later is a ProcessError. A program that comes to its end with exit code 0 does so
// then, if it has not before; where the others do not come, it ends as by an exception that no one catches.
void close_processes();

}  // namespace nestgrad

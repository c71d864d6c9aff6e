// Compiled once for each MPI that is found (cmake/NestgradMpi.cmake).
#include "engine/processes/mpi/module.h"

#include <mpi.h>

namespace {

using nestgrad::MpiModule;

struct Message {
  MPI_Request request = MPI_REQUEST_NULL;
  int bytes = 0;
  bool receives = false;
};

const char* library() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  // "Open MPI v4.1.4, package: .." and "MPICH Version:\t4.0.2\nMPICH Release date: ..": the first line to a comma.
  for (char* c = text; *c != 0; ++c) {
    if (*c == '\t') *c = ' ';
    if (*c == '\n' || *c == ',') *c = 0;
  }
  return text;
}

const char* start() {
  int started = 0;
  MPI_Initialized(&started);
  if (started == 0) {
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
      return "MPI_Init failed";
    if (provided < MPI_THREAD_SERIALIZED) return "this MPI has no support for programs with threads";
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return nullptr;
}

int rank() {
  int out = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &out);
  return out;
}

int size() {
  int out = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &out);
  return out;
}

void* send(const void* bytes, std::size_t count, int to) {
  auto* message = new Message{.bytes = static_cast<int>(count)};
  if (MPI_Isend(bytes, message->bytes, MPI_BYTE, to, 0, MPI_COMM_WORLD, &message->request) == MPI_SUCCESS)
    return message;
  delete message;
  return nullptr;
}

void* receive(void* bytes, std::size_t count, int from) {
  auto* message = new Message{.bytes = static_cast<int>(count), .receives = true};
  if (MPI_Irecv(bytes, message->bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD, &message->request) == MPI_SUCCESS)
    return message;
  delete message;
  return nullptr;
}

int done(void* message) {
  auto* m = static_cast<Message*>(message);
  int finished = 0, count = 0;
  MPI_Status status;
  const bool fine = MPI_Test(&m->request, &finished, &status) == MPI_SUCCESS;
  if (fine && finished == 0) return 0;
  if (fine && m->receives) MPI_Get_count(&status, MPI_BYTE, &count);
  const bool whole = fine && (!m->receives || count == m->bytes);
  delete m;
  return whole ? 1 : -1;
}

void finish() {
  int over = 0;
  MPI_Finalized(&over);
  if (over == 0) MPI_Finalize();
}

void abort_all(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

const MpiModule kModule{
    MpiModule::kVersion, library, start, rank, size, send, receive, done, finish, abort_all};

}  // namespace

const nestgrad::MpiModule* nestgrad_mpi_module() { return &kModule; }

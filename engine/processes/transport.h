// Transport: carries bytes between the processes of one run. It never computes: every addition of numbers from several
// processes is done by who asked for them, in an order that does not depend on how many there are.
//
//   Transport& all = *open_processes();      // of `mpirun -n 4 program`, or this process alone
//   std::vector<std::byte> mine = ..;
//   for (const std::vector<std::byte>& part : all.all_gather(mine)) ..
//
// Every process of the run calls the same functions in the same order. A process is known by its rank, 0 to size - 1.
// Implementations: one process (OneProcess), threads of one process (engine/processes/threads.h), and MPI
// (engine/processes/mpi.h). One thread of each process uses it at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/error.h"

namespace nestgrad {

// Another process of the run ended, is silent, or does something else than this one.
struct ProcessError : Error {
  using Error::Error;
};

using Bytes = std::vector<std::byte>;

class Transport {
 public:
  struct Send {
    int to;
    std::span<const std::byte> bytes;
  };
  struct Receive {
    int from;
    std::span<std::byte> bytes;  // as many as the other sends
  };

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string description() const = 0;  // "Open MPI v4.1.4, 4 processes"
  // Sends and receives at the same time, and returns when all is done. Messages from one process to another arrive in the
  // order in which they were sent; none is for the process itself. ProcessError that names who is silent for longer than
  // the stall limit, or who has ended; by MPI each later exchange of this process throws as well.
  // What was received is certain only once all have met again: one that gives up frees what it was sending, and a process
  // that was frozen meanwhile receives what lies there now. from_first() has all meet before it runs anything.
  virtual void exchange(std::span<const Send> out, std::span<const Receive> in) = 0;

  // How long exchange() waits for others that send nothing.
  std::chrono::milliseconds stall_limit() const { return stall_limit_; }
  void set_stall_limit(std::chrono::milliseconds limit) { stall_limit_ = limit; }

  // No process returns before each has called it.
  void barrier();
  // The same bytes everywhere: those of `root`. Every process gives as many.
  void broadcast(std::span<std::byte> bytes, int root = 0);
  // What each process gave, by rank. Parts may differ in length.
  std::vector<Bytes> all_gather(std::span<const std::byte> mine);
  // parts[r] goes to rank r -> what each rank had for this one, by rank. Parts may differ in length.
  std::vector<Bytes> all_to_all(const std::vector<Bytes>& parts);
  // What each process gave, by rank, at `root`; empty elsewhere.
  std::vector<Bytes> gather(std::span<const std::byte> mine, int root = 0);
  // fn runs at rank 0 alone, once all have called this -> what it gave, at all. What it throws is thrown on there, and
  // elsewhere as ProcessError with the same text, so that no process waits for one that has failed: for files that one
  // process reads or writes. fn may take longer than the stall limit: a thread of rank 0 gives signs of life meanwhile, and only
  // a process that is stopped gives none.
  std::string from_first(const std::function<std::string()>& fn);
  void on_first(const std::function<void()>& fn);  // likewise, of what gives nothing
  // make(i) for i of 0..count, each at one process -> all results in order, at all. make must give the same bits at any process.
  std::vector<std::vector<double>> shared_out(std::int64_t count,
                                              const std::function<std::vector<double>(std::int64_t i)>& make);
  // ProcessError that names the processes whose text is not rank 0's, at all of them. what: "settings".
  void check_same(const std::string& text, const std::string& what);

 private:
  std::vector<Bytes> exchanged(const std::vector<std::span<const std::byte>>& to, bool everyone, int root);
  std::chrono::milliseconds stall_limit_{std::chrono::minutes(10)};
};

// This process alone. No message is ever sent.
class OneProcess final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string description() const override { return "one process"; }
  void exchange(std::span<const Send> out, std::span<const Receive> in) override;
};

// Part `index` of 0..count, cut into `parts` that differ by at most one: [begin, end).
struct IndexRange {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};
inline IndexRange part_of(std::int64_t count, int index, int parts) {
  return {count * index / parts, count * (index + 1) / parts};
}

// "rank 2", "ranks 1 and 3", "ranks 1, 3 and 5"
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace nestgrad

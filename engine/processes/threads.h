// Ranks that are threads: a group that is larger than the processes of a run. Each process has some neighbouring ranks of it
// as threads of its own, so that work that is cut into a fixed number of parts, which exchange bytes on the way, gives the
// same bits on any number of processes:
//
//   RankThreads ranks(8, open_processes());     // of 2 processes the first has ranks 0 to 3
//   ranks.run([&](Transport& rank) { .. rank.all_gather(..) .. });
//
// It also lets tests do all that several processes do, without MPI and under ThreadSanitizer: run_as_processes().
#pragma once

#include <functional>
#include <memory>

#include "engine/processes/transport.h"

namespace nestgrad {

// Used by one thread at a time; run() calls fn on others. Every process makes the same calls.
class RankThreads {
 public:
  // processes: who share the ranks; null: this one alone. ConfigError if there are more of them than ranks. at_once: how many
  // threads compute at a time, while others wait for bytes or for their turn; 0: all.
  RankThreads(int size, std::shared_ptr<Transport> processes, int at_once = 0);
  ~RankThreads();
  int size() const;
  IndexRange own() const;  // the ranks of this process
  // For the thread of one of them in run(). Where there are other processes, every rank must call its functions equally often.
  std::shared_ptr<Transport> rank(int rank) const;
  // Calls fn for each own rank, on a thread of its own, and waits for them. Where one throws, the others' next exchange() with it
  // throws ProcessError; the exception that came first is thrown on.
  void run(const std::function<void(Transport& rank)>& fn);

 private:
  struct Mail;
  class Rank;
  std::shared_ptr<Mail> mail_;
  std::vector<std::shared_ptr<Transport>> ranks_;
};

// All ranks as threads of this process. fn may be called from several threads at once.
void run_as_processes(int size, const std::function<void(Transport& transport)>& fn,
                      std::chrono::milliseconds stall_limit = std::chrono::minutes(10));

}  // namespace nestgrad

#include "engine/processes/threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/core/index.h"

namespace nestgrad {

namespace {

// The messages under way between all threads of a run.
struct Mail {
  explicit Mail(int size) : processes(size), under_way(uz(size) * uz(size)), over(uz(size)) {}
  std::deque<Bytes>& between(int from, int to) { return under_way[uz(from * processes + to)]; }

  int processes;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Bytes>> under_way;
  std::vector<bool> over;  // whose function has returned or thrown
  std::exception_ptr first_error;
};

class ThreadProcess final : public Transport {
 public:
  ThreadProcess(Mail& mail, int rank) : mail_(mail), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return mail_.processes; }
  std::string description() const override { return fmt::format("threads as {} processes", size()); }

  void exchange(std::span<const Send> out, std::span<const Receive> in) override {
    std::unique_lock lock(mail_.mutex);
    for (const Send& send : out)
      mail_.between(rank_, send.to).emplace_back(send.bytes.begin(), send.bytes.end());
    mail_.changed.notify_all();
    for (const Receive& receive : in) {
      std::deque<Bytes>& waiting = mail_.between(receive.from, rank_);
      const bool came = mail_.changed.wait_for(
          lock, stall_limit(), [&] { return !waiting.empty() || mail_.over[uz(receive.from)]; });
      if (waiting.empty())
        throw ProcessError(fmt::format("[processes] rank {} {}; rank {} waited for it", receive.from,
                                       came ? "has ended" : "has been silent for longer than the stall limit",
                                       rank_));
      if (waiting.front().size() != receive.bytes.size())
        throw ProcessError(fmt::format(
            "[processes] rank {} sent {} bytes, and rank {} waited for {}: they do not run the same",
            receive.from, waiting.front().size(), rank_, receive.bytes.size()));
      std::ranges::copy(waiting.front(), receive.bytes.begin());
      waiting.pop_front();
    }
  }

 private:
  Mail& mail_;
  int rank_;
};

}  // namespace

void run_as_processes(int size, const std::function<void(Transport& transport)>& fn,
                      std::chrono::milliseconds stall_limit) {
  Mail mail(size);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        ThreadProcess process(mail, rank);
        process.set_stall_limit(stall_limit);
        std::exception_ptr error;
        try {
          fn(process);
        } catch (...) {
          error = std::current_exception();
        }
        const std::lock_guard lock(mail.mutex);
        if (error && !mail.first_error) mail.first_error = error;
        mail.over[uz(rank)] = true;
        mail.changed.notify_all();
      });
  }
  if (mail.first_error) std::rethrow_exception(mail.first_error);
}

}  // namespace nestgrad

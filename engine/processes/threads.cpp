#include "engine/processes/threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>

#include "engine/core/index.h"
#include "engine/processes/ranks.h"

namespace nestgrad {

// What all threads of this process share; `mutex` guards it.
struct RankThreads::Mail {
  struct Sent {
    int from, to;
    std::span<const std::byte> bytes;
  };
  struct Awaited {
    int from, to;
    std::span<std::byte> bytes;
  };

  std::deque<Bytes>& between(int from, int to) {
    return under_way[uz((from - own.begin) * own.size() + (to - own.begin))];
  }
  bool is_here(int rank) const { return rank >= own.begin && rank < own.end; }
  int process_of(int rank) const {
    int p = 0;
    while (part_of(size, p, processes->size()).end <= rank) ++p;
    return p;
  }
  void begin() {
    under_way.assign(uz(own.size() * own.size()), {});
    over.assign(uz(own.size()), false);
    out.clear(), in.clear();
    arrived = active = 0;
    first_error = outer_error = nullptr;
  }
  // A thread that waits for others gives its turn up.
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit, Ready ready) {
    if (ready()) return true;
    --active;
    changed.notify_all();
    const bool came = changed.wait_for(lock, limit, ready);
    take_turn(lock);
    return came;
  }
  void take_turn(std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [&] { return active < at_once; });
    ++active;
  }
  // Who of the others here has ended; none: -1.
  int ended() const {
    const auto at = std::ranges::find(over, true);
    return at == over.end() ? -1 : static_cast<int>(own.begin + (at - over.begin()));
  }
  void exchange_with_others();
  // One of those that meet leaves, and with it the memory of its messages: no one here exchanges with others any more.
  void give_up(const ProcessError& why) {
    if (!outer_error) outer_error = std::make_exception_ptr(why);
    out.clear(), in.clear();
    ++meetings;
    changed.notify_all();
  }

  int size = 0, at_once = 0, active = 0;
  IndexRange own{0, 0};
  std::shared_ptr<Transport> processes;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Bytes>> under_way;  // between the threads here
  std::vector<bool> over;                    // whose function has returned or thrown
  std::exception_ptr first_error;
  // With other processes: what the threads here, which meet in each exchange(), have for them.
  std::vector<Sent> out;
  std::vector<Awaited> in;
  std::int64_t arrived = 0, meetings = 0;
  std::exception_ptr outer_error;
};

// Messages between two processes go in the order of their ranks, which both know.
void RankThreads::Mail::exchange_with_others() {
  const auto order = [](const auto& a, const auto& b) {
    return std::tie(a.from, a.to) < std::tie(b.from, b.to);
  };
  std::ranges::stable_sort(out, order);
  std::ranges::stable_sort(in, order);
  std::vector<Transport::Send> sends;
  std::vector<Transport::Receive> receives;
  for (const Sent& s : out) sends.push_back({process_of(s.to), s.bytes});
  for (const Awaited& r : in) receives.push_back({process_of(r.from), r.bytes});
  out.clear(), in.clear();
  try {
    processes->exchange(sends, receives);
  } catch (...) {
    outer_error = std::current_exception();
  }
  arrived = 0;
  ++meetings;
  changed.notify_all();
}

class RankThreads::Rank final : public Transport {
 public:
  Rank(std::shared_ptr<Mail> mail, int rank) : mail_(std::move(mail)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return mail_->size; }
  std::string description() const override { return fmt::format("threads as {} processes", size()); }

  void exchange(std::span<const Send> out, std::span<const Receive> in) override {
    check_ranks(*this, out, in);
    Mail& m = *mail_;
    std::unique_lock lock(m.mutex);
    for (const Send& send : out) {
      if (m.is_here(send.to)) m.between(rank_, send.to).emplace_back(send.bytes.begin(), send.bytes.end());
      else m.out.push_back({rank_, send.to, send.bytes});
    }
    m.changed.notify_all();
    if (m.processes->size() > 1) meet(lock, in);
    for (const Receive& receive : in)
      if (m.is_here(receive.from)) take(lock, receive);
  }

 private:
  // The last one here carries what all have for other processes.
  void meet(std::unique_lock<std::mutex>& lock, std::span<const Receive> in) {
    Mail& m = *mail_;
    if (m.outer_error) std::rethrow_exception(m.outer_error);
    for (const Receive& receive : in)
      if (!m.is_here(receive.from)) m.in.push_back({receive.from, rank_, receive.bytes});
    if (++m.arrived == m.own.size()) {
      m.exchange_with_others();
    } else {
      const auto met = [&, now = m.meetings] { return m.meetings != now; };
      m.wait(lock, stall_limit(), [&] { return met() || m.ended() >= 0; });
      if (!met()) {
        const int gone = m.ended();
        m.give_up(ProcessError(
            gone >= 0 ? fmt::format("[processes] rank {} has ended; rank {} waited for it", gone, rank_)
                      : fmt::format(
                            "[processes] rank {} waited for the other threads of its process for longer than "
                            "the stall limit",
                            rank_)));
      }
    }
    if (m.outer_error) std::rethrow_exception(m.outer_error);
  }

  void take(std::unique_lock<std::mutex>& lock, const Receive& receive) {
    Mail& m = *mail_;
    std::deque<Bytes>& waiting = m.between(receive.from, rank_);
    const bool came = m.wait(lock, stall_limit(),
                             [&] { return !waiting.empty() || m.over[uz(receive.from - m.own.begin)]; });
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

  std::shared_ptr<Mail> mail_;
  int rank_;
};

RankThreads::RankThreads(int size, std::shared_ptr<Transport> processes, int at_once)
    : mail_(std::make_shared<Mail>()) {
  mail_->processes = processes ? std::move(processes) : std::make_shared<OneProcess>();
  const Transport& all = *mail_->processes;
  if (size < all.size())
    throw ConfigError(
        fmt::format("[processes] {} part{} cannot be shared by {} processes: start fewer, or cut into more",
                    size, size == 1 ? "" : "s", all.size()));
  mail_->size = size;
  mail_->at_once = at_once > 0 ? at_once : size;
  mail_->own = part_of(size, all.rank(), all.size());
  mail_->begin();
  for (std::int64_t r = mail_->own.begin; r < mail_->own.end; ++r) {
    ranks_.push_back(std::make_shared<Rank>(mail_, static_cast<int>(r)));
    ranks_.back()->set_stall_limit(all.stall_limit());
  }
}
RankThreads::~RankThreads() = default;

int RankThreads::size() const { return mail_->size; }
IndexRange RankThreads::own() const { return mail_->own; }
std::shared_ptr<Transport> RankThreads::rank(int rank) const {
  if (!mail_->is_here(rank))
    throw ProcessError(
        fmt::format("[processes] rank {} is no thread of this process, which has ranks {} to {}", rank,
                    mail_->own.begin, mail_->own.end - 1));
  return ranks_.at(uz(rank - mail_->own.begin));
}

void RankThreads::run(const std::function<void(Transport& rank)>& fn) {
  require_function("processes", "what the ranks do", fn);
  Mail& m = *mail_;
  m.begin();
  {
    std::vector<std::jthread> threads;
    const auto start = [&](std::size_t i) {
      threads.emplace_back([&, i] {
        {
          std::unique_lock lock(m.mutex);
          m.take_turn(lock);
        }
        std::exception_ptr error;
        try {
          fn(*ranks_[i]);
        } catch (...) {
          error = std::current_exception();
        }
        const std::lock_guard lock(m.mutex);
        if (error && !m.first_error) m.first_error = error;
        m.over[i] = true;
        --m.active;
        m.changed.notify_all();
      });
    };
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      try {
        start(i);
      } catch (const std::system_error& e) {
        // Those that have started are not to wait for the others.
        const std::lock_guard lock(m.mutex);
        m.first_error = std::make_exception_ptr(DeviceError(fmt::format(
            "[processes] thread {} of {} cannot be started: {}", i + 1, ranks_.size(), e.what())));
        for (std::size_t left = i; left < ranks_.size(); ++left) m.over[left] = true;
        m.changed.notify_all();
        break;
      }
    }
  }
  if (m.first_error) std::rethrow_exception(m.first_error);
}

void run_as_processes(int size, const std::function<void(Transport& transport)>& fn,
                      std::chrono::milliseconds stall_limit) {
  require_function("processes", "what the processes do", fn);
  RankThreads ranks(size, nullptr);
  for (int r = 0; r < size; ++r) ranks.rank(r)->set_stall_limit(stall_limit);
  ranks.run(fn);
}

}  // namespace nestgrad

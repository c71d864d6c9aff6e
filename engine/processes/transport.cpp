#include "engine/processes/transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/core/index.h"
#include "engine/processes/ranks.h"

namespace nestgrad {

namespace {

std::span<std::byte> bytes_of(std::uint64_t& number) { return std::as_writable_bytes(std::span(&number, 1)); }

void check_root(const Transport& all, const char* call, int root) {
  if (root < 0 || root >= all.size())
    throw ProcessError(fmt::format("[processes] {} has rank {} for its root, and there are ranks 0 to {}",
                                   call, root, all.size() - 1));
}

}  // namespace

void check_ranks(const Transport& all, std::span<const Transport::Send> out,
                 std::span<const Transport::Receive> in) {
  const auto check = [&](const char* what, int other) {
    if (other < 0 || other >= all.size() || other == all.rank())
      throw ProcessError(fmt::format(
          "[processes] rank {} exchanges bytes {} rank {}, and the others have ranks 0 to {}", all.rank(),
          what, other == all.rank() ? fmt::format("{}, itself", other) : fmt::format("{}", other),
          all.size() - 1));
  };
  for (const Transport::Send& s : out) check("to", s.to);
  for (const Transport::Receive& r : in) check("from", r.from);
}

void OneProcess::exchange(std::span<const Send> out, std::span<const Receive> in) {
  if (!out.empty() || !in.empty())
    throw ProcessError("[processes] this process is alone: there is no one to exchange bytes with");
}

// One message from each to each, lengths first. everyone: all receive; else `root` alone.
std::vector<Bytes> Transport::exchanged(const std::vector<std::span<const std::byte>>& to, bool everyone,
                                        int root) {
  const int all = size(), me = rank();
  const auto listens = [&](int r) { return everyone || r == root; };
  std::vector<std::uint64_t> lengths(uz(all)), theirs(uz(all));
  std::vector<Send> out;
  std::vector<Receive> in;
  for (int r = 0; r < all; ++r) {
    if (r == me) continue;
    lengths[uz(r)] = to[uz(r)].size();
    if (listens(r)) out.push_back({r, bytes_of(lengths[uz(r)])});
    if (listens(me)) in.push_back({r, bytes_of(theirs[uz(r)])});
  }
  exchange(out, in);
  out.clear(), in.clear();
  std::vector<Bytes> got(listens(me) ? uz(all) : 0);
  for (int r = 0; r < all; ++r) {
    if (r == me) {
      if (listens(me)) got[uz(me)].assign(to[uz(me)].begin(), to[uz(me)].end());
      continue;
    }
    if (listens(r) && !to[uz(r)].empty()) out.push_back({r, to[uz(r)]});
    if (!listens(me)) continue;
    got[uz(r)].resize(theirs[uz(r)]);
    if (theirs[uz(r)] > 0) in.push_back({r, got[uz(r)]});
  }
  exchange(out, in);
  return got;
}

std::vector<Bytes> Transport::all_gather(std::span<const std::byte> mine) {
  return exchanged(std::vector(uz(size()), mine), true, 0);
}

std::vector<Bytes> Transport::gather(std::span<const std::byte> mine, int root) {
  check_root(*this, "gather()", root);
  return exchanged(std::vector(uz(size()), mine), false, root);
}

std::vector<Bytes> Transport::all_to_all(const std::vector<Bytes>& parts) {
  if (parts.size() != uz(size()))
    throw ProcessError(fmt::format("[processes] {} parts were given to {} processes; give one for each",
                                   parts.size(), size()));
  return exchanged({parts.begin(), parts.end()}, true, 0);
}

void Transport::barrier() { all_gather({}); }

// Down a binomial tree that has `root` at its top, so that no process sends to more than log2(size), rounded up, others.
void Transport::broadcast(std::span<std::byte> bytes, int root) {
  check_root(*this, "broadcast()", root);
  const int all = size(), place = (rank() - root + all) % all;
  const auto rank_at = [&](int p) { return (p + root) % all; };
  int half = 1;
  while (half < all) half *= 2;
  bool has = place == 0;
  for (half /= 2; half > 0;
       half /= 2) {  // exchange() each time, as threads of a process call it equally often
    std::vector<Send> out;
    std::vector<Receive> in;
    if (has && place + half < all) out.push_back({rank_at(place + half), bytes});
    else if (!has && place % (2 * half) == half) in.push_back({rank_at(place - half), bytes});
    exchange(out, in);
    has = has || !in.empty();
  }
}

void Transport::on_first(const std::function<void()>& fn) {
  require_function("processes", "what the first process does", fn);
  from_first([&] {
    fn();
    return std::string();
  });
}

namespace {

// Calls `sign` again and again, on a thread of its own, until it is destroyed: a process that is stopped stops this too. What `sign`
// throws ends it, and is thrown again by whatever is sent next.
class SignsOfLife {
 public:
  SignsOfLife(std::chrono::milliseconds every, const std::function<void()>& sign)
      : thread_([this, every, sign] {
          std::unique_lock lock(mutex_);
          while (!over_.wait_for(lock, every, [&] { return ended_; })) {
            try {
              sign();
            } catch (...) {
              return;
            }
          }
        }) {}
  ~SignsOfLife() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    over_.notify_one();
    thread_.join();
  }
  SignsOfLife(const SignsOfLife&) = delete;
  SignsOfLife& operator=(const SignsOfLife&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool ended_ = false;
  std::thread thread_;
};

// What rank 0 tells the others of its work: how it is, and the length of the text that comes next.
struct WorkOfFirst {
  static constexpr std::uint64_t kGoesOn = 0, kDone = 1, kFailed = 2;
  std::uint64_t state = kGoesOn, length = 0;
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(this, 1)); }
};

}  // namespace

std::string Transport::from_first(const std::function<std::string()>& fn) {
  require_function("processes", "what the first process does", fn);
  gather({});  // until all are here, what they sent before is not certain: exchange() says why
  std::string text;
  std::exception_ptr error;
  WorkOfFirst work;
  if (rank() == 0) {
    std::optional<SignsOfLife> signs;
    if (size() > 1)
      signs.emplace(stall_limit() / 4, [this] {
        WorkOfFirst goes_on;
        broadcast(goes_on.bytes());
      });
    try {
      text = fn();
    } catch (const std::exception& e) {
      text = e.what(), error = std::current_exception();
    } catch (...) {
      text = "something was thrown that is no std::exception", error = std::current_exception();
    }
    signs.reset();
    work = {error ? WorkOfFirst::kFailed : WorkOfFirst::kDone, text.size()};
    broadcast(work.bytes());
  } else {
    while (work.state == WorkOfFirst::kGoesOn) broadcast(work.bytes());
  }
  text.resize(work.length);
  broadcast(std::as_writable_bytes(std::span(text)));
  if (error) std::rethrow_exception(error);
  if (work.state == WorkOfFirst::kFailed) throw ProcessError(fmt::format("[processes] rank 0: {}", text));
  return text;
}

std::vector<std::vector<double>> Transport::shared_out(
    std::int64_t count, const std::function<std::vector<double>(std::int64_t i)>& make) {
  require_function("processes", "what is shared out", make);
  const IndexRange own = part_of(count, rank(), size());
  Bytes mine;
  const auto append = [&](const void* from, std::size_t bytes) {
    const auto* const b = static_cast<const std::byte*>(from);
    mine.insert(mine.end(), b, b + bytes);
  };
  for (std::int64_t i = own.begin; i < own.end; ++i) {
    const std::vector<double> made = make(i);
    const std::uint64_t length = made.size();
    append(&length, sizeof length);
    append(made.data(), made.size() * sizeof(double));
  }
  std::vector<std::vector<double>> out;
  for (const Bytes& part : all_gather(mine))
    for (std::size_t at = 0; at < part.size();) {
      std::uint64_t length = 0;
      std::memcpy(&length, part.data() + at, sizeof length);
      at += sizeof length;
      std::vector<double>& result = out.emplace_back(length);
      if (length > 0) std::memcpy(result.data(), part.data() + at, length * sizeof(double));
      at += length * sizeof(double);
    }
  return out;
}

void Transport::check_same(const std::string& text, const std::string& what) {
  const std::vector<Bytes> all = all_gather(std::as_bytes(std::span(text)));
  std::vector<int> others;
  for (int r = 1; r < size(); ++r)
    if (all[uz(r)] != all[0]) others.push_back(r);
  if (others.empty()) return;
  // From where the two part.
  const Bytes &other = all[uz(others[0])], &first = all[0];
  const auto at = std::ranges::mismatch(other, first).in1 - other.begin();
  const auto shown = [&](const Bytes& b) {
    const std::string all_of_it(reinterpret_cast<const char*>(b.data()), b.size());
    return all_of_it.substr(uz(std::max<std::ptrdiff_t>(0, at - 20)), 60);
  };
  throw ProcessError(fmt::format(
      "[processes] {} {} other {} than rank 0 (..{}..; rank 0: ..{}..): start every process with the same command and files",
      ranks_text(others), others.size() == 1 ? "has" : "have", what, shown(other), shown(first)));
}

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

}  // namespace nestgrad

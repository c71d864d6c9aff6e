// What bench/growth measures: programs by their length, and what is timed of each.
#pragma once

#include <unistd.h>

#include <chrono>
#include <span>
#include <string_view>
#include <vector>

#include "engine/run/function.h"

namespace nestgrad::growth {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The measuring process's end of the pipe: what it is doing, and what that cost.
class Account {
 public:
  explicit Account(int pipe) : pipe_(pipe) {}
  void doing(std::string_view what) { line("doing", what, 0); }
  void found(std::string_view what, double value) { line("found", what, value); }
  void failed(std::string_view why) { line("failed", why, 0); }
  template <class Fn>
  void time(const char* what, Fn fn) {
    doing(what);
    const auto start = Clock::now();
    fn();
    found(what, seconds_since(start));
  }

 private:
  void line(std::string_view kind, std::string_view what, double value);
  int pipe_;
};

constexpr std::int64_t kMillion = 1'000'000;

using Make = Function (*)(std::int64_t n);
void measure_program(Make make, std::int64_t n, Account& account);

struct Work {
  const char *name, *unit;
  std::int64_t largest;
  Make make;
  void (*measure)(Make, std::int64_t n, Account&) = measure_program;

  bool by_nodes() const { return std::string_view(unit) == "nodes"; }
  // Nodes and steps by half decades, tokens by doubling.
  std::vector<std::int64_t> sizes(std::int64_t most) const;
};
std::span<const Work> works();

}  // namespace nestgrad::growth

#include "tests/fuzz/campaign.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>

#include "engine/core/error.h"
#include "programs/program.h"

namespace nestgrad::fuzz {

namespace {

using Clock = std::chrono::steady_clock;
using Drawn = std::vector<std::uint32_t>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What the handler of signals may read: "seed 17".
char running_case[64] = "no case";
constexpr unsigned kSecondsPerCase = 300;  // of a machine that may be busy

void on_signal(int signal) {
  const auto print = [](const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); };
  print(signal == SIGALRM ? "\nhangs: " : "\ncrashes: ");
  print(running_case);
  print("\n");
  ::_exit(1);
}

void watch_for_crashes() {
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGALRM}) ::signal(signal, on_signal);
}

// What is wrong with a case; nothing if it passes.
std::optional<std::string> failure_of(const Check& check, Draws& draws) {
  ::alarm(kSecondsPerCase);
  std::optional<std::string> out;
  try {
    check(draws);
  } catch (const Finding& e) {
    out = e.what();
  } catch (const std::exception& e) {
    out = fmt::format("throws: {}", e.what());
  }
  ::alarm(0);
  return out;
}

bool fails(const Check& check, const Drawn& drawn) {
  Draws draws(drawn);
  return failure_of(check, draws).has_value();
}

std::string joined(const Drawn& drawn) { return fmt::format("{}", fmt::join(drawn, ",")); }

struct Options {
  std::uint64_t first = 1, cases = 200;
  std::optional<std::uint64_t> only;
  Drawn drawn;
  std::string digests;
  double minutes = 0, shrink_seconds = 60;
  bool keep_going = false, json = false;
};

// A failed case for people: what is wrong, what the case is, how to make it again.
void print_failure(const std::string& name, const std::string& which, const Check& check,
                   const Drawn& drawn) {
  Draws draws(drawn);
  const std::string why = failure_of(check, draws).value_or("passes when it is run again");
  fmt::print("FAIL {}: {}\n", which, why);
  for (const std::string& line : draws.said()) fmt::print("    {}\n", line);
  fmt::print("  again: {} --draws {}\n", name, drawn.empty() ? "0" : joined(drawn));
  std::fflush(stdout);
}

}  // namespace

std::vector<std::uint32_t> shrunk(const Check& check, const Drawn& drawn, double seconds) {
  const Clock::time_point start = Clock::now();
  Drawn best = drawn;
  const auto in_time = [&] { return seconds_since(start) < seconds; };
  const auto take = [&](Drawn tried) {
    while (!tried.empty() && tried.back() == 0) tried.pop_back();  // past the end all draws are 0
    if (tried == best || !fails(check, tried)) return false;
    best = std::move(tried);
    return true;
  };
  take(best);
  for (bool smaller = true; smaller && in_time();) {
    smaller = false;
    for (std::size_t length = std::max<std::size_t>(1, best.size() / 2); length > 0; length /= 2)
      for (std::size_t at = 0; at + length <= best.size() && in_time();) {
        const auto begin = static_cast<std::ptrdiff_t>(at), end = begin + static_cast<std::ptrdiff_t>(length);
        Drawn without = best, zeroed = best;
        without.erase(without.begin() + begin, without.begin() + end);
        std::fill(zeroed.begin() + begin, zeroed.begin() + end, 0);
        if (take(without) || take(zeroed)) smaller = true;
        else at += length;
      }
    for (std::size_t at = 0; at < best.size(); ++at)
      for (bool lower = true; lower && in_time() && at < best.size() && best[at] > 0;) {
        Drawn half = best, less = best;
        half[at] /= 2;
        less[at] -= 1;
        lower = take(half) || take(less);
        smaller = smaller || lower;
      }
  }
  return best;
}

int run_campaign(int argc, char** argv, const std::string& name, const std::string& what, const Check& check,
                 const Outcome& outcome) {
  CLI::App app{what + "\nExit code 1 if a case fails; it is made smaller and printed.", name};
  Options options;
  app.add_option("--cases", options.cases, "How many")->capture_default_str();
  app.add_option("--first", options.first, "Seed of the first case; the next has the next")
      ->capture_default_str();
  app.add_option("--minutes", options.minutes, "Stop after so long, even if cases are left (0: never)")
      ->capture_default_str();
  app.add_option("--seed", options.only, "Only the case of this seed");
  app.add_option("--draws", options.drawn, "Only the case of these draws")->delimiter(',');
  app.add_option("--shrink-seconds", options.shrink_seconds, "Time for making a failed case smaller")
      ->capture_default_str();
  if (outcome)
    app.add_option(
        "--digests", options.digests,
        "Check nothing, and write a line for each case into this file: its seed and what bits came out");
  app.add_flag("--keep-going", options.keep_going, "Go on after a case that fails");
  app.add_flag("--json", options.json, "The last line is a JSON object");
  return run_program(argc, argv, app, [&] {
    watch_for_crashes();
    if (!options.drawn.empty()) {
      fmt::format_to_n(running_case, sizeof running_case - 1, "the case of these draws");
      if (!fails(check, options.drawn)) return (void)fmt::print("passes\n");
      print_failure(name, "these draws", check, options.drawn);
      throw ValueError("the case fails");
    }
    if (options.only) options.first = *options.only, options.cases = 1;
    const Clock::time_point start = Clock::now();
    ProgressLine progress;
    std::uint64_t done = 0;
    std::vector<std::uint64_t> failed;
    std::ofstream digests;
    if (!options.digests.empty()) {
      digests.open(options.digests);
      if (!digests) throw IoError(fmt::format("{}: cannot be written", options.digests));
    }
    for (; done < options.cases; ++done) {
      if (options.minutes > 0 && seconds_since(start) > 60 * options.minutes) break;
      if (!failed.empty() && !options.keep_going) break;
      const std::uint64_t seed = options.first + done;
      *fmt::format_to_n(running_case, sizeof running_case - 1, "seed {}", seed).out = '\0';
      Draws draws(seed);
      if (digests.is_open()) {
        std::string bits;
        const auto refused = failure_of([&](Draws& d) { bits = outcome(d); }, draws);
        digests << seed << ' ' << refused.value_or(bits) << '\n';
        if (!digests.flush()) throw IoError(fmt::format("{}: cannot be written", options.digests));
      } else if (failure_of(check, draws)) {
        failed.push_back(seed);
        print_failure(name, fmt::format("seed {}", seed), check,
                      shrunk(check, draws.drawn(), options.shrink_seconds));
      }
      const double by_time = options.minutes > 0 ? seconds_since(start) / (60 * options.minutes) : 0;
      progress.update(fmt::format("{} of {} cases, {} failed", done + 1, options.cases, failed.size()),
                      std::min(1.0, std::max(by_time, static_cast<double>(done + 1) /
                                                          static_cast<double>(options.cases))));
    }
    fmt::print("{} cases, seeds {} to {}, {} failed, {}\n", done, options.first, options.first + done - 1,
               failed.size(), format_seconds(seconds_since(start)));
    if (options.json)
      fmt::print("{{\"cases\": {}, \"first\": {}, \"failed\": [{}]}}\n", done, options.first,
                 fmt::join(failed, ", "));
    if (!failed.empty())
      throw ValueError(
          fmt::format("{} of {} cases fail; the first has seed {}", failed.size(), done, failed[0]));
  });
}

}  // namespace nestgrad::fuzz

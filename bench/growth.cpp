// growth: what tracing, planning, a first call, a replay and the memory cost by the length of a program or of
// a sequence, and whether any of it grows faster than n log n.
//
//   growth --svg docs/growth.svg --into docs/performance.md    renews the section "Costs by length"
//
// Each measurement is a process of its own: its memory is what the system says, and one that takes too long
// or too much is stopped.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/growth_works.h"
#include "engine/io/file.h"
#include "look/report.h"
#include "programs/program.h"

using namespace nestgrad;
using namespace nestgrad::growth;

namespace {

constexpr std::array kCosts{"trace", "plan", "first call", "replay", "memory"};  // seconds; the last in MB
// ---- measuring ----

struct Limits {
  double seconds = 60, gigabytes = 12;
};

struct Point {
  double size = 0;
  std::map<std::string, double> costs;
  std::string stopped;  // why it came to no end
};

// What a measuring process wrote: the least of each cost counts.
void take_in(std::string_view report, Point& point, std::string& doing) {
  std::istringstream lines{std::string(report)};
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find('\t'), last = line.rfind('\t');
    const std::string kind = line.substr(0, first), what = line.substr(first + 1, last - first - 1);
    if (kind == "doing") doing = what;
    if (kind == "failed") point.stopped = what;
    if (kind != "found") continue;
    const double value = std::stod(line.substr(last + 1));
    const auto [known, fresh] = point.costs.emplace(what, value);
    if (!fresh) known->second = std::min(known->second, value);
  }
}

[[noreturn]] void measure_here(const Work& work, std::int64_t n, const Limits& limits, int pipe) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto bytes = static_cast<rlim_t>(limits.gigabytes * 1e9);
  const rlimit memory{bytes, bytes};
  setrlimit(RLIMIT_AS, &memory);
  Account account(pipe);
  try {
    work.measure(work.make, n, account);
  } catch (const std::bad_alloc&) {
    account.failed(fmt::format("needs more than {} GB", limits.gigabytes));
  } catch (const std::exception& e) {
    account.failed(e.what());
  }
  _exit(0);
}

Point measure(const Work& work, std::int64_t n, const Limits& limits) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw IoError("[growth] no pipe can be made; close some programs");
  const pid_t child = fork();
  if (child < 0) throw IoError("[growth] no process can be started; close some programs");
  if (child == 0) measure_here(work, n, limits, ends[1]);
  close(ends[1]);

  Point point{.size = static_cast<double>(n)};
  std::string report, doing;
  const auto start = Clock::now();
  bool in_time = true;
  for (;;) {
    const double left = limits.seconds - seconds_since(start);
    pollfd poll_for{ends[0], POLLIN, 0};
    const int ready = left > 0 ? poll(&poll_for, 1, static_cast<int>(left * 1000) + 1) : 0;
    if (ready < 0 && errno == EINTR) continue;
    char bytes[4096];
    const ssize_t got = ready > 0 ? read(ends[0], bytes, sizeof bytes) : 0;
    if (ready <= 0) in_time = false, kill(child, SIGKILL);
    if (got <= 0) break;
    report.append(bytes, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  take_in(report, point, doing);
  if (work.by_nodes() && point.costs.contains("nodes")) point.size = point.costs.at("nodes");
  // Repetitions may be cut short: all costs are there after the first turn.
  if (!in_time && !point.costs.contains("memory"))
    point.stopped = fmt::format("{} not done after {}", doing, format_seconds(limits.seconds));
  else if (in_time && WIFSIGNALED(status))
    point.stopped = fmt::format("{} ended by signal {}", doing, WTERMSIG(status));
  return point;
}

// ---- growth ----

constexpr double kTolerance = 1.5;  // over a decade, times what n log n gives
// Below these, costs are not told from noise.
constexpr double kLeastSeconds = 1e-4, kLeastMegabytes = 4;

struct Growth {
  double exponent = NAN;  // slope of log cost over log size, over the upper half of the sizes
  double ratio = NAN;     // growth over a decade, in units of what n log n gives
  bool too_fast() const { return ratio > kTolerance; }
};

Growth growth_of(const std::vector<Point>& points, const std::string& cost) {
  const double least = cost == "memory" ? kLeastMegabytes : kLeastSeconds;
  std::vector<std::pair<double, double>> xy;
  for (const Point& p : points)
    if (p.stopped.empty() && p.costs.contains(cost)) xy.emplace_back(p.size, p.costs.at(cost));
  Growth out;
  if (xy.size() < 3 || xy.back().second < least) return out;
  const auto [last_n, last_cost] = xy.back();
  const double middle = std::sqrt(xy.front().first * last_n);
  double count = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const auto& [n, c] : xy) {
    if (n < middle) continue;
    const double x = std::log(n), y = std::log(std::max(c, least / 100));
    count += 1, sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  out.exponent = (count * sxy - sx * sy) / (count * sxx - sx * sx);
  // Over the last decade and, squared, over the last half of it: what leaves a cache does so once.
  for (const double part : {1.0, 2.0})
    for (const auto& [n, c] : xy)
      if (n >= last_n / (1.05 * std::pow(10, 1 / part))) {
        const double ratio = last_cost / std::max(c, least) / (last_n * std::log(last_n) / (n * std::log(n)));
        out.ratio = std::fmin(out.ratio, std::pow(ratio, part));
        break;
      }
  return out;
}

struct Measured {
  const Work* work;
  std::vector<Point> points;
  std::map<std::string, Growth> growth;  // by cost

  const Point* largest() const {
    const Point* out = nullptr;
    for (const Point& p : points)
      if (p.stopped.empty()) out = &p;
    return out;
  }
};

std::string format_cost(const std::string& cost, double value) {
  return cost == "memory" ? fmt::format("{:.0f} MB", value) : format_seconds(value);
}

std::string table(const std::vector<Measured>& all) {
  std::string out = "| | size | trace | plan | first call | replay | memory |\n| --- | ---: |";
  for (std::size_t i = 0; i < kCosts.size(); ++i) out += " ---: |";
  for (const Measured& m : all) {
    const Point* p = m.largest();
    if (!p) continue;
    out +=
        fmt::format("\n| {} | {} {} |", m.work->name, fmt::group_digits(std::llround(p->size)), m.work->unit);
    for (const std::string cost : kCosts) {
      if (!p->costs.contains(cost)) {
        out += " |";
        continue;
      }
      const Growth g = m.growth.at(cost);
      out += fmt::format(" {}", format_cost(cost, p->costs.at(cost)));
      out += std::isnan(g.ratio) ? " |"
                                 : fmt::format(" ({:.2f}{}) |", g.exponent, g.too_fast() ? ", too fast" : "");
    }
  }
  return out + "\n";
}

// All times together, and a curve of n log n for the eye.
Chart chart(const std::vector<Measured>& all) {
  Chart out{.title = "Costs by length",
            .x_label = "size (nodes, steps or tokens)",
            .y_label = "trace, plan, first call and a replay (seconds)",
            .log_x = true,
            .log_y = true};
  for (const Measured& m : all) {
    Series s{fmt::format("{} ({})", m.work->name, m.work->unit), {}, {}};
    for (const Point& p : m.points) {
      if (!p.stopped.empty()) continue;
      double sum = 0;
      for (const std::string cost : kCosts)
        if (cost != "memory" && p.costs.contains(cost)) sum += p.costs.at(cost);
      s.x.push_back(p.size), s.y.push_back(sum);
    }
    out.series.push_back(std::move(s));
  }
  Series guide{"as n log n", {}, {}};
  for (double n = 100; n <= 1.01 * kMillion; n *= 10)
    guide.x.push_back(n), guide.y.push_back(1e-6 * n * std::log(n));
  out.series.push_back(std::move(guide));
  return out;
}

nlohmann::ordered_json to_json(const std::vector<Measured>& all) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Measured& m : all) {
    nlohmann::ordered_json points = nlohmann::ordered_json::array(), growth;
    for (const Point& p : m.points)
      points.push_back({{"size", p.size}, {"costs", p.costs}, {"stopped", p.stopped}});
    for (const auto& [cost, g] : m.growth)
      if (!std::isnan(g.ratio))
        growth[cost] = {{"exponent", g.exponent}, {"ratio", g.ratio}, {"too_fast", g.too_fast()}};
    out.push_back({{"name", m.work->name}, {"unit", m.work->unit}, {"points", points}, {"growth", growth}});
  }
  return out;
}

// Puts the table between the two marks in a page.
void renew(const std::string& path, const std::string& text) {
  constexpr std::string_view kBegin = "<!-- growth -->\n", kEnd = "<!-- /growth -->";
  std::string page = read_file(path);
  const auto begin = page.find(kBegin), end = page.find(kEnd);
  if (begin == page.npos || end == page.npos || end < begin)
    throw IoError(fmt::format(
        "[growth] {}: there are no lines '<!-- growth -->' and '{}' to put the table between", path, kEnd));
  page.replace(begin + kBegin.size(), end - begin - kBegin.size(), text);
  write_file_atomically(path, page);
}

struct Options {
  Limits limits;
  std::string only, svg, into;
  bool quick = false, check = false, json = false;
};

Measured measure_all(const Work& work, const Options& options, ProgressLine& progress, double done,
                     double share) {
  Measured m{&work, {}, {}};
  const std::vector<std::int64_t> sizes = work.sizes(options.quick ? 10'000 : kMillion);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    progress.update(fmt::format("{}, {} {}", work.name, sizes[i], work.unit),
                    done + share * static_cast<double>(i) / static_cast<double>(sizes.size()));
    m.points.push_back(measure(work, sizes[i], options.limits));
    if (m.points.back().stopped.empty()) continue;
    progress.print(fmt::format("{}, {} {}: stopped: {}; larger sizes are left out", work.name, sizes[i],
                               work.unit, m.points.back().stopped));
    break;
  }
  for (const char* cost : kCosts) m.growth.emplace(cost, growth_of(m.points, cost));
  return m;
}

void run(const Options& options) {
  std::vector<const Work*> works;
  for (const Work& work : growth::works())
    if (std::string_view(work.name).find(options.only) != std::string_view::npos) works.push_back(&work);
  if (works.empty())
    throw CLI::ValidationError("--only", fmt::format("no series has '{}' in its name", options.only));
  std::vector<Measured> all;
  {
    ProgressLine progress;
    const double share = 1 / static_cast<double>(works.size());
    for (const Work* work : works)
      all.push_back(measure_all(*work, options, progress, share * static_cast<double>(all.size()), share));
    progress.update("measured", 1);
  }
  fmt::print("{}", table(all));
  if (!options.svg.empty()) write_file_atomically(options.svg, svg(chart(all)));
  if (!options.into.empty()) renew(options.into, table(all));
  std::vector<std::string> faults;
  for (const Measured& m : all) {
    for (const auto& [cost, g] : m.growth)
      if (g.too_fast())
        faults.push_back(fmt::format("{} of '{}' grows {:.2f} times as much as n log n over a decade", cost,
                                     m.work->name, g.ratio));
    if (!m.points.back().stopped.empty())
      faults.push_back(fmt::format("'{}' was stopped: {}", m.work->name, m.points.back().stopped));
  }
  if (options.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"series", to_json(all)}, {"faults", faults}}.dump());
  if (options.check && !faults.empty())
    throw ValueError(
        fmt::format("[growth] {}; at most {} times is allowed", fmt::join(faults, "; "), kTolerance));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Measures trace, plan, first call, replay and memory by the length of programs and of sequences, and\n"
      "fits how they grow. In the table, next to what the largest size costs: the exponent, over the upper\n"
      "half of the sizes. 'too fast': over the last decade of sizes, and over the last half of one, it grows "
      "more than\n1.5 times as n log n.",
      "growth"};
  Options options;
  app.add_flag("--quick", options.quick, "Sizes up to 10,000 only");
  app.add_option("--only", options.only, "Only series with this in their name");
  app.add_option("--limit", options.limits.seconds, "Seconds that one size may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--memory", options.limits.gigabytes, "GB of addresses that one size may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--svg", options.svg, "Draw the times into this file");
  app.add_option("--into", options.into, "Put the table between the marks <!-- growth --> of this page");
  app.add_flag("--check", options.check, "Fail if a cost grows faster than n log n, or a size was stopped");
  app.add_flag("--json", options.json, "Last line of output: all numbers as one JSON object");
  return run_program(argc, argv, app, [&] { run(options); });
}

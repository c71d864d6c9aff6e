#include "programs/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "engine/core/device.h"
#include "engine/core/error.h"
#include "engine/core/threads.h"
#include "engine/core/version.h"
#include "engine/io/file.h"
#include "engine/plan/plan_options.h"
#include "engine/processes/mpi.h"
#include "engine/processes/stall.h"
#include "ops/kernels.h"

namespace nestgrad {

namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr const char* kOutputFails = "standard output cannot be written";

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool is_terminal(std::FILE* file) {
  if (!file) return false;
  const char* kind = std::getenv("TERM");
  return isatty(fileno(file)) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

std::size_t terminal_width(std::FILE* file) {
  winsize size{};
  return ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Cuts at `width` characters of UTF-8: a line that wraps could not be redrawn.
std::string_view cut_to(std::string_view text, std::size_t width) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if ((text[i] & 0xc0) != 0x80 && ++characters > width) return text.substr(0, i);
  return text;
}

std::string on_one_line(std::string_view text) {
  std::string line;
  for (char c : text) {
    const bool at_break = line.empty() || line.ends_with("; ");
    if (c == '\n') line += at_break ? "" : "; ";
    else if (c != ' ' || !at_break) line += c;  // no indentation
  }
  while (line.ends_with("; ")) line.resize(line.size() - 2);
  return line;
}

// As launch(); of a NESTGRAD_MPI that is none, which is a wrong call itself, one process.
Launch launched() {
  try {
    return launch();
  } catch (const ConfigError&) {
    return {};
  }
}

// What is said beside the results. Where it cannot be written, as on a full disk, the work goes on without it.
void put(std::FILE* out, std::string_view text) {
  std::ignore = std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
}

// A standard stream that is closed keeps its number, and stays one that cannot be written: the next file that is opened would
// have it, and messages would go into that file.
void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) == -1 && errno == EBADF)
      std::ignore = open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  // Whoever reads of them may go: then they are as streams that are full, and the work goes on.
  std::signal(SIGPIPE, SIG_IGN);
}

// All that was printed is where it belongs.
bool output_is_written() {
  std::cout.flush();
  return std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout.good();
}

// One line on standard error. Of several processes that fail for the same reason rank 0 says it, and ends the others while they
// wait; another says it where rank 0 has nothing to say.
void complain(std::string_view program, std::string_view message) {
  const int rank = launched().rank;
  if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  std::fflush(stdout);
  say(fmt::format("{}: {}{}", program, rank > 0 ? fmt::format("rank {}: ", rank) : "",
                  escaped(on_one_line(message))));
}

// The exit status of a process that has said why.
int ended(int status) {
  if (launched().size > 1 && among_others()) {
    // MPICH's mpirun throws away what it has not passed on when it hears of the end.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    end_all_processes(status);
  }
  return status;
}

// Others wait for a process that ends before it has met them: it meets them, if only to end them.
void meet_others(Processes processes) {
  if (processes == Processes::one || launched().size == 1 || among_others()) return;
  try {
    asked_stall_limit();
  } catch (const ConfigError&) {
    unsetenv("NESTGRAD_STALL_LIMIT");  // that is what is wrong
  }
  try {
    open_processes();
  } catch (const std::exception&) {  // it cannot reach them, nor they it
  }
}

// The exit status of a wrong call.
int refuse(std::string_view program, std::string_view message, Processes processes) {
  meet_others(processes);
  // All have the same command: rank 0 says what is wrong with it, unless they have met and only one found it.
  if (launched().rank == 0 || among_others()) complain(program, message);
  return ended(2);
}

int fail(std::string_view program, std::string_view message, Processes processes) {
  meet_others(processes);
  complain(program, fmt::format("error: {}", message));
  return ended(1);
}

// Threads for this process's share of the machine, unless the environment says how many.
void share_cores(const Launch& of) {
  if (of.size == 1 || std::getenv("NESTGRAD_THREADS")) return;
  const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  set_thread_count(std::min(thread_count(), std::max(1, cores / std::max(1, of.local))));
}

bool is_integer_type(std::string_view type) { return type.starts_with("UINT") || type.starts_with("INT"); }

// Why an option of this type does not take the number, in words; empty if it does. CLI11 takes nothing at all for 0, -1 for an
// unsigned one, "true" for 1, and the nearest that there is for one that is too large.
std::string why_not_number(std::string_view type, const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const bool is_real = type.starts_with("FLOAT"), is_unsigned = type.starts_with("UINT");
  if (!is_real && !is_integer_type(type)) return "";
  if (text.empty()) return "expected a number";
  if (is_real) return std::isfinite(std::strtod(text.c_str(), &end)) ? "" : "expected a finite number";
  const std::size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  if (text.size() == sign || text.find_first_not_of("0123456789", sign) != text.npos)
    return "wants an integer, in decimal digits";
  if (is_unsigned && text.starts_with('-')) return "expected a number that is not negative";
  if (is_unsigned) std::ignore = std::strtoull(text.c_str(), &end, 10);
  else std::ignore = std::strtoll(text.c_str(), &end, 10);
  return errno == ERANGE ? "the number is too large" : "";
}

// CLI11 reads 010 as C++ does, in octal; people mean ten.
std::string without_leading_zeros(const std::string& text) {
  const std::size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  const std::size_t begin = std::min(text.find_first_not_of('0', sign), text.size() - 1);
  return text.substr(0, sign) + text.substr(begin);
}

// What holds for the options of every program.
void prepare_options(CLI::App& app) {
  for (CLI::Option* option : app.get_options({})) {
    const std::string type = option->get_type_name();
    // Of an option that is given twice the last holds, so that scripts can add to a call. (A list is added to.)
    if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw &&
        option->get_items_expected_max() == 1)
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    if (type.starts_with("TEXT"))
      option->check([](const std::string& text) { return text.empty() ? "must not be empty" : ""; });
    option->transform([type](const std::string& text) {
      if (const std::string why = why_not_number(type, text); !why.empty())
        throw CLI::ValidationError(
            fmt::format("{}: {}", text.empty() ? "''" : text, why));  // CLI11 names the option
      return is_integer_type(type) ? without_leading_zeros(text) : text;
    });
  }
  for (CLI::App* sub : app.get_subcommands({})) prepare_options(*sub);
}

// While it lives, this thread reads and prints numbers with a point, whatever the locale that a main of one's own has set.
class PointInNumbers {
 public:
  PointInNumbers() : c_(newlocale(LC_NUMERIC_MASK, "C", duplocale(LC_GLOBAL_LOCALE))) {
    if (c_) before_ = uselocale(c_);
  }
  ~PointInNumbers() {
    if (!c_) return;
    uselocale(before_);
    freelocale(c_);
  }
  PointInNumbers(const PointInNumbers&) = delete;
  PointInNumbers& operator=(const PointInNumbers&) = delete;

 private:
  locale_t c_, before_ = nullptr;
};

// What the environment asks for is part of the call: ConfigError where it asks for what does not exist.
void check_environment() {
  kernels();
  thread_count();
  default_compile();
  asked_stall_limit();
  try {
    default_device();
  } catch (const DeviceError&) {  // said when something is to run there: --help needs no GPU
  }
}

}  // namespace

int run_program(int argc, char** argv, CLI::App& app, const std::function<void()>& body,
                Processes processes) {
  const PointInNumbers point;
  std::string program = app.get_name();
  if (program.empty() && argc > 0) program = std::filesystem::path(argv[0]).filename().string();
  keep_standard_streams();
  std::signal(SIGXFSZ,
              SIG_IGN);  // a stream at the limit of file sizes cannot be written, as one on a full disk
  const auto done = [&] { return output_is_written() ? 0 : fail(program, kOutputFails, processes); };
  try {
    check_environment();
    share_cores(launch());
  } catch (const ConfigError& e) {
    return refuse(program, e.what(), processes);
  }
  try {
    app.set_version_flag(
        "--version",
        [] {
          const int gpus = Device::cuda_count();
          return fmt::format("nestgrad {}, kernels for {}, {} threads, {}", NESTGRAD_VERSION,
                             instruction_set(), thread_count(),
                             gpus > 0 ? fmt::format("CUDA with {} device{}", gpus, gpus == 1 ? "" : "s")
                                      : fmt::format("no CUDA: {}", Device::why_no_cuda()));
        },
        "Version, instruction set, number of threads, GPUs");
    prepare_options(app);
    app.parse(argc, argv);
    if (const Launch l = launch(); processes == Processes::one && l.size > 1)
      throw CLI::ValidationError(fmt::format(
          "{} processes were started, and this program's work is for one: start it without mpirun, or set "
          "NESTGRAD_MPI=none for each to do all of it",
          l.size));
    body();
    close_processes();
    return done();
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help, --version
      if (launch().rank > 0) return 0;
      app.exit(e);
      return done();
    }
    return refuse(program, fmt::format("{}; see --help", e.what()), processes);
  } catch (const std::bad_alloc&) {
    return fail(program, "out of memory", processes);
  } catch (const std::system_error& e) {  // of fmt::print, where the stream fails
    return fail(program, std::ferror(stdout) ? kOutputFails : e.what(), processes);
  } catch (const std::exception& e) {
    return fail(program, e.what(), processes);
  }
}

void pass_on(std::FILE* out) {
  if (std::fflush(out) != 0 || std::ferror(out)) throw IoError(kOutputFails);
}

void check_same_call(Transport& processes, const std::string& text) {
  const std::string mine = fmt::format("nestgrad {} {}", NESTGRAD_VERSION, text);
  const std::vector<Bytes> all = processes.all_gather(std::as_bytes(std::span(mine)));
  if (std::ranges::all_of(all, [&](const Bytes& other) { return other == all[0]; })) return;
  try {
    processes.check_same(mine, "settings");
  } catch (const ProcessError& e) {
    throw CLI::ValidationError(e.what());
  }
}

std::string positive(const std::string& text) {
  return std::strtod(text.c_str(), nullptr) > 0 ? "" : fmt::format("{}: expected a number above 0", text);
}

std::string not_empty(const std::string& text) { return text.empty() ? "wants a folder or a file" : ""; }

std::string not_negative(const std::string& text) {
  return std::strtod(text.c_str(), nullptr) >= 0 ? ""
                                                 : fmt::format("{}: expected 0 or a number above it", text);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char& c : text)
    if (c == '\n') out += c;
    else out += printable({&c, 1});
  return out;
}

void print_json(const nlohmann::ordered_json& json) {
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

namespace {

// "cuda" says no number: processes that were started together on a machine take its GPUs in turn.
Device device_named(const std::string& name) {
  const Launch l = launch();
  const int gpus = name == "cuda" && l.local > 1 ? Device::cuda_count() : 0;
  return gpus > 1 ? Device::cuda(l.local_rank % gpus) : Device::of(name);
}

}  // namespace

void add_device_option(CLI::App& app) {
  const CLI::Option* const given = app.add_option_function<std::string>(
      "--device",
      [](const std::string& name) {
        try {
          set_default_device(device_named(name));
        } catch (const ConfigError& e) {
          throw CLI::ValidationError(e.what());
        }
      },
      "Where it runs: cpu, cuda or cuda:1 (default: NESTGRAD_DEVICE, or cpu); cuda for each of several processes: "
      "the GPUs of its machine in turn");
  app.add_option_function<std::string>(
         "--precision", [](const std::string& name) { set_default_precision(precision_named(name)); },
         "Of matrix products on a GPU: f32, tf32, or bf16 operands "
         "added up in f32; all else stays f32 (default: f32)")
      ->check(CLI::IsMember({"f32", "tf32", "bf16"}));
  app.final_callback([given] {
    const char* const asked = std::getenv("NESTGRAD_DEVICE");
    if (given->count() == 0 && asked && std::string_view(asked) == "cuda" && launch().local > 1)
      set_default_device(device_named(asked));
    // Interpreted, kernels take ten times as long. What the variable says, holds.
    if (!default_device().is_cpu()) set_default_compile(Compile::now);
    if (default_precision() != Precision::f32 && default_device().is_cpu())
      throw CLI::ValidationError("--precision", fmt::format("{} is for GPUs: give --device cuda as well",
                                                            name(default_precision())));
  });
}

void say(std::string_view line) { put(stderr, fmt::format("{}\n", line)); }

ProgressLine::ProgressLine(double seconds_between_lines, std::FILE* out)
    : out_(out), terminal_(is_terminal(out)), interval_(terminal_ ? kRedrawSeconds : seconds_between_lines) {}

ProgressLine::~ProgressLine() {
  if (!shown_.empty()) std::fputc('\n', out_);
}

void ProgressLine::update(std::string_view text, double fraction_done) {
  if (!out_) return;
  const auto now = Clock::now();
  if (!first_fraction_) first_fraction_ = fraction_done, start_ = now;
  const bool last = fraction_done >= 1;
  if (last_shown_ && !last && seconds_between(*last_shown_, now) < interval_) return;
  const bool only = !last_shown_ && last;  // nothing is known of how long it took
  last_shown_ = now;

  // The speed counts from the first update: a resumed job did not do the earlier part in this time.
  const double elapsed = seconds_between(start_, now), done = fraction_done - *first_fraction_;
  std::string line(text);
  if (last && !only) line += fmt::format(", took {}", format_seconds(elapsed));
  else if (done > 0 && !last)
    line += fmt::format(", {} left", format_seconds(elapsed / done * (1 - fraction_done)));

  if (terminal_) {
    shown_ = cut_to(line, terminal_width(out_) - 1);
    put(out_, fmt::format("\r\x1b[K{}", shown_));
  } else {
    put(out_, line + '\n');
  }
}

void ProgressLine::print(std::string_view text) {
  if (!out_) return;
  put(out_, fmt::format("{}{}\n{}", shown_.empty() ? "" : "\r\x1b[K", text, shown_));
}

std::string format_seconds(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "unknown time";
  if (seconds < 0.0995) return fmt::format("{:.2g} ms", seconds * 1000);
  if (seconds < 9.95) return fmt::format("{:.2g} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

double peak_memory_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;  // Linux counts in KiB
}

}  // namespace nestgrad

// What every program here does the same way: exit codes, one-line errors, progress. Results go to stdout,
// progress and errors to stderr.
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace nestgrad {

class Transport;  // engine/processes/transport.h

// Parses the command line and runs `body`. What main() returns:
//   0  done, or --help
//   1  the run failed: "program: error: ..." on stderr, one line
//   2  wrong call: what is wrong, and "see --help". body may throw CLI::ValidationError to say the same of
//      options that do not go together.
// No option takes a number that is not finite, negative where it is unsigned, or too large for its type, nor, where it is an
// integer, anything but decimal digits (010 is ten): each is a wrong call, and so is an empty text in place of a value. Of an option
// that is given twice the last holds. Any std::exception counts as a failed run, so does standard output that
// cannot be written, also where a disk is full or a file at the limit of its size (SIGXFSZ is ignored from then on). That standard
// error cannot be written changes nothing.
//
//   int main(int argc, char** argv) {
//     CLI::App app{"Trains a language model.", "train_lm"};
//     Options options;
//     app.add_option("--steps", options.steps, "Number of training steps");
//     return nestgrad::run_program(argc, argv, app, [&] { train(options); });
//   }
//
// Started by mpirun as several processes, a program whose work no one shares (Processes::one) refuses in one line. Others open
// them (engine/processes/mpi.h); rank 0 alone speaks, and an error of any process ends all. Each has its share of the
// machine's cores as threads, where NESTGRAD_THREADS does not say how many. A call that is wrong in one process alone is said by
// that one, which meets the others for it and ends them.
enum class Processes { one, several };
int run_program(int argc, char** argv, CLI::App& app, const std::function<void()>& body,
                Processes processes = Processes::one);

// What was printed so far is with its reader: IoError where it cannot be, so that long work for one who has gone ends.
void pass_on(std::FILE* out = stdout);

// Of several processes, before anything that only some of them might do: a wrong call where their versions of nestgrad differ, or
// what decides their work, all of which `text` says. It names the ranks.
void check_same_call(Transport& processes, const std::string& text);

// For CLI's check(): what is wrong with an option's number, or nothing.
std::string positive(const std::string& text);
std::string not_negative(const std::string& text);
// Of an option that names a file or a folder.
std::string not_empty(const std::string& text);

// Text that is printed and was found in a path or a file: its control characters, but for line breaks, as \x1b.
std::string escaped(std::string_view text);

// Prints it as one line. Text that is not UTF-8, as names of files may be, has a replacement in it.
void print_json(const nlohmann::ordered_json& json);

// Adds --device cpu, cuda or cuda:1, where the program's functions run, and --precision of products there. On a GPU kernels are
// compiled, unless NESTGRAD_COMPILE says something else.
void add_device_option(CLI::App& app);

// One line on standard error, and no failure where there is none.
void say(std::string_view line);

// One line of progress with the time left. On a terminal the line is redrawn in place; elsewhere (a pipe, a
// log file, TERM=dumb) plain full lines, at most one every `seconds_between_lines`. Use from one thread.
class ProgressLine {
 public:
  // out: null shows nothing, as in a process that does not speak.
  explicit ProgressLine(double seconds_between_lines = 10, std::FILE* out = stderr);
  ~ProgressLine();  // leaves the last redrawn line standing
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // fraction_done in [0, 1]: of the whole job, also when it is resumed part way. Cheap enough for every step.
  void update(std::string_view text, double fraction_done);
  // Prints a full line that stays, now, whatever the interval; the redrawn line continues below it.
  void print(std::string_view text);

 private:
  using Clock = std::chrono::steady_clock;

  std::FILE* out_;
  bool terminal_;
  double interval_;          // seconds
  Clock::time_point start_;  // of the first update
  std::optional<Clock::time_point> last_shown_;
  std::optional<double> first_fraction_;
  std::string shown_;  // what the terminal shows now
};

std::string format_seconds(double seconds);  // 3.2 ms, 0.84 s, 42 s, 3 min 05 s, 2 h 04 min
double peak_memory_mb();                     // largest resident size of this process so far, in 10^6 bytes

}  // namespace nestgrad

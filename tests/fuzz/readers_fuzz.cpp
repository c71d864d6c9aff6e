// readers_fuzz: gives damaged files and command lines to everything that reads them. Promise: a value, or one
// of the project's errors in one line; nothing else is thrown, nothing crashes, hangs or takes a gigabyte.
//
//   readers_fuzz --data tests --bin build/release/bin            a minute of cases
//   readers_fuzz --data tests --bin build/release/bin --seed 17  one case
//
// A case is a seed: one of the readers below, one of its good files, some mutations. Cases run in a process
// of their own, which is watched. One that fails is printed with its seed, and with as few and as small
// mutations as still fail.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "engine/core/threads.h"
#include "engine/io/file.h"
#include "programs/program.h"
#include "tests/fuzz/mutations.h"
#include "tests/fuzz/readers.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;
using namespace nestgrad::fuzz;

namespace {

constexpr unsigned kSeconds = 20;            // for a case
constexpr rlim_t kMemory = rlim_t{1} << 30;  // that a reader may take, in bytes

struct Case {
  std::uint64_t seed;
  const Reader* reader;
  std::size_t which;  // of its good files
  bool whole;         // damage all of the file, not the header alone
  std::vector<Mutation> mutations;

  Case(std::uint64_t number, const std::vector<Reader>& readers) : seed(number) {
    Random random(seed);
    random();
    std::vector<const Reader*> shares;
    for (const Reader& r : readers) shares.insert(shares.end(), static_cast<std::size_t>(r.share), &r);
    reader = shares[below(random, shares.size())];
    which = below(random, reader->good.size());
    whole = !reader->framed || below(random, 4) == 0;
    for (std::size_t n = below(random, 6); mutations.size() <= n;) mutations.push_back(draw_mutation(random));
  }

  std::string bytes() const {
    const std::string& good = reader->good[which];
    if (whole) {
      std::string text = good;
      for (const Mutation& m : mutations) apply(m, text);
      return text;
    }
    Framed file(good);
    for (const Mutation& m : mutations) apply(m, file.header);
    return file.str();
  }

  std::string str() const {
    std::string out = fmt::format("{}, file {}{}", reader->name, which, whole ? "" : ", header");
    for (const Mutation& m : mutations) out += "; " + m.str();
    return out;
  }

  // Whether the reader made something of it.
  bool run() const {
    try {
      reader->read(bytes());
      return true;
    } catch (const Error& e) {
      require(std::string_view(e.what()).find('\n') == std::string::npos,
              fmt::format("an error of several lines: {}", printable(e.what())));
      return false;
    } catch (const Failure&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw Failure{fmt::format("takes more than {} MB", kMemory >> 20)};
    } catch (const std::exception& e) {
      throw Failure{fmt::format("another kind of error: {}", printable(e.what()))};
    }
  }
};

// What a watched process is doing, in memory that it shares.
struct Shared {
  std::uint64_t done, accepted;  // cases, and those of which the reader made something
  char problem[1000];
};

std::size_t addresses_in_use() {
  return static_cast<std::size_t>(std::stoull(read_file("/proc/self/statm"))) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Runs cases one after the other in a process of its own; what is wrong with the first that fails.
std::optional<std::string> run_apart(std::span<const Case> cases, Shared& shared) {
  shared = {};
  const pid_t child = fork();
  if (child < 0) throw IoError("[fuzz] no process can be started");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const rlim_t most = addresses_in_use() + kMemory;
    const rlimit memory{most, std::max<rlim_t>(most, kProgramMemory)}, core{0, 0};
    setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_CORE, &core);
    for (const Case& one : cases) {
      alarm(kSeconds);
      try {
        shared.accepted += one.run();
      } catch (const Failure& failure) {
        failure.text.copy(shared.problem, sizeof shared.problem - 1);
        _exit(1);
      }
      ++shared.done;
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return fmt::format("no end after {} s", kSeconds);
  if (WIFSIGNALED(status)) return fmt::format("ended by signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return std::string(shared.problem);
  return std::nullopt;
}

// Fewer mutations, and simpler ones, that fail as well.
Case shrunk(Case failing, Shared& shared) {
  const auto fails = [&](const Case& c) { return run_apart(std::span(&c, 1), shared).has_value(); };
  for (std::size_t i = 0; i < failing.mutations.size();) {
    Case fewer = failing;
    fewer.mutations.erase(fewer.mutations.begin() + static_cast<std::ptrdiff_t>(i));
    if (fails(fewer)) failing = fewer;
    else ++i;
  }
  for (Mutation& m : failing.mutations) {
    for (const bool text : {true, false}) {
      const Mutation before = m;
      if (text) m.text.resize(m.text.size() / 2);
      else m.size = 1;
      if (!fails(failing)) m = before;
    }
  }
  return failing;
}

struct Options {
  std::string data, bin;
  std::int64_t cases = std::numeric_limits<std::int64_t>::max();
  double minutes = 1;
  std::optional<std::uint64_t> seed;
  std::uint64_t first = 0;
  bool json = false;
};

void run(const Options& options) {
  const testing::TemporaryFolder folder;
  // A process that forks must have no other threads.
  set_thread_count(1);
  const std::vector<Reader> readers = all_readers(options.data, options.bin, folder.path.string());
  auto* const shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) throw IoError("[fuzz] no memory can be shared");

  constexpr std::size_t kBatch = 100;
  std::uint64_t next = options.seed.value_or(options.first), done = 0, accepted = 0;
  const std::uint64_t end = options.seed ? next + 1 : next + static_cast<std::uint64_t>(options.cases);
  std::vector<std::uint64_t> failed;
  const auto start = std::chrono::steady_clock::now();
  ProgressLine progress;
  while (next < end) {
    const double minutes =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 60;
    if (minutes > options.minutes) break;
    std::vector<Case> batch;
    for (std::uint64_t seed = next; seed < end && batch.size() < kBatch; ++seed)
      batch.emplace_back(seed, readers);
    const std::optional<std::string> problem = run_apart(batch, *shared);
    const std::uint64_t ran = shared->done;
    done += ran, next += ran, accepted += shared->accepted;
    if (problem) {
      const Case& one = batch.at(ran);
      failed.push_back(one.seed);
      progress.print(fmt::format("FAIL: --seed {}: {}\n  {}\n  fewer mutations fail too: {}", one.seed,
                                 *problem, one.str(), shrunk(one, *shared).str()));
      ++done, ++next;
    }
    progress.update(fmt::format("{} cases, {} failed", done, failed.size()),
                    std::min(0.99, std::max(minutes / options.minutes,
                                            static_cast<double>(done) / static_cast<double>(options.cases))));
  }
  fmt::print("{} cases of {} readers, {} of them accepted, {} failed\n", done, readers.size(), accepted,
             failed.size());
  if (options.json)
    fmt::print(
        "{}\n",
        nlohmann::ordered_json{{"cases", done}, {"accepted", accepted}, {"failed_seeds", failed}}.dump());
  if (!failed.empty()) throw ValueError(fmt::format("[fuzz] {} of {} cases failed", failed.size(), done));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Gives damaged files and command lines to everything that reads them.", "readers_fuzz"};
  Options options;
  app.add_option("--data", options.data, "Folder of the tests, with their golden files")->required();
  app.add_option("--bin", options.bin, "Folder of the programs (default: none is called)");
  app.add_option("--cases", options.cases, "Run so many cases at most")->check(CLI::PositiveNumber);
  app.add_option("--minutes", options.minutes, "Begin no case after that")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--first", options.first, "Seed of the first case")->capture_default_str();
  app.add_option("--seed", options.seed, "Run the case of this seed alone");
  app.add_flag("--json", options.json, "Last line of output: the results as one JSON object");
  return run_program(argc, argv, app, [&] { run(options); });
}

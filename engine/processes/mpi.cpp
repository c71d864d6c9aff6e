#include "engine/processes/mpi.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>

#include "engine/core/index.h"
#include "engine/processes/mpi/module.h"
#include "engine/processes/ranks.h"
#include "engine/processes/stall.h"

#ifndef NESTGRAD_MPI_FOLDERS
#define NESTGRAD_MPI_FOLDERS ""
#endif

namespace nestgrad {

namespace {

constexpr std::size_t kLargest = std::size_t{1} << 30;  // bytes of one message of MPI, whose counts are int

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::optional<int> number_of(const char* name) {
  const std::string text = text_of(name);
  int out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return out;
}

std::string file_of(const std::string& mpi) { return fmt::format("libnestgrad_{}.so", mpi); }

// Where a module may lie, the first to be asked first.
std::vector<std::filesystem::path> folders() {
  std::vector<std::filesystem::path> out;
  std::error_code none;
  const std::filesystem::path program = std::filesystem::canonical("/proc/self/exe", none).parent_path();
  if (!none)
    for (const char* place : {"../lib", ".", "../lib/nestgrad", "../lib64/nestgrad"})
      out.push_back(program / place);
  std::string_view rest = NESTGRAD_MPI_FOLDERS;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) out.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return out;
}

std::string how_many(const Launch& l) {
  return l.size > 1 ? fmt::format("{} processes", l.size) : "a process";
}

// Where there is one, and last where the program's linker was told to look (of an installed library, its own folder of modules).
std::vector<std::string> places_of(const std::string& module) {
  std::vector<std::string> out;
  std::error_code none;
  for (const std::filesystem::path& folder : folders())
    if (std::filesystem::exists(folder / module, none)) out.push_back((folder / module).string());
  out.push_back(module);
  return out;
}

const MpiModule& opened_module(const Launch& l) {
  std::string why;
  for (const std::string& path : places_of(file_of(l.mpi))) {
    // Global: Open MPI opens parts of its own, which look for its symbols.
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
      const std::string failed = dlerror();
      if (why.empty()) why = path.find('/') != path.npos ? failed : "no module for it is here";
      continue;
    }
    auto* const get = reinterpret_cast<const MpiModule* (*)()>(dlsym(library, "nestgrad_mpi_module"));
    const MpiModule* const module = get ? get() : nullptr;
    if (module && module->version == MpiModule::kVersion) return *module;
    why = fmt::format("{} is of another version of nestgrad", path);
  }
  throw ProcessError(fmt::format(
      "[processes] {} started {}, but this program cannot talk to the others ({}): each would take itself for the only "
      "one. Install this MPI (scripts/setup.sh --mpi) and build again, start one process, or set NESTGRAD_MPI=none "
      "for processes that have nothing to do with each other",
      l.mpi, how_many(l), why));
}

class MpiProcess final : public Transport {
 public:
  explicit MpiProcess(const MpiModule& module)
      : module_(module), rank_(module.rank()), size_(module.size()) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string description() const override {
    return fmt::format("{}, {} process{}", module_.library(), size_, size_ == 1 ? "" : "es");
  }

  void exchange(std::span<const Send> out, std::span<const Receive> in) override {
    if (!ended_.empty()) throw ProcessError(ended_);
    check_ranks(*this, out, in);
    try {
      exchange_all(out, in);
    } catch (const ProcessError& e) {
      // MPI still knows the memory of messages that are not done: it gets no turn to touch it
      ended_ = e.what();
      throw;
    }
  }

  void close() {
    ended_ =
        "[processes] the processes were closed (close_processes()), and can exchange nothing any more: close them last";
  }

 private:
  struct Waiting {
    int other;
    void* message;
  };

  void exchange_all(std::span<const Send> out, std::span<const Receive> in) const {
    std::vector<Waiting> waiting;
    const auto add = [&](int other, void* message) {
      if (!message) throw ProcessError(fmt::format("[processes] MPI cannot reach rank {}", other));
      waiting.push_back({other, message});
    };
    for (const Receive& r : in)
      for (std::size_t at = 0; at < r.bytes.size(); at += kLargest)
        add(r.from, module_.receive(r.bytes.data() + at, std::min(kLargest, r.bytes.size() - at), r.from));
    for (const Send& s : out)
      for (std::size_t at = 0; at < s.bytes.size(); at += kLargest)
        add(s.to, module_.send(s.bytes.data() + at, std::min(kLargest, s.bytes.size() - at), s.to));
    using Clock = std::chrono::steady_clock;
    Clock::time_point last = Clock::now();
    while (!waiting.empty()) {
      const std::size_t before = waiting.size();
      std::erase_if(waiting, [&](const Waiting& w) {
        const int state = module_.done(w.message);
        if (state < 0)
          throw ProcessError(fmt::format(
              "[processes] a message between rank {} and rank {} failed, or is longer than what waits for it: "
              "start every process with the same command and files",
              w.other, rank_));
        return state == 1;
      });
      const Clock::time_point now = Clock::now();
      if (waiting.size() != before) last = now;
      if (waiting.empty()) break;
      if (now - last > stall_limit()) throw_stalled(waiting);
      if (now - last < std::chrono::milliseconds(2)) sched_yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  [[noreturn]] void throw_stalled(const std::vector<Waiting>& waiting) const {
    std::vector<int> silent;
    for (const Waiting& w : waiting) silent.push_back(w.other);
    std::ranges::sort(silent);
    silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
    throw ProcessError(fmt::format(
        "[processes] {} {} been silent for {} s (NESTGRAD_STALL_LIMIT), and rank {} waited: stopped, overloaded or cut "
        "off. What was saved is intact; go on with --resume",
        ranks_text(silent), silent.size() == 1 ? "has" : "have",
        std::chrono::duration<double>(stall_limit()).count(), rank_));
  }

  const MpiModule& module_;
  int rank_, size_;
  std::string ended_;  // why nothing can be exchanged any more
};

struct Opened {
  const MpiModule* module = nullptr;  // null until MPI is about to start
  std::shared_ptr<MpiProcess> mpi;    // from its start until it is closed
  std::shared_ptr<Transport> transport;
  pid_t process = 0;  // which opened it: no child of it may close it
};
Opened& opened() {
  static Opened out;
  return out;
}

// What the program does not close is closed when it ends well: MPI takes a process that leaves without for one that failed. Of one
// that ends with an error mpirun ends the others; it does not wait for them. Where they cannot be waited for, the program
// ends as by any exception that no one catches.
void close_at_exit(int status, void*) noexcept {
  if (status == 0 && opened().process == getpid()) close_processes();
}

}  // namespace

std::chrono::milliseconds asked_stall_limit() {
  const std::string text = text_of("NESTGRAD_STALL_LIMIT");
  if (text.empty()) return std::chrono::minutes(10);
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc() || stop != end || !(seconds >= 0.1 && seconds <= 1e6))
    throw ConfigError(fmt::format(
        "[processes] NESTGRAD_STALL_LIMIT is '{}'; it must be a number of seconds from 0.1 to 1000000",
        text));
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

Launch launch() {
  Launch out;
  const std::string asked = text_of("NESTGRAD_MPI");
  if (!asked.empty() && asked != "none" && asked != "openmpi" && asked != "mpich")
    throw ConfigError(
        fmt::format("[processes] NESTGRAD_MPI is '{}'; it must be openmpi, mpich or none", asked));
  if (asked == "none") return out;
  if (const auto size = number_of("OMPI_COMM_WORLD_SIZE")) {
    out = {"openmpi", *size, number_of("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1),
           number_of("OMPI_COMM_WORLD_RANK").value_or(0),
           number_of("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0)};
  } else if (const auto of_pmi = number_of("PMI_SIZE")) {
    out = {"mpich", *of_pmi, number_of("MPI_LOCALNRANKS").value_or(1), number_of("PMI_RANK").value_or(0),
           number_of("MPI_LOCALRANKID").value_or(0)};
  } else if (!text_of("PMIX_RANK").empty()) {  // srun --mpi=pmix, which Open MPI understands
    out = {"openmpi", number_of("SLURM_NTASKS").value_or(2), number_of("SLURM_NTASKS_PER_NODE").value_or(1),
           number_of("PMIX_RANK").value_or(0), number_of("SLURM_LOCALID").value_or(0)};
  }
  if (!asked.empty()) out.mpi = asked;
  return out;
}

std::shared_ptr<Transport> open_processes() {
  Opened& o = opened();
  const Launch l = launch();
  // All processes that were started, or this one throws, at each call.
  const auto complete = [&] {
    if (o.mpi && l.size > 1 && o.mpi->size() != l.size)
      throw ProcessError(fmt::format(
          "[processes] {} processes were started, and {} sees {}: start them with the mpirun of the same MPI",
          l.size, o.module->library(), o.mpi->size()));
    return o.transport;
  };
  if (o.transport) return complete();
  const std::chrono::milliseconds limit = asked_stall_limit();
  if (l.mpi.empty() || (l.size == 1 && text_of("NESTGRAD_MPI").empty())) {
    o.transport = std::make_shared<OneProcess>();
    o.transport->set_stall_limit(limit);  // its slices are threads, which wait for each other
    return o.transport;
  }
  const MpiModule& module = opened_module(l);
  o.module = &module;
  const auto why = std::make_shared<std::string>();
  const bool started = returns_within(limit, [&module, why] {
    if (const char* problem = module.start()) *why = problem;
  });
  if (!started)
    throw ProcessError(fmt::format(
        "[processes] {} has not started within {} s (NESTGRAD_STALL_LIMIT): one of {} processes is stopped, "
        "overloaded or cut off, or was started without mpirun",
        l.mpi, std::chrono::duration<double>(limit).count(), l.size));
  if (!why->empty()) throw ProcessError(fmt::format("[processes] {}: {}", l.mpi, *why));
  o.transport = o.mpi = std::make_shared<MpiProcess>(module);
  o.transport->set_stall_limit(limit);
  o.process = getpid();
  on_exit(close_at_exit, nullptr);
  return complete();
}

bool among_others() { return opened().module && launch().size > 1; }

void end_all_processes(int code) {
  // A process that is cut off from its launcher would wait for its answer.
  constexpr std::chrono::seconds kAnswer{5};
  if (opened().mpi) returns_within(kAnswer, [module = opened().module, code] { module->abort(code); });
  std::_Exit(code);  // mpirun ends the others of a process that leaves in this way
}

void close_processes() {
  Opened& o = opened();
  if (!o.mpi) return;
  o.mpi->barrier();
  o.mpi->close();
  o.mpi = nullptr;  // nothing can be sent, and no one ended, from here on
  // MPI's own end may never come: MPICH 4.0.2 over UCX and TCP waits in one process for another that has gone on to wait
  // for all, where the two begin to end some milliseconds apart. Nothing is left to lose, so no one waits for long.
  constexpr std::chrono::milliseconds kEnd = std::chrono::minutes(1);
  const std::chrono::milliseconds limit = std::min(o.transport->stall_limit(), kEnd);
  if (!returns_within(limit, [module = o.module] { module->finish(); }))
    throw ProcessError(fmt::format(
        "[processes] all is done, but not all processes have ended: {} did not return from its end within {} s "
        "(NESTGRAD_STALL_LIMIT, at most a minute)",
        o.module->library(), std::chrono::duration<double>(limit).count()));
}

}  // namespace nestgrad

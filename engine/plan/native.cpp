#include "engine/plan/native.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "engine/core/error.h"
#include "engine/core/process_wide.h"
#include "engine/plan/loops_ahead.h"
#include "engine/plan/native_library.h"

namespace nestgrad {

namespace {

constexpr auto kLimit = std::chrono::seconds(60);

// Texts of one plan, compiled together.
struct Job {
  NativeText text;
  std::vector<std::string> flags;
  std::vector<std::shared_ptr<NativeCode>> codes;  // of the functions loop0, loop1, ..
};

// All that the process has compiled. Any thread may ask.
class Compiled {
 public:
  static Compiled& instance() { return ProcessWide<Compiled>::get(); }

  // Gives up what is under way; later plans of the ending program are not compiled in the background.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
      jobs_.clear();
    }
    changed_.notify_all();
    thread_ = std::jthread();
  }

  std::shared_ptr<NativeCode> code(const std::string& text) {
    const NativeTarget target = native_target();
    const std::lock_guard lock(mutex_);
    std::shared_ptr<NativeCode>& known = known_[{std::string(target.instruction_set), text}];
    if (!known) {
      known = std::make_shared<NativeCode>();
      known->function = loop_ahead(target, text);
      if (known->function) ++report_.ahead;
      else wanted_.emplace_back(text, known);
    }
    return known;
  }

  void compile(Compile mode) {
    if (mode == Compile::never) return;
    std::unique_lock lock(mutex_);
    Job job = job_of_wanted();
    if (mode == Compile::background) {
      if (job.codes.empty() || !start_thread(job)) return;
      jobs_.push_back(std::move(job));
      changed_.notify_all();
      return;
    }
    if (!job.codes.empty()) {
      ++running_;
      lock.unlock();
      run(job, {});
      lock.lock();
      --running_;
      changed_.notify_all();
    }
    wait(lock);  // another thread may have begun what this one wants
  }

  void wait() {
    std::unique_lock lock(mutex_);
    wait(lock);
  }

  NativeReport report() {
    const std::lock_guard lock(mutex_);
    return report_;
  }

 private:
  Job job_of_wanted() {
    const NativeTarget target = native_target();
    Job job;
    for (const std::string_view header : target.headers) job.text.head += header;
    job.text.head += "using namespace nestgrad;\n";
    for (const auto& [text, code] : wanted_) {
      job.text.own += "\n" + named(text, fmt::format("loop{}", job.codes.size()));
      job.codes.push_back(code);
    }
    if (target.flags.empty()) job.codes.clear();
    job.flags.assign(target.flags.begin(), target.flags.end());
    wanted_.clear();  // last: where memory is short they are wanted still
    return job;
  }

  void wait(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return jobs_.empty() && running_ == 0; });
  }

  // False: there is none for the job, as the program ends or, and then it has failed, the system starts none.
  bool start_thread(const Job& job) {
    if (has_ended_) return false;
    if (thread_.joinable()) return true;
    try {
      thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
    } catch (const std::system_error& e) {
      report_.failed += static_cast<int>(job.codes.size());
      report_.last_failure =
          fmt::format("the system starts no thread for the compiler: {}", e.code().message());
      return false;
    }
    return true;
  }

  // Whatever happens is told by report(), and nothing is thrown: others wait for the end of it.
  void run(const Job& job, const std::stop_token& stop) noexcept {
    const auto begin = std::chrono::steady_clock::now();
    NativeLibrary library;
    int found = 0;
    try {
      library = native_library(job.text, job.flags, kLimit, stop);
      for (std::size_t i = 0; i < job.codes.size(); ++i) {
        void* const function = library.symbol(fmt::format("loop{}", i));
        if (!function) continue;
        job.codes[i]->function.store(reinterpret_cast<NativeFunction>(function), std::memory_order_release);
        ++found;
      }
    } catch (const std::exception& e) {
      try {
        library.failure = e.what();
      } catch (const std::bad_alloc&) {
        library.failure = "no memory";  // so short that it needs none
      }
    }
    const std::lock_guard lock(mutex_);
    (library.from_cache ? report_.from_cache : report_.compiled) += found;
    report_.failed += static_cast<int>(job.codes.size()) - found;
    if (!library.failure.empty()) report_.last_failure = std::move(library.failure);
    report_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void work(const std::stop_token& stop) {
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return !jobs_.empty(); })) return;
        job = std::move(jobs_.front());
        jobs_.erase(jobs_.begin());
        ++running_;
      }
      run(job, stop);
      const std::lock_guard lock(mutex_);
      --running_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<NativeCode>> known_;
  std::vector<std::pair<std::string, std::shared_ptr<NativeCode>>> wanted_;
  std::vector<Job> jobs_;
  int running_ = 0;  // jobs that a thread works on
  NativeReport report_;
  bool has_ended_ = false;
  std::jthread thread_;
};

}  // namespace

namespace {
std::atomic<Compile>& the_default_compile() {
  static std::atomic<Compile> compile{Compile::never};
  return compile;
}
}  // namespace

Compile default_compile() {
  const char* const asked = std::getenv("NESTGRAD_COMPILE");
  if (!asked) return the_default_compile();
  const std::string_view mode = asked;
  if (mode == "never") return Compile::never;
  if (mode == "background") return Compile::background;
  if (mode == "now") return Compile::now;
  throw ConfigError(
      fmt::format("[compile] NESTGRAD_COMPILE is '{}'; it can be never, background or now", mode));
}

void set_default_compile(Compile compile) { the_default_compile() = compile; }

std::shared_ptr<NativeCode> native_code(const std::string& text) { return Compiled::instance().code(text); }
void compile_native(Compile mode) { Compiled::instance().compile(mode); }
void wait_for_compiler() { Compiled::instance().wait(); }
NativeReport native_report() { return Compiled::instance().report(); }

}  // namespace nestgrad

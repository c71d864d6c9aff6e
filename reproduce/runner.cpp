#include "reproduce/runner.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/core/error.h"
#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "reproduce/journal.h"

namespace nestgrad::reproduce {

namespace {

struct Job {
  std::string row;
  std::uint64_t seed;
};

std::vector<Job> jobs_of(const Results& results) {
  std::vector<Job> out;
  for (const std::uint64_t seed : results.seeds())
    for (const std::string& row : results.rows())
      if (!results.find(row, seed)) out.push_back({row, seed});
  return out;
}

void require_finite(const Measured& m) {
  const auto check = [](const std::string& name, double x) {
    if (!std::isfinite(x)) throw ValueError(fmt::format("{} is not finite ({})", name, x));
  };
  for (const auto& [name, x] : m.numbers) check(name, x);
  for (const auto& [name, curve] : m.curves)
    for (const double x : curve) check(name, x);
}

// Of those jobs, this process's; runs of one seed go to different processes.
std::vector<Job> own_jobs(const Results& results, const Transport& processes) {
  std::vector<Job> out;
  const std::vector<Job> all = jobs_of(results);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i % uz(processes.size()) == uz(processes.rank())) out.push_back(all[i]);
  return out;
}

// Ends a run that no one waits for any more, at the next progress that it tells.
struct Unwanted {};

// The runs, taken by several threads; what they found is taken from here by the thread that asked for them. Those that are not done when it
// is destroyed, by an error on its way, are not ended but given up.
class Pool {
 public:
  // models: RunnerOptions::models.
  Pool(const Results& results, std::vector<Job> jobs, int threads, std::string models)
      : jobs_(std::move(jobs)), models_(std::move(models)), done_(jobs_.size()) {
    working_ = std::min(threads, static_cast<int>(jobs_.size()));
    for (int i = 0; i < working_; ++i) threads_.emplace_back([this, &results] { work(results); });
  }
  ~Pool() {
    next_ = jobs_.size();
    is_over_ = true;
    for (std::thread& t : threads_) t.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // In runs: those that have ended count 1 each.
  double progress() const {
    double out = 0;
    for (const auto& f : done_) out += f.load();
    return out;
  }

  // What has ended since the last call, after waiting a moment for it. Once nothing goes on any more and all that has
  // ended was taken, throws what a run threw.
  std::vector<std::pair<Job, Measured>> take() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(200), [&] { return !ended_.empty() || working_ == 0; });
    if (ended_.empty() && working_ == 0 && error_) std::rethrow_exception(error_);
    return std::exchange(ended_, {});
  }

 private:
  void work(const Results& results) {
    const SingleThreadScope single;
    for (std::size_t i = next_++; i < jobs_.size(); i = next_++) {
      Measured m;
      const auto start = std::chrono::steady_clock::now();
      try {
        const Job& job = jobs_[i];
        const auto progress = [&](double f) {
          if (is_over_) throw Unwanted();
          done_[i] = std::min(f, 0.99);
        };
        m = results.experiment().run(
            {job.row, job.seed, results.settings(), progress,
             models_.empty() ? "" : models_ + "/" + model_folder_name(job.row, job.seed)});
        require_finite(m);
        m.clock["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      } catch (const ValueError& e) {
        m = {};
        m.failure = e.what();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        next_ = jobs_.size();
        break;
      }
      done_[i] = 1;
      const std::lock_guard lock(mutex_);
      ended_.emplace_back(jobs_[i], std::move(m));
      changed_.notify_one();
    }
    const std::lock_guard lock(mutex_);
    --working_;
    changed_.notify_one();
  }

  const std::vector<Job> jobs_;
  const std::string models_;
  std::vector<std::atomic<double>> done_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> is_over_{false};  // no one takes what is found any more
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<Job, Measured>> ended_;
  std::exception_ptr error_;
  int working_ = 0;  // threads
  std::vector<std::thread> threads_;
};

// What has ended at all processes since the last call, and the progress of all.
struct Ended {
  std::vector<std::pair<Job, Measured>> runs;
  double progress = 0;
};
Ended take_from_all(Pool& pool, const Results& asked, Transport& processes) {
  std::vector<std::pair<Job, Measured>> mine = pool.take();
  if (processes.size() == 1) return {std::move(mine), pool.progress()};
  Results here(asked.experiment(), asked.settings());
  for (auto& [job, measured] : mine) here.add(job.row, job.seed, std::move(measured));
  const std::string text = fmt::format("{:.17g}\n{}", pool.progress(), to_jsonl(here, {}));
  Ended out;
  for (const Bytes& part : processes.all_gather(std::as_bytes(std::span(text)))) {
    const std::string theirs(reinterpret_cast<const char*>(part.data()), part.size());
    const std::size_t line = theirs.find('\n');
    out.progress += std::stod(theirs.substr(0, line));
    const Results found = parse_jsonl(theirs.substr(line + 1), "what another process found").results;
    for (const std::string& row : found.rows())
      for (const std::uint64_t seed : found.seeds())
        if (const Measured* m = found.find(row, seed)) out.runs.push_back({{row, seed}, *m});
  }
  return out;
}

}  // namespace

std::string model_folder_name(const std::string& row, std::uint64_t seed) {
  std::string out;
  for (const char c : row) {
    const bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (kept) out += c;
    else if (c >= 'A' && c <= 'Z') out += static_cast<char>(c - 'A' + 'a');
    else if (!out.empty() && out.back() != '-') out += '-';
  }
  return fmt::format("{}{}{}", out, out.ends_with('-') ? "" : "-", seed);
}

void run_all(Results& results, const RunnerOptions& options) {
  OneProcess alone;
  Transport& processes = options.processes ? *options.processes : alone;
  const std::size_t all = results.rows().size() * results.seeds().size();
  const std::size_t asked_for = jobs_of(results).size(), known = all - asked_for;
  // The threads read settings and experiment of a copy, while runs are added to the original.
  const Results asked = results;
  Pool pool(asked, own_jobs(results, processes), options.jobs, options.models);
  std::size_t ended = 0;
  std::string last;
  while (ended < asked_for) {
    Ended now = take_from_all(pool, asked, processes);
    for (auto& [job, measured] : now.runs) {
      last = fmt::format("{}, seed {}", job.row, job.seed);
      if (measured.failed()) last += ": " + measured.failure;
      else if (measured.numbers.contains("loss"))
        last += fmt::format(": {:.4f}", measured.numbers.at("loss"));
      results.add(job.row, job.seed, std::move(measured));
      ++ended;
      if (options.keep) options.keep(results);
    }
    if (options.progress)
      options.progress(fmt::format("{} of {} runs{}{}", known + ended, all, last.empty() ? "" : "; ", last),
                       (static_cast<double>(known) + now.progress) / static_cast<double>(all));
  }
}

}  // namespace nestgrad::reproduce

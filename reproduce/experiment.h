// Experiment: a table of a paper, made again at a size that two cores can do, with error bars. It says, before anything
// is run, which rows it has, what one run of a row measures and what must come out of all of them:
//
//   Experiment{.name = "ascent", .title = .., .rows = [](const Settings&) { return {"descent", "ascent"}; },
//              .run = [](const Task& task) { return Measured{..}; }, .claims = {below("ascent", "descent", "loss", ..)},
//              .views = [](const Results& results) { return {..}; }}
//
// A run is one row with one seed. Rows are paired by seeds: runs of one seed see the same data in the same order, and
// what their models have in common starts from the same numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "look/report.h"

namespace nestgrad::reproduce {

enum class Extent : std::uint8_t { quick, full };
const char* name(Extent extent);  // "quick", "full"

inline constexpr std::uint64_t kHeldOutSeed =
    0x68656c64;  // of drawn data that no run is trained on: no seed of a run

struct Settings {
  Extent extent = Extent::quick;
  int seeds = 3;                 // runs of each row
  std::uint64_t first_seed = 0;  // their seeds: first_seed, first_seed + 1, ..
  std::string data;  // a file or folder, of the kind that Experiment::data says; empty: what it says besides
  bool full() const { return extent == Extent::full; }
  std::vector<std::uint64_t> all_seeds() const;
};
// ConfigError for seeds that hold kHeldOutSeed, whose runs would be trained on what they are tested with, or go beyond 2^64.
void check_seeds(const Settings& settings);

// What one run found. Every number is finite: a run that makes another has failed, and says where.
struct Measured {
  std::map<std::string, double> numbers;              // "loss" -> 1.98
  std::map<std::string, std::vector<double>> curves;  // "loss by position" -> one number a position
  std::map<std::string, double> clock;  // what depends on the machine ("tokens/s"); no part of the digest
  std::string failure;                  // empty: the run is finite
  bool failed() const { return !failure.empty(); }
  // std::out_of_range for a curve that the run does not have, or of another length.
  const std::vector<double>& curve(const std::string& name, std::size_t length) const;
};

struct Task {
  std::string row;
  std::uint64_t seed = 0;
  Settings settings;
  std::function<void(double fraction)> progress;  // of this run, in [0, 1]; cheap enough for every step
  std::string model_folder = {};  // the run's trained model is written there (keep_model); empty: nowhere
};

struct Experiment;

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();  // no run tells

// What is known of an experiment's runs: all of them, or some of a call that was stopped.
class Results {
 public:
  Results(const Experiment& experiment, Settings settings);

  const Experiment& experiment() const { return *experiment_; }
  const Settings& settings() const { return settings_; }
  const std::vector<std::string>& rows() const { return rows_; }
  std::vector<std::uint64_t> seeds() const;

  // Null for a run that is not known yet.
  const Measured* find(const std::string& row, std::uint64_t seed) const;
  // Null also for one that has failed.
  const Measured* finished(const std::string& row, std::uint64_t seed) const;
  // A number of a finished run; kUnknown where there is none. ConfigError as below.
  double number(const std::string& row, std::uint64_t seed, const std::string& number) const;
  void add(const std::string& row, std::uint64_t seed, Measured measured);
  bool complete() const { return known() == rows_.size() * seeds().size(); }
  std::size_t known() const;  // how many runs are, failed ones too

  // A number of a row's finished runs, in the order of their seeds. ConfigError for a number that a finished run
  // does not have.
  std::vector<double> of(const std::string& row, const std::string& number) const;
  // The same of two rows, of the seeds with which both are finished.
  std::pair<std::vector<double>, std::vector<double>> paired(const std::string& a, const std::string& b,
                                                             const std::string& number) const;
  // A curve of a row's finished runs, one for each seed.
  std::vector<std::vector<double>> curves(const std::string& row, const std::string& curve) const;
  // Of what depends on the machine: the median of a row's finished runs; NaN where none has it.
  double clock(const std::string& row, const std::string& number) const;

 private:
  const Experiment* experiment_;
  Settings settings_;
  std::vector<std::string> rows_;
  std::map<std::pair<std::string, std::uint64_t>, Measured> runs_;
};

// What the runs say of a claim. p: the chance of such numbers, or of more extreme ones, if the claim is not true;
// against: if its contrary is not. What is exact has 0 and 1. NaN: there are too few runs for a test.
struct Evidence {
  double p = 1, against = 1;
  std::string shown;  // "-0.129 +- 0.021 nats"
};

// What must come out, declared with the experiment.
struct DeclaredClaim {
  std::string text;  // "mini-batches lower the loss"
  std::function<Evidence(const Results&)> test;
  bool full_only = false;  // of rows that a quick run does not have
};

// What an experiment reads: what --data may name for it, and what it takes without.
enum class Data : std::uint8_t {
  drawn,       // nothing: it draws its own
  text,        // a file or folder of text; the Eigen headers
  digits,      // a folder with MNIST's test files; drawn characters
  characters,  // a folder of folders of PNG files, as Omniglot is; invented characters
};

struct Experiment {
  std::string name, title;
  std::string shows;                            // what it shows, in a sentence
  std::string source;                           // paper, table or section
  double quick_minutes = 1, full_minutes = 10;  // on two cores, about
  int quick_seeds = 3, full_seeds = 5;
  Data data = Data::text;
  bool keeps_models = false;  // runs heed Task::model_folder
  std::function<std::vector<std::string>(const Settings&)> rows;
  // Deterministic, in one thread: the numbers and curves depend on row, seed, settings and data alone.
  std::function<Measured(const Task&)> run;
  std::vector<DeclaredClaim> claims;
  // Tables of the paper beside ours, and pictures. What every page has (claims, all runs, failed ones) is not of these.
  std::function<std::vector<ReportView>(const Results&)> views;
};

// The names of rows that have one, in their order.
template <class Rows>
std::vector<std::string> names_of(const Rows& rows) {
  std::vector<std::string> out;
  for (const auto& row : rows) out.emplace_back(row.name);
  return out;
}

const std::vector<Experiment>& experiments();                 // all, in the order in which they are told
const Experiment& experiment_named(const std::string& name);  // ConfigError for an unknown one; lists them

}  // namespace nestgrad::reproduce

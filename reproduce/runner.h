// Does the runs of an experiment that are not known yet, some of them side by side, each in one thread: two runs of one
// thread each take less time than two threads take for one after the other, and give the same bits.
#pragma once

#include "engine/processes/transport.h"
#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

struct RunnerOptions {
  int jobs = 1;  // runs at a time, in each process
  // Those that share the runs; null: this one alone. All call run_all with the same results, and have all of them in the end.
  Transport* processes = nullptr;
  // Each run's trained model is written into a folder of its own in this one, as `models/row-SEED`; empty: nowhere.
  std::string models = {};
  // Called by the caller's thread only. fraction: of all runs, also of those that were known before.
  std::function<void(const std::string& text, double fraction)> progress;
  // After each run, with all that are known. What it throws ends run_all.
  std::function<void(const Results&)> keep;
};

// A seed of all rows before the next seed, so that a call that is stopped has whole tables of fewer seeds. An error of a
// run that is not a failure of its numbers (ValueError) is thrown on when those that are going on have ended.
void run_all(Results& results, const RunnerOptions& options);

// "V1 only the last layer" with seed 3 -> "v1-only-the-last-layer-3"
std::string model_folder_name(const std::string& row, std::uint64_t seed);

}  // namespace nestgrad::reproduce

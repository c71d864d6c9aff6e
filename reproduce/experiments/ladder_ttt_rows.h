// The rows of the experiment ladder-ttt: which learner each has, and how its network is trained.
#pragma once

#include "reproduce/language_runs.h"

namespace nestgrad::reproduce::ladder {

struct Row {
  std::string name;
  double perplexity = kUnknown;  // the paper's, Table 1
  enum class Learner : std::uint8_t { normalised, plain, ttt } learner = Learner::normalised;
  bool learnt_start = false, residual_norm = false, learnt_rate = false, mamba = false;
  std::int64_t mini_batch = ttt::Policy::kWholeSequence;
};

// Table 1, each row with what the ones before it have.
std::vector<Row> table_1();

// Figure 7: row 7 with these; its own 16 is the third of five.
inline const std::vector<std::int64_t> kMiniBatches{1, 4, 16, 64, ttt::Policy::kWholeSequence};
std::string name_of(std::int64_t mini_batch);

const std::vector<Row>& all_rows();           // of both
const std::string& rung(std::size_t number);  // the name of a row of Table 1, the first is 1

ttt::System system_of(const Row& row);
LanguageRun run_of(const Row& row, const Settings& settings);

}  // namespace nestgrad::reproduce::ladder

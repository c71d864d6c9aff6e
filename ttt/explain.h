// explain: what was found on a learner's trace, which form follows, and why not others,
// in words and with the lines of the learner's own text.
#pragma once

#include "ttt/slices.h"
#include "ttt/system.h"

namespace nestgrad::ttt {

struct Explanation {
  std::string model, loss, optimizer;
  std::vector<std::string> gates, unread_gates;  // of a System: their names; those that nothing reads
  Policy policy;
  FormPlan plan;
  std::vector<std::string> uses;    // "W1: %4 = matmul .."
  std::optional<SlicePlan> slices;  // if asked for
  std::string str() const;          // several lines
};

Explanation explain(const Learner& learner, const Weights& start, const Views& views,
                    const InnerLoopOptions& options);
// Gates of such a program on which no answer of its inner loop depends, and not its last state: misspelt, say.
std::vector<std::string> unread_gates(const SystemProgram& program);
// slices > 1: also how it goes along sequences that are cut into so many, sizes.time tokens in all.
Explanation explain(const System& system, const ProgramSizes& sizes,
                    FormChoice wanted = FormChoice::automatic, std::int64_t slices = 1);

}  // namespace nestgrad::ttt

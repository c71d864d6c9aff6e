// explain: what was found on a learner's trace, which form follows, and why not others,
// in words and with the lines of the learner's own text.
#pragma once

#include "ttt/system.h"

namespace nestgrad::ttt {

struct Explanation {
  std::string model, loss, optimizer;
  Policy policy;
  bool stops_gradients = false;  // the optimiser cuts the outer gradient on purpose
  FormPlan plan;
  std::vector<std::string> uses;  // "W1: %4 = matmul .."
  std::string str() const;        // several lines
};

Explanation explain(const Learner& learner, const Weights& start, const Views& views,
                    const InnerLoopOptions& options);
Explanation explain(const System& system, const ProgramSizes& sizes,
                    FormChoice wanted = FormChoice::automatic);

}  // namespace nestgrad::ttt

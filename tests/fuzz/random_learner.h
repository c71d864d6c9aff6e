// Random learners: a random model and an inner loss, which
// may have weights of its own, and hold or stop things.
#pragma once

#include "tests/fuzz/random_model.h"

namespace nestgrad::fuzz {

// A learner without its optimiser, to be made in any program.
struct RandomLearner {
  struct Made {
    ttt::Model model;
    std::function<Tensor(const ttt::Weights& w, Tensor k, Tensor v)> loss;
  };
  std::string text;                          // for people
  bool mixes = false;                        // tokens meet in f
  bool counts = false;                       // f makes a number of how many tokens there are
  bool smooth = true;                        // no kinks, nothing constant, no gradient that is stopped
  std::vector<RandomModel::Weight> weights;  // in the order of init()
  std::function<Made(const Params& params, std::int64_t heads)> make;
};

RandomLearner draw_learner(Draws& draws, std::int64_t in, std::int64_t out);

}  // namespace nestgrad::fuzz

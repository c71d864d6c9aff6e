// Random learners: a model of one to three layers and an inner loss. Weights are matrices and rows, used
// plain, transposed, twice, held, as gates, gains and biases, and in the loss alone.
#pragma once

#include "tests/fuzz/campaign.h"
#include "ttt/compose.h"

namespace nestgrad::fuzz {

// A model and a loss without an optimiser, to be made in any program.
struct RandomLearner {
  struct Weight {
    std::string name;
    ttt::WeightKind kind;
    std::int64_t in = 1, out = 1;  // of a row: 1 and its length
  };
  struct Made {
    ttt::Model model;
    std::function<Tensor(const ttt::Weights& w, Tensor k, Tensor v)> loss;
  };
  std::string text;             // for people
  bool mixes = false;           // tokens meet in f
  bool smooth = true;           // no kinks, and no gradient that is stopped
  std::vector<Weight> weights;  // in the order of init()
  std::function<Made(const Params& params, std::int64_t heads)> make;
};

RandomLearner draw_learner(Draws& draws, std::int64_t in, std::int64_t out);

}  // namespace nestgrad::fuzz

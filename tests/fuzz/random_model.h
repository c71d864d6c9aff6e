// Random models of one to three layers. Weights are matrices and rows, used plain, transposed, twice, held,
// as gates, gains and biases.
#pragma once

#include "tests/fuzz/campaign.h"
#include "ttt/compose.h"

namespace nestgrad::fuzz {

// So that numbers stay well conditioned where a norm meets zeros.
constexpr double kEps = 0.1;

struct RandomModel {
  struct Weight {
    std::string name;
    ttt::WeightKind kind;
    std::int64_t in = 1, out = 1;  // of a row: 1 and its length
  };
  std::string text;             // for people
  bool is_memory = false;       // one linear layer that learns
  bool mixes = false;           // tokens meet
  bool counts = false;          // it makes a number of how many tokens there are
  bool smooth = true;           // no kinks, and none that may be constant
  std::vector<Weight> weights;  // in the order of start
  std::function<ttt::Model(const Params& params, std::int64_t heads)> make;

  // A weight of this kind and shape, or an empty name.
  std::string found(ttt::WeightKind kind, std::int64_t in, std::int64_t out) const;
};

RandomModel draw_model(Draws& draws, std::int64_t in, std::int64_t out);

}  // namespace nestgrad::fuzz

// Random cases of an inner loop: a learner, its optimiser, a policy, gates and sizes, and the program in
// which they meet.
#pragma once

#include "engine/processes/group.h"
#include "engine/run/function.h"
#include "tests/fuzz/random_learner.h"
#include "ttt/inner_loop.h"

namespace nestgrad::fuzz {

// A number of an optimiser.
struct Number {
  enum class From { constant, gate, parameter } from = From::constant;
  double value = 1;
  std::string name;                              // of the gate or the parameter, which goes through a sigmoid
  bool per_feature = false;                      // one per input feature
  bool per_head = true;                          // of a parameter
  Tensor parameter(const Params& params) const;  // [heads, 1 or in, 1], or a scalar
  std::int64_t heads = 1, in = 1;
  std::string text() const;
};

struct Piece {
  enum class Kind {
    scale,
    momentum,
    nesterov,
    adam,
    muon,
    normalize,
    clip,
    leapfrog,
    soft_sign
  } kind = Kind::scale;
  Number number;  // of scale, momentum, nesterov and leapfrog
  ttt::Per per = ttt::Per::matrix;
  double size = 0.1;           // eps, or the norm to clip to
  ttt::QuinticSteps quintics;  // of muon
  std::string text() const;
};

struct Optimizer {
  std::vector<Piece> pieces;
  Number keep;
  bool keep_before = false;
  bool anchored = false;
  Number pull;  // towards the anchor
  ttt::Anchor anchor;
  enum class Norm { none, weight_norm, detached, prenorm } norm = Norm::none;
  double norm_eps = 0.05;
  bool smooth() const;
  ttt::InnerOptimizer make(const Params& params) const;
  std::string text() const;
};

// A gate is factor sigmoid(raw).
struct Gate {
  std::string name;
  double factor = 1;
  bool per_feature = false;
  std::function<Tensor(Tensor raw)> shape() const;
};

struct LoopCase {
  RandomLearner learner;
  Optimizer optimizer;
  ttt::Policy policy;
  std::vector<Gate> gates;
  bool position = false;
  std::int64_t batch = 1, heads = 1, time = 1, in = 1, out = 1;
  std::int64_t asked = 0;   // tokens of q; 0: as many as there are keys
  std::vector<int> zeros;   // tokens whose q, k and v are zero
  std::uint64_t seed = 0;   // of the numbers
  std::int64_t block = 64;  // as in InnerLoopOptions
  int checkpoint_every = 0;

  // So that a chunk's step is small.
  double rate() const { return 0.4 / (1.0 + static_cast<double>(chunk())); }
  std::int64_t chunk() const { return policy.chunk_of(time); }
  bool per_chunk() const { return policy.update == ttt::Policy::Update::per_chunk; }
  // Can it answer token by token?
  bool causal() const {
    return policy.causal() && policy.chunk != ttt::Policy::kWholeSequence &&
           !(learner.mixes && policy.chunk > 1);
  }
  bool learns(const std::string& weight) const;
  bool smooth() const;  // no kinks, nothing constant, no gradient that is stopped
  std::unique_ptr<ttt::Learner> make(const Params& params) const;
};
LoopCase draw_loop_case(Draws& draws);

// A case in a program.
struct TracedCase {
  const LoopCase& loop;
  Params params;
  const ttt::Learner& learner;
  ttt::Weights start;  // [batch, heads, ..]
  ttt::Views views;
  std::vector<Tensor> inputs;  // q, k, v, raw gates, position, then the parameters
};
// The program has this many tokens; fn makes its outputs. ranks: those are a slice of them, one for each rank.
Function program(const LoopCase& loop, std::int64_t time,
                 const std::function<std::vector<Tensor>(const TracedCase&)>& fn,
                 const ProcessGroup* ranks = nullptr);
// Numbers for the inputs of a program of the whole sequence.
std::vector<Array> numbers_for(const LoopCase& loop, const Function& program);

}  // namespace nestgrad::fuzz

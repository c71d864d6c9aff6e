// Learner: a small model that is trained while the outer model reads. It is written as forward and loss only;
// its gradient, and every form in which it can be run along a sequence, is derived from its trace.
//
// Rules for a learner's code: address axes from the end (-2 tokens, -1 features): batch and heads come before
// them and are never seen. The loss is per token, [.., tokens, 1], never summed or averaged over tokens (the
// policy does that). Tokens must not mix, unless the policy makes one step a chunk and reads whole chunks.
#pragma once

#include "ttt/optimizer.h"
#include "ttt/policy.h"

namespace nestgrad::ttt {

// While it lives, new nodes carry the line that writes them: what a learner's code emits is named by its own
// lines, not by that of the layer which runs it.
class OwnLines : ContextGuard {
 public:
  OwnLines() { context().emit.loc.reset(); }
};

class Learner {
 public:
  virtual ~Learner() = default;
  // First fast weights, those that the inner loop trains: matrices [heads, in, out], rows [heads, 1, dim].
  virtual Weights init() const = 0;
  // f(x; W): rows [.., tokens, in] -> rows [.., tokens, out].
  virtual Tensor predict(const Weights& w, Tensor x) const = 0;
  // Self-supervised loss per token, [.., tokens, 1]. Default: 1/2 |f(k; W) - v|^2.
  virtual Tensor loss(const Weights& w, Tensor k, Tensor v) const;
  // Gates of the optimiser that the learner makes itself, one number a token each; their names, and the rows
  // [.., tokens, 1] of a chunk. Like its gradients they are made of the weights that the chunk found. place
  // [tokens, 1]: 0, 1, .. in the chunk. Tokens must not mix.
  virtual std::vector<std::string> own_gates() const { return {}; }
  virtual Gates gates(const Weights&, Tensor, Tensor, Tensor) const { return {}; }  // w, k, v, place
  // What a step does. Default: W <- W - g, where g is the gradient times its token's rate.
  virtual InnerOptimizer optimizer() const { return {}; }
  // For people: what f and the loss are. An empty loss: explain() says where loss() makes it.
  struct Description {
    std::string model, loss;
  };
  virtual Description describe() const { return {"f(x; W)", ""}; }
};

// What losses that compare feature by feature want: ShapeError unless the prediction f(k) and v have as many features.
void check_features(Tensor predicted, Tensor v);
// Is it a loss as Learner::loss itself makes it, 1/2 |f(k) - v|^2?
bool is_default_loss(Tensor loss);

}  // namespace nestgrad::ttt

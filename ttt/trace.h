// LearnerTrace: a learner's function (its loss, or its prediction) as a closed graph, and what can be proved about it:
// tokens, sequences and heads are independent, and every fast weight is used in a way whose gradient factorises.
#pragma once

#include <memory>

#include "ttt/learner.h"

namespace nestgrad::ttt {

// One place where a matrix weight meets rows: rows x W, or rows x W'.
struct Use {
  NodeId node;           // the matmul
  std::size_t weight;
  NodeId rows;           // its first operand
  bool transposed;       // W' is used
};

class LearnerTrace {
 public:
  // Traced on rows [lead.., tokens, dim] and weights of the shapes given (all leading axes present). What else the
  // learner mentions becomes a capture.
  static LearnerTrace of_loss(const Learner& learner, const Weights& weights, const Spec& k, const Spec& v);
  static LearnerTrace of_predict(const Learner& learner, const Weights& weights, const Spec& x);

  const std::vector<Use>& uses() const { return uses_; }
  std::size_t weights() const { return weights_.size(); }
  WeightKind kind(std::size_t weight) const { return kinds_[weight]; }

  // What a re-emission puts in place of the fast weights.
  struct Rewrite {
    std::function<Tensor(const Use& use, Tensor rows)> use;        // of a matrix weight
    std::function<Tensor(std::size_t weight)> spread;              // a row weight, [.., tokens, dim]
  };
  // Re-emits the function on other rows of the same shapes; returns its output.
  Tensor inlined(std::span<const Tensor> rows, const Rewrite& rewrite) const;

 private:
  LearnerTrace(std::string_view what, const Weights& weights, const std::vector<Spec>& rows,
               const std::function<Tensor(const Weights&, const std::vector<Tensor>&)>& fn);
  void find_uses();
  void prove_independence() const;

  std::string what_;
  std::shared_ptr<Graph> graph_;
  std::vector<NodeId> weights_, rows_;
  std::vector<std::string> names_;
  std::vector<WeightKind> kinds_;
  std::vector<Use> uses_;
  NodeId out_ = -1;
};

}  // namespace nestgrad::ttt

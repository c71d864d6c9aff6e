// LearnerTrace: a learner's function (its loss, or its prediction) as a closed graph, and what can be proved
// about it: tokens, sequences and heads are independent (FormError if not: the inner loop would have no
// meaning), and every fast weight is used in a way whose gradient factorises (if not, there is an obstacle to
// the dual form).
#pragma once

#include <memory>

#include "autograd/flow.h"
#include "ttt/learner.h"

namespace nestgrad::ttt {

// One place where a matrix weight meets rows: rows x W, or rows x W'.
struct Use {
  NodeId node;  // the matmul
  std::size_t weight;
  NodeId rows;      // its first operand
  bool transposed;  // W' is used
};

// ShapeError unless every fast weight has the leading axes of rows [lead.., tokens, dim].
void require_fit(std::string_view what, const Weights& weights, const Spec& rows);

class LearnerTrace {
 public:
  // Traced on rows [lead.., tokens, dim] and weights of the shapes given (all leading axes present). What
  // else the learner mentions becomes a capture.
  static LearnerTrace of_loss(const Learner& learner, const Weights& weights, const Spec& k, const Spec& v);
  static LearnerTrace of_predict(const Learner& learner, const Weights& weights, const Spec& x);

  // The first use of a fast weight that does not factorise, in words; empty if all do.
  const std::string& obstacle() const { return obstacle_; }

  // What a re-emission puts in place of the fast weights.
  struct Rewrite {
    std::function<Tensor(const Use& use, Tensor rows)> use;  // of a matrix weight
    std::function<Tensor(std::size_t weight)> spread;        // a row weight, [.., tokens, dim]
  };
  // Re-emits the function on other rows of the same shapes; returns its output. FormError if there is an
  // obstacle.
  Tensor inlined(std::span<const Tensor> rows, const Rewrite& rewrite) const;

 private:
  LearnerTrace(std::string_view what, const Weights& weights, const std::vector<Spec>& rows,
               const std::function<Tensor(const Weights&, const std::vector<Tensor>&)>& fn);
  std::vector<std::pair<NodeId, Flow>> token_seeds() const;
  void prove_independence() const;
  void find_uses();

  std::string what_, obstacle_;
  std::shared_ptr<Graph> graph_;
  std::vector<NodeId> weights_, rows_;
  std::vector<std::string> names_;
  std::vector<WeightKind> kinds_;
  std::vector<Use> uses_;
  NodeId out_ = -1;
};

}  // namespace nestgrad::ttt

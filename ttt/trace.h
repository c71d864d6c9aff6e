// LearnerTrace: a learner's function (its loss, or its prediction) as a closed graph, and what can be proved
// about it: sequences and heads are independent (if not, only the primal form runs, and only when asked for); tokens are
// independent (if not, only whole chunks can be learnt from and read); and every fast weight is used in a way
// whose gradient factorises (if not, there is an obstacle to the dual form).
#pragma once

#include <memory>

#include "engine/plan/flow.h"
#include "ttt/learner.h"

namespace nestgrad::ttt {

// One place where a matrix weight meets rows: rows x W, or rows x W'.
struct Use {
  NodeId node;  // the matmul
  std::size_t weight;
  NodeId rows;      // its first operand
  bool transposed;  // W' is used
  bool held;        // a constant of the inner gradient (Weights::held)
};

// Does y's expression mention x? (False if they are of different graphs.)
bool mentions(Tensor y, Tensor x);

// ShapeError unless every fast weight has the leading axes of rows [lead.., tokens, dim].
void require_fit(std::string_view what, const Weights& weights, const Spec& rows);

// FormError unless an inner loss of rows [lead.., tokens, dim] is one number per token, [lead.., tokens, 1].
void require_loss_per_token(Tensor loss, const Shape& rows);

class LearnerTrace {
 public:
  // Traced on rows [lead.., tokens, dim] and weights of the shapes given (all leading axes present). What
  // else the learner mentions becomes a capture.
  static LearnerTrace of_loss(const Learner& learner, const Weights& weights, const Spec& k, const Spec& v);
  static LearnerTrace of_predict(const Learner& learner, const Weights& weights, const Spec& x);

  bool is_of(const std::vector<Spec>& rows) const;  // traced on rows of these shapes?

  // Where sequences or heads meet, and where tokens do, in words; empty if they are independent.
  const std::string& members() const { return members_; }
  const std::string& mixing() const { return mixing_; }
  void require_independence() const;  // FormError

  // The first use of a fast weight that does not factorise, in words; empty if all do.
  const std::string& obstacle() const { return obstacle_; }
  // How a fast weight is used: the nodes, in words, one line each.
  std::vector<std::string> uses_of(std::size_t weight) const;
  const std::vector<Use>& uses() const { return uses_; }
  NodeId output() const { return out_; }
  Tensor output_tensor() const { return graph_->tensor(out_); }
  std::string describe_output() const { return describe(output_tensor()); }

  // Why this trace and that of the same text on other rows are not the same computation (ttt/one_text.h), or tokens or members meet
  // in one of them alone. Empty if they are.
  std::string why_differs(const LearnerTrace& other) const;

  // What a re-emission puts in place of the fast weights.
  struct Rewrite {
    std::function<Tensor(const Use& use, Tensor rows)> use;       // of a matrix weight
    std::function<Tensor(std::size_t weight, bool held)> spread;  // a row weight, [.., tokens, dim]
  };
  // Re-emits the function on other rows of the same shapes, under the scope of the caller; returns its
  // output. FormError if there is an obstacle, or if tokens mix.
  Tensor inlined(std::span<const Tensor> rows, const Rewrite& rewrite) const;

 private:
  LearnerTrace(std::string_view what, const Weights& weights, const std::vector<Spec>& rows,
               const std::function<Tensor(const Weights&, const std::vector<Tensor>&)>& fn);
  std::vector<std::pair<NodeId, AxisFlow>> token_seeds() const;
  void prove_independence();
  void find_uses();

  std::string what_, scope_, obstacle_, members_, mixing_;  // scope_: where it was traced
  std::shared_ptr<Graph> graph_;
  std::vector<NodeId> weights_, held_, rows_;
  std::vector<std::string> names_;
  std::vector<WeightKind> kinds_;
  std::vector<Use> uses_;
  NodeId out_ = -1;
};

}  // namespace nestgrad::ttt

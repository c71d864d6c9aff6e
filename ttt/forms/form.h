// Form: a way to run a learner through a block of a sequence. All forms of a learner give the same numbers;
// they differ in what they materialise and in what they have to prove. Shapes: q, k, v [batch, heads, tokens,
// dim]; weights [batch, heads, in, out]; gates [batch, heads, tokens, 1 or in].
#pragma once

#include <memory>

#include "ttt/learner.h"

namespace nestgrad::ttt {

// The fast weights at one moment, and what their optimiser carries besides.
struct State {
  Weights weights;
  std::vector<std::vector<FastWeight>> slots;  // of each weight

  static State start(const Learner& learner, const Weights& weights);
  std::vector<Tensor> of(std::size_t weight) const;  // the weight, then its slots
  std::vector<Tensor> flat() const;
  State with(std::span<const Tensor> flat) const;
  std::vector<std::string> names() const;  // of flat()
};

struct Block {
  Tensor q, k, v;
  Gates gates;
  Tensor position;             // [tokens], or undefined: see Views
  bool writes = true;          // per_chunk: does it learn
  std::vector<Tensor> offset;  // per weight, or empty: added to the weights where the gradient is taken
  Tensor earlier;  // primal: position of the token before each, if its chunk did not begin with this block
  std::int64_t tokens() const { return k.dim(-2); }
};

struct BlockResult {
  Tensor output;  // [batch, heads, tokens, out]
  State next;
  State unplaced;  // primal: `next` as it would be without position rates
  // If asked for, [batch, heads, tokens, 1]: loss at `first`, before and after the token's own step.
  std::vector<Tensor> losses;
};

// automatic: the fastest valid one for the shape (ttt/analysis.h).
enum class FormChoice : std::uint8_t {
  automatic,
  primal,          // every token's weights materialised, every gradient taken by grad: the reference
  dual,            // gradients as outer products, weights applied as masked attention
  parallel,        // dual over blocks of any length: no factor depends on the fast weights
  wy,              // online, one solve per block: the factor depends on the weights linearly (delta rule)
  chunk_parallel,  // a step per chunk: all chunks' gradients at once, the weights as a running sum
};
std::string_view name(FormChoice form);
FormChoice form_named(std::string_view name);  // ConfigError for an unknown one; lists them

struct FormOptions {
  const Learner& learner;
  const Policy& policy;
  Weights first;  // for losses[0]; empty: losses are not wanted
};

// Gate rows as columns: of a block with one token, [.., 1,
// g] -> [.., g, 1]; of a chunk, their mean over its tokens.
Gates columns_of(const Gates& rows);
Gates chunk_gates(const Gates& rows);

// What a form works out from the gates alone, for many blocks
// at once: tensors with the leading axes of the gates.
class Prepared {
 public:
  virtual ~Prepared() = default;
  virtual std::vector<Tensor*> tensors() = 0;
  virtual std::unique_ptr<Prepared> clone() const = 0;
};

// What multiplies the gradients of a weight, [.., tokens, 1]; undefined: nothing.
Tensor rate_of(const Policy& policy, const Gates& gates, const FastWeight& weight);

class Form {
 public:
  explicit Form(const FormOptions& options)
      : learner_(options.learner),
        policy_(options.policy),
        optimizer_(learner_.optimizer()),
        first_(options.first) {}
  virtual ~Form() = default;
  // gates: rows [lead.., tokens, ..]; position: [tokens] or undefined. May be null.
  virtual std::unique_ptr<Prepared> prepare(const State&, const Gates&, const Shape& /*lead*/,
                                            std::int64_t /*tokens*/, Tensor /*position*/) const {
    return nullptr;
  }
  virtual BlockResult run(const State& state, const Block& block, const Prepared* prepared) const = 0;
  // The weights where the block's gradients are taken, before a policy makes constants of them.
  std::vector<Tensor> points(const State& state, const Block& block) const;
  Tensor rate_of(const Gates& gates, const FastWeight& weight) const {
    return ttt::rate_of(policy_, gates, weight);
  }

 protected:
  bool tracking() const { return first_.size() > 0; }
  // Where a block's gradients are taken, with policy and offset heeded.
  Weights gradient_point(const State& state, const Block& block) const;
  const Learner& learner_;
  const Policy& policy_;
  const InnerOptimizer optimizer_;
  const Weights first_;
};

std::unique_ptr<Form> make_primal(const FormOptions& options);
std::unique_ptr<Form> make_dual(const FormOptions& options);  // also the parallel form
std::unique_ptr<Form> make_wy(const FormOptions& options);
std::unique_ptr<Form> make_per_chunk(const FormOptions& options, bool factored);

}  // namespace nestgrad::ttt

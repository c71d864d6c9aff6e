// Form: a way to run a learner through one mini-batch. All forms give the same numbers; they differ in what
// they materialise. Gradients are taken at the mini-batch's first weights W (Sun et al. 2024, section 2.4),
// and the weights that token t reads are
//
//   W_t = W + sum over tokens s of z[t, s] G_s,      G_s = gradient of token s's loss at W.
//
// z carries sign, rates and mask: plain gradient descent that reads after it writes has z = -tril(eta).
// Shapes: k, q [batch, heads, tokens, dim]; weights [batch, heads, in, out]; z [batch, heads, queries,
// tokens].
#pragma once

#include "ttt/learner.h"

namespace nestgrad::ttt {

// The gradients of a mini-batch, one entry per weight and use. Tokens are axis -2 of a and b (dual form), or
// the gradient is whole (primal form: a undefined, b [batch, heads, tokens, in * out]).
struct Gradient {
  std::size_t weight;
  Tensor a;  // [.., tokens, in]: G_s = a_s' b_s; undefined: G_s = b_s
  Tensor b;  // [.., tokens, out]
};
using Gradients = std::vector<Gradient>;

class Form {
 public:
  explicit Form(const Learner& learner) : learner_(learner) {}
  virtual ~Form() = default;
  virtual std::string_view name() const = 0;
  virtual Gradients gradients(const Weights& w, Tensor k, Tensor v) const = 0;
  // f(q_t; W_t) for each query row t.
  virtual Tensor predict(const Weights& w, const Gradients& g, Tensor z, Tensor q) const = 0;
  // loss(k_t, v_t; W_t) for each row t.
  virtual Tensor loss(const Weights& w, const Gradients& g, Tensor z, Tensor k, Tensor v) const = 0;
  // W + sum over s of z_last[s] G_s; z_last [.., 1, tokens].
  virtual Weights end_state(const Weights& w, const Gradients& g, Tensor z_last) const = 0;

 protected:
  const Learner& learner_;
};

// Per-token weights materialised: the reference. The learner is given one token at a time, so nothing needs
// to be proved about tokens; a text that mixes them (a mean over tokens, say) is run on each alone.
class PrimalForm : public Form {
 public:
  using Form::Form;
  std::string_view name() const override { return "primal"; }
  Gradients gradients(const Weights& w, Tensor k, Tensor v) const override;
  Tensor predict(const Weights& w, const Gradients& g, Tensor z, Tensor q) const override;
  Tensor loss(const Weights& w, const Gradients& g, Tensor z, Tensor k, Tensor v) const override;
  Weights end_state(const Weights& w, const Gradients& g, Tensor z_last) const override;

 private:
  Tensor loss_of(const Weights& w, Tensor k, Tensor v) const;
};

// Derived from the learner's trace: the gradient of rows x W is an outer product, so the updated weights are
// applied as a masked attention product and never materialised. FormError, naming node and weight, if the
// trace does not allow it.
class DualForm : public Form {
 public:
  using Form::Form;
  std::string_view name() const override { return "dual"; }
  Gradients gradients(const Weights& w, Tensor k, Tensor v) const override;
  Tensor predict(const Weights& w, const Gradients& g, Tensor z, Tensor q) const override;
  Tensor loss(const Weights& w, const Gradients& g, Tensor z, Tensor k, Tensor v) const override;
  Weights end_state(const Weights& w, const Gradients& g, Tensor z_last) const override;
};

// automatic: dual if it can be derived, else primal; a learner that mixes tokens, sequences or heads is a
// FormError.
enum class FormChoice : std::uint8_t { automatic, primal, dual };

// Why the dual form of this learner cannot be derived on such weights and rows; empty if it can.
std::string dual_obstacle(const Learner& learner, const Weights& w, Tensor k, Tensor v);

// The form asked for.
std::unique_ptr<Form> make_form(const Learner& learner, FormChoice choice, const Weights& w, Tensor k,
                                Tensor v);

}  // namespace nestgrad::ttt

// InnerOptimizer: what one inner step does to a fast weight, given its gradient. A value, composed of pieces
// in the order in which they act:
//
//   InnerOptimizer().momentum(gate("eta")).keep(gate("forget"))          Titans (Behrouz et al. 2024)
//   InnerOptimizer().momentum(gate("momentum")).muon().weight_norm()     LaCT (Zhang et al. 2025)
//
// It is written in ops on one weight [.., in, out] and addresses axes from the end. Whether a step is linear
// in the state, and with which coefficients, is found on its trace (ttt/forms/law.h): nothing here says so.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ttt/weights.h"

namespace nestgrad::ttt {

// Per-token numbers that steer the inner loop, by name. In a sequence [batch, heads, time, 1], or one per
// input feature, [batch, heads, time, in]; an optimiser sees those of one step as columns, [.., 1, 1] or [..,
// in, 1]. "rate" multiplies every token's gradient. A name with a weight's behind it is for that weight alone:
// "rate.W1", "forget.W1". Where a weight has both, "forget" and "forget.W1", their product counts.
using Gates = std::map<std::string, Tensor>;

// A number that an optimiser needs: a constant, a gate (or what is made of one), or an outer parameter (a column
// [.., 1, 1]).
struct Hyper {
  Hyper(double v);  // ConfigError for what is not a number
  Hyper(Tensor t);  // GraphError for a tensor that names nothing
  static Hyper gate(std::string name);  // ConfigError for no name
  // What `fn` makes of a gate's columns, in words: decay = gate("dt", "exp(-A dt)", ..).
  static Hyper gate(std::string name, std::string text, std::function<Tensor(Tensor)> fn) {
    require_function("gate", "what is made of the gate", fn);
    Hyper h = gate(std::move(name));
    h.text = std::move(text);
    h.of_gate = std::move(fn);
    return h;
  }
  Tensor at(const Gates& gates, Tensor like) const;  // ConfigError for a gate that is not given
  bool is_one() const { return !tensor.defined() && gate_name.empty() && value == 1; }
  std::string str() const;

  double value = 0;
  Tensor tensor;
  std::string gate_name, text;
  std::function<Tensor(Tensor)> of_gate;
};
inline Hyper gate(std::string name) { return Hyper::gate(std::move(name)); }
inline Hyper gate(std::string name, std::string text, std::function<Tensor(Tensor)> fn) {
  return Hyper::gate(std::move(name), std::move(text), std::move(fn));
}

// Coefficients of the quintic iteration X <- a X + (b A + c A A) X, A = X X', one entry per step.
using QuinticSteps = std::vector<std::array<double, 3>>;
QuinticSteps muon_published(int steps = 5);  // (3.4445, -4.7750, 2.0315) at every step (Jordan et al. 2024)
QuinticSteps muon_tuned();                   // five steps with coefficients of their own (LaCT)

// X / (|X| + eps) driven towards an orthogonal matrix; the last two axes are a matrix.
// Where X has no part the derivative is the product of all a, about 500 for five steps, and in a gradient
// most of it cancels: f32 leaves three digits of a meta-gradient. in_f64: the steps are made in f64, whatever
// X is.
Tensor orthogonalize(Tensor x, const QuinticSteps& steps, double eps = 1e-7, bool in_f64 = false);

// The gates as one weight has them: "forget" is then the product of "forget" and "forget.<weight>", or the one
// of them that is given.
Gates gates_of(const std::string& weight, const Gates& gates);

// What a norm is taken over.
enum class Per : std::uint8_t {
  column,  // the `in` axis: one norm per output unit; of a row each number is its own
  matrix,  // the whole weight
  all,     // all weights together
};

// A node of a step, with the piece that it belongs to: "%8 = square .. in 'weight norm'".
std::string describe_step(Tensor t);

// What the pull of elastic weight consolidation (Kirkpatrick et al. 2017, equation 3) is weighted with, and whether the
// anchor moves, as in elastic test-time training.
struct Anchor {
  // F = 1, with which the step stays linear; or > 0: an estimate of the Fisher information's diagonal, the mean of
  // squared gradients, F <- fisher_memory F + (1 - fisher_memory) g^2, of each step's gradient with its rates, from
  // 0. The pull heeds the step's own gradient.
  double fisher_memory = 0;
  double follow = 0;  // after the step, anchor <- anchor + follow (W - anchor); 0: it stays
};

class InnerOptimizer {
 public:
  InnerOptimizer() = default;  // W <- W - g
  // Moving copies: one that was moved from would be another optimiser.
  InnerOptimizer(const InnerOptimizer&) = default;
  InnerOptimizer& operator=(const InnerOptimizer&) = default;
  // ---- on the gradient, in the order of the calls; what is over all weights (Per::all) acts before all others ----
  InnerOptimizer& scale(Hyper factor);
  // m <- beta m + g, g <- m; nesterov: g <- g + beta m.
  InnerOptimizer& momentum(Hyper beta, bool nesterov = false);
  // Kingma and Ba 2015 without bias correction; eps inside the root, so that zero gradients have derivatives.
  InnerOptimizer& adam(double beta1 = 0.9, double beta2 = 0.999, double eps = 1e-8);
  // Of matrices; a row's gradient stays as it is, as a row does under weight_norm and prenorm.
  InnerOptimizer& muon(QuinticSteps steps = muon_published(), double eps = 1e-7,
                       bool in_f64 = false);       // see orthogonalize
  InnerOptimizer& normalize(Per per, double eps);  // g / (|g| + eps)
  InnerOptimizer& clip(Per per, double most);      // g min(1, most / |g|)
  // A piece of one's own: gradient and slots in, gradient and
  // slots out. Slots start at zero, in the weight's shape.
  using Piece = std::function<Tensor(Tensor g, std::span<Tensor> slots, const Gates& gates)>;
  InnerOptimizer& piece(std::string name, Piece fn, std::vector<std::string> slots = {});

  // ---- on the weight: W <- keep W - g ----
  // Forget gate, or 1 - weight decay. before_gradient: the gradient is taken at keep W (gated delta rule), where W are the
  // chunk's first weights. A gate of each token's own moves that point for each token, and so wants chunks of one token, or
  // a step per chunk, which takes its mean; a constant or an outer parameter moves it for all tokens alike.
  InnerOptimizer& keep(Hyper factor, bool before_gradient = false);
  // A pull towards the anchor, where the weight started: W <- .. - strength F (W - anchor). It acts beside the
  // gradient, not through momentum or Muon.
  InnerOptimizer& anchor(Hyper strength, Anchor options = {});
  // W <- W / (|W| + eps) |W_start| per column after each step. detached: |W_start| carries no gradient.
  InnerOptimizer& weight_norm(double eps = 1e-5, bool detached = false);
  // The step is made on an unnormalised master copy, of which the weight is the normalised reading.
  InnerOptimizer& prenorm(double eps = 1e-5);

  // ---- what the forms ask ----
  // Values that are carried besides the weight, with what they start from.
  std::vector<FastWeight> slots(const FastWeight& w) const;
  // Where the gradient is taken; state[0] is the weight, then the slots.
  Tensor gradient_point(std::span<const Tensor> state, const Gates& gates, const FastWeight& weight) const;
  // Does each token's own gate move it?
  bool moves_gradient_point_by_token() const { return keep_first_ && !keep_.gate_name.empty(); }
  // Gradients of all weights, before each weight's own step (Per::all).
  std::vector<Tensor> joint(std::vector<Tensor> gradients) const;
  bool stops_gradients() const { return detached_; }
  bool couples_weights() const { return !joint_.empty(); }
  // The state after one step. weight: its name and kind; its value is in state. moved: becomes what the weight has moved
  // by, in all its digits, of which the difference of the two weights keeps few where a step is small.
  std::vector<Tensor> step(std::span<const Tensor> state, Tensor gradient, const Gates& gates,
                           const FastWeight& weight, Tensor* moved = nullptr) const;
  std::vector<std::string> gates() const;  // names of the gates that it needs
  bool has_own_pieces() const { return has_own_pieces_; }  // which may read any gate
  std::string str() const;

 private:
  struct Part {
    std::string name;
    std::vector<std::string> slots;
    std::function<Tensor(Tensor g, std::span<Tensor> slots, const Gates& gates, WeightKind kind)> fn;
  };
  Tensor normalised(Tensor w, Tensor norm) const;
  Tensor pull(std::span<Tensor> slots, Tensor w, Tensor gradient, const Gates& gates) const;
  enum class Norm : std::uint8_t { none, after, master };
  void need(const Hyper& h);
  void set_norm(Norm norm, double eps);  // ConfigError if there is one

  std::vector<Part> parts_;
  std::vector<std::function<std::vector<Tensor>(std::vector<Tensor>)>> joint_;
  std::vector<std::string> joint_names_, gates_;
  Hyper keep_{1.0}, pull_{0.0};
  Anchor anchor_;
  bool anchored_ = false, keeps_ = false;
  bool keep_first_ = false;
  bool has_own_pieces_ = false;
  Norm norm_ = Norm::none;
  bool detached_ = false;
  double norm_eps_ = 0;
};

}  // namespace nestgrad::ttt

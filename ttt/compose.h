// The pieces of a learner as values that can be swapped: a model f(x; W), an inner loss, an inner optimiser
// (and, where it is run, a policy). A learner is their composition:
//
//   Composed learner(swiglu(params, {.heads = 4, .in = 64, .hidden = 128, .out = 64}), inner_product(),
//                    InnerOptimizer().momentum(gate("momentum")).muon().weight_norm());
#pragma once

#include "ttt/learner.h"
#include "ttt/params.h"

namespace nestgrad::ttt {

// f(x; W): rows [.., tokens, in] -> rows [.., tokens, out], with the weights that it starts from.
struct Model {
  std::string text;  // the formula, for people
  Weights start;     // [heads, in, out] and [heads, 1, dim]
  std::function<Tensor(const Weights& w, Tensor x)> f;
};

struct ModelSizes {
  std::int64_t heads = 1, in = 0, hidden = 0, out = 0;
  std::int64_t rank = 0;  // swiglu: > 0: each weight starts as a product of two thin outer parameters
};

struct LinearOptions {
  bool bias = false;
  bool residual_norm = false;  // x + LN(x W + b), in == out
};
Model linear(const Params& params, const ModelSizes& s, LinearOptions options = {});
// Layers of these widths, [in, hidden.., out]; an activation between them.
Model mlp(const Params& params, std::int64_t heads, const std::vector<std::int64_t>& widths,
          const std::function<Tensor(Tensor)>& activation, const std::string& activation_name,
          bool bias = false, bool residual_norm = false);
Model swiglu(const Params& params, const ModelSizes& s);  // (silu(x W0) * (x W2)) W1
Model glu(const Params& params, const ModelSizes& s);     // (x W1) * silu(x W2)
Model gated(const Params& params, const ModelSizes& s);   // silu(x W) * x
// 3x3 over tokens that are an image in rows, one channel per feature; W [heads, 9, dim]. Tokens mix.
Model depthwise3x3(const Params& params, std::int64_t heads, std::int64_t dim, std::int64_t height,
                   std::int64_t width);
// The model that `make` makes, whose weights [heads, ..] start from these, in its own order, instead of parameters of its
// own: `make` is given parameters that are thrown away. ConfigError without weights, and for more or fewer than the model has.
Model starting_from(const std::vector<Tensor>& start, const std::function<Model(const Params&)>& make);
// Each model reads its own features, one after the other; so does the loss.
Model side_by_side(std::vector<Model> models, std::vector<std::int64_t> widths);

// From prediction and target, rows [.., tokens, dim] each, to one number per token [.., tokens, 1].
struct InnerLoss {
  std::string text;
  std::function<Tensor(Tensor prediction, Tensor target)> f;
};
InnerLoss half_squared_error();             // 1/2 |p - v|^2
InnerLoss squared_error();                  // |p - v|^2
InnerLoss mean_squared_error();             // |p - v|^2 / dim
InnerLoss inner_product(double scale = 1);  // -scale <p, v>
InnerLoss huber(double delta = 1);          // per feature, summed
// sum |p - v|^power, power > 1. Below 2 its second derivative at p = v is infinite, and taken as zero.
InnerLoss lp(double power);
InnerLoss cosine(double eps = 1e-6);  // 1 - cos(p, v)
// Cross-entropy of softmax(p) against the distribution v.
InnerLoss cross_entropy_with();

class Composed : public Learner {
 public:
  // ConfigError for a model or a loss without a function, as Model{} and one that was moved from are.
  Composed(Model model, InnerLoss loss, InnerOptimizer optimizer = {});
  // Moving copies: one that was moved from is still a learner.
  Composed(const Composed&) = default;
  Composed& operator=(const Composed&) = default;
  Weights init() const override { return model_.start; }
  Tensor predict(const Weights& w, Tensor x) const override { return model_.f(w, x); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override { return loss_.f(model_.f(w, k), v); }
  InnerOptimizer optimizer() const override { return optimizer_; }
  Description describe() const override { return {model_.text, loss_.text}; }

 private:
  Model model_;
  InnerLoss loss_;
  InnerOptimizer optimizer_;
};

}  // namespace nestgrad::ttt

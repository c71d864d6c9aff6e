#include "tests/fuzz/random_learner.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/function.h"

namespace nestgrad::fuzz {

namespace {

using ttt::InnerLoss;
using ttt::WeightKind;
using ttt::Weights;
using Weight = RandomLearner::Weight;

// So that numbers stay well conditioned where a norm meets zeros.
constexpr double kEps = 0.1;

struct Activation {
  const char* name;
  Tensor (*fn)(Tensor x);
  bool smooth = true;
};
const std::vector<Activation> kActivations{
    {"x", [](Tensor x) { return x; }},
    {"tanh", [](Tensor x) { return tanh(x); }},
    {"silu", [](Tensor x) { return silu(x); }},
    {"relu", [](Tensor x) { return relu(x); }, false},
    {"gelu_tanh", [](Tensor x) { return gelu_tanh(x); }},
    {"sigmoid", [](Tensor x) { return sigmoid(x); }},
    {"softplus", [](Tensor x) { return softplus(x); }},
    {"sin", [](Tensor x) { return sin(x); }},
    {"1/4 square", [](Tensor x) { return 0.25 * square(x); }},
    {"abs", [](Tensor x) { return abs(x); }, false},
    {"softmax", [](Tensor x) { return softmax(x, -1); }},
    {"l2 norm", [](Tensor x) { return l2_norm(x, kEps); }},
    {"less the largest feature", [](Tensor x) { return x - max(x, {-1}, kKeep); }, false},
};

enum class Product { plain, transposed, transposed_by_op, gated, half_held, none };
enum class Row { none, bias, gain, exponent, half_held, squared };
enum class Norm { none, rms, layer };
enum class Mixing { none, shift, sum_so_far, mean };

struct Layer {
  Product product = Product::plain;
  std::string first, second;  // weights of the product
  Row row = Row::none;
  std::string row_name;
  Norm norm = Norm::none;
  std::string gain;  // an outer parameter
  int activation = 0;
  bool residual = false;
  Mixing mixing = Mixing::none;
  std::int64_t width = 1;  // of what it gives
};

Tensor product_of(const Layer& l, const Weights& w, Tensor x) {
  switch (l.product) {
    case Product::plain:
      return matmul(x, w[l.first]);
    case Product::transposed:
      return matmul(x, w[l.first], {.b = true});
    case Product::transposed_by_op:
      return matmul(x, transpose(w[l.first]));
    case Product::gated:
      return tanh(matmul(x, w[l.first])) * matmul(x, w[l.second]);
    case Product::half_held:
      return matmul(x, w[l.first]) + 0.5 * matmul(x, w.held(l.first));
    case Product::none:
      break;
  }
  return x;
}

Tensor with_row(const Layer& l, const Weights& w, Tensor x) {
  switch (l.row) {
    case Row::bias:
      return x + w[l.row_name];
    case Row::gain:
      return x * (1.0 + w[l.row_name]);
    case Row::exponent:
      return x * exp(0.3 * w[l.row_name]);
    case Row::half_held:
      return x + w[l.row_name] * tanh(w.held(l.row_name));
    case Row::squared:
      return x - 0.5 * square(w[l.row_name]);
    case Row::none:
      break;
  }
  return x;
}

Tensor mixed(Mixing mixing, Tensor x) {
  const std::int64_t tokens = x.dim(-2);
  switch (mixing) {
    case Mixing::shift:
      return tokens == 1 ? x : x + 0.5 * pad(slice(x, -2, 0, tokens - 1), -2, 1, 0);
    case Mixing::sum_so_far:
      return x + 0.1 * cumsum(x, -2);
    case Mixing::mean:
      return x - 0.5 * mean(x, {-2}, kKeep);
    case Mixing::none:
      break;
  }
  return x;
}

std::string text_of(const Layer& l) {
  constexpr const char* kProducts[] = {
      "x {0}", "x {0}'", "x transpose({0})", "tanh(x {0}) * (x {1})", "x ({0} + 1/2 held {0})", "x"};
  constexpr const char* kRows[] = {
      "", " + {}", " * (1 + {})", " * exp(0.3 {})", " + {0} tanh(held {0})", " - 1/2 {}^2"};
  constexpr const char* kNorms[] = {"", ", rms norm", ", layer norm"};
  constexpr const char* kMixing[] = {"", ", plus half the token before", ", plus the sum so far",
                                     ", less half the tokens' mean"};
  std::string out = fmt::format(fmt::runtime(kProducts[static_cast<int>(l.product)]), l.first, l.second);
  out += fmt::format(fmt::runtime(kRows[static_cast<int>(l.row)]), l.row_name);
  out += kNorms[static_cast<int>(l.norm)];
  if (l.activation > 0) out += fmt::format(", {}", kActivations[static_cast<std::size_t>(l.activation)].name);
  if (l.residual) out += ", + x";
  return out + kMixing[static_cast<int>(l.mixing)];
}

// Draws layers and declares the weights that they use.
class Architect {
 public:
  Architect(Draws& draws, std::int64_t in, std::int64_t out) : draws_(draws), in_(in), out_(out) {}

  std::vector<Layer> layers() {
    std::vector<Layer> out;
    std::int64_t width = in_;
    const bool may_mix = draws_.one_in(25);
    for (bool another = true; another;) {
      another = out.size() < 2 && draws_.below(5) >= 3;
      const std::int64_t next = another ? draws_.of<std::int64_t>({width, 1, 2, 3, 4, 5, out_}) : out_;
      out.push_back(layer(width, next, may_mix));
      width = next;
    }
    return out;
  }
  std::string declare(const char* letter, WeightKind kind, std::int64_t in, std::int64_t out) {
    weights_.push_back({fmt::format("{}{}", letter, ++count_), kind, in, out});
    return weights_.back().name;
  }
  std::vector<Weight>& weights() { return weights_; }
  // A declared weight of this kind and shape, or an empty name.
  std::string found(WeightKind kind, std::int64_t in, std::int64_t out) const {
    for (const Weight& w : weights_)
      if (w.kind == kind && w.in == in && w.out == out) return w.name;
    return {};
  }

 private:
  Layer layer(std::int64_t width, std::int64_t next, bool may_mix) {
    Layer l;
    l.width = next;
    l.product = static_cast<Product>(draws_.of<int>({0, 0, 1, 2, 3, 4, 5}));
    if (l.product == Product::none && (width != next || weights_.empty())) l.product = Product::plain;
    const bool turned = l.product == Product::transposed || l.product == Product::transposed_by_op;
    const auto matrix = [&] {
      const std::int64_t in = turned ? next : width, out = turned ? width : next;
      const std::string old = draws_.one_in(4) ? found(WeightKind::matrix, in, out) : "";
      return old.empty() ? declare("W", WeightKind::matrix, in, out) : old;
    };
    if (l.product != Product::none) l.first = matrix();
    if (l.product == Product::gated) l.second = draws_.one_in(3) ? l.first : matrix();
    l.row = static_cast<Row>(draws_.of<int>({0, 0, 0, 0, 1, 1, 2, 3, 4, 5}));
    if (l.row != Row::none) {
      const std::string old = draws_.one_in(4) ? found(WeightKind::row, 1, next) : "";
      l.row_name = old.empty() ? declare("b", WeightKind::row, 1, next) : old;
    }
    l.norm = static_cast<Norm>(draws_.of<int>({0, 0, 0, 0, 1, 2}));
    if (l.norm != Norm::none) l.gain = fmt::format("gain{}", ++count_);
    l.activation = draws_.one_in(2) ? draws_.below(static_cast<int>(kActivations.size())) : 0;
    l.residual = width == next && draws_.one_in(4);
    if (may_mix) l.mixing = static_cast<Mixing>(draws_.below(4));
    return l;
  }

  Draws& draws_;
  std::int64_t in_, out_;
  std::vector<Weight> weights_;
  int count_ = 0;
};

Tensor prediction(const std::vector<Layer>& layers, const std::map<std::string, Tensor>& gains,
                  const Weights& w, Tensor x) {
  for (const Layer& l : layers) {
    Tensor y = with_row(l, w, product_of(l, w, x));
    if (l.norm == Norm::rms) y = rms_norm(y, gains.at(l.gain), kEps);
    if (l.norm == Norm::layer) y = layer_norm(y, gains.at(l.gain), 0.1 * gains.at(l.gain), kEps);
    y = kActivations[static_cast<std::size_t>(l.activation)].fn(y);
    x = mixed(l.mixing, l.residual ? x + y : y);
  }
  return x;
}

// ---- losses ----

Tensor over_features(Tensor x) { return sum(x, {-1}, kKeep); }

// Those with kinks come last.
constexpr int kSmoothErrors = 8;
InnerLoss error_of(int kind, Draws& draws) {
  switch (kind) {
    case 1:
      return ttt::inner_product();
    case 2:
      return ttt::squared_error();
    case 3:
      return ttt::mean_squared_error();
    case 4:
      return ttt::cosine(kEps);
    case 5:
      return ttt::cross_entropy_with();
    case 6:
      return ttt::inner_product(0.5);
    case 7:
      return {"-<tanh f(k), v>", [](Tensor p, Tensor v) { return -over_features(tanh(p) * v); }};
    case 8:
      return ttt::huber(draws.of<double>({1, 0.3}));
    case 9:
      return ttt::lp(draws.of<double>({3, 2.5, 2}));
    case 10:
      return {"sum max(v - f(k), 0)", [](Tensor p, Tensor v) { return over_features(max(v - p, 0.0)); }};
    case 11:
      return {"sum |f(k) - v|", [](Tensor p, Tensor v) { return over_features(abs(p - v)); }};
    case 12:
      return {"the largest (f(k) - v)^2", [](Tensor p, Tensor v) { return max(square(p - v), {-1}, kKeep); }};
    default:
      return ttt::half_squared_error();
  }
}

// What a loss does besides comparing f(k) with v.
enum class Extra {
  none,
  token_weight,   // times a number of each token's key
  target_matrix,  // v + 0.3 v L, with a weight of the loss alone
  target_row,     // (f(k), v) exp(0.3 r), with a weight of the loss alone
  held_target,    // v + 0.3 tanh(k held W)
  held_weight,    // times a number that a held weight gives
  stopped,        // v - 1/2 stop(f(k))
  penalty,        // + 0.01 |W|^2: no use of W that factorises
};

struct LossPlan {
  InnerLoss error;
  bool smooth = true;
  Extra extra = Extra::none;
  std::string weight;
  std::string text() const {
    constexpr const char* kExtras[] = {"",
                                       ", times 1/2 + sigmoid(sum k)",
                                       ", v + 0.3 v {}",
                                       ", both times exp(0.3 {})",
                                       ", v + 0.3 tanh(k held {})",
                                       ", times sigmoid(sum k held {})",
                                       ", v - 1/2 stop(f(k))",
                                       ", + 0.01 |{}|^2"};
    return error.text + fmt::format(fmt::runtime(kExtras[static_cast<int>(extra)]), weight);
  }
};

LossPlan draw_loss(Draws& draws, Architect& architect, std::int64_t in, std::int64_t out) {
  const int kind = draws.below(13);
  LossPlan plan{error_of(kind, draws), kind < kSmoothErrors};
  plan.extra = static_cast<Extra>(draws.of<int>({0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7}));
  switch (plan.extra) {
    case Extra::target_matrix:
      plan.weight = architect.declare("L", WeightKind::matrix, out, out);
      break;
    case Extra::target_row:
      plan.weight = architect.declare("r", WeightKind::row, 1, out);
      break;
    case Extra::held_target:
      plan.weight = architect.found(WeightKind::matrix, in, out);
      break;
    case Extra::held_weight:
    case Extra::penalty:
      for (const Weight& w : architect.weights())
        if (w.kind == WeightKind::matrix && (plan.extra == Extra::penalty || w.in == in))
          plan.weight = w.name;
      break;
    default:
      return plan;
  }
  if (plan.weight.empty()) plan.extra = Extra::none;
  return plan;
}

Tensor loss_of(const LossPlan& plan, const std::function<Tensor(const Weights&, Tensor)>& f, const Weights& w,
               Tensor k, Tensor v) {
  Tensor p = f(w, k);
  switch (plan.extra) {
    case Extra::token_weight:
      return plan.error.f(p, v) * (0.5 + sigmoid(over_features(k)));
    case Extra::target_matrix:
      return plan.error.f(p, v + 0.3 * matmul(v, w[plan.weight]));
    case Extra::target_row:
      return plan.error.f(p * exp(0.3 * w[plan.weight]), v * exp(0.3 * w[plan.weight]));
    case Extra::held_target:
      return plan.error.f(p, v + 0.3 * tanh(matmul(k, w.held(plan.weight))));
    case Extra::held_weight:
      return plan.error.f(p, v) * sigmoid(over_features(matmul(k, w.held(plan.weight))));
    case Extra::stopped:
      return plan.error.f(p, v - 0.5 * stop_gradient(p));
    case Extra::penalty:
      return plan.error.f(p, v) + 0.01 * sum(square(w[plan.weight]), {-2, -1}, kKeep);
    case Extra::none:
      break;
  }
  return plan.error.f(p, v);
}

// ---- models that are ready ----

using MakeModel = std::function<ttt::Model(const Params& params, std::int64_t heads)>;

MakeModel draw_ready(Draws& draws, std::int64_t in, std::int64_t out) {
  const std::int64_t hidden = draws.between(1, 4);
  const auto sizes = [=](std::int64_t heads) {
    return ttt::ModelSizes{.heads = heads, .in = in, .hidden = hidden, .out = out};
  };
  const int kind = draws.below(in == out ? 7 : 4);
  const bool bias = draws.one_in(2), norm = in == out && in > 2 && draws.one_in(4);
  return [=](const Params& p, std::int64_t heads) -> ttt::Model {
    switch (kind) {
      case 1:
        return ttt::mlp(p, heads, {in, hidden, out}, kActivations[2].fn, "silu", bias, norm);
      case 2:
        return ttt::swiglu(p, sizes(heads));
      case 3:
        return ttt::glu(p, sizes(heads));
      case 4:
        return ttt::gated(p, sizes(heads));
      case 5:
        if (in > 1)
          return ttt::side_by_side(
              {ttt::linear(p.at("a"), {.heads = heads, .in = 1, .out = 1}, {.bias = bias}),
               ttt::glu(p.at("b"), {.heads = heads, .in = in - 1, .out = in - 1})},
              {1, in - 1});
        break;
      case 6: {
        ttt::ModelSizes thin = sizes(heads);
        thin.rank = 1;
        return ttt::swiglu(p, thin);
      }
      default:
        break;
    }
    return ttt::linear(p, sizes(heads), {.bias = bias, .residual_norm = norm});
  };
}

MakeModel model_of(std::vector<Layer> layers, std::vector<Weight> weights, std::string text) {
  return [=](const Params& params, std::int64_t heads) {
    std::vector<ttt::FastWeight> start;
    for (const Weight& w : weights)
      start.push_back({w.name, w.kind, params(w.name, {heads, w.in, w.out}, Init::normal(0.5))});
    std::map<std::string, Tensor> gains;
    for (const Layer& l : layers)
      if (l.norm != Norm::none) gains[l.gain] = 1.0 + params(l.gain, {heads, 1, l.width}, Init::zeros());
    return ttt::Model{text, Weights(std::move(start)),
                      [=](const Weights& w, Tensor x) { return prediction(layers, gains, w, x); }};
  };
}

std::vector<Weight> weights_of(const MakeModel& make) {
  std::vector<Weight> out;
  trace(
      [&](const std::vector<Tensor>&) {
        ParamTable table(*emit_state().graph, DType::f64);
        const Weights start = make(Params(table), 1).start;
        for (std::size_t i = 0; i < start.size(); ++i)
          out.push_back(
              {start.at(i).name, start.at(i).kind, start.at(i).value.dim(-2), start.at(i).value.dim(-1)});
        return start.values();
      },
      {});
  return out;
}

}  // namespace

RandomLearner draw_learner(Draws& draws, std::int64_t in, std::int64_t out) {
  RandomLearner learner;
  Architect architect(draws, in, out);
  MakeModel make;
  std::string text;
  if (draws.one_in(4)) {
    make = draw_ready(draws, in, out);
    architect.weights() = weights_of(make);
  } else {
    const std::vector<Layer> layers = architect.layers();
    for (const Layer& l : layers) {
      text += fmt::format("{}[{}]", text.empty() ? "" : " -> ", text_of(l));
      learner.mixes = learner.mixes || l.mixing != Mixing::none;
      learner.smooth = learner.smooth && kActivations[static_cast<std::size_t>(l.activation)].smooth;
    }
    make = model_of(layers, architect.weights(), text);
  }
  const std::size_t in_model = architect.weights().size();
  const LossPlan plan = draw_loss(draws, architect, in, out);
  learner.smooth = learner.smooth && plan.smooth && plan.extra != Extra::stopped;
  learner.weights = architect.weights();
  const std::vector<Weight> of_loss(learner.weights.begin() + static_cast<std::ptrdiff_t>(in_model),
                                    learner.weights.end());
  learner.make = [=](const Params& params, std::int64_t heads) {
    ttt::Model model = make(params, heads);
    std::vector<ttt::FastWeight> start;
    for (std::size_t i = 0; i < model.start.size(); ++i) start.push_back(model.start.at(i));
    for (const Weight& w : of_loss)
      start.push_back({w.name, w.kind, params(w.name, {heads, w.in, w.out}, Init::normal(0.5))});
    model.start = Weights(std::move(start));
    return RandomLearner::Made{model, [plan, f = model.f](const Weights& w, Tensor k, Tensor v) {
                                 return loss_of(plan, f, w, k, v);
                               }};
  };
  learner.text = fmt::format("{}; loss {}", text.empty() ? "a ready model" : text, plan.text());
  return learner;
}

}  // namespace nestgrad::fuzz

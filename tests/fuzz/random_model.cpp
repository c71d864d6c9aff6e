#include "tests/fuzz/random_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/custom.h"
#include "engine/run/function.h"

namespace nestgrad::fuzz {

namespace {

using ttt::WeightKind;
using ttt::Weights;
using Weight = RandomModel::Weight;

// So that numbers stay well conditioned where a norm meets zeros.
constexpr double kEps = 0.1;

struct Activation {
  const char* name;
  Tensor (*fn)(Tensor x);
  bool smooth = true;
};
// Axes that come and go behind the tokens'.
Tensor less_the_sum(Tensor x) {
  Shape column = x.shape();
  column.back() = 1;
  return x - 0.25 * reshape(sum(x, {-1}), column);
}
Tensor softmax_of_pairs(Tensor x) {
  if (x.dim(-1) % 2 != 0) return softmax(x, -1);
  Shape pairs = x.shape();
  pairs.back() /= 2;
  pairs.push_back(2);
  return reshape(softmax(reshape(x, pairs), -1), x.shape());
}
Tensor tanh_with_a_rule(Tensor x) {
  return custom_vjp([](const Tensors& in) { return tanh(in[0]); },
                    [](const Tensors&, Tensor y, Tensor ct) { return Tensors{ct * (1.0 - square(y))}; }, {x});
}

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
    {"less a quarter of the sum", less_the_sum},
    {"softmax of pairs", softmax_of_pairs},
    {"tanh with a rule", tanh_with_a_rule},
};

enum class Product { plain, transposed, transposed_by_op, gated, half_held, none, fixed };
enum class Row { none, bias, gain, exponent, half_held, squared };
enum class Norm { none, rms, layer };
// by_rule: a derivative of its own lets tokens meet. counted, summed: none do, but a number is made of how many there are.
enum class Mixing { none, shift, sum_so_far, mean, by_rule, counted, summed };

struct Layer {
  Product product = Product::plain;
  std::string first, second;  // weights of the product
  Row row = Row::none;
  std::string row_name;
  Norm norm = Norm::none;
  std::string outer;  // a parameter: the norm's gain, or the matrix of a fixed product
  int activation = 0;
  bool residual = false;
  Mixing mixing = Mixing::none;
  std::int64_t before = 1, width = 1;  // of what a fixed product is given; of what a layer gives
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
    case Product::fixed:
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
    case Mixing::by_rule:
      return custom_vjp(
          [](const Tensors& in) { return 1.0 * in[0]; },
          [](const Tensors&, Tensor, Tensor ct) { return Tensors{ct - 0.5 * mean(ct, {-2}, kKeep)}; }, {x});
    case Mixing::counted:
      return x * (1.0 / static_cast<double>(tokens));
    case Mixing::summed:
      return x / sum(full(x.dtype(), {tokens, 1}, 1.0), {-2}, kKeep);
    case Mixing::none:
      break;
  }
  return x;
}

std::string text_of(const Layer& l) {
  constexpr const char* kProducts[] = {
      "x {0}", "x {0}'", "x transpose({0})", "tanh(x {0}) * (x {1})", "x ({0} + 1/2 held {0})",
      "x",     "x fixed"};
  constexpr const char* kRows[] = {
      "", " + {}", " * (1 + {})", " * exp(0.3 {})", " + {0} tanh(held {0})", " - 1/2 {}^2"};
  constexpr const char* kNorms[] = {"", ", rms norm", ", layer norm"};
  constexpr const char* kMixing[] = {"",
                                     ", plus half the token before",
                                     ", plus the sum so far",
                                     ", less half the tokens' mean",
                                     ", less half the mean in a rule",
                                     ", over the number of tokens",
                                     ", over ones for all tokens"};
  std::string out = fmt::format(fmt::runtime(kProducts[static_cast<int>(l.product)]), l.first, l.second);
  out += fmt::format(fmt::runtime(kRows[static_cast<int>(l.row)]), l.row_name);
  out += kNorms[static_cast<int>(l.norm)];
  if (l.activation > 0) out += fmt::format(", {}", kActivations[static_cast<std::size_t>(l.activation)].name);
  if (l.residual) out += ", + x";
  return out + kMixing[static_cast<int>(l.mixing)];
}

std::string found_in(const std::vector<Weight>& weights, WeightKind kind, std::int64_t in, std::int64_t out) {
  for (const Weight& w : weights)
    if (w.kind == kind && w.in == in && w.out == out) return w.name;
  return {};
}

// Draws layers and declares the weights that they use.
class Architect {
 public:
  Architect(Draws& draws, std::int64_t in, std::int64_t out) : draws_(draws), in_(in), out_(out) {}

  // A linear layer, perhaps on features of x that do not learn: what most forms can run.
  std::vector<Layer> memory() {
    std::vector<Layer> out;
    std::int64_t width = in_;
    if (draws_.one_in(3)) {
      Layer fixed{.product = Product::fixed, .outer = "features", .before = in_};
      fixed.activation = draws_.below(static_cast<int>(kActivations.size()));
      fixed.width = width = draws_.of<std::int64_t>({in_, 1, 2, 3, 4, 5});
      out.push_back(fixed);
    }
    Layer last{.product = draws_.of<Product>(
                   {Product::plain, Product::plain, Product::transposed, Product::transposed_by_op}),
               .width = out_};
    const bool turned = last.product != Product::plain;
    last.first = declare("W", WeightKind::matrix, turned ? out_ : width, turned ? width : out_);
    out.push_back(last);
    return out;
  }
  std::vector<Layer> layers() {
    std::vector<Layer> out;
    std::int64_t width = in_;
    const bool may_mix = draws_.one_in(12);
    for (bool another = true; another;) {
      another = out.size() < 2 && draws_.below(5) >= 3;
      const std::int64_t next = another ? draws_.of<std::int64_t>({width, 1, 2, 3, 4, 5, out_}) : out_;
      out.push_back(layer(width, next, may_mix, !another && draws_.one_in(3)));
      width = next;
    }
    return out;
  }
  std::string declare(const char* letter, WeightKind kind, std::int64_t in, std::int64_t out) {
    std::string name = fmt::format("{}{}", letter, ++count_);
    if (draws_.one_in(12)) {  // one that the engine gives to something else
      const std::string other = draws_.of<std::string>({"k", "v", "slot", "rate", "gate.rate", "chunk", "0"});
      if (std::ranges::none_of(weights_, [&](const Weight& w) { return w.name == other; })) name = other;
    }
    weights_.push_back({name, kind, in, out});
    return name;
  }
  const std::vector<Weight>& weights() const { return weights_; }

 private:
  // bare: a product and no more.
  Layer layer(std::int64_t width, std::int64_t next, bool may_mix, bool bare) {
    Layer l;
    l.width = next;
    l.product = static_cast<Product>(draws_.of<int>({0, 0, 1, 2, 3, 4, 5}));
    if (l.product == Product::none && (width != next || weights_.empty())) l.product = Product::plain;
    const bool turned = l.product == Product::transposed || l.product == Product::transposed_by_op;
    const auto matrix = [&] {
      const std::int64_t in = turned ? next : width, out = turned ? width : next;
      const std::string old = draws_.one_in(4) ? found_in(weights_, WeightKind::matrix, in, out) : "";
      return old.empty() ? declare("W", WeightKind::matrix, in, out) : old;
    };
    if (l.product != Product::none) l.first = matrix();
    if (l.product == Product::gated) l.second = draws_.one_in(3) ? l.first : matrix();
    if (bare) return l;
    l.row = static_cast<Row>(draws_.of<int>({0, 0, 0, 0, 1, 1, 2, 3, 4, 5}));
    if (l.row != Row::none) {
      const std::string old = draws_.one_in(4) ? found_in(weights_, WeightKind::row, 1, next) : "";
      l.row_name = old.empty() ? declare("b", WeightKind::row, 1, next) : old;
    }
    l.norm = static_cast<Norm>(draws_.of<int>({0, 0, 0, 0, 1, 2}));
    if (l.norm != Norm::none) l.outer = fmt::format("gain{}", ++count_);
    l.activation = draws_.one_in(2) ? draws_.below(static_cast<int>(kActivations.size())) : 0;
    l.residual = width == next && draws_.one_in(4);
    if (may_mix) l.mixing = static_cast<Mixing>(draws_.below(7));
    return l;
  }

  Draws& draws_;
  std::int64_t in_, out_;
  std::vector<Weight> weights_;
  int count_ = 0;
};

Tensor prediction(const std::vector<Layer>& layers, const std::map<std::string, Tensor>& outer,
                  const Weights& w, Tensor x) {
  for (const Layer& l : layers) {
    Tensor y =
        l.product == Product::fixed ? matmul(x, outer.at(l.outer)) : with_row(l, w, product_of(l, w, x));
    if (l.norm == Norm::rms) y = rms_norm(y, outer.at(l.outer), kEps);
    if (l.norm == Norm::layer) y = layer_norm(y, outer.at(l.outer), 0.1 * outer.at(l.outer), kEps);
    y = kActivations[static_cast<std::size_t>(l.activation)].fn(y);
    x = mixed(l.mixing, l.residual ? x + y : y);
  }
  return x;
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
    std::map<std::string, Tensor> outer;
    for (const Layer& l : layers)
      if (l.product == Product::fixed)
        outer[l.outer] = params(l.outer, {heads, l.before, l.width}, Init::normal(0.5));
      else if (l.norm != Norm::none)
        outer[l.outer] = 1.0 + params(l.outer, {heads, 1, l.width}, Init::zeros());
    return ttt::Model{text, Weights(std::move(start)),
                      [=](const Weights& w, Tensor x) { return prediction(layers, outer, w, x); }};
  };
}

std::vector<Weight> weights_of(const MakeModel& make) {
  std::vector<Weight> out;
  trace(
      [&](const std::vector<Tensor>&) {
        ParamTable table(*context().emit.graph, DType::f64);
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

std::string RandomModel::found(WeightKind kind, std::int64_t in, std::int64_t out) const {
  return found_in(weights, kind, in, out);
}

RandomModel draw_model(Draws& draws, std::int64_t in, std::int64_t out) {
  RandomModel model;
  const int kind = draws.of<int>({0, 0, 0, 1, 1, 1, 1, 2});
  if (kind == 2) {
    model.text = "a ready model";
    model.make = draw_ready(draws, in, out);
    model.weights = weights_of(model.make);
    return model;
  }
  Architect architect(draws, in, out);
  model.is_memory = kind == 1;
  const std::vector<Layer> layers = model.is_memory ? architect.memory() : architect.layers();
  for (const Layer& l : layers) {
    model.text += fmt::format("{}[{}]", model.text.empty() ? "" : " -> ", text_of(l));
    const bool counts = l.mixing == Mixing::counted || l.mixing == Mixing::summed;
    model.counts = model.counts || counts;
    model.mixes = model.mixes || (l.mixing != Mixing::none && !counts);
    if (l.mixing == Mixing::by_rule) model.smooth = false;  // a derivative of another function
    model.smooth = model.smooth && kActivations[static_cast<std::size_t>(l.activation)].smooth;
    if (l.width == 1 && (l.norm == Norm::layer || l.activation > 0))
      model.smooth = false;  // it may be constant
  }
  model.weights = architect.weights();
  model.make = model_of(layers, model.weights, model.text);
  return model;
}

}  // namespace nestgrad::fuzz

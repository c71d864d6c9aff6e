// Learners written as formulas, an outer program around them, and the inner loop done by hand: what the tests
// of ttt/ compare the derived forms with.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "ops/accumulate.h"
#include "tests/testing.h"
#include "ttt/inner_loop.h"
#include "ttt/params.h"

namespace nestgrad::testing {

using ttt::FormChoice;
using ttt::InnerLoopOptions;
using ttt::InnerLoopResult;
using ttt::Views;
using ttt::Weights;

// Of these gates those that the optimiser reads: others are refused.
inline ttt::Gates read_by(const ttt::InnerOptimizer& optimizer, ttt::Gates gates) {
  std::vector<std::string> read = optimizer.gates();
  read.emplace_back("rate");
  if (!optimizer.has_own_pieces())
    std::erase_if(gates, [&](const auto& gate) { return std::ranges::find(read, gate.first) == read.end(); });
  return gates;
}

// A learner from its formulas. No loss: 1/2 |f(k) - v|^2.
class FormulaLearner : public ttt::Learner {
 public:
  using Predict = std::function<Tensor(const Weights& w, Tensor x)>;
  using Loss = std::function<Tensor(const Weights& w, Tensor k, Tensor v)>;
  FormulaLearner(Weights init, Predict predict, Loss loss = {})
      : init_(std::move(init)), predict_(std::move(predict)), loss_(std::move(loss)) {}
  Weights init() const override { return init_; }
  Tensor predict(const Weights& w, Tensor x) const override { return predict_(w, x); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override {
    return loss_ ? loss_(w, k, v) : Learner::loss(w, k, v);
  }

 private:
  Weights init_;
  Predict predict_;
  Loss loss_;
};

// A learner to be made inside an outer program, of the parameters that it asks for.
struct NamedLearner {
  std::string name;
  std::function<std::unique_ptr<ttt::Learner>(const Params& params)> make;
};

struct Sizes {
  std::int64_t batch = 2, heads = 3, time = 10, dim = 4, mini_batch = 4, value_dim = 0;  // 0: as dim
};

// How the learner is run along the sequence.
using Run = std::function<InnerLoopResult(const ttt::Learner&, const Weights& start, const Views&)>;

inline Run along(InnerLoopOptions options) {
  return [options](const ttt::Learner& l, const Weights& start, const Views& v) {
    return ttt::train_along(l, start, v, options);
  };
}

// The inner loop by hand, with nothing but grad: one token after the other, each gradient taken on its own.
inline Run by_hand(std::int64_t mini_batch) {
  return [mini_batch](const ttt::Learner& learner, const Weights& start, const Views& views) {
    const auto token = [](Tensor x, std::int64_t t) { return slice(x, 2, t, t + 1); };
    std::vector<Tensor> outputs, initial, before, after, seen_rates;
    Weights first = start, now = start;
    std::vector<Tensors> gradients;
    for (std::int64_t t = 0; t < views.k.dim(2); ++t) {
      const std::int64_t place = t % mini_batch;
      if (place == 0) first = now, gradients.clear(), seen_rates.clear();
      const Tensor k = token(views.k, t), v = token(views.v, t);
      Tensors w = first.values();
      for (Tensor& x : w) x = probe(x);
      gradients.push_back(grad(sum(learner.loss(first.with(w), k, v)), w));
      seen_rates.push_back(token(views.gates.at("rate"), t));
      initial.push_back(learner.loss(start, k, v));
      before.push_back(learner.loss(now, k, v));
      Tensors next = first.values();
      for (std::size_t s = 0; s < gradients.size(); ++s)
        for (std::size_t i = 0; i < next.size(); ++i)
          next[i] = next[i] - slice(views.position, 0, place, place + 1) * seen_rates[s] * gradients[s][i];
      now = first.with(next);
      outputs.push_back(learner.predict(now, token(views.q, t)));
      after.push_back(learner.loss(now, k, v));
    }
    const auto per_token = [](const std::vector<Tensor>& parts) { return sum(concat(parts, 2), {-1}); };
    InnerLoopResult out;
    out.output = concat(outputs, 2);
    out.state = {now, {}};
    out.loss_initial = per_token(initial);
    out.loss_before = per_token(before);
    out.loss_after = per_token(after);
    return out;
  };
}

// A program in which a learner reads a sequence. Its inputs: k, v, q, logits of the token rates, logits of
// the position rates; then the learner's parameters. `fn` makes its outputs.
struct Reading {
  Tensors inputs;
  ttt::Learner& learner;
  Weights start;
  Views views;
};

inline Function reading(const NamedLearner& named, const Sizes& s,
                        const std::function<Tensors(const Reading&)>& fn) {
  const Spec rows = f64({s.batch, s.heads, s.time, s.dim}),
             values = f64({s.batch, s.heads, s.time, s.value_dim ? s.value_dim : s.dim});
  return trace(
      [&](const Tensors& in) {
        ParamTable table(*context().emit.graph, DType::f64);
        const std::unique_ptr<ttt::Learner> learner = named.make(Params(table));
        Tensors inputs = in;
        inputs.insert(inputs.end(), table.tensors().begin(), table.tensors().end());
        return fn({inputs,
                   *learner,
                   ttt::for_batch(learner->init(), s.batch),
                   {in[2], in[0], in[1], {{"rate", sigmoid(in[3])}}, exp(in[4])}});
      },
      {rows, values, rows, f64({s.batch, s.heads, s.time, 1}), f64({s.mini_batch})});
}

// Numbers for a reading; position rates about 0.3.
inline Arrays numbers_for(const Function& f, std::uint64_t seed = 1) {
  Arrays out;
  for (std::size_t i = 0; i < f.inputs().size(); ++i)
    out.push_back(i == 4 ? random(f.input_spec(i), seed + i, -1.5, -0.8) : random(f.input_spec(i), seed + i));
  return out;
}

// Outputs and the weights at the end.
inline Tensors values_of(const InnerLoopResult& r) {
  Tensors out{r.output};
  for (const Tensor& w : r.last().values()) out.push_back(w);
  return out;
}

// A scalar that every value has a part in.
inline Tensor outer_loss(const Tensors& values) {
  Tensor total;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Tensor part = sum(values[i] * (values[i] + constant(random(values[i].spec(), 900 + i))));
    accumulate(total, part);
  }
  return total;
}

// Values, then gradients with respect to every input, then
// gradients of |gradient|^2 (and so on), up to `order`.
inline Function derivatives(const NamedLearner& named, const Sizes& sizes, const Run& run, int order) {
  return reading(named, sizes, [&](const Reading& r) {
    Tensors out = values_of(run(r.learner, r.start, r.views));
    Tensor y = outer_loss(out);
    for (int n = 1; n <= order; ++n) {
      const Tensors g = grad(y, r.inputs);
      out.insert(out.end(), g.begin(), g.end());
      y = sum(square(g[0]));
      for (std::size_t i = 1; i < g.size(); ++i) y = y + sum(square(g[i]));
    }
    return out;
  });
}

// max|a-b| / max|b|, the worst of all pairs; infinite if a number of b is nowhere away from 0, as nothing
// would be compared.
inline double worst_error(const Arrays& a, const Arrays& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double size = relative_error(b[i], Array::zeros(b[i].dtype(), b[i].shape()), 1);
    worst = std::max(worst, size > 1e-4 ? relative_error(a[i], b[i]) : HUGE_VAL);
  }
  return worst;
}

}  // namespace nestgrad::testing

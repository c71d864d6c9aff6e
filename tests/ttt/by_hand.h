// An inner loop written twice: a learner with an optimiser and a policy, for the forms to run; and the same
// by hand, a plain loop over tokens with `grad` on one token at a time and the optimiser's formulas in ops.
#pragma once

#include "tests/ttt/named_learners.h"
#include "ttt/claim.h"

namespace nestgrad::testing {

using ttt::InnerOptimizer;
using ttt::Policy;

// The gates of one step, as columns [batch, heads, 1 or in, 1].
using Now = std::function<Tensor(const std::string& gate)>;

// An optimiser by hand. The state of one weight: the weight, then what is carried besides, in the order of
// its slots.
struct Hand {
  std::function<Tensors(Tensor w)> start = [](Tensor w) { return Tensors{w}; };
  std::function<Tensor(Tensor w, const Now& gate)> point = [](Tensor w, const Now&) { return w; };
  std::function<Tensors(Tensors gradients)> joint = [](Tensors g) { return g; };
  std::function<void(Tensors& s, Tensor g, const Now& gate)> step = [](Tensors& s, Tensor g, const Now&) {
    s[0] = s[0] - g;
  };
};

// An optimiser, the gates that it needs and the same by hand.
struct GateInput {
  std::string name;
  bool per_feature = false;
  std::function<Tensor(Tensor raw)> shape = [](Tensor raw) { return sigmoid(raw); };
};
struct Method {
  std::string name;
  std::vector<GateInput> gates;
  std::function<std::pair<InnerOptimizer, Hand>(const Params& params)> make;
};

struct LoopCase {
  NamedLearner named;
  Method method;
  Policy policy;
  Sizes sizes = {};
  std::vector<GateInput> rates = {{"rate"}};
  bool position = false;
  std::int64_t asked = 0;  // tokens of q; 0: as many as there are keys
};

// The learner with an optimiser of its own.
class Equipped : public ttt::Learner {
 public:
  Equipped(std::unique_ptr<ttt::Learner> named, InnerOptimizer optimizer)
      : learner_(std::move(named)), optimizer_(std::move(optimizer)) {}
  Weights init() const override { return learner_->init(); }
  Tensor predict(const Weights& w, Tensor x) const override { return learner_->predict(w, x); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override { return learner_->loss(w, k, v); }
  InnerOptimizer optimizer() const override { return optimizer_; }

 private:
  std::unique_ptr<ttt::Learner> learner_;
  InnerOptimizer optimizer_;
};

struct TracedCase {
  const LoopCase& loop;
  Tensors inputs;
  ttt::Learner& learner;
  Hand hand;
  Weights start;
  Views views;
};

inline Function trace_case(const LoopCase& loop, const std::function<Tensors(const TracedCase&)>& fn) {
  const Sizes& s = loop.sizes;
  const auto rows = [&](std::int64_t dim) { return f64({s.batch, s.heads, s.time, dim}); };
  std::vector<Spec> specs{rows(s.dim), rows(s.dim), rows(s.value_dim ? s.value_dim : s.dim)};
  std::vector<GateInput> gates = loop.rates;
  gates.insert(gates.end(), loop.method.gates.begin(), loop.method.gates.end());
  for (const GateInput& gate : gates) specs.push_back(rows(gate.per_feature ? s.dim : 1));
  if (loop.asked) specs[0].shape[2] = loop.asked;
  if (loop.position) specs.push_back(f64({loop.policy.chunk}));
  return trace(
      [&](const Tensors& in) {
        ParamTable table(*context().emit.graph, DType::f64);
        auto [optimizer, hand] = loop.method.make(Params(table).at("optimizer"));
        Equipped learner(loop.named.make(Params(table)), optimizer);
        const Weights start = ttt::for_batch(learner.init(), s.batch);
        Views views{in[0], in[1], in[2], {}, {}};
        for (std::size_t i = 0; i < gates.size(); ++i) views.gates[gates[i].name] = gates[i].shape(in[3 + i]);
        if (loop.position) views.position = sigmoid(in.back());
        Tensors inputs = in;
        inputs.insert(inputs.end(), table.tensors().begin(), table.tensors().end());
        return fn({loop, inputs, learner, hand, start, views});
      },
      specs);
}

using LoopRunner = std::function<Tensors(const TracedCase&)>;

inline bool learns(const TracedCase& c, std::size_t weight) {
  const std::vector<std::string>& trained = c.loop.policy.trained;
  return trained.empty() || std::ranges::find(trained, c.start.at(weight).name) != trained.end();
}

// Outputs, then every weight with its slots (if it learns).
inline LoopRunner in_form(FormChoice form, std::int64_t block = 4) {
  return [=](const TracedCase& c) {
    const InnerLoopResult r = ttt::train_along(c.learner, c.start, c.views,
                                               {.policy = c.loop.policy, .form = form, .block = block});
    if (form != FormChoice::automatic) CHECK(r.plan.form == form);
    Tensors out{r.output};
    for (std::size_t i = 0; i < c.start.size(); ++i) {
      out.push_back(r.last().at(i).value);
      for (const ttt::FastWeight& slot : r.state.slots[i])
        if (learns(c, i)) out.push_back(slot.value);
    }
    return out;
  };
}

inline Tensor row_at(Tensor rows, std::int64_t t) { return slice(rows, -2, t, t + 1); }

// The gradient of one token's loss, times its rates, climbing if asked to.
inline Tensors token_gradient(const TracedCase& c, const Weights& at, std::int64_t t) {
  Tensors probes = at.values();
  for (Tensor& w : probes) w = probe(w);
  const Weights seen = at.with(probes).with_held(at.values());
  Tensors learning;
  for (std::size_t i = 0; i < probes.size(); ++i)
    if (learns(c, i)) learning.push_back(probes[i]);
  const Tensors of_learning =
      grad(sum(c.learner.loss(seen, row_at(c.views.k, t), row_at(c.views.v, t))), learning);
  Tensors g;
  for (std::size_t i = 0, next = 0; i < probes.size(); ++i)
    g.push_back(learns(c, i) ? of_learning[next++] : probes[i] * 0.0);
  for (std::size_t i = 0; i < g.size(); ++i) {
    for (const std::string& name : {std::string("rate"), "rate." + at.at(i).name})
      if (c.views.gates.contains(name)) g[i] = row_at(c.views.gates.at(name), t) * g[i];
    if (c.loop.policy.ascent) g[i] = -g[i];
  }
  return g;
}

inline LoopRunner by_hand(std::function<void(const Weights& at)> watch = {}) {
  return [watch](const TracedCase& c) {
    const Policy& p = c.loop.policy;
    const std::int64_t time = c.views.k.dim(2), chunk = p.chunk == Policy::kWholeSequence ? time : p.chunk;
    const Tensor q = p.query_is_key ? c.views.k : c.views.q;
    std::vector<Tensors> state;
    for (std::size_t i = 0; i < c.start.size(); ++i) {
      const Tensor w = c.start.at(i).value;
      state.push_back(learns(c, i) ? c.hand.start(w) : Tensors{w});
    }
    const auto weights = [&] {
      Tensors out;
      for (const Tensors& s : state) out.push_back(s[0]);
      return c.start.with(out);
    };
    const auto place = [&](const Weights& from, const Weights& to, Tensor position) {
      Tensors out;
      for (std::size_t i = 0; i < from.size(); ++i)
        out.push_back(from.at(i).value + position * (to.at(i).value - from.at(i).value));
      return from.with(out);
    };
    // The gates as weight i has them: "keep" is "keep" times "keep.W", where both are given.
    const auto of_weight = [&](const Now& gate, std::size_t i) {
      return Now([&, i](const std::string& name) {
        Tensor out;
        for (const std::string& n : {name, name + "." + c.start.at(i).name})
          if (c.views.gates.contains(n)) out = out.defined() ? out * gate(n) : gate(n);
        return out;
      });
    };
    const auto point_of = [&](const Weights& w, const Now& gate) {
      Tensors at;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const Tensor point = c.hand.point(w.at(i).value, of_weight(gate, i));
        at.push_back(p.meta == Policy::Meta::first_order ? stop_gradient(point) : point);
      }
      if (watch) watch(w.with(at));
      return w.with(at);
    };
    const auto step = [&](Tensors g, const Now& gate) {
      Tensors learning;
      for (std::size_t i = 0; i < g.size(); ++i)
        if (learns(c, i)) learning.push_back(g[i]);
      learning = c.hand.joint(learning);
      std::size_t at = 0;
      for (std::size_t i = 0; i < g.size(); ++i)
        if (learns(c, i)) c.hand.step(state[i], learning[at++], of_weight(gate, i));
    };
    Tensors outputs;
    for (std::int64_t begin = 0; begin < time; begin += chunk) {
      const std::int64_t end = std::min(begin + chunk, time), index = begin / chunk;
      if (p.meta == Policy::Meta::truncated && index > 0 && index % p.horizon == 0)
        for (Tensors& s : state)
          for (Tensor& t : s) t = stop_gradient(t);
      const auto token_gate = [&](std::int64_t t) {
        return Now([&, t](const std::string& name) { return transpose(row_at(c.views.gates.at(name), t)); });
      };
      if (p.update == Policy::Update::per_token) {
        const Weights first = weights();
        std::vector<Tensors> gradients;
        for (std::int64_t t = begin; t < end; ++t) {
          const Weights at = point_of(first, token_gate(t));
          const Weights found =
              t == begin || !c.loop.position
                  ? weights()
                  : place(first, weights(), slice(c.views.position, 0, t - begin - 1, t - begin));
          step(token_gradient(c, at, t), token_gate(t));
          const Weights left =
              c.loop.position ? place(first, weights(), slice(c.views.position, 0, t - begin, t - begin + 1))
                              : weights();
          outputs.push_back(
              c.learner.predict(p.read == Policy::Read::after_write ? left : found, row_at(q, t)));
        }
        if (c.loop.position) {
          const Weights last =
              place(first, weights(), slice(c.views.position, 0, end - begin - 1, end - begin));
          for (std::size_t i = 0; i < state.size(); ++i) state[i][0] = last.at(i).value;
        }
        continue;
      }
      const Weights before = weights();
      const Now gate = [&](const std::string& name) {
        return transpose(mean(slice(c.views.gates.at(name), 2, begin, end), {-2}, kKeep));
      };
      for (int n = 0; n < p.steps && (end - begin == chunk || p.partial_chunk_writes); ++n) {
        const Weights at = point_of(weights(), gate);
        Tensors g;
        for (std::int64_t t = begin; t < end; ++t) {
          const Tensors own = token_gradient(c, at, t);
          for (std::size_t i = 0; i < own.size(); ++i)
            if (t == begin) g.push_back(own[i]);
            else g[i] = g[i] + own[i];
        }
        if (p.average)
          for (Tensor& each : g) each = each * (1.0 / static_cast<double>(end - begin));
        step(g, gate);
      }
      const Weights read = p.read == Policy::Read::after_write ? weights() : before;
      const std::int64_t asked = chunk == time ? q.dim(2) : end;
      for (std::int64_t t = begin; t < asked; ++t) outputs.push_back(c.learner.predict(read, row_at(q, t)));
    }
    Tensors out{concat(outputs, 2)};
    for (const Tensors& s : state) out.insert(out.end(), s.begin(), s.end());
    return out;
  };
}

// Values, then gradients of a scalar of them with respect to every input, then those of |gradient|^2, up to
// `order`. allow_zero: an input may have no part in them.
inline Function derivatives(const LoopCase& loop, const LoopRunner& run, int order, bool allow_zero = false) {
  return trace_case(loop, [&](const TracedCase& c) {
    Tensors out = run(c);
    Tensor y = outer_loss(out);
    const Tensors wrt(c.inputs.begin() + (loop.policy.query_is_key ? 1 : 0), c.inputs.end());
    for (int n = 1; n <= order; ++n) {
      const Tensors g = grad(y, wrt, {.allow_zero = allow_zero});
      out.insert(out.end(), g.begin(), g.end());
      y = sum(square(g[0]));
      for (std::size_t i = 1; i < g.size(); ++i) y = y + sum(square(g[i]));
    }
    return out;
  });
}

inline Arrays inputs_of(const Function& f) {
  Arrays out;
  for (std::size_t i = 0; i < f.inputs().size(); ++i) out.push_back(random(f.input_spec(i), 70 + i));
  return out;
}
inline Arrays numbers(const LoopCase& loop, const LoopRunner& run, int order, bool allow_zero = false) {
  const Function f = derivatives(loop, run, order, allow_zero);
  return f(inputs_of(f));
}

// The worst error of all pairs, as worst_error(); where b is zero to the last bit (an input without
// influence), a must be.
inline double error_of(const Arrays& a, const Arrays& b) {
  REQUIRE(a.size() == b.size());
  Arrays a_left, b_left;
  double worst = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const std::vector<double> numbers_b = b[i].to_vector();
    if (std::ranges::all_of(numbers_b, [](double x) { return x == 0; })) {
      for (const double x : a[i].to_vector()) worst = worse(worst, std::abs(x));
      continue;
    }
    a_left.push_back(a[i]), b_left.push_back(b[i]);
  }
  return worse(worst, worst_error(a_left, b_left));
}

// The names of the forms in `forms` whose numbers are not those of `expected`, with their errors; empty if
// all are.
inline std::string differing(const LoopCase& loop, const Arrays& expected, int order,
                             const std::vector<FormChoice>& forms, std::int64_t block = 4,
                             double tolerance = 1e-11) {
  std::string out;
  for (const FormChoice form : forms) {
    const double error = error_of(numbers(loop, in_form(form, block), order), expected);
    if (!(error < tolerance)) out += fmt::format("{} {:.2g}; ", ttt::name(form), error);
  }
  return out;
}

// Why a form is refused; empty if it is not.
inline std::string refusal(const LoopCase& loop, FormChoice form) {
  try {
    trace_case(loop, in_form(form));
    return {};
  } catch (const FormError& e) {
    return e.what();
  }
}
// Of the possible forms the one that does most at once.
inline FormChoice widest_form(const LoopCase& loop) {
  FormChoice out{};
  trace_case(loop, [&](const TracedCase& c) {
    const InnerLoopResult r = ttt::train_along(c.learner, c.start, c.views, {.policy = loop.policy});
    out = r.plan.slower.empty() ? r.plan.form : r.plan.slower.front();
    return Tensors{r.output};
  });
  return out;
}

// ---- learners ----

// f(x) = x W, with 1/2 |k W - v|^2 or the loss given.
inline NamedLearner matrix_of(const Sizes& s, FormulaLearner::Loss loss = {}) {
  const std::int64_t out = s.value_dim ? s.value_dim : s.dim;
  return formula(
      "x W",
      [=](const Params& p) {
        return Weights{matrix("W", p("W", {s.heads, s.dim, out}))};
      },
      [](const Weights& w, Tensor x) { return matmul(x, w["W"]); }, std::move(loss));
}
// -<f(k), v>, of which no gradient depends on W.
inline NamedLearner hebbian(const Sizes& s) {
  return matrix_of(s, against([](const Weights& w, Tensor x) { return matmul(x, w["W"]); }));
}

}  // namespace nestgrad::testing

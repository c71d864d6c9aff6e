// An inner loop written twice: a learner with an optimiser and a policy, for the forms to run; and the same
// by hand, a plain loop over tokens with `grad` on one token at a time and the optimiser's formulas in ops.
#pragma once

#include "tests/ttt/pupils.h"

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

struct Lesson {
  Pupil pupil;
  Method method;
  Policy policy;
  Sizes sizes = {};
  std::vector<GateInput> rates = {{"rate"}};
  bool position = false;
  std::int64_t asked = 0;  // tokens of q; 0: as many as there are keys
};

// The pupil with an optimiser of its own.
class Equipped : public ttt::Learner {
 public:
  Equipped(std::unique_ptr<ttt::Learner> pupil, InnerOptimizer optimizer)
      : pupil_(std::move(pupil)), optimizer_(std::move(optimizer)) {}
  Weights init() const override { return pupil_->init(); }
  Tensor predict(const Weights& w, Tensor x) const override { return pupil_->predict(w, x); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override { return pupil_->loss(w, k, v); }
  InnerOptimizer optimizer() const override { return optimizer_; }

 private:
  std::unique_ptr<ttt::Learner> pupil_;
  InnerOptimizer optimizer_;
};

struct Class {
  const Lesson& lesson;
  Tensors inputs;
  ttt::Learner& learner;
  Hand hand;
  Weights start;
  Views views;
};

inline Function in_class(const Lesson& lesson, const std::function<Tensors(const Class&)>& fn) {
  const Sizes& s = lesson.sizes;
  const auto rows = [&](std::int64_t dim) { return f64({s.batch, s.heads, s.time, dim}); };
  std::vector<Spec> specs{rows(s.dim), rows(s.dim), rows(s.value_dim ? s.value_dim : s.dim)};
  std::vector<GateInput> gates = lesson.rates;
  gates.insert(gates.end(), lesson.method.gates.begin(), lesson.method.gates.end());
  for (const GateInput& gate : gates) specs.push_back(rows(gate.per_feature ? s.dim : 1));
  if (lesson.asked) specs[0].shape[2] = lesson.asked;
  if (lesson.position) specs.push_back(f64({lesson.policy.chunk}));
  return trace(
      [&](const Tensors& in) {
        ParamTable table(*emit_state().graph, DType::f64);
        auto [optimizer, hand] = lesson.method.make(Params(table).at("optimizer"));
        Equipped learner(lesson.pupil.make(Params(table)), optimizer);
        const Weights start = ttt::for_batch(learner.init(), s.batch);
        Views views{in[0], in[1], in[2], {}, {}};
        for (std::size_t i = 0; i < gates.size(); ++i) views.gates[gates[i].name] = gates[i].shape(in[3 + i]);
        if (lesson.position) views.position = sigmoid(in.back());
        Tensors inputs = in;
        inputs.insert(inputs.end(), table.tensors().begin(), table.tensors().end());
        return fn({lesson, inputs, learner, hand, start, views});
      },
      specs);
}

using Taught = std::function<Tensors(const Class&)>;

inline bool learns(const Class& c, std::size_t weight) {
  const std::vector<std::string>& trained = c.lesson.policy.trained;
  return trained.empty() || std::ranges::find(trained, c.start.at(weight).name) != trained.end();
}

// Outputs, then every weight with its slots (if it learns).
inline Taught in_form(FormChoice form, std::int64_t block = 4) {
  return [=](const Class& c) {
    const InnerLoopResult r = ttt::train_along(c.learner, c.start, c.views,
                                               {.policy = c.lesson.policy, .form = form, .block = block});
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
inline Tensors token_gradient(const Class& c, const Weights& at, std::int64_t t) {
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
    if (c.lesson.policy.ascent) g[i] = -g[i];
  }
  return g;
}

inline Taught by_hand(std::function<void(const Weights& at)> watch = {}) {
  return [watch](const Class& c) {
    const Policy& p = c.lesson.policy;
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
    const auto point_of = [&](const Weights& w, const Now& gate) {
      Tensors at;
      for (const Tensor& t : w.values())
        at.push_back(p.meta == Policy::Meta::first_order ? stop_gradient(c.hand.point(t, gate))
                                                         : c.hand.point(t, gate));
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
        if (learns(c, i)) c.hand.step(state[i], learning[at++], gate);
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
              t == begin || !c.lesson.position
                  ? weights()
                  : place(first, weights(), slice(c.views.position, 0, t - begin - 1, t - begin));
          step(token_gradient(c, at, t), token_gate(t));
          const Weights left = c.lesson.position ? place(first, weights(),
                                                         slice(c.views.position, 0, t - begin, t - begin + 1))
                                                 : weights();
          outputs.push_back(
              c.learner.predict(p.read == Policy::Read::after_write ? left : found, row_at(q, t)));
        }
        if (c.lesson.position) {
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
inline Function derivatives(const Lesson& lesson, const Taught& run, int order, bool allow_zero = false) {
  return in_class(lesson, [&](const Class& c) {
    Tensors out = run(c);
    Tensor y = outer_loss(out);
    const Tensors wrt(c.inputs.begin() + (lesson.policy.query_is_key ? 1 : 0), c.inputs.end());
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
inline Arrays numbers(const Lesson& lesson, const Taught& run, int order, bool allow_zero = false) {
  const Function f = derivatives(lesson, run, order, allow_zero);
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
      for (const double x : a[i].to_vector()) worst = std::max(worst, std::abs(x));
      continue;
    }
    a_left.push_back(a[i]), b_left.push_back(b[i]);
  }
  return std::max(worst, worst_error(a_left, b_left));
}

// The names of the forms in `forms` whose numbers are not those of `expected`, with their errors; empty if
// all are.
inline std::string differing(const Lesson& lesson, const Arrays& expected, int order,
                             const std::vector<FormChoice>& forms, std::int64_t block = 4,
                             double tolerance = 1e-11) {
  std::string out;
  for (const FormChoice form : forms) {
    const double error = error_of(numbers(lesson, in_form(form, block), order), expected);
    if (!(error < tolerance)) out += fmt::format("{} {:.2g}; ", ttt::name(form), error);
  }
  return out;
}

// Why a form is refused; empty if it is not.
inline std::string refusal(const Lesson& lesson, FormChoice form) {
  try {
    in_class(lesson, in_form(form));
    return {};
  } catch (const FormError& e) {
    return e.what();
  }
}
// Of the possible forms the one that does most at once.
inline FormChoice widest_form(const Lesson& lesson) {
  FormChoice out{};
  in_class(lesson, [&](const Class& c) {
    const InnerLoopResult r = ttt::train_along(c.learner, c.start, c.views, {.policy = lesson.policy});
    out = r.plan.slower.empty() ? r.plan.form : r.plan.slower.front();
    return Tensors{r.output};
  });
  return out;
}

// ---- learners ----

// f(x) = x W, with 1/2 |k W - v|^2 or the loss given.
inline Pupil matrix_of(const Sizes& s, Formula::Loss loss = {}) {
  const std::int64_t out = s.value_dim ? s.value_dim : s.dim;
  return formula(
      "x W",
      [=](const Params& p) {
        return Weights{matrix("W", p("W", {s.heads, s.dim, out}))};
      },
      [](const Weights& w, Tensor x) { return matmul(x, w["W"]); }, std::move(loss));
}
// -<f(k), v>, of which no gradient depends on W.
inline Pupil hebbian(const Sizes& s) {
  return matrix_of(s, against([](const Weights& w, Tensor x) { return matmul(x, w["W"]); }));
}

// ---- optimisers ----

inline Method sgd() {
  return {"SGD", {}, [](const Params&) { return std::pair(InnerOptimizer(), Hand()); }};
}
inline Tensor nothing(Tensor w) { return w * 0.0; }

// Steps that are linear in state and gradient, with one number a token.
inline std::vector<Method> linear_methods(const Sizes& s) {
  const auto with_momentum = [](Tensor w) { return Tensors{w, nothing(w)}; };
  using ttt::gate;
  return {
      sgd(),
      {"scale",
       {{"size"}},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = w[0] - 0.3 * now("size") * g; };
         return std::pair(InnerOptimizer().scale(0.3).scale(gate("size")), hand);
       }},
      {"momentum",
       {},
       [=](const Params&) {
         Hand hand{.start = with_momentum};
         hand.step = [](Tensors& w, Tensor g, const Now&) {
           w[1] = 0.7 * w[1] + g;
           w[0] = w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(0.7), hand);
       }},
      {"momentum of each token",
       {{"beta"}},
       [=](const Params&) {
         Hand hand{.start = with_momentum};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")), hand);
       }},
      {"Nesterov",
       {{"beta"}},
       [=](const Params&) {
         Hand hand{.start = with_momentum};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = w[0] - g - now("beta") * w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta"), true), hand);
       }},
      {"decay",
       {},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now&) { w[0] = 0.9 * w[0] - g; };
         return std::pair(InnerOptimizer().keep(0.9), hand);
       }},
      {"decay of each token",
       {{"keep"}},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = now("keep") * w[0] - g; };
         return std::pair(InnerOptimizer().keep(gate("keep")), hand);
       }},
      {"Titans",
       {{"beta"}, {"keep"}},
       [=](const Params&) {
         Hand hand{.start = with_momentum};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = now("keep") * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).keep(gate("keep")), hand);
       }},
      {"two momenta, a scale between them, decay",
       {{"beta"}, {"size"}, {"keep"}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w), nothing(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = 0.5 * w[1] + g;
           const Tensor scaled = now("size") * w[1];
           w[2] = now("beta") * w[2] + scaled;
           w[0] = now("keep") * w[0] - (scaled + now("beta") * w[2]);
         };
         return std::pair(InnerOptimizer()
                              .momentum(0.5)
                              .scale(gate("size"))
                              .momentum(gate("beta"), true)
                              .keep(gate("keep")),
                          hand);
       }},
      {"a piece of one's own",
       {{"beta"}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w), nothing(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           const Tensor old = w[1];
           w[1] = 0.5 * old - w[2] / (1.0 + now("beta"));
           w[2] = 0.25 * w[2] + exp(-now("beta")) * (g + old);
           w[0] = w[0] - (w[1] + w[2] + 0.1 * g);
         };
         const auto fn = [](Tensor g, std::span<Tensor> slots, const ttt::Gates& gates) {
           const Tensor beta = gates.at("beta"), old = slots[0];
           slots[0] = 0.5 * old - slots[1] / (1.0 + beta);
           slots[1] = 0.25 * slots[1] + exp(-beta) * (g + old);
           return slots[0] + slots[1] + 0.1 * g;
         };
         return std::pair(InnerOptimizer().piece("leapfrog", fn, {"position", "speed"}), hand);
       }},
      {"learned numbers of each head",
       {},
       [=](const Params& p) {
         const Tensor size = p("size", {s.heads, 1, 1}), beta = sigmoid(p("beta", {})),
                      keep = sigmoid(p("keep", {s.heads, 1, 1}));
         Hand hand{.start = with_momentum};
         hand.step = [=](Tensors& w, Tensor g, const Now&) {
           w[1] = beta * w[1] + size * g;
           w[0] = keep * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().scale(size).momentum(beta).keep(keep), hand);
       }},
  };
}

// One number per input feature.
inline std::vector<Method> feature_methods(const Sizes& s) {
  using ttt::gate;
  return {
      {"a forget gate per feature (GLA)",
       {{"keep", true}},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = now("keep") * w[0] - g; };
         return std::pair(InnerOptimizer().keep(gate("keep")), hand);
       }},
      {"everything per feature",
       {{"size", true}, {"beta", true}, {"keep", true}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + now("size") * g;
           w[0] = now("keep") * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().scale(gate("size")).momentum(gate("beta")).keep(gate("keep")),
                          hand);
       }},
      {"learned per feature, momentum per token",
       {{"beta"}},
       [=](const Params& p) {
         const Tensor keep = sigmoid(p("keep", {s.heads, s.dim, 1}));
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.step = [=](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = keep * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).keep(keep), hand);
       }},
      {"a scale per feature, summed up",
       {{"size", true}},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = w[0] - now("size") * g; };
         return std::pair(InnerOptimizer().scale(gate("size")), hand);
       }},
  };
}

// The forget gate acts before the gradient is taken.
inline std::vector<Method> moving_methods() {
  using ttt::gate;
  const auto make = [](const Params&) {
    Hand hand;
    hand.point = [](Tensor w, const Now& now) { return now("keep") * w; };
    hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = now("keep") * w[0] - g; };
    return std::pair(InnerOptimizer().keep(gate("keep"), true), hand);
  };
  return {
      {"keep before the gradient", {{"keep"}}, make},
      {"keep before the gradient, per feature", {{"keep", true}}, make},
      {"keep before the gradient, momentum",
       {{"keep"}, {"beta"}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.point = [](Tensor w, const Now& now) { return now("keep") * w; };
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = now("keep") * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).keep(gate("keep"), true), hand);
       }},
  };
}

// Unit vectors times what is inside the brackets of Jordan et al.'s Newton-Schulz step, written per matrix.
inline Tensor newton_schulz(Tensor x, const ttt::QuinticSteps& steps, double eps) {
  x = x / (sqrt(sum(square(x), {-2, -1}, kKeep)) + eps);
  for (const auto& [a, b, c] : steps) {
    const Tensor gram = matmul(x, transpose(x));
    x = a * x + matmul(b * gram + c * matmul(gram, gram), x);
  }
  return x;
}
inline Tensor column_norm(Tensor w) { return sqrt(sum(square(w), {-2}, kKeep)); }

// Steps that are not linear. Muon, the norms and the master copy concern matrices only.
inline std::vector<Method> nonlinear_methods(const Sizes& s) {
  using ttt::gate;
  using ttt::Per;
  const auto row_like = [](Tensor w) { return w.dim(-2) == 1; };
  return {
      {"weight norm",
       {},
       [=](const Params&) {
         Hand hand{.start = [=](Tensor w) { return row_like(w) ? Tensors{w} : Tensors{w, column_norm(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now&) {
           const Tensor next = w[0] - g;
           w[0] = w.size() == 1 ? next : next / (column_norm(next) + 1e-5) * w[1];
         };
         return std::pair(InnerOptimizer().weight_norm(), hand);
       }},
      {"weight norm, detached, and decay",
       {{"keep"}},
       [=](const Params&) {
         Hand hand{.start = [=](Tensor w) {
           return row_like(w) ? Tensors{w} : Tensors{w, column_norm(stop_gradient(w))};
         }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           const Tensor next = now("keep") * w[0] - g;
           w[0] = w.size() == 1 ? next : next / (column_norm(next) + 1e-3) * w[1];
         };
         return std::pair(InnerOptimizer().keep(gate("keep")).weight_norm(1e-3, true), hand);
       }},
      {"norm of a master copy, momentum",
       {{"beta"}},
       [=](const Params&) {
         Hand hand{.start = [=](Tensor w) {
           return row_like(w) ? Tensors{w, nothing(w)} : Tensors{w, nothing(w), column_norm(w), w};
         }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           if (w.size() == 2) {
             w[0] = w[0] - w[1];
             return;
           }
           w[3] = w[3] - w[1];
           w[0] = w[3] / (column_norm(w[3]) + 1e-5) * w[2];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).prenorm(), hand);
       }},
      {"Muon",
       {{"beta"}},
       [=](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.step = [=](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = w[0] -
                  (row_like(w[0])
                       ? w[1]
                       : newton_schulz(w[1], {{3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}}, 1e-3));
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).muon(ttt::muon_published(2), 1e-3), hand);
       }},
      {"Adam",
       {},
       [=](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w), nothing(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now&) {
           w[1] = 0.8 * w[1] + 0.2 * g;
           w[2] = 0.9 * w[2] + 0.1 * g * g;
           w[0] = w[0] - w[1] / sqrt(w[2] + 1e-2);
         };
         return std::pair(InnerOptimizer().adam(0.8, 0.9, 1e-2), hand);
       }},
      {"clip per matrix",
       {},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now&) {
           const Tensor length = sqrt(sum(square(g), {-2, -1}, kKeep));
           w[0] = w[0] - g * min(1.0, 0.5 / length);
         };
         return std::pair(InnerOptimizer().clip(Per::matrix, 0.5), hand);
       }},
      {"normalise per column",
       {},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now&) { w[0] = w[0] - g / (column_norm(g) + 0.1); };
         return std::pair(InnerOptimizer().normalize(Per::column, 0.1), hand);
       }},
      {"clip over all weights, momentum",
       {{"beta"}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.joint = [](Tensors g) {
           Tensor squares;
           for (const Tensor& t : g)
             squares = squares.defined() ? squares + sum(square(t), {-2, -1}, kKeep)
                                         : sum(square(t), {-2, -1}, kKeep);
           for (Tensor& t : g) t = t * min(1.0, 1.5 / sqrt(squares));
           return g;
         };
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = w[0] - w[1];
         };
         return std::pair(InnerOptimizer().clip(Per::all, 1.5).momentum(gate("beta")), hand);
       }},
      {"normalise over all weights",
       {},
       [](const Params&) {
         Hand hand;
         hand.joint = [](Tensors g) {
           Tensor squares;
           for (const Tensor& t : g)
             squares = squares.defined() ? squares + sum(square(t), {-2, -1}, kKeep)
                                         : sum(square(t), {-2, -1}, kKeep);
           for (Tensor& t : g) t = t / (sqrt(squares) + 0.1);
           return g;
         };
         return std::pair(InnerOptimizer().normalize(Per::all, 0.1), hand);
       }},
      {"a rate of each element",
       {},
       [=](const Params& p) {
         const Tensor size = exp(p("size", {s.heads, s.dim, s.value_dim ? s.value_dim : s.dim}));
         Hand hand;
         hand.step = [=](Tensors& w, Tensor g, const Now&) { w[0] = w[0] - (row_like(w[0]) ? g : size * g); };
         return std::pair(InnerOptimizer().piece("own rates",
                                                 [=](Tensor g, std::span<Tensor>, const ttt::Gates&) {
                                                   return row_like(g) ? g : size * g;
                                                 }),
                          hand);
       }},
  };
}

}  // namespace nestgrad::testing

// The promise: Hope's memories make keys, values, rates and forget gates, its perceptrons learn at frequencies of their
// own, and the outer gradient goes through all of it. A learner's own gates are checked.
#include "autograd/grad.h"
#include "ops/accumulate.h"
#include "tests/ops/check_grads.h"
#include "tests/ttt/system_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::system_named;

namespace {

constexpr double kTolerance = 1e-11;
constexpr const char* kMemories[] = {"M_memory", "M_k", "M_v", "M_eta", "M_alpha"};
constexpr const char* kLevels[][2] = {{"P_1.W1", "P_1.W2"}, {"P_2.W1", "P_2.W2"}};

Tensor perceptrons(const std::function<Tensor(const char*)>& w, Tensor o) {
  for (const auto& level : kLevels) o = o + matmul(gelu(matmul(o, w(level[0]))), w(level[1]));
  return o;
}
Tensor half_square(Tensor x) { return 0.5 * sum(square(x)); }

// Equations 70, 71, 88 and 94 to 97 from the text, without a learner; gradients at the chunk's first weights
// (equation 90). periods: of the two levels. cut: what makes keys, values, rates and gates is cut from the outer
// gradient too.
SystemRun from_the_text(std::int64_t chunk, const std::array<std::int64_t, 2>& periods, bool cut = false) {
  return [=](const SystemProgram& p) {
    std::map<std::string, Tensor> now, first, sums;
    for (std::size_t i = 0; i < p.start.size(); ++i) now[p.start.at(i).name] = p.start.at(i).value;
    const Tensor eta_bias = p.inputs[p.inputs.size() - 2], alpha_bias = p.inputs.back();
    Tensors outputs;
    for (std::int64_t t = 0; t < p.views.k.dim(2); ++t) {
      if (t % chunk == 0) first = now;
      const auto held = [&](const char* name) {
        return cut ? stop_gradient(first.at(name)) : first.at(name);
      };
      outputs.push_back(perceptrons([&](const char* name) { return now.at(name); },
                                    matmul(token(p.views.q, t), now.at("M_memory"))));
      const Tensor x = token(p.views.k, t);
      const Tensor x_v = token(p.views.v, t);
      const Tensor k = l2_norm(x + matmul(x, held("M_k"))), v = l2_norm(x_v + matmul(x_v, held("M_v")));
      const Tensor eta = sigmoid(matmul(x, held("M_eta")) + eta_bias) / static_cast<double>(chunk),
                   alpha = sigmoid(matmul(x, held("M_alpha")) + alpha_bias);
      for (const char* name : kMemories) {
        const Tensor memory = probe(first.at(name));
        Tensor target = matmul(v, held(name));
        if (name == kMemories[0]) target = target + v;
        const Tensor g = grad(half_square(matmul(k, memory) - target), memory);
        now[name] = alpha * now.at(name) - eta * matmul(matmul(k, k, {.a = true}), first.at(name)) - eta * g;
      }
      std::map<std::string, Tensor> seen;
      Tensors wrt;
      for (const auto& level : kLevels)
        for (const char* name : level) wrt.push_back(seen[name] = probe(first.at(name)));
      const Tensor said =
          perceptrons([&](const char* name) { return seen.at(name); }, matmul(k, held("M_memory")));
      const Tensors g = grad(half_square(l2_norm(said) - v), wrt);
      for (std::size_t i = 0; i < 4; ++i) {
        const char* name = kLevels[i / 2][i % 2];
        accumulate(sums[name], eta * g[i]);
        if ((t + 1) % periods[i / 2]) continue;
        now[name] = now.at(name) - sums.at(name);
        sums[name] = {};
      }
    }
    Tensors last;
    for (std::size_t i = 0; i < p.start.size(); ++i) last.push_back(now.at(p.start.at(i).name));
    return made_by_hand(outputs, p.start.with(last));
  };
}

Arrays output_gradients(const System& system, const ProgramSizes& sizes, const SystemRun& run) {
  const Function f = ttt::trace_system(system, sizes, DType::f64, [&](const SystemProgram& p) {
    return grad(outer_loss({run(p).output}), p.inputs, {.allow_zero = true});
  });
  return f(ttt::numbers_for(f, 1));
}

// x W with a forget gate that a fast row makes of the token.
class OwnGate : public ttt::Learner {
 public:
  using Make = std::function<ttt::Gates(const Weights& w, Tensor k, Tensor place)>;
  OwnGate(const Params& p, const ttt::SystemSizes& s, std::vector<std::string> names, Make make)
      : start_{ttt::matrix("W", p("W", {s.heads, s.dim, s.dim})), ttt::row("b", p("b", {s.heads, 1, s.dim}))},
        names_(std::move(names)),
        make_(std::move(make)) {}
  Weights init() const override { return start_; }
  Tensor predict(const Weights& w, Tensor x) const override { return matmul(x, w["W"]) + w["b"]; }
  ttt::InnerOptimizer optimizer() const override { return ttt::InnerOptimizer().keep(ttt::gate("keep")); }
  std::vector<std::string> own_gates() const override { return names_; }
  ttt::Gates gates(const Weights& w, Tensor k, Tensor, Tensor place) const override {
    return make_(w, k, place);
  }

 private:
  Weights start_;
  std::vector<std::string> names_;
  Make make_;
};

System with_gate(const OwnGate::Make& make, std::vector<std::string> names = {"keep"}) {
  System s{.name = "own-gate", .title = "own gate", .source = "test"};
  s.learner = [=](const Params& p, const ttt::SystemSizes& n) {
    return std::make_unique<OwnGate>(p, n, names, make);
  };
  s.policy = [](const ttt::SystemSizes& n) { return ttt::Policy{.chunk = n.chunk}; };
  s.gates = {{.name = "rate", .shape = [](Tensor raw) { return 0.2 * sigmoid(raw); }}};
  return s;
}
ttt::Gates faded(const Weights& w, Tensor k, Tensor place) {
  return {{"keep", sigmoid(sum(k * w.held("b"), {-1}, kKeep) + place)}};
}

}  // namespace

TEST_CASE("a gate of one's own that numbers the tokens by itself, or lets sequences meet, is refused") {
  const auto why = [](const OwnGate::Make& make) {
    return message_of<FormError>([&] {
      run_system(with_gate(make), {.batch = 2, .heads = 2, .time = 8, .chunk = 4},
                 system_in(FormChoice::dual), 0);
    });
  };
  CHECK(contains(why([](const Weights&, Tensor k, Tensor) {
                   return ttt::Gates{{"keep", 0.1 * (1.0 + iota(k.dtype(), {k.dim(-2), 1}, 0))}};
                 }),
                 "the gate 'keep' numbers the tokens by itself"));
  CHECK(contains(why([](const Weights&, Tensor k, Tensor) {
                   const Tensor own = sum(k, {-1}, kKeep);
                   return ttt::Gates{{"keep", sigmoid(own - mean(own, {0}, kKeep))}};
                 }),
                 "sequences and heads are not independent: in the gate 'keep'"));
}

TEST_CASE(
    "Hope is the text's: values and order 1, with its perceptrons stepping every token and every 4 or 3") {
  const System& system = system_named("hope");
  const ProgramSizes four{.batch = 1, .time = 10, .chunk = 4},
      three{.batch = 1, .dim = 3, .time = 8, .chunk = 3};
  for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
    CHECK(worst_error(run_system(system, four, system_in(form), 1),
                      run_system(system, four, from_the_text(4, {1, 4}), 1)) < kTolerance);
    CHECK(worst_error(run_system(system, three, system_in(form), 1),
                      run_system(system, three, from_the_text(3, {1, 3}), 1)) < kTolerance);
  }
  // The control: another frequency of one level.
  CHECK(worst_error(run_system(system, four, system_in(FormChoice::dual), 0),
                    run_system(system, four, from_the_text(4, {2, 4}), 0)) > 1e-4);
}

TEST_CASE("Hope: dual and primal agree at order 2; no other form takes gates that are made of weights") {
  CHECK(refused(system_named("hope"), {.batch = 1, .heads = 1, .dim = 3, .time = 5, .chunk = 2}, 2) ==
        "parallel wy");
}

TEST_CASE(
    "Hope: the outer gradient of the outputs alone reaches what makes keys, values, rates and forget gates") {
  const System& system = system_named("hope");
  const ProgramSizes sizes{.batch = 1, .time = 10, .chunk = 4};
  const Arrays held = output_gradients(system, sizes, system_in(FormChoice::dual)),
               text = output_gradients(system, sizes, from_the_text(4, {1, 4})),
               cut = output_gradients(system, sizes, from_the_text(4, {1, 4}, true));
  CHECK(worst_error(held, text) < kTolerance);
  for (std::size_t i = 1; i < std::size(kMemories);
       ++i) {  // parameters stand behind q, k, v in the order of kMemories
    CAPTURE(kMemories[i]);
    double largest = 0;
    for (const double g : held[3 + i].to_vector()) largest = std::max(largest, std::abs(g));
    CHECK(largest > 1e-5);
    for (const double g : cut[3 + i].to_vector()) CHECK(g == 0);
  }
}

TEST_CASE("Hope: the outer gradient is the derivative, to order 2") {
  const ProgramSizes sizes{.batch = 1, .heads = 1, .dim = 2, .time = 5, .chunk = 2};
  const Function f = ttt::trace_system(system_named("hope"), sizes, DType::f64, [&](const SystemProgram& p) {
    return values_of(system_in(FormChoice::dual)(p));
  });
  Subject s{.what = "hope",
            .fn = [f](const Tensors& in) { return f(std::span<const Tensor>(in)); },
            .inputs = ttt::numbers_for(f, 1),
            .active = {},
            .orders = 2};
  CHECK(join(check_taylor(s)) == "");
}

TEST_CASE("own gates are made of the weights that a chunk found, in both forms, to order 2") {
  const System system = with_gate(faded);
  const ProgramSizes sizes{.batch = 1, .time = 7, .chunk = 3};
  const SystemRun by_hand = [](const SystemProgram& p) {
    Weights now = p.start, first = p.start;
    Tensors outputs;
    for (std::int64_t t = 0; t < p.views.k.dim(2); ++t) {
      if (t % 3 == 0) first = now;
      Tensors at = first.values();
      for (Tensor& w : at) w = probe(w);
      const Tensor k = token(p.views.k, t);
      const Tensors g = grad(half_square(matmul(k, at[0]) + at[1] - token(p.views.v, t)), at);
      const Tensor keep = sigmoid(sum(k * first["b"], {-1}, kKeep) + static_cast<double>(t % 3));
      Tensors next;
      for (std::size_t i = 0; i < 2; ++i)
        next.push_back(keep * now.at(i).value - token(p.views.gates.at("rate"), t) * g[i]);
      now = now.with(next);
      outputs.push_back(matmul(token(p.views.q, t), now["W"]) + now["b"]);
    }
    return made_by_hand(outputs, now);
  };
  CHECK(worst_error(run_system(system, sizes, system_in(FormChoice::primal), 2),
                    run_system(system, sizes, by_hand, 2)) < kTolerance);
  CHECK(refused(system, sizes, 2) == "parallel wy");
}

TEST_CASE(
    "gates that are made of the weights keep chunks apart, even where no gradient depends on a weight") {
  class Hebbian : public OwnGate {
   public:
    using OwnGate::OwnGate;
    Tensor loss(const Weights& w, Tensor k, Tensor v) const override {
      return -sum(predict(w, k) * v, {-1}, kKeep);
    }
  };
  System system = with_gate(faded);
  system.learner = [](const Params& p, const ttt::SystemSizes& n) {
    return std::make_unique<Hebbian>(p, n, std::vector<std::string>{"keep"}, faded);
  };
  CHECK(refused(system, {.batch = 1, .time = 7, .chunk = 3}, 1) == "parallel wy");
}

TEST_CASE(
    "wrong use: own gates that are not given, not named, not one a token, given twice, or let tokens meet") {
  const ProgramSizes sizes{.batch = 1, .time = 6, .chunk = 3};
  const auto traced = [&](const OwnGate::Make& make, std::vector<std::string> names = {"keep"}) {
    return [=] { system_derivatives(with_gate(make, names), sizes, system_in(FormChoice::automatic), 0); };
  };
  CHECK(contains(message_of<ConfigError>(traced([](const Weights&, Tensor, Tensor) { return ttt::Gates(); })),
                 "names 'keep', which gates() does not give"));
  CHECK(contains(message_of<ConfigError>(traced(faded, {})), "needs the gate 'keep'"));
  CHECK(contains(message_of<ShapeError>(traced([](const Weights&, Tensor k, Tensor) {
                   return ttt::Gates{{"keep", k}};
                 })),
                 "must be one number a token"));
  CHECK(contains(message_of<FormError>(traced([](const Weights&, Tensor k, Tensor) {
                   return ttt::Gates{{"keep", mean(k, {-2, -1}, kKeep)}};
                 })),
                 "in the gate 'keep'"));
  System twice = with_gate(faded);
  twice.gates.push_back({.name = "keep", .shape = [](Tensor raw) { return sigmoid(raw); }});
  CHECK(contains(
      message_of<ShapeError>([&] { system_derivatives(twice, sizes, system_in(FormChoice::automatic), 0); }),
      "the learner makes it itself"));
}

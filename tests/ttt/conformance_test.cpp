// The promise: every published system passes the battery, and the battery sees what is wrong.
#include "ttt/conformance.h"

#include "autograd/custom.h"
#include "tests/testing.h"
#include "ttt/compose.h"
#include "ttt/explain.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::FormChoice;
using ttt::System;
using ttt::SystemSizes;

namespace {

const Claim& check_of(const ttt::ConformanceReport& report, const std::string& name) {
  for (const Claim& c : report.checks)
    if (c.claim == name) return c;
  FAIL("no check of that name");
  return report.checks[0];
}

// x W with this prediction.
System with_predict(std::function<Tensor(const ttt::Weights&, Tensor)> f) {
  System s{.name = "test", .title = "test", .source = "test"};
  s.learner = [f](const Params& p, const SystemSizes& n) {
    ttt::Model model = ttt::linear(p, {.heads = n.heads, .in = n.dim, .out = n.dim});
    model.f = f;
    return std::make_unique<ttt::Composed>(model, ttt::half_squared_error());
  };
  s.policy = [](const SystemSizes& n) { return ttt::Policy{.chunk = n.chunk}; };
  s.prepare = [](ttt::Views& v) {
    v.gates["rate"] = full(v.k.dtype(), {v.k.dim(0), v.k.dim(1), v.k.dim(2), 1}, 0.1);
  };
  return s;
}

}  // namespace

TEST_CASE("a derivative that is zero but for rounding is the same in all forms") {
  // Softmax of one class is 1: nothing is learnt, and what rounding leaves differs from form to form.
  System s{.name = "test", .title = "test", .source = "test"};
  s.gates = {{"rate", false, [](Tensor raw) { return sigmoid(raw); }}};
  s.learner = [](const Params& p, const SystemSizes& n) {
    return std::make_unique<ttt::Composed>(ttt::linear(p, {.heads = n.heads, .in = n.dim, .out = n.dim}),
                                           ttt::cross_entropy_with());
  };
  s.policy = [](const SystemSizes&) { return ttt::Policy{.chunk = 1}; };
  const ttt::ConformanceReport report =
      ttt::conformance(s, {.batch = 1, .heads = 1, .dim = 1, .time = 1, .chunk = 1}, 0);
  CAPTURE(report.str());
  CHECK(check_of(report, "forms").holds());
}

TEST_SUITE("slow") {
  TEST_CASE("every published system passes the battery") {
    CHECK(ttt::systems().size() >= 34);
    for (const System& s : ttt::systems()) {
      CAPTURE(s.name);
      const ttt::ConformanceReport report = ttt::conformance(s);
      CAPTURE(report.str());
      CHECK(report.passed());
      CHECK(report.checks.size() == 14);
    }
  }
  TEST_CASE("the battery passes at other sizes: one head, one sequence, a chunk longer than the text") {
    for (const std::string name :
         {"ttt-linear", "titans-linear", "gated-delta-net", "lact", "lact-v5", "lact-v6"})
      for (const ttt::ProgramSizes& sizes :
           {ttt::ProgramSizes{.batch = 1, .heads = 1, .dim = 6, .time = 7, .chunk = 3},
            ttt::ProgramSizes{.batch = 2, .heads = 1, .dim = 4, .time = 5, .chunk = 8}}) {
        const ttt::ConformanceReport report = ttt::conformance(ttt::system_named(name), sizes, 5);
        CAPTURE(name);
        CAPTURE(report.str());
        CHECK(report.passed());
      }
  }
}

TEST_CASE("the battery passes a prediction that splits features, and a function with a rule of its own") {
  const auto groups = [](const ttt::Weights& w, Tensor x) {
    const Tensor y = matmul(x, w["W"]);
    Shape split = y.shape();
    split.back() /= 2;
    split.push_back(2);
    return reshape(softmax(reshape(y, split), -1), y.shape());
  };
  const auto ruled = [](const ttt::Weights& w, Tensor x) {
    return custom_vjp([](const Tensors& in) { return tanh(in[0]); },
                      [](const Tensors&, Tensor y, Tensor ct) { return Tensors{ct * (1.0 - square(y))}; },
                      {matmul(x, w["W"])});
  };
  for (const System& s : {with_predict(groups), with_predict(ruled)})
    for (const auto& [batch, heads, time] : {std::tuple{2, 2, 9}, {2, 1, 9}, {1, 1, 10}, {1, 1, 1}}) {
      CAPTURE_BOUND(batch);
      CAPTURE_BOUND(heads);
      CAPTURE_BOUND(time);
      const ttt::ConformanceReport r =
          ttt::conformance(s, {.batch = batch, .heads = heads, .dim = 4, .time = time, .chunk = 4});
      CHECK_MESSAGE(r.passed(), r.str());
    }
}

TEST_CASE(
    "a right gradient passes where the third order is larger than the second at every step that is looked at") {
  const ttt::ConformanceReport r = ttt::conformance(
      ttt::system_named("lact"), {.batch = 1, .heads = 2, .dim = 4, .time = 3, .chunk = 5}, 9);
  CHECK_MESSAGE(check_of(r, "taylor").holds(), r.str());
}

TEST_CASE("negative control: a gradient that is cut, and a norm without a derivative at zero, are found") {
  const ttt::ConformanceReport good =
      ttt::conformance(with_predict([](const ttt::Weights& w, Tensor x) { return matmul(x, w["W"]); }));
  CHECK(good.passed());
  const ttt::ConformanceReport cut = ttt::conformance(with_predict(
      [](const ttt::Weights& w, Tensor x) { return matmul(stop_gradient(tanh(x)) + 0.1 * x, w["W"]); }));
  CHECK(!check_of(cut, "differences").holds());
  CHECK(!check_of(cut, "taylor").holds());
  CHECK(check_of(cut, "forms").holds());  // all forms are equally wrong
  const ttt::ConformanceReport sharp = ttt::conformance(with_predict(
      [](const ttt::Weights& w, Tensor x) { return matmul(x, w["W"]) * sqrt(sum(square(x), {-1}, kKeep)); }));
  CHECK(!check_of(sharp, "zeros").holds());
  CHECK(check_of(sharp, "differences").holds());
}

// A matrix whose optimiser, loss and gates are given.
System with_parts(ttt::InnerOptimizer optimizer, std::function<Tensor(Tensor loss, Tensor k)> loss = {}) {
  System s{.name = "test", .title = "test", .source = "test"};
  s.gates = {{.name = "rate", .shape = [](Tensor r) { return 0.3 * sigmoid(r); }},
             {.name = "warmth", .shape = [](Tensor r) { return 1.0 + sigmoid(r); }}};
  s.learner = [=](const Params& p, const SystemSizes& n) {
    const ttt::InnerLoss half = ttt::half_squared_error();
    return std::make_unique<ttt::Composed>(
        ttt::linear(p, {.heads = n.heads, .in = n.dim, .out = n.dim}),
        loss ? ttt::InnerLoss{"own", [=](Tensor f, Tensor v) { return loss(half.f(f, v), f); }} : half,
        optimizer);
  };
  s.policy = [](const SystemSizes& n) { return ttt::Policy{.chunk = n.chunk}; };
  return s;
}

TEST_CASE("negative control: what is made of how many sequences or heads there are is found") {
  const auto piece = [](auto count) {
    return ttt::InnerOptimizer()
        .scale(ttt::gate("warmth"))
        .piece("counts",
               [=](Tensor g, std::span<Tensor>, const ttt::Gates&) { return g * (1.0 / count(g)); });
  };
  const auto sequences = [](Tensor g) { return static_cast<double>(g.dim(0)); };
  const auto heads = [](Tensor g) { return static_cast<double>(g.dim(1)); };
  for (const auto& r :
       {ttt::conformance(with_parts(piece(sequences))), ttt::conformance(with_parts(piece(heads))),
        ttt::conformance(with_parts(ttt::InnerOptimizer().scale(ttt::gate("warmth")), [](Tensor l, Tensor k) {
          return l * (1.0 / static_cast<double>(k.dim(-3)));
        }))}) {
    CHECK(!check_of(r, "alone").holds());
    CHECK(check_of(r, "independence").holds());
  }
  CHECK(check_of(ttt::conformance(with_parts(piece([](Tensor) { return 2.0; }))), "alone").holds());
  System of_two = with_parts(piece([](Tensor) { return 2.0; }));
  of_two.learner = [inner = of_two.learner](const Params& p, const SystemSizes& n) {
    return inner(p, {2, n.dim, n.chunk});
  };
  CHECK(
      contains(check_of(ttt::conformance(of_two), "alone").note, "with one head the learner cannot be made"));
}

TEST_CASE("what is made of a gate need not be finite of a zero: tokens that have not come are none") {
  const ttt::Hyper part = ttt::gate("warmth", "1 / warmth", [](Tensor w) { return 1.0 / w; });
  const ttt::Hyper log =
      ttt::gate("warmth", "1 - 0.1 log warmth", [](Tensor w) { return 1.0 - 0.1 * nestgrad::log(w); });
  const auto cool = [](Tensor g, std::span<Tensor>, const ttt::Gates& gates) {
    return g / gates.at("warmth");
  };
  for (const ttt::InnerOptimizer& optimizer :
       {ttt::InnerOptimizer().scale(part), ttt::InnerOptimizer().keep(part), ttt::InnerOptimizer().keep(log),
        ttt::InnerOptimizer().momentum(part), ttt::InnerOptimizer().piece("cool", cool)}) {
    const ttt::ConformanceReport r = ttt::conformance(with_parts(optimizer));
    CHECK_MESSAGE(r.passed(), r.str());
  }
}

TEST_CASE("the battery says of a learner that overflows that its numbers are not finite, in no form") {
  const ttt::ConformanceReport r = ttt::conformance(with_predict([](const ttt::Weights& w, Tensor x) {
    const Tensor h = 30 * matmul(x, w["W"]);
    return matmul(h * h, w["W"]) + matmul(h, w["W"], {.b = true});
  }));
  CHECK(!check_of(r, "forms").holds());
  CHECK(contains(check_of(r, "online").note, "finite in neither way"));
  CHECK(contains(check_of(r, "forms").note, "are not finite"));
  CHECK(contains(r.str(), "make its steps smaller"));
}

TEST_CASE("a learner that mixes tokens is refused by the battery as everywhere") {
  const std::string why = message_of<FormError>([] {
    ttt::conformance(with_predict(
        [](const ttt::Weights& w, Tensor x) { return matmul(x - mean(x, {-2}, kKeep), w["W"]); }));
  });
  CHECK(contains(why, "tokens are not independent"));
}

TEST_CASE("the plan of every system is the one that its trace proves") {
  const std::map<std::string, FormChoice> expected{
      {"ttt-linear", FormChoice::dual},
      {"ttt-mlp", FormChoice::dual},
      {"naive-ttt", FormChoice::wy},
      {"titans-linear", FormChoice::dual},
      {"titans-mlp", FormChoice::dual},
      {"kv-binding", FormChoice::dual},
      {"self-modifying", FormChoice::dual},
      {"hope", FormChoice::dual},
      {"linear-attention", FormChoice::parallel},
      {"gated-linear-attention", FormChoice::parallel},
      {"delta-net", FormChoice::wy},
      {"gated-delta-net", FormChoice::wy},
      {"kimi-delta-attention", FormChoice::wy},
      {"mamba-2", FormChoice::parallel},
      {"mamba-3-trapezoid", FormChoice::parallel},
      {"mesa-net", FormChoice::parallel},
      {"mesa-net-exact", FormChoice::primal},
      {"lact", FormChoice::dual},
      {"lact-sgd", FormChoice::dual},
      {"lact-prenorm", FormChoice::dual},
      {"lact-low-rank", FormChoice::dual},
      {"lact-nvs", FormChoice::dual},
      // The ladder: normalising the weights is not a sum of
      // steps; then chunks at once; then linear attention.
      {"lact-v1", FormChoice::dual},
      {"lact-v2", FormChoice::chunk_parallel},
      {"lact-v3", FormChoice::chunk_parallel},
      {"lact-v4", FormChoice::chunk_parallel},
      {"lact-v5", FormChoice::chunk_parallel},
      {"lact-v6", FormChoice::parallel},
      {"in-place-ttt", FormChoice::parallel},
      {"vittt", FormChoice::dual},
      {"t5-gated", FormChoice::dual},
      {"t5-two-layers", FormChoice::dual},
      {"t5-three-layers", FormChoice::dual},
      {"t5-swiglu", FormChoice::dual},
  };
  for (const System& s : ttt::systems()) {
    CAPTURE(s.name);
    REQUIRE_MESSAGE(expected.contains(s.name), "say above which form you expect of ", s.name);
    CHECK(ttt::explain(s, {.batch = 1, .heads = 1}).plan.form == expected.at(s.name));
  }
}

TEST_CASE("what is possible and slower at a shape is said, and runs when asked for") {
  const auto names = [](const std::vector<FormChoice>& forms) {
    std::string out;
    for (FormChoice f : forms) out += std::string(ttt::name(f)) + " ";
    return out;
  };
  for (const System& s : ttt::systems()) {
    CAPTURE(s.name);
    const ttt::FormPlan alone = ttt::explain(s, {.batch = 1, .heads = 1}).plan;
    CHECK(alone.slower.empty());
    // Several sequences or heads, each with chunks of its own to do.
    for (const ttt::ProgramSizes& sizes :
         {ttt::ProgramSizes{.batch = 2, .heads = 1}, {.batch = 1, .heads = 2}}) {
      const ttt::Explanation several = ttt::explain(s, sizes);
      const bool all_chunks = alone.form == FormChoice::chunk_parallel;
      CHECK(several.plan.form == (all_chunks ? FormChoice::dual : alone.form));
      CHECK(names(several.plan.slower) == (all_chunks ? "chunk-parallel " : ""));
      CHECK(contains(several.str(), "possible ") == all_chunks);
      CHECK(ttt::explain(s, sizes, alone.form).plan.form == alone.form);
    }
  }
  // Linear attention with a step per chunk: by the tokens of a chunk.
  for (const std::int64_t heads : {1, 2}) {
    const auto plan = [&](std::int64_t chunk, FormChoice wanted = FormChoice::automatic) {
      return ttt::explain(ttt::system_named("lact-v6"),
                          {.batch = 1, .heads = heads, .time = 40, .chunk = chunk}, wanted)
          .plan;
    };
    CHECK(plan(8).form == FormChoice::parallel);
    CHECK(plan(9).form == FormChoice::dual);
    CHECK(names(plan(9).slower) == "parallel chunk-parallel ");
    CHECK(plan(9, FormChoice::parallel).form == FormChoice::parallel);
  }
}

TEST_CASE("explain says why, with the line of the learner's text or the piece of the optimiser") {
  const auto why_not = [](const char* name, FormChoice form) {
    for (const ttt::FormPlan::Refusal& r : ttt::explain(ttt::system_named(name), {}).plan.refused)
      if (r.form == form) return r.why;
    return std::string();
  };
  CHECK(contains(why_not("lact", FormChoice::chunk_parallel), "depends on 'W"));
  CHECK(contains(why_not("lact-v1", FormChoice::chunk_parallel), "in 'weight norm'"));
  CHECK(contains(why_not("lact-v2", FormChoice::parallel), "in 'Muon'"));
  CHECK(contains(why_not("mesa-net-exact", FormChoice::dual), "mesa_net.cpp:"));
  CHECK(contains(why_not("delta-net", FormChoice::parallel), "the gradient of 'W' depends on 'W'"));
  CHECK(contains(why_not("ttt-linear", FormChoice::wy), "there is nothing to solve"));
  CHECK(contains(ttt::explain(ttt::system_named("ttt-linear"), {}).str(), "linear.cpp:"));
  CHECK(contains(
      message_of<FormError>([] { ttt::explain(ttt::system_named("lact"), {}, FormChoice::chunk_parallel); }),
      "chunk-parallel is impossible: the gradient of"));
}

TEST_CASE("a gate that nothing reads is told by explain, and refused by the battery") {
  System s = with_predict([](const ttt::Weights& w, Tensor x) { return matmul(x, w["W"]); });
  const auto gate = [](const char* name) {
    return ttt::GateSpec{.name = name, .shape = [](Tensor x) { return 0.1 * sigmoid(x); }};
  };
  s.gates = {gate("rate"), gate("Rate")};
  CHECK(contains(message_of<ConfigError>([&] { ttt::explain(s, {}); }), "nothing reads the gate 'Rate'"));
  CHECK(contains(message_of<ConfigError>([&] { ttt::conformance(s); }), "nothing reads the gate 'Rate'"));
  // A piece of one's own may read any gate: what it does not read is found in what it makes.
  System with_piece = s;
  with_piece.learner = [](const Params& p, const SystemSizes& n) {
    const auto as_it_is = [](Tensor g, std::span<Tensor>, const ttt::Gates&) { return g; };
    return std::make_unique<ttt::Composed>(ttt::linear(p, {n.heads, n.dim, 0, n.dim}),
                                           ttt::half_squared_error(),
                                           ttt::InnerOptimizer().piece("as it is", as_it_is));
  };
  const std::string explained = ttt::explain(with_piece, {}).str();
  CAPTURE(explained);
  CHECK(contains(explained, "gates      Rate, rate; nothing reads Rate"));
  CHECK(contains(message_of<ConfigError>([&] { ttt::conformance(with_piece); }),
                 "nothing reads the gate 'Rate'"));
  s.gates = {gate("rate.W")};
  CHECK(ttt::explain(s, {}).unread_gates.empty());
  for (const System& published : ttt::systems()) {
    CAPTURE(published.name);
    CHECK(ttt::explain(published, {}).unread_gates.empty());
  }
}

TEST_CASE(
    "explain says of a loss of one's own where it is made, and two fast weights of one name are refused") {
  struct Absolute : ttt::Learner {
    Tensor W;
    bool own;
    Absolute(const Params& p, bool has_own) : W(p("W", {2, 4, 4})), own(has_own) {}
    ttt::Weights init() const override { return {ttt::matrix("W", W)}; }
    Tensor predict(const ttt::Weights& w, Tensor x) const override { return matmul(x, w["W"]); }
    Tensor loss(const ttt::Weights& w, Tensor k, Tensor v) const override {
      return own ? sum(abs(predict(w, k) - v), {-1}, kKeep) : Learner::loss(w, k, v);
    }
  };
  const auto text = [](bool own) {
    System s{.name = "test", .title = "test", .source = "test"};
    s.learner = [own](const Params& p, const ttt::SystemSizes&) {
      return std::make_unique<Absolute>(p, own);
    };
    s.policy = [](const ttt::SystemSizes& sizes) { return ttt::Policy{.chunk = sizes.chunk}; };
    return ttt::explain(s, {}).loss;
  };
  CHECK_MESSAGE(contains(text(true), "as loss() says: "), text(true));
  CHECK(contains(text(true), "conformance_test.cpp"));
  CHECK(text(false) == "1/2 |f(k) - v|^2");
  CHECK(contains(message_of<ConfigError>([] {
                   trace(
                       [](Tensor x) {
                         ttt::Weights{ttt::matrix("W", x), ttt::row("W", x)};
                         return x;
                       },
                       f64({2}));
                 }),
                 "two fast weights are called 'W'"));
  struct Named : Absolute {
    Named(const Params& p) : Absolute(p, false) {}
    ttt::Weights init() const override { return {ttt::matrix("W", W), ttt::matrix("W.momentum", W)}; }
    ttt::InnerOptimizer optimizer() const override { return ttt::InnerOptimizer().momentum(0.5); }
  };
  System s{.name = "test", .title = "test", .source = "test"};
  s.learner = [](const Params& p, const ttt::SystemSizes&) { return std::make_unique<Named>(p); };
  s.policy = [](const ttt::SystemSizes& sizes) { return ttt::Policy{.chunk = sizes.chunk}; };
  const std::string twice = message_of<ConfigError>([&] { ttt::conformance(s, {}); });
  CHECK_MESSAGE(contains(twice, "'W.momentum' is the name of a fast weight and of what the optimiser keeps"),
                twice);
}

TEST_CASE("the battery sees a prepare in which tokens meet, and a prediction that a layer cannot give") {
  System shifted = with_predict([](const ttt::Weights& w, Tensor x) { return matmul(x, w["W"]); });
  CHECK(ttt::conformance(shifted).passed());
  shifted.prepare = [rate = shifted.prepare](ttt::Views& v) {
    rate(v);
    v.k = slice(pad(v.k, 2, 1, 0), 2, 0, v.k.dim(2));
  };
  const ttt::ConformanceReport report = ttt::conformance(shifted);
  CHECK(!check_of(report, "decode").holds());
  CHECK(contains(check_of(report, "decode").note, "tokens meet in 'k'"));
  CHECK(check_of(report, "causality").holds());

  System mixing =
      with_predict([](const ttt::Weights& w, Tensor x) { return matmul(x - mean(x, {-2}, kKeep), w["W"]); });
  mixing.policy = [](const SystemSizes& n) {
    return ttt::Policy{
        .chunk = n.chunk, .update = ttt::Policy::Update::per_chunk, .read = ttt::Policy::Read::before_write};
  };
  const ttt::ConformanceReport not_causal = ttt::conformance(mixing);
  CHECK(not_causal.passed());
  for (const std::string name : {"decode", "causality"}) {
    CHECK(!check_of(not_causal, name).applies);
    CHECK(contains(check_of(not_causal, name).note, "[predict] tokens are not independent"));
  }
}

TEST_CASE("a program of a system has at least one of everything, and a chunk of 0 is the whole sequence") {
  for (const ttt::System& s : ttt::systems()) {
    CAPTURE(s.name);
    // Two bound what the tokens of a chunk do together, and are told how many there are.
    if (s.name == "titans-mlp" || s.name == "self-modifying")
      CHECK(contains(message_of<ConfigError>([&] { ttt::explain(s, {.chunk = 0}); }), "give the number"));
    else CHECK(ttt::explain(s, {.chunk = 0}).policy.chunk >= 0);
    for (const ttt::ProgramSizes& none :
         {ttt::ProgramSizes{.batch = 0}, {.heads = 0}, {.dim = 0}, {.time = 0}, {.chunk = -1}})
      CHECK(contains(message_of<ConfigError>([&] { ttt::explain(s, none); }), "each must be at least 1"));
  }
}

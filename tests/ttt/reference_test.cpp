// The promise: a reference's states are those of the sequence cut short, its gradients derivatives; whatever the
// form, and whether gates are given raw or not.
#include "ttt/reference.h"

#include <cmath>
#include <set>
#include <sstream>

#include "tests/ttt/ttt_testing.h"
#include "ttt/system.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::NamedArrays;
using ttt::reference;
using ttt::ReferenceOptions;
using ttt::ReferenceResult;
using ttt::ReferenceSizes;
using ttt::system_named;

namespace {

constexpr ReferenceSizes kSmall{.batch = 2, .heads = 2, .time = 10, .dim = 4};

ReferenceOptions in_chunks(std::int64_t chunk) { return {.chunk = chunk}; }

// The first tokens of all views; their cotangent is left to be drawn.
NamedArrays first_tokens(NamedArrays in, std::int64_t tokens) {
  in.erase("cotangent.output");
  for (auto& [name, value] : in)
    if (value.spec().rank() == 4)
      value = trace([&](Tensor x) { return slice(x, 2, 0, tokens); }, value.spec())(value);
  return in;
}

Array part_of(const Array& states, std::int64_t index) {
  const Array part = trace([&](Tensor x) { return slice(x, 0, index, index + 1); }, states.spec())(states);
  return part.reshaped(Shape(states.shape().begin() + 1, states.shape().end()));
}

double sum_of_products(const NamedArrays& a, const NamedArrays& b, const std::string& prefix) {
  double out = 0;
  for (const auto& [name, value] : b) {
    const std::vector<double> x = a.at(prefix + name).to_vector(), y = value.to_vector();
    for (std::size_t i = 0; i < x.size(); ++i) out += x[i] * y[i];
  }
  return out;
}

}  // namespace

TEST_CASE("a reference's states are what the sequence leaves that ends there, slots included" *
          doctest::test_suite("slow")) {
  for (const std::string name :
       {"ttt-linear", "titans-linear", "lact", "lact-prenorm", "lact-v1", "delta-net"}) {
    CAPTURE(name);
    const ttt::System& system = system_named(name);
    ReferenceOptions options = in_chunks(4);
    options.state_every = 4;
    const NamedArrays in = ttt::random_inputs(system, kSmall, options);
    const ReferenceResult whole = reference(system, in, options);
    std::size_t states = 0;
    for (const auto& [output, value] : whole.outputs)
      if (output.starts_with("state.")) {
        CAPTURE_BOUND(output);
        ++states;
        REQUIRE(value.shape()[0] == 3);  // after 4, 8 and 10 tokens
        for (const std::int64_t part : {0, 1, 2}) {
          const NamedArrays cut = first_tokens(in, std::min<std::int64_t>(4 * part + 4, 10));
          const Array last = reference(system, cut, options).outputs.at("final." + output.substr(6));
          CHECK(relative_error(part_of(value, part), last, 1e-6) < 1e-11);
        }
      }
    CHECK(states >= 1);
  }
}

TEST_CASE("a reference goes on from the state of another, slots included") {
  for (const std::string name : {"titans-linear", "lact", "lact-prenorm", "ttt-linear"}) {
    CAPTURE(name);
    const ttt::System& system = system_named(name);
    const ReferenceOptions options = in_chunks(4);
    const NamedArrays in = ttt::random_inputs(system, kSmall, options);
    const NamedArrays whole = reference(system, in, options).outputs;
    NamedArrays rest = in;
    rest.erase("cotangent.output");
    for (auto& [input, value] : rest)
      if (value.spec().rank() == 4)
        value = trace([](Tensor x) { return slice(x, 2, 4, 10); }, value.spec())(value);
    for (const auto& [output, value] : whole)
      if (output.starts_with("state.")) rest["start." + output.substr(6)] = part_of(value, 0);
    const NamedArrays resumed = reference(system, rest, options).outputs;
    int states = 0;
    for (const auto& [output, value] : resumed) {
      if (!output.starts_with("final.")) continue;
      CAPTURE_BOUND(output);
      ++states;
      CHECK(relative_error(value, whole.at(output), 1e-6) < 1e-11);
    }
    CHECK(states >= 1);
    const Array later =
        trace([](Tensor x) { return slice(x, 2, 4, 10); }, whole.at("output").spec())(whole.at("output"));
    CHECK(relative_error(resumed.at("output"), later, 1e-6) < 1e-11);
  }
}

TEST_CASE("a reference's losses are those of its predictions") {
  const ttt::System& system = system_named("delta-net");  // 1/2 |k W - v|^2, online
  ReferenceOptions options;
  options.intermediates = true;
  const NamedArrays in = ttt::random_inputs(system, kSmall, options);
  const NamedArrays out = reference(system, in, options).outputs;
  const std::vector<double> k = in.at("k").to_vector(), v = in.at("v").to_vector(),
                            found = out.at("inner_prediction").to_vector(), w = out.at("state.W").to_vector();
  for (std::size_t member = 0; member < 4; ++member)
    for (std::size_t t = 0; t < 10; ++t) {
      double before = 0, after = 0;
      for (std::size_t j = 0; j < 4; ++j) {
        const std::size_t row = (member * 10 + t) * 4;
        double predicted = 0;  // with the weights that the token leaves
        for (std::size_t i = 0; i < 4; ++i) predicted += k[row + i] * w[((t * 4 + member) * 4 + i) * 4 + j];
        before += std::pow(found[row + j] - v[row + j], 2) / 2;
        after += std::pow(predicted - v[row + j], 2) / 2;
      }
      const auto at = static_cast<std::int64_t>(member * 10 + t);
      CHECK(out.at("loss_before").at(at) == doctest::Approx(before).epsilon(1e-12));
      CHECK(out.at("loss_after").at(at) == doctest::Approx(after).epsilon(1e-12));
    }
}

TEST_CASE("a reference's gradients are derivatives of its outputs and of its last state") {
  const ttt::System& system = system_named("titans-mlp");
  ReferenceOptions options = in_chunks(4);
  options.random_start = options.random_final_cotangent = true;
  const NamedArrays in = ttt::random_inputs(system, {.batch = 1, .heads = 2, .time = 6, .dim = 4}, options);
  NamedArrays direction, cotangents;
  for (const auto& [name, value] : in) {
    if (name == "cotangent.output") cotangents["output"] = value;
    else if (name.starts_with("cotangent.")) cotangents[name.substr(10)] = value;
  }
  const ReferenceResult at = reference(system, in, options);
  for (const auto& [name, value] : at.inputs)
    if (!name.starts_with("cotangent.")) direction[name] = random(value.spec(), direction.size());
  const auto along = [&](double step) {
    NamedArrays moved = in;
    for (const auto& [name, d] : direction) {
      auto values = (moved[name] = moved[name].clone()).as<double>();
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += step * d.as<double>()[i];
    }
    return sum_of_products(reference(system, moved, options).outputs, cotangents, "");
  };
  const double step = 2e-6, slope = (along(step) - along(-step)) / (2 * step);
  CHECK(sum_of_products(at.outputs, direction, "grad.") == doctest::Approx(slope).epsilon(1e-7));
  direction.erase("rate");  // the control: every gradient counts
  CHECK(sum_of_products(at.outputs, direction, "grad.") != doctest::Approx(slope).epsilon(1e-7));
}

TEST_CASE("a reference's metadata list the tensors that it has, and what changes raw inputs") {
  ReferenceOptions options = in_chunks(4);
  options.random_start = options.random_final_cotangent = true;
  for (const char* name : {"hope", "titans-linear", "lact", "mamba-3-trapezoid", "ttt-mlp"})
    for (const bool raw : {false, true}) {
      CAPTURE(name);
      options.raw = raw, options.base_lr = raw ? 0.25 : 1;
      const ttt::System& system = system_named(name);
      const NamedArrays given =
          ttt::random_inputs(system, {.batch = 1, .heads = 2, .time = 5, .dim = 4}, options);
      const ttt::ReferenceResult r = reference(system, given, options);
      const auto& metadata = r.description.metadata;
      std::istringstream names(metadata.at("inputs"));
      std::set<std::string> listed, there;
      for (std::string each; names >> each;) listed.insert(each);
      for (const auto& [each, value] : r.inputs) there.insert(each);
      CHECK(listed == there);
      for (const auto& [key, value] : metadata)
        if (key.starts_with("axes."))
          CHECK((r.inputs.contains(key.substr(5)) || r.outputs.contains(key.substr(5))));
      CHECK(metadata.contains("base_lr") == (raw && system.position_rates));
      if (raw && system.position_rates) CHECK(metadata.at("base_lr") == "0.25");
      CHECK(metadata.contains("rope_theta") == (raw && system.rotary));
    }
}

TEST_CASE("a random start is one of every weight, whatever its name, and of no slot") {
  const auto started = [](const char* system) {
    ReferenceOptions options = in_chunks(4);
    options.random_start = true;
    std::string names;
    for (const auto& [name, value] :
         ttt::random_inputs(system_named(system), {.batch = 1, .heads = 1, .time = 5, .dim = 2}, options))
      if (name.starts_with("start.")) names += name.substr(6) + " ";
    return names;
  };
  CHECK(started("hope") == "M_alpha M_eta M_k M_memory M_v P_1.W1 P_1.W2 P_2.W1 P_2.W2 ");
  CHECK(started("titans-linear") == "W ");  // and not W.momentum
}

TEST_CASE("every published learner has a reference: the same in the primal form, and from raw inputs" *
          doctest::test_suite("slow")) {
  for (const ttt::System& system : ttt::systems()) {
    CAPTURE(system.name);
    const ReferenceSizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
    ReferenceOptions options = in_chunks(4);
    options.intermediates = true;
    const NamedArrays in = ttt::random_inputs(system, sizes, options);
    const NamedArrays out = reference(system, in, options).outputs;
    options.form = ttt::FormChoice::primal;
    const NamedArrays primal = reference(system, in, options).outputs;
    options = in_chunks(4);
    options.raw = true;
    const NamedArrays raw_in = ttt::random_inputs(system, sizes, options);
    const NamedArrays raw = reference(system, raw_in, options).outputs;
    REQUIRE(out.size() == primal.size());
    // Muon's derivative magnifies rounding (ttt/optimizer.h); zeros are held to the largest.
    for (const auto& [name, value] : out) {
      CAPTURE_BOUND(name);
      CHECK(relative_error(value, primal.at(name), 1e-3) < 1e-9);
      if (!name.starts_with("grad.") && raw.contains(name))
        CHECK(relative_error(value, raw.at(name), 1e-3) < 1e-11);
    }
    for (const auto& [name, value] : ttt::random_inputs(system, sizes, options))
      CHECK(value.same_bits(raw_in.at(name)));
    for (const ttt::ReferenceTensor& input : describe_reference(system, sizes, options).inputs)
      for (const ttt::GateSpec& gate : system.gates)
        if (gate.name == input.name) CHECK(contains(input.text, "without its bias") == (gate.bias != 0));
  }
}

TEST_CASE("the inner gradients of a reference are the steps of its states") {
  // W <- W - position[last] (sum of rate dloss/dW): the published rates.
  ReferenceOptions options = in_chunks(4);
  options.intermediates = true;
  const ttt::System& system = system_named("ttt-linear");
  const NamedArrays in = ttt::random_inputs(system, kSmall, options);
  const NamedArrays out = reference(system, in, options).outputs;
  for (const std::int64_t chunk : {1, 2}) {
    const std::vector<double> before = part_of(out.at("state.W1"), chunk - 1).to_vector(),
                              after = part_of(out.at("state.W1"), chunk).to_vector(),
                              g = part_of(out.at("inner_gradient.W1"), chunk).to_vector();
    const double position = in.at("position").at(chunk == 2 ? 1 : 3);  // the last chunk has two tokens
    for (std::size_t i = 0; i < g.size(); ++i)
      CHECK(after[i] == doctest::Approx(before[i] - position * g[i]).epsilon(1e-12));
  }
}

TEST_CASE("a reference in f32 is near, and takes f32 numbers exactly into f64") {
  const ttt::System& system = system_named("gated-delta-net");
  ReferenceOptions options{.dtype = DType::f32};
  const NamedArrays in = ttt::random_inputs(system, kSmall, options);
  const NamedArrays f32_out = reference(system, in, options).outputs;
  options.dtype = DType::f64;
  const NamedArrays f64_out = reference(system, in, options).outputs;
  CHECK(f32_out.at("output").dtype() == DType::f32);
  CHECK(relative_error(f32_out.at("output").cast(DType::f64), f64_out.at("output")) < 1e-5);
  NamedArrays wide = in;
  for (auto& [name, value] : wide) value = value.cast(DType::f64);
  CHECK(reference(system, wide, options).outputs.at("grad.k").same_bits(f64_out.at("grad.k")));
}

TEST_CASE("what is wrong with a reference's inputs is said in one line, with what was expected") {
  const ttt::System& system = system_named("delta-net");
  const NamedArrays good = ttt::random_inputs(system, kSmall, {});
  const auto with = [&](const std::string& name, const Array& value) {
    NamedArrays in = good;
    if (value.defined()) in[name] = value;
    else in.erase(name);
    return in;
  };
  const auto run = [&](const NamedArrays& in, ReferenceOptions options = {}) {
    return [=, &system] { reference(system, in, options); };
  };
  const auto says = [](const std::string& message, const std::string& part) {
    CAPTURE(message);
    CHECK(contains(message, part));
    CHECK(!contains(message, "\n"));
  };
  says(message_of<ConfigError>(run(with("k", {}))), "there is no 'k', expected [batch, heads, time, dim]");
  NamedArrays misnamed = with("rate", {});
  misnamed["rates"] = good.at("rate");
  says(message_of<ConfigError>(run(misnamed)), "'rates' is no input of delta-net; did you mean 'rate'?");
  says(message_of<ConfigError>(run(with("rate", {}))),
       "there is no 'rate', expected f64[2,2,10,1] with the axes [batch head token feature]");
  says(message_of<ConfigError>(run(with("start.w", good.at("q")))), "did you mean 'start.W'?");
  says(message_of<ShapeError>(run(with("v", random(f64({2, 2, 10, 3}), 1)))),
       "'v' is f64[2,2,10,3]; expected f64[2,2,10,4]");
  says(message_of<ShapeError>(run(with("start.W", random(f64({2, 4, 4}), 1)))),
       "'start.W' is [2,4,4]; expected [2,2,4,4]");
  NamedArrays wide = with("start.W", random(f64({2, 2, 4, 4}), 1));
  wide["v"] = random(f64({2, 2, 10, 5}), 1);
  says(message_of<ShapeError>(run(wide)),
       "'v' is f64[2,2,10,5], which does not fit the start states 'start.W' f64[2,2,4,4]: ");
  says(message_of<DTypeError>(run(with("q", Array::zeros(DType::i32, {2, 2, 10, 4})))),
       "'q' is i32[2,2,10,4]");
  says(message_of<DTypeError>(run(good, {.dtype = DType::f32})), "compute in f64");
  Array broken = good.at("k").clone();
  broken.as<double>()[4 * 7 + 2] = std::nan("");
  says(message_of<ValueError>(run(with("k", broken))), "'k' is nan at batch 0, head 0, token 7, feature 2");
  says(message_of<ValueError>(run(with("rate", Array::full(DType::f64, {2, 2, 10, 1}, 1e200)))), "diverges");
  says(message_of<FormError>(run(good, {.form = ttt::FormChoice::parallel})), "parallel is impossible");
  says(message_of<ConfigError>(run(good, {.policy = "chunk=4", .state_every = 6})), "whole chunks");
  says(message_of<ConfigError>(run(good, {.policy = "chnk=4"})),
       "there is no setting 'chnk'; did you mean 'chunk'?");
  says(message_of<ConfigError>(run(good, {.policy = "read=later"})), "expected after-write or before-write");
}

TEST_CASE("sizes of nothing and policies that a system cannot follow are refused, of every system") {
  for (const ttt::System& system : ttt::systems()) {
    CAPTURE(system.name);
    for (const ttt::ReferenceSizes sizes : {ttt::ReferenceSizes{.batch = 0, .heads = 1, .time = 4, .dim = 4},
                                            {.batch = 1, .heads = 0, .time = 4, .dim = 4},
                                            {.batch = 1, .heads = 1, .time = 0, .dim = 4},
                                            {.batch = 1, .heads = 1, .time = 4, .dim = 0}}) {
      CHECK(contains(message_of<ConfigError>([&] { ttt::random_inputs(system, sizes, {}); }), "at least 1"));
    }
  }
  const std::string message = message_of<ConfigError>(
      [] { ttt::random_inputs(system_named("mesa-net"), kSmall, {.policy = "ascent=true"}); });
  CHECK(contains(message, "positive definite"));
}

TEST_CASE(
    "a description says what weights start from, how they change, and what a learner makes of its gates") {
  const auto facts = [](const char* name) {
    return ttt::describe_reference(system_named(name), kSmall, {}).metadata;
  };
  for (const ttt::System& system : ttt::systems()) {
    CAPTURE(system.name);
    const auto m = ttt::describe_reference(system, kSmall, {}).metadata;
    CHECK(!m.at("start").empty());
    CHECK(contains(m.at("update"), "<- "));
  }
  CHECK(contains(facts("delta-net").at("start"), "W = "));
  CHECK(contains(facts("gated-delta-net").at("update"), "forget"));
  CHECK(contains(facts("mesa-net").at("model"), "1e-05 added"));
  bool says = false;
  for (const ttt::ReferenceTensor& in : ttt::describe_reference(system_named("mesa-net"), kSmall, {}).inputs)
    says = says || contains(in.text, "softplus");
  CHECK(says);
}

TEST_CASE(
    "what is called the sum of inner gradients is a mean where the policy says so, and its negative where it climbs") {
  const auto text = [](const char* name, const std::string& policy) {
    const ReferenceOptions options{.policy = policy, .intermediates = true};
    const ttt::System& system = system_named(name);
    for (const ttt::ReferenceTensor& out : ttt::describe_reference(system, kSmall, options).outputs)
      if (out.name.starts_with("inner_gradient.")) return out.text;
    return std::string();
  };
  CHECK(text("delta-net", "").starts_with("sum over the chunk's tokens of rate * dloss/dW"));
  CHECK(text("t5-gated", "").starts_with("mean over the chunk's tokens of rate * dloss/dW"));
  CHECK(
      text("linear-attention", "ascent=true").starts_with("sum over the chunk's tokens of -rate * dloss/dW"));
}

TEST_CASE(
    "formulas of a step per chunk have the mean of a rate where the optimiser reads it, and the rate where it is a gradient's") {
  const auto m =
      ttt::describe_reference(system_named("mamba-2"), kSmall, {.policy = "chunk=4,update=per-chunk"})
          .metadata;
  CAPTURE(m.at("update"));
  CHECK(contains(m.at("update"), "mean(rate)"));
  CHECK(contains(m.at("gradient"), "sum over the chunk of rate * dloss/dW"));
  // By hand: after the first chunk W is a W_0 + the sum of rate k' v, a = exp(-A mean(rate)).
  ReferenceOptions options{.policy = "chunk=4,update=per-chunk"};
  options.random_start = true;
  const NamedArrays in =
      ttt::random_inputs(system_named("mamba-2"), {.batch = 1, .heads = 1, .time = 4, .dim = 2}, options);
  const Array w = reference(system_named("mamba-2"), in, options).outputs.at("final.W");
  double mean = 0;
  for (const double r : in.at("rate").to_vector()) mean += r / 4;
  const double a = std::exp(-std::exp(in.at("A_log").at(0)) * mean);
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < 2; ++j) {
      double expected = a * in.at("start.W").at(2 * i + j);
      for (std::int64_t t = 0; t < 4; ++t)
        expected += in.at("rate").at(t) * in.at("k").at(2 * t + i) * in.at("v").at(2 * t + j);
      CHECK(w.at(2 * i + j) == doctest::Approx(expected).epsilon(1e-12));
    }
}

TEST_CASE("a description says that position rates multiply the way from where the chunk began") {
  for (const char* name : {"ttt-linear", "ttt-mlp"}) {
    const std::string update = ttt::describe_reference(system_named(name), kSmall, {}).metadata.at("update");
    CAPTURE(update);
    CHECK(contains(update, "reads W0 + position[i] (W - W0)"));
  }
  CHECK(!contains(ttt::describe_reference(system_named("delta-net"), kSmall, {}).metadata.at("update"),
                  "position"));
}

namespace {

ttt::System of_test(std::string name) {
  ttt::System out{.name = std::move(name), .title = "test", .source = "test"};
  out.policy = [](const ttt::SystemSizes&) { return ttt::Policy{.chunk = 1}; };
  return out;
}

// Longhorn (Liu et al. 2024): its rate and its forgetting are made of one gate.
ttt::System longhorn() {
  ttt::System out = of_test("longhorn");
  out.gates = {{.name = "beta", .shape = [](Tensor raw) { return sigmoid(raw); }}};
  out.learner = [](const Params& p, const ttt::SystemSizes& s) {
    return std::make_unique<ttt::Composed>(ttt::linear(p, {.heads = s.heads, .in = s.dim, .out = s.dim}),
                                           ttt::inner_product(),
                                           ttt::InnerOptimizer().keep(ttt::gate("forget")));
  };
  out.prepare = [](ttt::Views& v) {
    const Tensor beta = v.gates.at("beta"), d = beta / (1.0 + beta * sum(square(v.k), {-1}, kKeep));
    v.gates = {{"rate", d}, {"forget", 1.0 - d * square(v.k)}};
  };
  return out;
}

// RWKV-7 (Peng et al. 2025): W <- (diag(w) - (a kappa)' kappa) W + k' v, with kappa, a kappa and k side by side.
class Rwkv7 : public ttt::Learner {
 public:
  Rwkv7(const Params& p, const ttt::SystemSizes& s) : w_(p("W", {s.heads, s.dim, s.dim})), dim_(s.dim) {}
  ttt::Weights init() const override { return {ttt::matrix("W", w_)}; }
  Tensor predict(const ttt::Weights& w, Tensor x) const override { return matmul(x, w["W"]); }
  Tensor loss(const ttt::Weights& w, Tensor k, Tensor v) const override {
    const auto part = [&](std::int64_t i) { return slice(k, -1, i * dim_, (i + 1) * dim_); };
    const Tensor taken = sum(matmul(part(1), w["W"]) * matmul(part(0), w.held("W")), {-1}, kKeep);
    return taken - sum(matmul(part(2), w["W"]) * v, {-1}, kKeep);
  }
  ttt::InnerOptimizer optimizer() const override { return ttt::InnerOptimizer().keep(ttt::gate("forget")); }

 private:
  Tensor w_;
  std::int64_t dim_;
};
ttt::System rwkv7() {
  const auto shape = [](Tensor raw) { return sigmoid(raw); };
  ttt::System out = of_test("rwkv-7");
  out.gates = {{.name = "forget", .per_feature = true, .shape = shape},
               {.name = "a", .per_feature = true, .shape = shape}};
  out.learner = [](const Params& p, const ttt::SystemSizes& s) { return std::make_unique<Rwkv7>(p, s); };
  out.prepare = [](ttt::Views& v) {
    const Tensor a = v.gates.at("a"), kappa = l2_norm(v.k);
    v.gates.erase("a");
    v.k = concat({kappa, a * kappa, v.k * (0.5 + 0.5 * a)}, -1);
  };
  return out;
}

}  // namespace

TEST_CASE("a reference takes what prepare makes: gates that it makes or erases, and keys that it widens") {
  for (const ttt::System& system : {longhorn(), rwkv7()}) {
    CAPTURE(system.name);
    const bool wide = system.name == "rwkv-7";
    ReferenceOptions options;
    options.random_start = true;
    const NamedArrays in = ttt::random_inputs(system, kSmall, options);
    CHECK(in.at("k").shape()[3] == (wide ? 12 : 4));
    CHECK(in.contains("rate") == !wide);
    CHECK(!in.contains("beta"));
    CHECK(!in.contains("a"));
    const auto sizes = ttt::reference_sizes(system, in, options);
    CHECK(sizes.dim == 4);
    const auto description = ttt::describe_reference(system, sizes, options);
    CHECK(contains(description.metadata.at("update"), "forget"));
    const NamedArrays out = reference(system, in, options).outputs;
    // By hand, token after token.
    const auto at = [&](const char* name, std::int64_t member, std::int64_t t, std::int64_t i) {
      const Array& a = in.at(name);
      return a.at((member * 10 + t) * a.shape()[3] + i);
    };
    for (std::int64_t member = 0; member < 4; ++member) {
      double w[4][4];
      for (std::int64_t i = 0; i < 4; ++i)
        for (std::int64_t j = 0; j < 4; ++j) w[i][j] = in.at("start.W").at((member * 4 + i) * 4 + j);
      for (std::int64_t t = 0; t < 10; ++t)
        for (std::int64_t j = 0; j < 4; ++j) {
          double taken = 0;
          for (std::int64_t i = 0; wide && i < 4; ++i) taken += at("k", member, t, i) * w[i][j];
          for (std::int64_t i = 0; i < 4; ++i) {
            w[i][j] *= at("forget", member, t, i);
            const double k = at("k", member, t, wide ? 8 + i : i) * (wide ? 1 : at("rate", member, t, 0));
            w[i][j] += k * at("v", member, t, j) - (wide ? at("k", member, t, 4 + i) * taken : 0);
          }
        }
      for (std::int64_t i = 0; i < 4; ++i)
        for (std::int64_t j = 0; j < 4; ++j)
          CHECK(out.at("final.W").at((member * 4 + i) * 4 + j) == doctest::Approx(w[i][j]).epsilon(1e-12));
    }
    ReferenceOptions raw;
    raw.raw = true;
    NamedArrays raw_in = ttt::random_inputs(system, kSmall, raw);
    raw_in["start.W"] = in.at("start.W");
    CHECK(relative_error(reference(system, raw_in, raw).outputs.at("output"), out.at("output")) < 1e-12);
  }
}

TEST_CASE("the inner gradients of a reference have the rates that the learner makes itself") {
  class OwnRate : public ttt::Learner {
   public:
    explicit OwnRate(Tensor w) : w_(w) {}
    ttt::Weights init() const override { return {ttt::matrix("W", w_)}; }
    Tensor predict(const ttt::Weights& w, Tensor x) const override { return matmul(x, w["W"]); }
    std::vector<std::string> own_gates() const override { return {"rate"}; }
    ttt::Gates gates(const ttt::Weights& w, Tensor k, Tensor v, Tensor place) const override {
      const Tensor wrong = sum(square(matmul(k, w["W"]) - v), {-1}, kKeep);
      return {{"rate", 0.3 / (1.0 + wrong + place)}};
    }

   private:
    Tensor w_;
  };
  ttt::System system = of_test("own-rate");
  system.policy = [](const ttt::SystemSizes& s) { return ttt::Policy{.chunk = s.chunk}; };
  system.learner = [](const Params& p, const ttt::SystemSizes& s) {
    return std::make_unique<OwnRate>(p("W", {s.heads, s.dim, s.dim}));
  };
  ReferenceOptions options = in_chunks(4);
  options.intermediates = true;
  const ReferenceResult r = reference(system, ttt::random_inputs(system, kSmall, options), options);
  const Array &states = r.outputs.at("state.W"), &steps = r.outputs.at("inner_gradient.W");
  const std::int64_t each = states.size() / 3;  // after 4, 8 and 10 tokens
  double largest = 0;
  for (std::int64_t i = each; i < 3 * each; ++i) {
    largest = std::max(largest, std::abs(steps.at(i)));
    CHECK(states.at(i - each) - states.at(i) == doctest::Approx(steps.at(i)).epsilon(1e-11));
  }
  CHECK(largest > 1e-3);
  CHECK(contains(r.description.metadata.at("gradient"), "rate * dloss/dW"));
}

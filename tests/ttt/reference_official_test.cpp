// The promise: a reference's numbers are those of the official implementations and of the layers that are held
// to them.
#include <cmath>

#include "engine/io/safetensors.h"
#include "tests/ttt/ttt_testing.h"
#include "ttt/layer.h"
#include "ttt/reference.h"
#include "ttt/system.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::NamedArrays;
using ttt::reference;
using ttt::ReferenceOptions;
using ttt::ReferenceSizes;
using ttt::system_named;

namespace {

constexpr ReferenceSizes kSmall{.batch = 2, .heads = 2, .time = 10, .dim = 4};

ReferenceOptions in_chunks(std::int64_t chunk) { return {.chunk = chunk}; }

SafeTensors golden(const std::string& name) {
  return read_safetensors(fmt::format("{}/golden/{}.safetensors", NESTGRAD_TEST_DATA, name));
}

// Elementwise, on numbers.
Array mapped(const Array& a, const std::function<double(double)>& fn) {
  std::vector<double> values = a.to_vector();
  for (double& x : values) x = fn(x);
  return Array::of(values, a.shape());
}
Array times(const Array& a, const Array& b) {
  std::vector<double> values = a.to_vector();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= b.at(static_cast<std::int64_t>(i));
  return Array::of(values, a.shape());
}
// [batch, time, heads, ..] <-> [batch, heads, time, ..]
Array swapped(const Array& a) {
  return trace(
      [](Tensor x) {
        return permute(x, x.rank() == 4 ? std::vector{0, 2, 1, 3} : std::vector{0, 2, 1});
      },
      a.spec())(a);
}
Array per_token(const Array& a) {  // [batch, heads, time] -> [batch, heads, time, 1]
  Shape shape = a.shape();
  shape.push_back(1);
  return a.reshaped(shape);
}

double error_of(const Array& found, const Array& expected) {
  return relative_error(found.reshaped(expected.shape()), expected);
}

// Memories that are one matrix, from a start state, with a cotangent of the last one.
void check_matrix_memory(const std::string& file, const std::string& system, bool time_first,
                         const std::vector<std::array<std::string, 2>>& gates) {
  CAPTURE(file);
  const SafeTensors g = golden(file);
  const auto rows = [&](const std::string& name) {
    const Array& a = g.tensors.at(name);
    return time_first ? swapped(a) : a;
  };
  const double scale = 1 / std::sqrt(static_cast<double>(g.tensors.at("in.q").shape().back()));
  const auto scaled = [&](const Array& a) { return mapped(a, [&](double x) { return x * scale; }); };
  NamedArrays in{{"q", scaled(rows("in.q"))},
                 {"k", rows("in.k")},
                 {"v", rows("in.v")},
                 {"cotangent.output", rows("cotangent.o")},
                 {"cotangent.final.W", g.tensors.at("cotangent.final_state")}};
  const bool starts = g.tensors.contains("in.initial_state");
  if (starts) in["start.W"] = g.tensors.at("in.initial_state");
  for (const auto& [name, theirs] : gates) {
    in[name] = per_token(rows("in." + theirs));
    if (theirs == "g") in[name] = mapped(in[name], [](double x) { return std::exp(x); });  // log decay
  }
  const NamedArrays out = reference(system_named(system), in, {}).outputs;
  const auto same = [&](const std::string& name, const Array& expected) {
    CAPTURE(name);
    CHECK(error_of(out.at(name), expected) < 1e-9);
  };
  same("output", rows("out.o"));
  same("final.W", g.tensors.at("out.final_state"));
  CHECK(error_of(scaled(out.at("grad.q")), rows("grad.q")) < 1e-9);
  same("grad.k", rows("grad.k"));
  same("grad.v", rows("grad.v"));
  if (starts) same("grad.start.W", g.tensors.at("grad.initial_state"));
  for (const auto& [name, theirs] : gates) {
    CAPTURE_BOUND(name);
    const Array grad = theirs == "g" ? times(out.at("grad." + name), in[name]) : out.at("grad." + name);
    CHECK(error_of(grad, rows("grad." + theirs)) < 1e-9);
  }
}

// Solved exactly; the parameter is softplus^-1(lamb - 0.25).
void check_mesa_net() {
  const SafeTensors g = golden("mesa_net_exact");
  const auto rows = [&](const std::string& name) { return swapped(g.tensors.at(name)); };
  const auto exp_of = [](const Array& a) { return mapped(a, [](double x) { return std::exp(x); }); };
  const Array lamb = g.tensors.at("in.lamb");
  const Array param = mapped(lamb, [](double x) { return std::log(std::expm1(x - 0.25)); });
  const NamedArrays in{{"q", rows("in.q")},
                       {"k", rows("in.k")},
                       {"v", rows("in.v")},
                       {"rate", per_token(rows("in.beta"))},
                       {"forget", exp_of(per_token(rows("in.g")))},
                       {"lamb", param.reshaped({lamb.shape()[0], 1, lamb.shape()[1]})},
                       {"cotangent.output", rows("cotangent.o")}};
  const NamedArrays out = reference(system_named("mesa-net-exact"), in, {}).outputs;
  CHECK(error_of(out.at("output"), rows("out.o")) < 1e-9);
  CHECK(error_of(out.at("grad.v"), rows("grad.v")) < 1e-9);
  CHECK(error_of(out.at("grad.rate"), rows("grad.beta")) < 1e-9);
  CHECK(error_of(times(out.at("grad.forget"), in.at("forget")), rows("grad.g")) < 1e-9);
  const Array slope = mapped(param, [](double x) { return 1 / (1 + std::exp(-x)); });
  CHECK(error_of(out.at("grad.lamb"), times(g.tensors.at("grad.lamb"), slope)) < 1e-9);
}

// One head, chunks of 4, read before write; matrices are [out, in] in the file.
void check_lact(const std::string& file, const std::string& system, bool momentum) {
  CAPTURE(file);
  const SafeTensors g = golden(file);
  const auto one_head = [&](const std::string& name) {
    const Array& a = g.tensors.at(name);
    return a.reshaped({a.shape()[0], 1, a.shape()[1], a.shape()[2]});
  };
  const auto turned = [](const Array& a) {
    return trace([](Tensor x) { return transpose(x); }, a.spec())(a);
  };
  NamedArrays in{{"q", one_head("in.q")},
                 {"k", one_head("in.k")},
                 {"v", one_head("in.v")},
                 {"cotangent.output", one_head("cotangent.o")}};
  std::vector<std::array<std::string, 2>> same{{"q", "q"}, {"k", "k"}, {"v", "v"}};
  for (const std::string i : {"0", "1", "2"}) {
    in["rate.W" + i] = one_head("in.lr" + i);
    in["start.W" + i] = turned(one_head("in.w" + i));
    same.push_back({"rate.W" + i, "lr" + i});
  }
  if (momentum) {
    in["momentum"] = one_head("in.momentum");
    same.push_back({"momentum", "momentum"});
  }
  const NamedArrays out = reference(system_named(system), in, {.policy = "chunk=4"}).outputs;
  CHECK(error_of(out.at("output"), one_head("out.o")) < 1e-9);
  for (const auto& [ours, theirs] : same) {
    CAPTURE_BOUND(ours);
    CHECK(error_of(out.at("grad." + ours), one_head("grad." + theirs)) < 1e-9);
  }
  for (const std::string i : {"0", "1", "2"})
    CHECK(error_of(turned(out.at("grad.start.W" + i)), one_head("grad.w" + i)) < 1e-9);
}

// A layer of width 8 with two heads, in chunks of 4: its answers, and what a reference of them is given.
struct LayerRun {
  Array answers;
  NamedArrays effective, raw;  // without outer parameters
  NamedArrays params;
};

// What the layer's projections of x leave, by the names of its parameters; without the bias of a gate's spec.
std::map<std::string, Tensor> raw_views(const ttt::System& system, const Params& params, Tensor x) {
  const auto projected = [&](const std::string& weight, std::int64_t width) {
    return ttt::linear(x, params(weight, {width, 8}));
  };
  std::map<std::string, Tensor> out;
  for (const std::string name : {"q", "k", "v"})
    out[name] = ttt::split_heads(projected(name + "_proj.weight", 8), 2);
  for (const ttt::GateSpec& gate : system.gates) {
    const std::string own = "gates." + gate.name;
    out[gate.name] =
        ttt::split_heads(projected(own + ".weight", 2) + params(own + ".bias", {2}), 2) - gate.bias;
  }
  if (!system.position_rates) return out;
  const Tensor weight = reshape(params("learnable_ttt_lr_weight", {2, 1, 8}), {2, 8});
  out["rate"] =
      ttt::split_heads(ttt::linear(x, weight) + reshape(params("learnable_ttt_lr_bias", {2, 1}), {2}), 2);
  out["position"] = params("learnable_token_idx", {4});
  return out;
}

LayerRun run_layer(const ttt::System& system) {
  std::vector<std::string> names;
  std::vector<ParamSpec> specs;
  const auto traced = [&](const Tensors& in) {
    ParamTable table(*context().emit.graph, DType::f64);
    const Params params(table);
    ttt::Stream stream;
    stream.tap_inner_loops = true;
    ttt::TTTLayerOptions options{.width = 8, .heads = 2};
    options.inner.policy.chunk = 4;
    const ttt::TTTLayer layer(params, options, std::make_unique<ttt::ProjectedViews>(params, 8), system,
                              "layer");
    layer(in[0], stream);
    Tensors out;
    for (const auto& [tap, value] : stream.taps()) {
      names.push_back(tap);
      out.push_back(value);
    }
    for (const auto& [name, value] : raw_views(system, params, in[0])) {
      names.push_back("raw." + name);
      out.push_back(value);
    }
    specs = table.specs();
    return out;
  };
  const Function f = trace(traced, {f64({2, 10, 8})});
  LayerRun run;
  Arrays numbers{random(f64({2, 10, 8}), 1)};
  for (const ParamSpec& spec : specs)
    numbers.push_back(run.params[spec.name] = random(f64(spec.shape), numbers.size(), 0.1, 0.6));
  const Arrays out = f(numbers);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto after = [&](std::string_view prefix) {
      return names[i].starts_with(prefix) ? names[i].substr(prefix.size()) : std::string();
    };
    if (const std::string raw = after("raw."); !raw.empty()) run.raw[raw] = out[i];
    else if (after("layer.") == "answers") run.answers = out[i];
    else if (const std::string gate = after("layer.gates."); !gate.empty()) run.effective[gate] = out[i];
    else run.effective[after("layer.")] = out[i];
  }
  return run;
}

}  // namespace

TEST_CASE("a reference has the numbers of the official implementations, outputs, states and gradients") {
  check_matrix_memory("linear_attention", "linear-attention", true, {});
  check_matrix_memory("delta_rule", "delta-net", false, {{"rate", "beta"}});
  check_matrix_memory("gated_delta_rule", "gated-delta-net", true, {{"rate", "beta"}, {"forget", "g"}});
  check_mesa_net();
  check_lact("lact_sgd_plain", "lact-sgd", false);
  check_lact("lact_muon_momentum", "lact", true);
}

TEST_CASE("a reference of a layer's views, raw or as its inner loop sees them, has the layer's answers") {
  for (const std::string name : {"ttt-linear", "ttt-mlp", "titans-linear", "gated-delta-net"}) {
    CAPTURE(name);
    const ttt::System& system = system_named(name);
    const LayerRun layer = run_layer(system);
    ReferenceOptions options = in_chunks(4);
    for (const bool raw : {false, true}) {
      CAPTURE(raw);
      options.raw = raw;
      NamedArrays in = raw ? layer.raw : layer.effective;
      for (const ttt::ReferenceTensor& t : ttt::describe_reference(system, kSmall, options).inputs)
        if (layer.params.contains(t.name) && !in.contains(t.name)) in[t.name] = layer.params.at(t.name);
      CHECK(error_of(reference(system, in, options).outputs.at("output"), layer.answers) < 1e-12);
    }
  }
}

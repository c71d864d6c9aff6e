#include "tests/fuzz/system_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/random.h"
#include "look/numbers.h"
#include "tests/fuzz/answers.h"
#include "ttt/conformance.h"
#include "ttt/layer.h"

namespace nestgrad::fuzz {

namespace {

using ttt::Policy;
using ttt::System;

ttt::ProgramSizes sizes_of(const LoopCase& l) {
  return {.batch = l.batch, .heads = l.heads, .dim = l.in, .time = l.time, .chunk = l.policy.chunk};
}

}  // namespace

// With views of its own making, as small as those of a case, of which each token's depend on that token
// alone.
System system_of(const LoopCase& l) {
  System out;
  out.name = out.title = "random";
  out.learner = [&l](const Params& params, const ttt::SystemSizes&) { return l.make(params); };
  out.policy = [&l](const ttt::SystemSizes&) { return l.policy; };
  out.position_rates = l.position;
  for (const Gate& gate : l.gates)
    if (!l.position || gate.name != "rate") out.gates.push_back({gate.name, gate.per_feature, gate.shape()});
  out.prepare = [position = l.position, rate = l.rate()](ttt::Views& views) {
    views.q = tanh(views.q);
    views.k = l2_norm(views.k, 0.3);
    views.v = 0.5 * views.v;
    if (position) views.gates["rate"] = rate * views.gates["rate"];
  };
  return out;
}

bool is_system(const LoopCase& l) { return l.in == l.out && !l.asked; }

void check_battery(const LoopCase& l) {
  const ttt::ConformanceReport report = ttt::conformance(system_of(l), sizes_of(l), l.seed);
  if (!report.passed()) throw Finding("conformance:\n" + report.str());
}

void check_views(const LoopCase& l) {
  ttt::ProgramSizes sizes = sizes_of(l);
  sizes.time = std::max<std::int64_t>(1, l.time / l.chunk()) * l.chunk();
  const look::InspectedLoop inspected = look::inspected_learner(system_of(l), sizes, l.seed);
  for (double x : inspected.cotangent.to_vector())
    if (!(std::abs(x) < 1e6)) return;  // with these numbers the learner diverges
  const auto require = [](const std::vector<Claim>& claims) {
    for (const Claim& i : claims)
      if (!i.holds()) throw Finding(fmt::format("{}: {:.2g}, at most {:.2g}", i.claim, i.error, i.tolerance));
  };
  require(look::attention_maps(inspected).claims);
  require(look::inner_losses(inspected).claims);
  require(look::implicit_attention(inspected).claims);
  require(look::key_statistics(inspected).claims);
  require(look::curvature(inspected).claims);
  require(look::estimators(inspected).claims);
  if (l.policy.steps > 1) return;  // refused: the steps of a chunk cannot be told apart
  const look::Channels reach = look::channels(inspected);
  require(reach.claims);
  require(look::explain_step(inspected, l.time / 2 % sizes.time, reach).claims);
  require(look::contributions_by_step(inspected).claims);
}

namespace {

// A layer's answers to all tokens at once and to one after
// the other. What is beside the learner goes by the seed.
Function layer_of(const LoopCase& l) {
  const std::int64_t width = l.heads * l.in;
  const auto is_set = [&](int bit) { return (l.seed >> bit & 1) == 1; };
  System system = system_of(l);
  system.rotary = l.in % 2 == 0 && is_set(1);
  const ttt::TTTLayerOptions options{.width = width,
                                     .heads = l.heads,
                                     .base_lr = l.rate() * static_cast<double>(l.in),
                                     .inner = options_of(l, ttt::FormChoice::automatic),
                                     .gate = is_set(0),
                                     .attention_window = l.in % 2 == 0 && is_set(2) ? 3 : 0};
  return trace(
      [&](const std::vector<Tensor>& in) {
        ParamTable table(*context().emit.graph, DType::f64);
        const Params params(table);
        std::unique_ptr<ttt::Task> task = std::make_unique<ttt::ProjectedViews>(params, width);
        if (is_set(3)) task = std::make_unique<ttt::SharedQkViews>(params, width, 3, "task");
        const ttt::TTTLayer layer(params, options, std::move(task), system, "layer");
        ttt::Stream whole;
        std::vector<Tensor> out{layer(in[0], whole)}, tokens;
        std::map<std::string, Tensor> carried;
        for (std::int64_t t = 0; t < l.time; ++t) {
          ttt::Stream stream(carried);
          tokens.push_back(layer(slice(in[0], 1, t, t + 1), stream));
          carried = stream.carried();
        }
        out.push_back(concat(tokens, 1));
        return out;
      },
      {Spec{DType::f64, {l.batch, l.time, width}}});
}

}  // namespace

void check_layer(const LoopCase& l) {
  const bool can = l.causal();
  Function f;
  try {
    f = layer_of(l);
  } catch (const ConfigError&) {
    if (can) throw;
    return;
  }
  if (!can) throw Finding("a layer runs what is not causal");
  std::vector<Array> in;
  for (std::size_t i = 0; i < f.inputs().size(); ++i)
    in.push_back(random_normal(f.input_spec(i), 0, 0.5, l.seed, i));
  const std::vector<Array> out = f(in);
  if (const double error = relative_error(out[1], out[0], 1e-3); !(error < 1e-9))
    throw Finding(fmt::format("a layer token by token differs from the whole by {:.2g}", error));
}

}  // namespace nestgrad::fuzz

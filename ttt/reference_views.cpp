#include "ttt/reference_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ttt/layer.h"
#include "ttt/policy_text.h"
#include "ttt/reference_formulas.h"

namespace nestgrad::ttt {

namespace {

// Gates by the system's own shapes and biases, then its prepare.
void shape_views(const System& system, const NamedTensors& raw, Views& views) {
  for (const GateSpec& gate : system.gates) views.gates[gate.name] = gate_from_raw(gate, raw.at(gate.name));
  if (system.prepare) system.prepare(views);
}

// What the layer makes each view of, in words.
std::map<std::string, std::string> view_formulas(const System& system, const Policy& policy,
                                                 const ReferenceShape& shape,
                                                 const ReferenceOptions& options) {
  Graph graph;
  const GraphScope scope(graph);
  NamedTensors raw;
  for (const ReferenceTensor& t : raw_inputs(system, policy, shape, options.dtype))
    raw[t.name] = graph.input(
        t.spec, system.rotary && (t.name == "q" || t.name == "k")
                    ? fmt::format("rope(raw {}, place in the chunk, theta {})", t.name, options.rope_theta)
                    : "raw " + t.name);
  Views views{raw["q"], raw["k"], raw["v"], {}, {}};
  if (system.position_rates) {
    views.gates["rate"] = graph.input(raw.at("rate").spec(),
                                      fmt::format("{} * sigmoid(raw rate) / {}", options.base_lr, shape.dim));
    views.position = graph.input(raw.at("position").spec(), "max(1 / (place + 1) + raw position, 0)");
  }
  shape_views(system, raw, views);
  std::map<std::string, std::string> out;
  for (const auto& [name, value] : named_views(views)) out[name] = formula(graph.tensor(graph.lift(value)));
  return out;
}

void check_sizes(const System& system, const ReferenceSizes& sizes, const ReferenceOptions& options) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(fmt::format("[reference] {}: {}", system.name, what));
  };
  if (std::min({sizes.batch, sizes.heads, sizes.time, sizes.dim}) < 1)
    refuse(fmt::format("batch is {}, heads {}, time {} and dim {}; each must be at least 1", sizes.batch,
                       sizes.heads, sizes.time, sizes.dim));
  if (options.chunk < 1)
    refuse(fmt::format("a chunk of {} tokens; give at least 1, or the policy chunk=0 for the whole sequence",
                       options.chunk));
  if (system.rotary && sizes.dim % 2)
    refuse(fmt::format("q and k are rotated in pairs of features; give an even dim, it is {}", sizes.dim));
  if (!std::isfinite(options.base_lr) || !(options.rope_theta > 0 && std::isfinite(options.rope_theta)))
    refuse(fmt::format("base_lr is {} and rope_theta {}; give finite numbers, rope_theta above 0",
                       options.base_lr, options.rope_theta));
}

}  // namespace

Policy reference_policy(const System& system, const ReferenceSizes& sizes, const ReferenceOptions& options) {
  check_complete(system);
  check_sizes(system, sizes, options);
  const Policy out = overridden(system.policy({sizes.heads, sizes.dim, options.chunk}), options.policy);
  if (const std::string why = system.why_not ? system.why_not(out) : ""; !why.empty())
    throw ConfigError(
        fmt::format("[reference] {} cannot be run by the policy '{}': {}", system.name, out.str(), why));
  return out;
}

SystemSizes system_sizes(const ReferenceSizes& sizes, const Policy& policy, const ReferenceOptions& options) {
  return {sizes.heads, sizes.dim, policy.chunk > 0 ? policy.chunk : options.chunk};
}

std::string view_axes(const std::string& name) {
  return name == "position" ? "place" : "batch head token feature";
}

std::vector<ReferenceTensor> raw_inputs(const System& system, const Policy& policy, const ReferenceShape& s,
                                        DType dtype) {
  const auto rows = [&](const std::string& name, std::int64_t tokens, std::int64_t width) {
    return ReferenceTensor{
        name, {dtype, {s.batch, s.heads, tokens, width}}, view_axes(name), "as its projection leaves it"};
  };
  std::vector<ReferenceTensor> out{rows("q", s.queries, s.dim), rows("k", s.time, s.dim),
                                   rows("v", s.time, s.value_dim)};
  for (const GateSpec& gate : system.gates) {
    out.push_back(rows(gate.name, s.time, gate.per_feature ? s.dim : 1));
    if (gate.bias != 0) out.back().text += fmt::format(", without its bias: {:g} is added to it", gate.bias);
  }
  if (system.position_rates) {
    out.push_back(rows("rate", s.time, 1));
    out.push_back({"position",
                   {dtype, {policy.chunk_of(s.time)}},
                   view_axes("position"),
                   "learnable_token_idx of the published layer"});
  }
  return out;
}

Views views_from_raw(const System& system, const Policy& policy, const NamedTensors& raw,
                     const ReferenceOptions& options) {
  Views views{raw.at("q"), raw.at("k"), raw.at("v"), {}, {}};
  const std::int64_t chunk = policy.chunk_of(views.k.dim(2));
  if (system.rotary)
    for (Tensor* x : {&views.q, &views.k})
      *x = rope(*x, places_in_chunks(x->dim(2), chunk, x->dtype()), options.rope_theta);
  if (system.position_rates) {
    views.gates["rate"] = token_rates(raw.at("rate"), options.base_lr, views.k.dim(3));
    views.position = position_rates(raw.at("position"));
  }
  shape_views(system, raw, views);
  return views;
}

NamedTensors named_views(const Views& views) {
  NamedTensors out{views.gates.begin(), views.gates.end()};
  out["q"] = views.q;
  out["k"] = views.k;
  out["v"] = views.v;
  if (views.position.defined()) out["position"] = views.position;
  return out;
}

Views views_from(const NamedTensors& named) {
  Views out;
  for (const auto& [name, value] : named)
    (name == "q"          ? out.q
     : name == "k"        ? out.k
     : name == "v"        ? out.v
     : name == "position" ? out.position
                          : out.gates[name]) = value;
  return out;
}

std::vector<ReferenceTensor> effective_inputs(const System& system, const Policy& policy,
                                              const ReferenceShape& shape, const ReferenceOptions& options) {
  const auto formulas = view_formulas(system, policy, shape, options);
  Graph graph;
  const GraphScope scope(graph);
  NamedTensors raw;
  std::vector<ReferenceTensor> out;
  for (const ReferenceTensor& t : raw_inputs(system, policy, shape, options.dtype))
    raw[t.name] = graph.input(t.spec);
  const NamedTensors views = named_views(views_from_raw(system, policy, raw, options));
  const auto add = [&](const std::string& name) {
    const std::string& made = formulas.at(name);
    out.push_back({name, views.at(name).spec(), view_axes(name),
                   made == "raw " + name ? "as the layer's projection leaves it" : "in the layer " + made});
  };
  for (const char* name : {"q", "k", "v"}) add(name);
  for (const auto& [name, value] : views)
    if (name != "q" && name != "k" && name != "v") add(name);
  return out;
}

}  // namespace nestgrad::ttt

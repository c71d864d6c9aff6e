#include "ttt/system.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "engine/core/random.h"
#include "engine/plan/flow.h"
#include "ttt/one_text.h"

namespace nestgrad::ttt {

void check_complete(const System& system) {
  const std::string_view missing = !system.learner ? "learner" : !system.policy ? "policy" : "";
  if (!missing.empty())
    throw ConfigError(
        fmt::format("[ttt] the system '{}' has no {}; set System::{}", system.name, missing, missing));
  std::set<std::string, std::less<>> taken{"q", "k", "v", "position"};
  if (system.position_rates) taken.insert("rate");
  for (const GateSpec& gate : system.gates)
    if (!taken.insert(gate.name).second)
      throw ConfigError(fmt::format(
          "[ttt] the system '{}' has a gate '{}', the name of another gate or of a view; give it another name",
          system.name, gate.name));
}

std::unique_ptr<Learner> learner_of(const System& system, const Params& params, const SystemSizes& sizes) {
  std::unique_ptr<Learner> learner = system.learner(params, sizes);
  if (!learner)
    throw ConfigError(
        fmt::format("[ttt] the learner that System::learner of '{}' makes is null", system.name));
  return learner;
}

Tensor gate_from_biased(const GateSpec& gate, Tensor biased) {
  return gate.shape ? gate.shape(biased) : biased;
}

Tensor gate_from_raw(const GateSpec& gate, Tensor raw) {
  return gate_from_biased(gate, gate.bias == 0 ? raw : raw + gate.bias);
}

Views views_of(const System& system, std::span<const Tensor> in) {
  Views out{in[0], in[1], in[2], {}, {}};
  std::size_t at = 3;
  for (const GateSpec& gate : system.gates) out.gates[gate.name] = gate_from_raw(gate, in[at++]);
  if (system.position_rates) {
    out.gates["rate"] = sigmoid(in[at]);
    out.position = sigmoid(in[at + 1]);
  }
  if (system.prepare) system.prepare(out);
  return out;
}

namespace {

// Of a program's inputs, without the outer parameters.
std::vector<Spec> input_specs(const System& system, const ProgramSizes& s, DType dtype) {
  const auto rows = [&](std::int64_t width) { return Spec{dtype, {s.batch, s.heads, s.time, width}}; };
  std::vector<Spec> out{rows(s.dim), rows(s.dim), rows(s.dim)};
  for (const GateSpec& gate : system.gates) out.push_back(rows(gate.per_feature ? s.dim : 1));
  if (system.position_rates) {
    out.push_back(rows(1));
    out.push_back({dtype, {system.policy({s.heads, s.dim, s.chunk}).chunk_of(s.time)}});
  }
  return out;
}

// What prepare and the shapes of gates make of inputs of these sizes.
struct PreparedViews {
  std::unique_ptr<Graph> graph;
  std::vector<NodeId> inputs;
  std::vector<std::string> names;
  std::vector<NodeId> outs;  // beside names
};

PreparedViews prepared(const System& system, const ProgramSizes& sizes, DType dtype) {
  PreparedViews out;
  out.graph = std::make_unique<Graph>(GraphOptions{.parent = context().emit.graph, .hoist = false});
  const GraphScope scope(*out.graph);
  std::vector<Tensor> in;
  for (const Spec& spec : input_specs(system, sizes, dtype)) {
    in.push_back(out.graph->input(spec));
    out.inputs.push_back(in.back().id());
  }
  const Views views = views_of(system, in);
  const auto take = [&](const std::string& name, Tensor value) {
    out.names.push_back(name);
    out.outs.push_back(out.graph->lift(value));
  };
  take("q", views.q);
  take("k", views.k);
  take("v", views.v);
  for (const auto& [name, gate] : views.gates) take(name, gate);
  return out;
}

// A layer reads a sequence whole, a token at a time, and as many sequences as there are.
std::string why_prepares_otherwise(const System& system, const ProgramSizes& sizes, DType dtype,
                                   const PreparedViews& views) {
  ProgramSizes more = sizes, one = sizes;
  more.batch += 1, more.time += 1, one.time = 1;
  for (const ProgramSizes& other : {more, one}) {
    std::optional<PreparedViews> found;
    try {
      found = prepared(system, other, dtype);
    } catch (const std::exception&) {
      continue;  // it takes no such rows at all: whoever has them is told
    }
    if (found->names != views.names)
      return fmt::format("it gives '{}', of other sizes '{}'", fmt::join(views.names, "', '"),
                         fmt::join(found->names, "', '"));
    for (std::size_t i = 0; i < views.outs.size(); ++i) {
      const bool one_token = std::min(sizes.time, other.time) == 1;
      const std::string why =
          why_not_one_text({*views.graph, {views.outs[i]}}, {*found->graph, {found->outs[i]}}, one_token);
      if (!why.empty()) return fmt::format("in '{}', {}", views.names[i], why);
    }
  }
  return {};
}

}  // namespace

std::string why_tokens_meet(const System& system, const ProgramSizes& sizes, DType dtype) {
  constexpr int kSequences = 0, kTokens = 2;  // axes
  const PreparedViews views = prepared(system, sizes, dtype);
  Graph& graph = *views.graph;
  std::vector<std::pair<NodeId, AxisFlow>> seeds, sequences;
  for (const NodeId id : views.inputs) {
    if (graph.node(id).spec.rank() != 4) continue;
    seeds.emplace_back(id, AxisFlow::along(kTokens));
    if (sizes.batch > 1) sequences.emplace_back(id, AxisFlow::along(kSequences));
  }
  const std::vector<AxisFlow> flows = follow(graph.nodes(), seeds, {.rules = true});
  for (std::size_t i = 0; i < views.outs.size(); ++i) {
    const NodeId id = views.outs[i];
    const AxisFlow& flow = flows[static_cast<std::size_t>(id)];
    if (flow.kind == AxisFlow::Kind::along && flow.axis == kTokens) continue;
    if (flow.kind == AxisFlow::Kind::free && !may_vary(graph.nodes(), id, kTokens)) continue;
    const bool mixed = flow.kind == AxisFlow::Kind::mixed;
    return fmt::format("in '{}', at {}{}", views.names[i], describe(graph.tensor(mixed ? flow.culprit : id)),
                       mixed ? ", " + flow.why : ", which does not follow the tokens");
  }
  const std::vector<AxisFlow> of_sequences =
      follow(graph.nodes(), sequences, {.positional = true, .rules = true});
  for (std::size_t i = 0; i < views.outs.size(); ++i)
    if (const AxisFlow& flow = of_sequences[static_cast<std::size_t>(views.outs[i])];
        flow.kind == AxisFlow::Kind::mixed)
      return fmt::format("in '{}', at {}, {}: sequences meet", views.names[i],
                         describe(graph.tensor(flow.culprit)), flow.why);
  return why_prepares_otherwise(system, sizes, dtype, views);
}

Function trace_system(const System& system, const ProgramSizes& s, DType dtype,
                      const std::function<std::vector<Tensor>(const SystemProgram&)>& fn) {
  check_complete(system);
  require_function("ttt", "what makes the outputs of a system's program", fn);
  if (std::min({s.batch, s.heads, s.dim, s.time}) < 1 || s.chunk < 0)
    throw ConfigError(fmt::format(
        "[ttt] '{}' of batch {}, heads {}, dim {}, time {}, chunk {}: each must be at least 1, the chunk 0 (the "
        "whole sequence) or more",
        system.name, s.batch, s.heads, s.dim, s.time, s.chunk));
  const SystemSizes sizes{s.heads, s.dim, s.chunk};
  return trace(
      [&](const std::vector<Tensor>& in) {
        ParamTable table(*context().emit.graph, dtype);
        SystemProgram program;
        program.learner = learner_of(system, Params(table), sizes);
        program.policy = system.policy(sizes);
        program.views = views_of(system, in);
        program.start = for_batch(program.learner->init(), s.batch);
        program.inputs = in;
        program.inputs.insert(program.inputs.end(), table.tensors().begin(), table.tensors().end());
        return fn(program);
      },
      input_specs(system, s, dtype));
}

std::vector<Array> numbers_for(const Function& program, std::uint64_t seed) {
  std::vector<Array> out;
  for (std::size_t i = 0; i < program.inputs().size(); ++i)
    out.push_back(random_normal(program.input_spec(i), 0, 0.7, seed, i));
  return out;
}

}  // namespace nestgrad::ttt

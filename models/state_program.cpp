#include "models/state_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "engine/core/rewrite.h"
#include "engine/io/file.h"
#include "engine/plan/dependence.h"
#include "engine/plan/flow.h"
#include "engine/plan/readers.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

// Columns of a product that are added up together. What a processor fetches ahead lies in one piece then, and rows that
// are multiplied in two goes find it near the second time.
constexpr std::int64_t kPanel = 64;

// A matrix [n, k] as a product x W' wants it: transposed, in panels of so many columns one after the other, [panels, k,
// kPanel]; or as one, [k, n], where n is no multiple of them.
Shape panels_shape(const Shape& matrix) {
  if (matrix[0] % kPanel != 0) return {matrix[1], matrix[0]};
  return {matrix[0] / kPanel, matrix[1], kPanel};
}

Array in_panels(const Array& matrix) {
  const Shape shape = panels_shape(matrix.shape());
  return trace(
      [&](Tensor w) {
        return shape.size() == 2 ? transpose(w) : transpose(reshape(w, {shape[0], shape[2], shape[1]}));
      },
      matrix.spec())(matrix);
}

// x W' of x [.., k].
Tensor times_panels(Tensor x, Tensor panels) {
  if (panels.rank() == 2) return matmul(x, panels);
  const std::int64_t k = panels.dim(1);
  Shape shape = x.shape();
  const std::int64_t rows = numel(shape) / k;
  shape.back() = panels.dim(0) * kPanel;
  return reshape(permute(matmul(reshape(x, {1, rows, k}), panels), {1, 0, 2}), shape);
}

// Which nodes something else than parameters and constants enters.
std::vector<char> changing_nodes(const TracedModel& model) {
  const std::deque<GraphNode>& nodes = model.function.graph().nodes();
  std::set<std::string> params;
  for (const ParamSpec& p : model.params) params.insert(p.name);
  std::vector<char> given(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i)
    given[i] = nodes[i].op->kind == OpKind::input && !params.contains(input_name(nodes[i]));
  return dependents(nodes, std::move(given), Follow::values);
}

// A function whose products read fixed matrices in panels, each an input of its own.
struct InPanels {
  TracedModel model;
  std::map<std::string, NodeId> matrices;  // in the given function's graph, by the inputs' names
};

InPanels with_panels(const TracedModel& given) {
  const std::deque<GraphNode>& nodes = given.function.graph().nodes();
  const std::vector<char> changing = changing_nodes(given);
  InPanels out;
  out.model.params = given.params;
  std::map<NodeId, Tensor> now;  // the new inputs, by the matrices
  std::vector<std::string> names = given.inputs;
  Lowered lowered;
  {
    Rewriter to(nodes);
    for (NodeId id = 0; id < std::ssize(nodes); ++id) {
      const GraphNode& node = nodes[uz(id)];
      const MatmulAttrs* const flags = node.op == &matmul_op ? node.attrs.find<MatmulAttrs>() : nullptr;
      const NodeId matrix = flags && flags->b && !flags->a ? node.inputs[1] : -1;
      if (matrix < 0 || changing[uz(matrix)] || nodes[uz(matrix)].spec.rank() != 2) {
        to[id] = to.copy(id);
        continue;
      }
      if (!now.contains(matrix)) {
        const std::string name = fmt::format("%{} in panels", matrix);
        const Spec& spec = nodes[uz(matrix)].spec;
        now[matrix] = to.graph().input(Spec{spec.dtype, panels_shape(spec.shape)}, name);
        out.matrices[name] = matrix;
        names.push_back(name);
      }
      label_like(node);
      to[id] = times_panels(to[node.inputs[0]], now[matrix]);
    }
    lowered = to.lowered(given.function.inputs(), given.function.outputs());
  }
  for (std::size_t i = given.inputs.size(); i < names.size(); ++i)
    lowered.inputs.push_back(now.at(out.matrices.at(names[i])).id());
  const std::vector<char> live = live_nodes(lowered.graph->nodes(), lowered.outputs, {});
  std::vector<NodeId> inputs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0 && !live[uz(lowered.inputs[i])]) continue;  // the tokens stay
    inputs.push_back(lowered.inputs[i]);
    out.model.inputs.push_back(names[i]);
  }
  out.model.function = Function(lowered.graph, inputs, lowered.outputs);
  return out;
}

// A fixed node of a model. Parameters themselves are brought into panels once for all programs.
Array panels_of(const TracedModel& model, NodeId id, FixedParameters& params) {
  const std::deque<GraphNode>& nodes = model.function.graph().nodes();
  if (nodes[uz(id)].op->kind == OpKind::input) return params.in_panels(input_name(nodes[uz(id)]));
  const std::vector<char> live = live_nodes(nodes, std::span(&id, 1), {});
  std::vector<NodeId> inputs;
  std::vector<Array> values;
  for (std::size_t i = 0; i < model.inputs.size(); ++i)
    if (const NodeId in = model.function.inputs()[i]; live[uz(in)]) {
      inputs.push_back(in);
      values.push_back(params.named(model.inputs[i]));
    }
  return in_panels(Plan(nodes, inputs, {id}, {}).run(values)[0]);
}

// ValueError unless rows are put at places of a state that there are.
void check_places(const Array& places, const Array& state) {
  const std::int64_t rows = state.shape()[state.shape().size() - 2];
  for (std::int64_t i = 0; i < places.size(); ++i) {
    const double at = places.at(i);
    if (!(at >= 0 && at < static_cast<double>(rows) && at == std::floor(at)))
      throw ValueError(fmt::format(
          "[decoder] a row is to be put at place {} of {}: what counts the places is no counter", at, rows));
  }
}

// row [batch, .., 1, dim] into state [batch, .., rows, dim], for each of the batch at its place: one, or [batch, 1, 1, 1].
void put_row(const Array& row, const Array& places, Array& state) {
  const Shape& shape = state.shape();
  const std::int64_t rows = shape[shape.size() - 2], all = row.size() / shape.back(), each = all / shape[0];
  const std::size_t bytes = row.bytes() / uz(all);
  for (std::int64_t i = 0; i < all; ++i) {
    const auto place = static_cast<std::int64_t>(places.at(places.size() == 1 ? 0 : i / each));
    std::memcpy(state.data() + uz(i * rows + place) * bytes, row.data() + uz(i) * bytes, bytes);
  }
}

ttt::Stream stream_of(const StateProgram::Sizes& sizes) {
  const std::int64_t apart = sizes.apart ? sizes.batch : 0;
  return sizes.learns > 0 ? ttt::Stream::learning(sizes.learns, apart)
                          : ttt::Stream(ttt::Stream::Mode::step, apart);
}

// What a token, or the end of a chunk, makes of the states, [batch, ..] each: logits [batch, vocab] where a token is read, then the
// states that become others, then a row and its place of each that becomes itself with a row put into it.
struct TracedStep {
  TracedModel model;
  std::vector<std::string> changed, rows;  // names of states
};
TracedStep traced_step(const LogitsFn& model, DType dtype, const StateProgram::Sizes& sizes) {
  TracedStep out;
  out.model = trace_model(dtype, {{DType::i32, {sizes.batch}}},
                          [&](ParamTable& table, const std::vector<Tensor>& given) {
                            ttt::Stream stream = stream_of(sizes);
                            stream.learn_outside();
                            if (default_device().is_cpu()) stream.write_rows_outside();
                            const Tensor tokens = reshape(given[0], {sizes.batch, 1});
                            std::vector<Tensor> made;
                            if (sizes.learns == 0) {
                              const Tensor logits = logits_of(model, Params(table), tokens, stream);
                              made.push_back(reshape(logits, {sizes.batch, logits.dim(-1)}));
                            } else {
                              model(Params(table), tokens, stream);
                            }
                            out.changed.clear(), out.rows.clear();
                            for (const ttt::Stream::State& s : stream.states()) {
                              if (!s.next.defined() || s.next.id() == s.value.id()) continue;
                              out.changed.push_back(s.name);
                              made.push_back(s.next);
                            }
                            for (const ttt::Stream::State& s : stream.states())
                              if (s.row.defined()) {
                                out.rows.push_back(s.name);
                                made.insert(made.end(), {s.row, s.place});
                              }
                            return made;
                          });
  return out;
}

}  // namespace

CarriedStates CarriedStates::of(const LogitsFn& model, const StateDict& params, DType dtype,
                                std::int64_t batch, bool apart) {
  CarriedStates out;
  const TracedModel start =
      trace_model(dtype, {{DType::i32, {batch}}}, [&](ParamTable& table, const std::vector<Tensor>& given) {
        ttt::Stream stream(ttt::Stream::Mode::initial, apart ? batch : 0);
        logits_of(model, Params(table), reshape(given[0], {batch, 1}), stream);
        std::vector<Tensor> values;
        for (const ttt::Stream::State& s : stream.states()) {
          out.names.push_back(s.name);
          values.push_back(s.value);
          if (!s.next.defined())
            throw GraphError(fmt::format("[decoder] state '{}' is never carried on", s.name));
        }
        out.chunks = stream.chunks();
        out.counters = stream.counters();
        return values;
      });
  nestgrad::check_fits(start.params, params, "what the decoder is given");
  const std::deque<GraphNode>& nodes = start.function.graph().nodes();
  std::vector<char> given(nodes.size());
  given[uz(start.function.inputs()[0])] = 1;
  const std::vector<char> of_tokens = dependents(nodes, std::move(given), Follow::values);
  for (std::size_t i = 0; i < out.names.size(); ++i)
    if (of_tokens[uz(start.function.outputs()[i])])
      throw ConfigError(fmt::format(
          "[decoder] the state '{}' begins with what is made of the token that is read ({}): what a stream carries is there "
          "before its first token. Begin it with parameters and constants",
          out.names[i], describe(nodes, start.function.outputs()[i])));
  for (const std::string& name : out.names)
    if (std::ranges::count(start.inputs, name) > 0)
      throw ConfigError(fmt::format(
          "[decoder] '{}' is a state of the stream and also a parameter or an input of the model; give the state "
          "another name",
          name));
  out.initial = start.function(start.bind({Array::zeros(DType::i32, {batch})}, {&params}));
  return out;
}

std::size_t CarriedStates::find(const std::string& name) const {
  return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
}

void CarriedStates::check_fits(const StateDict& state, std::int64_t position) const {
  for (const auto& [name, value] : state)
    if (find(name) == names.size())
      throw ConfigError(
          fmt::format("[decoder] the state holds '{}', which this model does not carry", printable(name)));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto at = state.find(names[i]);
    if (at == state.end())
      throw ConfigError(fmt::format("[decoder] the state does not fit the model; it lacks the value '{}' {}",
                                    names[i], to_string(initial[i].spec())));
    if (at->second.spec() != initial[i].spec())
      throw ConfigError(
          fmt::format("[decoder] the state does not fit the model; '{}' is {}, the model wants {}", names[i],
                      to_string(at->second.spec()), to_string(initial[i].spec())));
    // Rows are written where a counter says: it has to be right.
    if (const auto counter = counters.find(names[i]); counter != counters.end())
      for (std::int64_t n = 0; n < at->second.size(); ++n)
        if (const double found = at->second.at(n),
            wanted = static_cast<double>(counter->second.after(position));
            found != wanted)
          throw ConfigError(fmt::format(
              "[decoder] the state does not fit the position; '{}' counts {}, after {} tokens it is {}: "
              "give the state and the position that were saved together",
              names[i], found, position, wanted));
  }
}

void CarriedStates::check_counts(const char* who, std::int64_t position) const {
  for (const auto& [name, count] : counters)
    if (count.ends() && position >= count.end)
      throw ConfigError(fmt::format(
          "[{}] '{}' counts to {} tokens, which have been read: begin a new sequence, or make the model with more capacity",
          who, name, count.end));
}

void check_position(const char* who, std::int64_t position, std::int64_t capacity) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;  // counting on from it meets no end
  const std::int64_t most = capacity > 0 ? capacity : kMost;
  if (position < 0 || position > most)
    throw ConfigError(
        fmt::format("[{}] position {} is outside of what can be read ({} tokens)", who, position, most));
}

const Array& FixedParameters::in_panels(const std::string& name) {
  if (const auto at = panels_.find(name); at != panels_.end()) return at->second;
  return panels_.emplace(name, nestgrad::in_panels(params_.at(name))).first->second;
}

StateProgram::StateProgram(const LogitsFn& model, const CarriedStates& carried, FixedParameters& params,
                           DType dtype, const Sizes& sizes) {
  const TracedStep step = traced_step(model, dtype, sizes);
  const TracedModel& traced = step.model;
  first_change_ = sizes.learns == 0 ? 1 : 0;
  for (const std::string& state : step.changed) changes_.push_back(carried.find(state));
  for (const std::string& state : step.rows) {
    const std::size_t row = first_change_ + changes_.size() + 2 * rows_.size();
    rows_.push_back({carried.find(state), row, row + 1});
  }
  const InPanels own = with_panels(traced);
  StateDict values;
  for (const std::string& name : own.model.inputs) {
    const auto matrix = own.matrices.find(name);
    if (matrix != own.matrices.end()) values.emplace(name, panels_of(traced, matrix->second, params));
    else if (params.all().contains(name)) values.emplace(name, params.named(name));
  }
  for (std::size_t i = 0; i < own.model.inputs.size(); ++i) {
    const std::size_t state = carried.find(own.model.inputs[i]);
    if (i == 0 || state == carried.names.size()) continue;
    states_.emplace_back(i, state);
    values.emplace(own.model.inputs[i], Array(own.model.function.input_spec(i)));
  }
  inputs_ = own.model.bind({Array::zeros(DType::i32, {sizes.batch})}, {&values});
  plan_ = std::make_unique<Plan>(own.model.function.plan());
  for (std::size_t i = 1; i < inputs_.size(); ++i) inputs_[i] = inputs_[i].to(plan_->device());
  for (std::size_t i = 0; i < plan_->output_specs().size(); ++i)
    outputs_.emplace_back(plan_->output_specs()[i], i < first_change_ ? Device::cpu() : plan_->device());
}

std::vector<std::size_t> StateProgram::reads() const {
  std::vector<std::size_t> out;
  for (const auto& [input, state] : states_) out.push_back(state);
  return out;
}

std::vector<std::size_t> StateProgram::changes() const {
  std::vector<std::size_t> out = changes_;
  for (const Row& row : rows_) out.push_back(row.state);
  return out;
}

void StateProgram::run(const Array& tokens, std::vector<Array>& states) {
  inputs_[0] = tokens;
  for (const auto& [input, state] : states_) inputs_[input] = states[state];
  plan_->run(inputs_, outputs_);
  for (const Row& row : rows_) check_places(outputs_[row.place], states[row.state]);
  // From here on nothing throws: states are all as before, or all as after.
  for (std::size_t i = 0; i < changes_.size(); ++i)
    std::swap(states[changes_[i]], outputs_[first_change_ + i]);
  for (const Row& row : rows_) put_row(outputs_[row.row], outputs_[row.place], states[row.state]);
}

void check_apart(const LogitsFn& model, DType dtype, std::int64_t learns) {
  const TracedStep step = traced_step(model, dtype, {.batch = 2, .apart = true, .learns = learns});
  const Function& function = step.model.function;
  const std::deque<GraphNode>& nodes = function.graph().nodes();
  std::set<std::string> params;
  for (const ParamSpec& p : step.model.params) params.insert(p.name);
  std::vector<std::pair<NodeId, AxisFlow>> seeds;
  for (NodeId in : function.inputs())
    if (!params.contains(input_name(nodes[uz(in)]))) seeds.emplace_back(in, AxisFlow::along(0));
  const std::vector<AxisFlow> flows = follow(nodes, seeds, {.positional = true});
  for (NodeId out : function.outputs()) {
    const AxisFlow& flow = flows[uz(out)];
    if (flow.kind == AxisFlow::Kind::free || (flow.kind == AxisFlow::Kind::along && flow.axis == 0)) continue;
    const NodeId at = flow.kind == AxisFlow::Kind::mixed ? flow.culprit : out;
    throw ConfigError(fmt::format(
        "[streams] what a sequence is answered, or remembers, depends on the others that are read with it: {}{}{}. Each must "
        "be read as if it were alone; keep the first axis apart, or read each text with a Decoder of its own",
        describe(nodes, at), flow.why.empty() ? "" : ": ", flow.why));
  }
}

}  // namespace nestgrad

#include "ttt/reference_formulas.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/look/print.h"
#include "engine/plan/readers.h"

namespace nestgrad::ttt {

namespace {

constexpr std::size_t kLongestFormula = 400;  // letters
constexpr std::string_view kStepScope = "inner optimiser/";

std::string number(double x) { return fmt::format("{}", x); }

// A shape's change, which a formula leaves out.
bool keeps_numbers(const Op& op) { return op.name == "reshape" || op.name == "broadcast_to"; }

// The piece of an optimiser that a node belongs to: "Muon". Empty: none.
std::string piece_of(const GraphNode& n) {
  const std::string& scope = n.scope.str();
  const std::size_t at = scope.find(kStepScope);
  if (at == scope.npos) return "";
  const std::string piece = scope.substr(at + kStepScope.size());
  return piece.substr(0, piece.find('/'));
}

class Printer {
 public:
  // by_pieces: pieces of an optimiser are calls of their names, with their constants.
  Printer(const Graph& graph, bool by_pieces) : graph_(graph), by_pieces_(by_pieces) {}

  std::string text(NodeId id) const {
    const GraphNode& n = graph_.node(id);
    if (n.op->kind == OpKind::input) return input_name(n);
    if (n.op->kind == OpKind::constant) {
      const Array& literal = literal_of(n);
      return literal.size() == 1 ? number(literal.at(0)) : "constant";
    }
    if (keeps_numbers(*n.op)) return text(n.inputs[0]);
    if (by_pieces_ && !piece_of(n).empty()) return piece(id);
    std::string out = call_text(*n.op, n.attrs) + "(";
    for (std::size_t i = 0; i < n.inputs.size() && out.size() <= kLongestFormula; ++i)
      out += (i ? ", " : "") + text(n.inputs[i]);
    return out.size() > kLongestFormula ? out.substr(0, kLongestFormula) + ".." : out + ")";
  }

 private:
  std::string piece(NodeId id) const {
    const std::string name = piece_of(graph_.node(id));
    std::vector<std::string> from, constants;
    std::set<NodeId> seen;
    const auto add = [](std::vector<std::string>& to, std::string one) {
      if (std::ranges::find(to, one) == to.end()) to.push_back(std::move(one));
    };
    const auto walk = [&](const auto& self, NodeId at) -> void {
      if (!seen.insert(at).second) return;
      for (const NodeId in : graph_.node(at).inputs) {
        const GraphNode& n = graph_.node(in);
        if (n.op->kind == OpKind::constant) add(constants, text(in));
        else if (n.op->kind != OpKind::input && piece_of(n) == name) self(self, in);
        else add(from, text(in));
      }
    };
    walk(walk, id);
    return fmt::format("{}({}{})", name, fmt::join(from, ", "),
                       constants.empty() ? "" : fmt::format("; {}", fmt::join(constants, ", ")));
  }

  const Graph& graph_;
  const bool by_pieces_;
};

// All nodes that these values are made of, in order.
std::vector<NodeId> made_of(const Graph& graph, const std::vector<Tensor>& values) {
  std::vector<NodeId> wanted, out;
  for (const Tensor& t : values) wanted.push_back(t.id());
  const std::vector<char> live = live_nodes(graph.nodes(), wanted, {});
  for (NodeId id = 0; id < graph.size(); ++id)
    if (live[static_cast<std::size_t>(id)]) out.push_back(id);
  return out;
}

// The largest expressions of one parameter alone that these values are made of, by the parameter's name.
std::map<std::string, std::string> expressions_of(Graph& graph, const ParamTable& table,
                                                  const std::vector<Tensor>& values) {
  constexpr NodeId kNone = -1, kSeveral = -2;
  std::map<NodeId, NodeId> of;  // the one parameter that a node is made of
  std::map<std::string, std::string> out;
  for (const NodeId id : made_of(graph, values)) {
    const GraphNode& n = graph.node(id);
    NodeId& own = of[id] = kNone;
    const bool is_parameter =
        std::ranges::any_of(table.tensors(), [&](const Tensor& t) { return t.id() == id; });
    if (n.op->kind == OpKind::input) own = is_parameter ? id : kSeveral;
    for (const NodeId in : n.inputs)
      if (of[in] != kNone) own = own == kNone || own == of[in] ? of[in] : kSeveral;
    if (own != kSeveral) continue;
    for (const NodeId in : n.inputs) {
      const NodeId parameter = of[in];
      if (parameter < 0) continue;
      const std::string text = formula(graph.tensor(in)), name = input_name(graph.node(parameter));
      if (text != name) out[name] = text;
    }
  }
  return out;
}

// Numbers that f and the loss hold, but for those of counting: epsilons and the like.
std::string constants_in(const Graph& graph, const std::vector<Tensor>& values) {
  std::set<double> found;
  for (const NodeId id : made_of(graph, values)) {
    const GraphNode& n = graph.node(id);
    if (n.op->kind != OpKind::constant || literal_of(n).size() != 1) continue;
    const double x = literal_of(n).at(0);
    if (x != 0 && x != 1 && x != -1) found.insert(x);
  }
  std::vector<std::string> out;
  for (const double x : found) out.push_back(number(x));
  return out.empty() ? "none" : fmt::format("{}", fmt::join(out, ", "));
}

// Gates in formulas: as the tokens' gradients are multiplied by them, and as an optimiser sees them, columns; of a step per
// chunk these are means over it.
struct GateInputs {
  Gates of_tokens, of_steps;
};
GateInputs gate_inputs(Graph& graph, const NamedTensors& views, const Learner& learner, std::int64_t heads,
                       const Policy& policy, DType dtype) {
  GateInputs out;
  const auto add = [&](const std::string& name, std::int64_t width) {
    const Spec column{dtype, {heads, width, 1}};
    out.of_tokens[name] = graph.input(column, name);
    const bool mean = policy.update == Policy::Update::per_chunk;
    out.of_steps[name] = mean ? graph.input(column, "mean(" + name + ")") : out.of_tokens[name];
  };
  for (const auto& [name, rows] : views)
    if (name != "q" && name != "k" && name != "v" && name != "position") add(name, rows.dim(-1));
  for (const std::string& name : learner.own_gates()) add(name, 1);
  return out;
}

// What a step does to each weight that learns and to its slots: W <- .. with g, the gradient.
void describe_steps(Graph& graph, const Learner& learner, const State& start, const Policy& policy,
                    const GateInputs& gates, LearnerFormulas& out) {
  const InnerOptimizer optimizer = learner.optimizer();
  const std::vector<std::string> names = state_names(start);
  std::vector<std::string> gradients, updates;
  std::size_t at = 0;
  std::vector<std::vector<Tensor>> states(start.weights.size());
  std::vector<Tensor> g;
  for (std::size_t i = 0; i < states.size(); ++i) {
    for (const Tensor& t : start.of(i)) states[i].push_back(graph.input(t.spec(), names[at++]));
    g.push_back(graph.input(start.weights.at(i).value.spec(), "g." + start.weights.at(i).name));
  }
  const std::vector<Tensor> joint = optimizer.joint(g);
  at = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const FastWeight& w = start.weights.at(i);
    const Tensor rate = rate_of(policy, gates.of_tokens, w);
    gradients.push_back(fmt::format("g.{0} = {1}{2}dloss/d{0} at {3}", w.name,
                                    policy.update == Policy::Update::per_token ? ""
                                    : policy.average                           ? "mean over the chunk of "
                                                                               : "sum over the chunk of ",
                                    rate.defined() ? formula(rate) + " * " : "",
                                    formula(optimizer.gradient_point(states[i], gates.of_steps, w))));
    for (const Tensor& next : optimizer.step(states[i], joint[i], gates.of_steps, w)) {
      const std::string text = formula(next);
      if (text != names[at]) updates.push_back(names[at] + " <- " + text);
      ++at;
    }
  }
  out.gradient = fmt::format("{}", fmt::join(gradients, "; "));
  out.update = fmt::format("{}", fmt::join(updates, "; "));
}

}  // namespace

std::string formula(Tensor value) {
  const Graph& graph = value.graph();
  std::string whole = Printer(graph, false).text(value.id());
  return whole.ends_with("..") ? Printer(graph, true).text(value.id()) : whole;
}

std::vector<std::string> state_names(const State& state) {
  std::vector<std::string> out = state.names();
  for (std::string& name : out) std::ranges::replace(name, ' ', '_');
  return out;
}

LearnerFormulas learner_formulas(const System& system, const ReferenceSizes& s,
                                 const ReferenceOptions& options) {
  const Policy policy = reference_policy(system, s, options);
  Graph graph;
  const GraphScope scope(graph);
  ParamTable table(graph, options.dtype);
  const auto learner = learner_of(system, Params(table), system_sizes(s, policy, options));
  const State start = State::start(*learner, learner->init());
  LearnerFormulas out;
  const std::vector<std::string> names = state_names(start);
  const std::vector<Tensor> flat = start.flat();
  for (std::size_t i = 0; i < flat.size(); ++i) out.start[names[i]] = formula(flat[i]);

  // Views and gates are those that System::prepare makes: it may widen them.
  NamedTensors raw;
  for (const ReferenceTensor& t : raw_inputs(system, policy, s, options.dtype))
    raw[t.name] = graph.input(t.spec);
  const NamedTensors views = named_views(views_from_raw(system, policy, raw, options));
  const auto rows = [&](const char* name) {
    const Shape& shape = views.at(name).shape();
    return graph.input(Spec{options.dtype, {shape.begin() + 1, shape.end()}}, name);
  };
  const Weights weights = start.weights.spread(s.time);
  const std::vector<Tensor> made{learner->predict(weights, rows("q")),
                                 learner->loss(weights, rows("k"), rows("v"))};
  out.answer_dim = made[0].dim(-1);
  out.taken = expressions_of(graph, table, made);
  out.constants = constants_in(graph, made);

  const Trained trained = restrict_to(*learner, start, policy.trained);
  describe_steps(graph, *trained.learner, trained.start, policy,
                 gate_inputs(graph, views, *learner, s.heads, policy, options.dtype), out);
  if (views.contains("position"))
    out.update +=
        "; token i of a chunk reads W0 + position[i] (W - W0) of each weight W, where W0 is what the chunk began with, and "
        "the chunk leaves that of its last token";
  return out;
}

}  // namespace nestgrad::ttt

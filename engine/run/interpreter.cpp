#include "engine/run/interpreter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <unordered_map>

#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/core/node_text.h"
#include "engine/plan/liveness.h"

namespace nestgrad {

namespace {

// Nodes in their order, and after which of them which values are read no more.
struct Part {
  const std::deque<GraphNode>& nodes;
  const Live& live;
  std::vector<std::vector<NodeId>> dies_after;
};

Part make_part(const std::deque<GraphNode>& nodes, const Live& live, std::span<const NodeId> wanted) {
  constexpr NodeId kNever = -1;
  std::vector<NodeId> last(nodes.size(), kNever);
  for (std::size_t id = 0; id < nodes.size(); ++id)
    if (live.nodes[id])
      for (NodeId in : nodes[id].inputs) last[uz(in)] = static_cast<NodeId>(id);
  for (NodeId id : wanted) last[uz(id)] = kNever;
  Part part{nodes, live, std::vector<std::vector<NodeId>>(nodes.size())};
  for (std::size_t id = 0; id < nodes.size(); ++id)
    if (last[id] != kNever) part.dies_after[uz(last[id])].push_back(static_cast<NodeId>(id));
  return part;
}

// What a scan leaves behind, by what reads it.
struct ScanValues {
  std::vector<Array> carries;
  std::map<NodeId, Array> stacks;
};

Array row_of(const Array& x, std::int64_t time, const Spec& spec) {
  Array out(spec);
  std::memcpy(out.data(), x.data() + uz(time) * spec.bytes(), spec.bytes());
  return out;
}

class Interpreter {
 public:
  explicit Interpreter(const Visitor& visit) : visit_(visit) {}

  // Computes what is live; inputs have their values. false: the visitor has seen enough.
  bool run(const Part& part, std::vector<Array>& values) {
    std::map<NodeId, ScanValues> scans;
    std::vector<Array> in;
    for (NodeId id = 0; id < static_cast<NodeId>(part.nodes.size()); ++id) {
      const GraphNode& n = part.nodes[uz(id)];
      if (!part.live.nodes[uz(id)] || n.op->kind == OpKind::input) continue;
      Array& value = values[uz(id)];
      in.clear();
      switch (n.op->kind) {
        case OpKind::input:
          break;
        case OpKind::constant:
          value = literal_of(n).to(Device::cpu());
          break;
        case OpKind::scan:
          if (!run_scan(id, n, part.live.scans.at(id), values, scans[id])) return false;
          break;
        case OpKind::final:
          value = scans.at(n.inputs[0]).carries[uz(n.attrs.as<FinalAttrs>().carry)];
          break;
        case OpKind::stack:
          value = scans.at(n.inputs[0]).stacks.at(shown_by(n));
          break;
        case OpKind::value:
          for (NodeId i : n.inputs) in.push_back(values[uz(i)]);
          if (n.op->cpu) value = run_kernel(part.nodes, id, in);
          else if (!run_expanded(id, n, in, value)) return false;
          break;
      }
      if (n.op->kind != OpKind::scan && visit_ && !visit_({n, id, within_, steps_, in, value, part.nodes}))
        return false;
      for (NodeId dead : part.dies_after[uz(id)]) {
        values[uz(dead)] = {};
        scans.erase(dead);
      }
    }
    return true;
  }

 private:
  bool run_scan(NodeId id, const GraphNode& n, const Live::Scan& live, const std::vector<Array>& outer,
                ScanValues& out) {
    const ScanAttrs& scan = n.attrs.as<ScanAttrs>();
    const GraphBody& body = *scan.body;
    const Part& part = part_of(body, live);
    const std::int64_t count = scan.steps;
    const auto operand = [&](int i) -> const Array& { return outer[uz(n.inputs[uz(i)])]; };
    out.carries.resize(uz(body.carries));
    for (int i = 0; i < body.carries; ++i) out.carries[uz(i)] = operand(i);
    for (NodeId j : live.stacks) {
      Spec spec = body.spec(j);
      spec.shape.insert(spec.shape.begin(), count);
      out.stacks.emplace(j, Array(spec));
    }
    within_.push_back(id);
    steps_.push_back(0);
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t time = steps_.back() = scan.reverse ? count - 1 - k : k;
      std::vector<Array> values(body.nodes.size());
      for (int i = 0; i < body.inputs(); ++i) {
        if (!live.body->nodes[uz(i)]) continue;
        values[uz(i)] = i < body.carries             ? out.carries[uz(i)]
                        : i < body.carries + body.xs ? row_of(operand(i), time, body.spec(i))
                                                     : operand(i);
      }
      if (!run(part, values)) return false;
      for (auto& [j, stack] : out.stacks) {
        const Array& now = values[uz(j)];
        std::memcpy(stack.data() + uz(time) * now.bytes(), now.data(), now.bytes());
      }
      for (std::size_t i = 0; i < out.carries.size(); ++i)
        if (live.carries[i]) out.carries[i] = values[uz(body.outs[i])];
    }
    within_.pop_back();
    steps_.pop_back();
    return true;
  }

  Array run_kernel(const std::deque<GraphNode>& nodes, NodeId id, const std::vector<Array>& in) {
    const GraphNode& n = nodes[uz(id)];
    auto kernel = kernels_.find(&n);
    if (kernel == kernels_.end()) kernel = kernels_.emplace(&n, n.op->cpu(NodeCall(nodes, n))).first;
    std::vector<const std::byte*> addresses;
    for (const Array& a : in) addresses.push_back(a.data());
    Array out(n.spec);
    try {
      kernel->second(addresses.data(), out.data());
    } catch (const ValueError& e) {
      throw value_error(e, nodes, id,
                        steps_.empty() ? "" : fmt::format(", step {}", fmt::join(steps_, ", ")));
    }
    return out;
  }

  struct Expansion {
    Function function;
    Live live;
    std::unique_ptr<Part> part;
  };

  bool run_expanded(NodeId id, const GraphNode& n, const std::vector<Array>& in, Array& out) {
    const Expansion& e = expansion_of(n, in);
    std::vector<Array> values(uz(e.function.graph().size()));
    for (std::size_t i = 0; i < in.size(); ++i) values[uz(e.function.inputs()[i])] = in[i];
    within_.push_back(id);
    if (!run(*e.part, values)) return false;
    within_.pop_back();
    out = values[uz(e.function.outputs()[0])];
    return true;
  }

  const Expansion& expansion_of(const GraphNode& n, const std::vector<Array>& in) {
    std::unique_ptr<Expansion>& e = expansions_[&n];
    if (e) return *e;
    if (!n.op->expand)
      throw GraphError(fmt::format("[{}] this op has neither a kernel for the CPU nor an expansion (at {})",
                                   n.op->name, describe(n.loc)));
    auto graph = std::make_shared<Graph>();
    ContextGuard guard;
    context().emit = {.graph = graph.get(), .level = n.level, .loc = n.loc, .scope = n.scope};
    std::vector<Tensor> operands;
    for (const Array& a : in) operands.push_back(graph->input(a.spec()));
    const NodeId out = graph->lift(n.op->expand(operands, n.attrs));
    const std::vector<NodeId> inputs = graph->inputs();
    e = std::make_unique<Expansion>(Expansion{Function(graph, inputs, {out}), {}, nullptr});
    e->live = liveness(graph->nodes(), e->function.outputs());
    e->part = std::make_unique<Part>(make_part(graph->nodes(), e->live, e->function.outputs()));
    return *e;
  }

  const Part& part_of(const GraphBody& body, const Live::Scan& live) {
    std::unique_ptr<Part>& part = parts_[live.body.get()];
    if (part) return *part;
    std::vector<NodeId> wanted = live.stacks;
    for (std::size_t i = 0; i < live.carries.size(); ++i)
      if (live.carries[i]) wanted.push_back(body.outs[i]);
    part = std::make_unique<Part>(make_part(body.nodes, *live.body, wanted));
    return *part;
  }

  const Visitor& visit_;
  std::vector<NodeId> within_;
  std::vector<std::int64_t> steps_;
  std::unordered_map<const GraphNode*, OpKernel> kernels_;
  std::unordered_map<const GraphNode*, std::unique_ptr<Expansion>> expansions_;
  std::unordered_map<const Live*, std::unique_ptr<Part>> parts_;
};

}  // namespace

std::vector<Array> interpret(const Function& f, const std::vector<Array>& inputs, const Visitor& visit) {
  const std::deque<GraphNode>& nodes = f.graph().nodes();
  if (inputs.size() != f.inputs().size())
    throw ShapeError(
        fmt::format("[interpret] {} inputs given, the function has {}", inputs.size(), f.inputs().size()));
  const Live live = liveness(nodes, f.outputs());
  std::vector<Array> values(nodes.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].spec() != f.input_spec(i))
      throw ShapeError(fmt::format("[interpret] input {} is {}, the function wants {}", i,
                                   inputs[i].defined() ? to_string(inputs[i].spec()) : "empty",
                                   describe(nodes, f.inputs()[i])));
    values[uz(f.inputs()[i])] = inputs[i].to(Device::cpu());
  }
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    if (!live.nodes[id] || nodes[id].op->kind != OpKind::input) continue;
    if (!values[id].defined())
      throw GraphError(fmt::format("[interpret] {} is needed but was not given",
                                   describe(nodes, static_cast<NodeId>(id))));
    if (visit && !visit({nodes[id], static_cast<NodeId>(id), {}, {}, {}, values[id], nodes})) return {};
  }
  if (!Interpreter(visit).run(make_part(nodes, live, f.outputs()), values)) return {};
  std::vector<Array> out;
  for (NodeId id : f.outputs()) out.push_back(values[uz(id)].clone());
  return out;
}

}  // namespace nestgrad

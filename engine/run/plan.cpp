#include "engine/run/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <tuple>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "engine/core/over_processes.h"
#include "engine/core/threads.h"
#include "engine/plan/backend.h"
#include "engine/plan/body_source.h"
#include "engine/plan/cluster_source.h"
#include "engine/plan/native.h"
#include "engine/plan/program.h"
#include "engine/run/agreement.h"
#include "engine/run/arguments.h"
#include "engine/run/profile.h"
#include "engine/run/recordings.h"
#include "engine/run/spread.h"

namespace nestgrad {

struct Plan::Impl {
  Program program;
  Device device;
  Array arena;
  std::vector<std::byte*> external;
  std::vector<std::string> input_names, output_names;  // %0 = input 'x' f64[3] (file.cpp:9)
  std::vector<int> donors;  // of each output the input that it is written over; -1: none
  OwnMemory own_memory;
  bool agreed = false;  // its collectives have been compared with those of other processes
  std::vector<PartlyOwn> partly_own;  // by place among the inputs

  // On a GPU: copies there of arguments that lie elsewhere, and what a run queues, by where its inputs and
  // outputs lie.
  std::vector<Array> staged;
  Recordings recordings;
  std::optional<std::vector<Attrs>> collectives;  // what nodes say that exchange bytes with other processes

  Array& staged_at(std::size_t k, const Spec& spec) {
    staged.resize(external.size());
    if (!staged[k].defined()) staged[k] = Array(spec, device);
    return staged[k];
  }
  Signature inputs() const { return {program.inputs, input_names}; }
  Signature outputs() const { return {program.outputs, output_names}; }
  // In `external`, where output k is.
  std::size_t slot_of_output(std::size_t k) const {
    return donors[k] >= 0 ? uz(donors[k]) : program.inputs.size() + k;
  }
  // Where the arguments are, or copies of those that lie on another device.
  void bind(std::span<const Array> inputs, std::span<const Array> outputs);
  // Outputs to where they were asked for.
  void deliver(std::span<Array> outputs);
  void replay();
  void agree(std::span<const Array> inputs);
};

namespace {

std::size_t count_instructions(const Program& p) {
  std::size_t n = p.code.size();
  for (const Instruction& ins : p.code)
    if (ins.scan) n += count_instructions(ins.scan->workers[0].body);
  return n;
}

std::string place_text(const Place& p) {
  switch (p.kind) {
    case Place::Kind::arena:
      return fmt::format("@{}", p.at);
    case Place::Kind::external:
      return fmt::format("io{}", p.at);
    case Place::Kind::literal:
      return fmt::format("lit{}", p.at);
    case Place::Kind::none:
      break;
  }
  return "-";
}

void print(const Program& p, const std::string& indent, std::string& out) {
  for (std::size_t i = 0; i < p.code.size(); ++i) {
    const Instruction& ins = p.code[i];
    const std::string name = ops_of(p, ins);
    if (ins.scan) {
      out += fmt::format("{}{} {} steps {} every {} slices {} workers {}, memory @{} ({} bytes each)\n",
                         indent, i, name, ins.scan->table.steps, ins.scan->every, ins.scan->table.slices,
                         ins.scan->workers.size(), ins.scan->memory(), ins.scan->memory_bytes());
      if (ins.scan->kernel) out += fmt::format("{}  {}\n", indent, ins.scan->kernel->describe());
      if (const std::string& why = ins.scan->why_op_by_op; !why.empty())
        out += fmt::format("{}  op by op: {}\n", indent, why);
      print(ins.scan->workers[0].body, indent + "  ", out);
      continue;
    }
    out += fmt::format("{}{} {} ", indent, i, name);
    if (ins.outs.empty()) out += place_text(ins.out) + " ";
    for (const Place& at : ins.outs) out += place_text(at) + " ";
    out += "= ";
    for (const Place& in : ins.in) out += place_text(in) + " ";
    out += fmt::format("{} ({})\n", to_string(p.graph->node(ins.node).spec), describe(ins.loc));
  }
}

// Of ops that exchange bytes with other processes, in bodies too.
void add_collectives(const std::deque<GraphNode>& nodes, std::vector<Attrs>& out) {
  for (const GraphNode& n : nodes) {
    if (!goes_over_processes(n)) continue;
    if (is_scan(n)) add_collectives(body_of(n).nodes, out);
    else if (exchanges(*n.op, n.attrs) && std::ranges::find(out, n.attrs) == out.end())
      out.push_back(n.attrs);
  }
}

// Each text once, under the numbers of what has it: instructions, and scans whose bodies are one text.
void add_source(std::string text, const std::string& line,
                std::vector<std::pair<std::string, std::string>>& out) {
  const auto known = std::ranges::find(out, text, &std::pair<std::string, std::string>::second);
  if (known == out.end()) out.emplace_back(line, std::move(text));
  else known->first += "\n" + line;
}
void add_sources(const Program& p, const std::string& where,
                 std::vector<std::pair<std::string, std::string>>& out, bool with_loops = true) {
  for (std::size_t i = 0; i < p.code.size(); ++i) {
    const Instruction& ins = p.code[i];
    const std::string number = fmt::format("{}{}", where, i);
    if (ins.scan) {
      const Program& body = ins.scan->workers[0].body;
      std::string text = body_source(body);
      add_sources(body, number + ".", out, text.empty());
      if (!text.empty())
        add_source(std::move(text), fmt::format("// {}: a step of scan ({})", number, describe(ins.loc)),
                   out);
    } else if (ins.call && with_loops) {
      std::string text = cluster_source(*ins.call).text;
      const std::string line = fmt::format("// {}: {} ({})", number, ops_of(p, ins), describe(ins.loc));
      if (!text.empty()) add_source(std::move(text), line, out);
    }
  }
}

// Of a plan on a GPU.
void add_kernels(const Program& p, const std::string& where,
                 std::vector<std::pair<std::string, std::string>>& out) {
  for (std::size_t i = 0; i < p.code.size(); ++i) {
    const Instruction& ins = p.code[i];
    const std::string number = fmt::format("{}{}", where, i);
    std::string text = ins.scan && ins.scan->kernel ? ins.scan->kernel->source() : ins.source;
    if (!text.empty())
      add_source(std::move(text), fmt::format("// {}: {} ({})", number, ops_of(p, ins), describe(ins.loc)),
                 out);
    if (ins.scan && !ins.scan->kernel) add_kernels(ins.scan->workers[0].body, number + ".", out);
  }
}

int most_steps(const std::deque<GraphNode>& nodes) {
  std::int64_t most = 0;
  for (const GraphNode& n : nodes)
    if (const ScanAttrs* scan = n.attrs.find<ScanAttrs>()) most = std::max(most, scan->steps);
  return static_cast<int>(most);
}

// The program within the budget that computes least, then the one that needs least memory.
Program compile_within(const std::deque<GraphNode>& nodes, const std::vector<NodeId>& inputs,
                       const std::vector<NodeId>& outputs, PlanOptions options) {
  Program best = compile(nodes, inputs, outputs, options);
  const std::size_t budget = options.memory_budget;
  if (budget == 0 || best.arena_bytes <= budget) return best;
  const std::size_t asked = best.arena_bytes;
  const int steps = most_steps(nodes);
  const auto rank = [&](const Program& p) {
    return std::tuple(p.arena_bytes > budget, p.arena_bytes > budget ? 0 : p.flops, p.arena_bytes);
  };
  for (const std::size_t above :
       std::set<std::size_t, std::greater<>>{options.recompute_above, std::size_t{0}}) {
    options.recompute_above = above;
    for (std::int64_t every = 0; every <= steps; every = std::max<std::int64_t>(1, every * 2)) {
      options.checkpoint_every = static_cast<int>(every);
      Program next = compile(nodes, inputs, outputs, options);
      if (rank(next) < rank(best)) best = std::move(next);
    }
  }
  if (best.arena_bytes > budget)
    throw ConfigError(fmt::format(
        "[plan] a memory budget of {} bytes is too small: as asked for the plan needs {}, {} {} ({} MB); give at least "
        "that, make the inputs smaller (a batch, a context), or {}",
        budget, asked, steps == 0 ? "with what is cheap computed again" : "with the best checkpoint schedule",
        best.arena_bytes, static_cast<double>(best.arena_bytes) / 1e6,
        steps == 0 ? "write loops with scan() and long parts inside checkpoint(), which can be computed again"
                   : "put long parts outside of scans inside checkpoint()"));
  return best;
}

}  // namespace

std::string ops_of(const Program& program, const Instruction& instruction) {
  std::string ops;
  for (NodeId member : instruction.with) ops += fmt::format("{}+", program.graph->node(member).op->name);
  return ops += instruction.op ? instruction.op->name : "copy";
}

Plan::Plan(const std::deque<GraphNode>& nodes, std::vector<NodeId> inputs, std::vector<NodeId> outputs,
           const PlanOptions& options)
    : impl_(std::make_unique<Impl>()) {
  check_nodes("plan", inputs, outputs, nodes);
  for (const PartlyOwn& p : check_spread(nodes))
    if (const auto at = std::ranges::find(inputs, p.input); at != inputs.end())
      impl_->partly_own.push_back({static_cast<NodeId>(at - inputs.begin()), p.same_in});
  for (const auto& [name, value] :
       {std::pair{"checkpoint_every", options.checkpoint_every.value_or(0)}, {"workers", options.workers}})
    if (value < 0) throw ConfigError(fmt::format("[plan] {} is {}; it must be 0 or positive", name, value));
  PlanOptions settled = options;
  if (settled.workers == 0) settled.workers = thread_count();
  if (!settled.device.is_cpu()) settled.workers = 1;
  for (NodeId id : inputs) impl_->input_names.push_back(describe(nodes, id));
  for (NodeId id : outputs) impl_->output_names.push_back(describe(nodes, id));
  std::vector<Spec> wanted, made;
  for (NodeId id : inputs) wanted.push_back(nodes[uz(id)].spec);
  for (NodeId id : outputs) made.push_back(nodes[uz(id)].spec);
  impl_->donors = donors_of(settled.donate, {wanted, impl_->input_names}, {made, impl_->output_names});
  impl_->own_memory = OwnMemory(outputs.size());
  impl_->program = compile_within(nodes, inputs, outputs, settled);
  if (settled.device.is_cpu()) use_native(impl_->program, settled.compile);
  impl_->device = settled.device;
  if (!settled.device.is_cpu()) {
    const auto mebibytes = [](std::size_t n) {
      return fmt::format("{:.1f} MiB", static_cast<double>(n) / (1 << 20));
    };
    const Device::Memory memory = settled.device.memory();
    if (impl_->program.arena_bytes > memory.free)
      throw DeviceError(
          fmt::format("[plan] needs {} of memory on {}, of {} there {} are free; give a memory "
                      "budget, or make the batch or the context smaller",
                      mebibytes(impl_->program.arena_bytes), settled.device.description(),
                      mebibytes(memory.total), mebibytes(memory.free)));
  }
  impl_->arena =
      Array({DType::i32, {static_cast<std::int64_t>((impl_->program.arena_bytes + 3) / 4)}}, settled.device);
  impl_->external.resize(inputs.size() + outputs.size());
}

Plan::~Plan() = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;

// A plan that was moved from has nothing to run or to tell.
Plan::Impl& Plan::impl() const {
  if (!impl_) throw GraphError("[plan] this plan was moved from; use the one that it became");
  return *impl_;
}

const Device& Plan::device() const { return impl().device; }
const std::vector<Spec>& Plan::input_specs() const { return impl().program.inputs; }
const std::vector<Spec>& Plan::output_specs() const { return impl().program.outputs; }

std::vector<Array> Plan::run(const std::vector<Array>& inputs) {
  impl();
  std::vector<Array> outputs;
  const bool all_here = std::ranges::all_of(inputs, [](const Array& a) { return a.device().is_cpu(); });
  for (std::size_t k = 0; k < output_specs().size(); ++k) {
    const std::size_t slot = impl_->slot_of_output(k);
    if (impl_->donors[k] < 0)
      outputs.emplace_back(output_specs()[k], all_here ? Device::cpu() : impl_->device);
    else
      outputs.push_back(slot < inputs.size() ? inputs[slot] : Array());  // too few inputs are noticed below
  }
  run(inputs, outputs);
  return outputs;
}

void Plan::run(std::span<const Array> inputs, std::span<Array> outputs) {
  Impl& p = impl();
  check_given("input", inputs, p.inputs());
  check_given("output", outputs, p.outputs());
  p.own_memory.check(inputs, outputs, p.donors);
  p.agree(inputs);
  p.bind(inputs, outputs);
  if (p.device.is_cpu()) execute(p.program, {p.arena.data(), p.external.data(), nullptr});
  else p.replay();
  p.deliver(outputs);
}

Profile Plan::profile(const std::vector<Array>& inputs, std::int64_t most_events) {
  Impl& p = impl();
  if (!p.device.is_cpu())
    throw DeviceError(
        fmt::format("[plan] only plans for the CPU can be profiled, this one is for {}; make one with "
                    "PlanOptions::device = Device::cpu()",
                    p.device.name()));
  check_given("input", inputs, p.inputs());
  std::vector<Array> outputs, in = inputs;
  for (std::size_t k = 0; k < p.donors.size(); ++k) {
    outputs.emplace_back(output_specs()[k]);
    if (p.donors[k] >= 0) in[uz(p.donors[k])] = outputs[k];
  }
  p.agree(inputs);
  p.bind(in, outputs);
  Profile profile = nestgrad::profile(p.program, p.external.data(), most_events, [&] {
    for (std::size_t i = 0; i < in.size(); ++i)
      if (in[i].data() != inputs[i].data()) copy(inputs[i], in[i]);
  });
  profile.outputs = std::move(outputs);
  return profile;
}

void Plan::Impl::bind(std::span<const Array> inputs, std::span<const Array> outputs) {
  const auto place = [&](std::size_t k, const Array& a) {
    const Array& here = a.device() == device ? a : staged_at(k, a.spec());
    external[k] = const_cast<std::byte*>(here.data());
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    place(i, inputs[i]);
    if (inputs[i].device() != device) copy(inputs[i], staged[i]);
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) place(slot_of_output(k), outputs[k]);
}

void Plan::Impl::agree(std::span<const Array> inputs) {
  if (agreed) return;
  check_same_collectives(program);
  check_same_inputs(partly_own, inputs, input_names);
  agreed = true;
}

void Plan::Impl::deliver(std::span<Array> outputs) {
  for (std::size_t k = 0; k < outputs.size(); ++k)
    if (outputs[k].device() != device) copy(staged[slot_of_output(k)], outputs[k]);
}

void Plan::Impl::replay() {
  const Frame frame{arena.data(), external.data(), device.backend()};
  if (!collectives) {
    collectives.emplace();
    add_collectives(program.graph->nodes(), *collectives);
  }
  if (!collectives->empty() && !device.backend()->connect(*collectives)) return execute(program, frame);
  recordings.run(*device.backend(), external, [&] { execute(program, frame); });
}

PlanStats Plan::stats() const {
  const Program& p = impl().program;
  return {.arena_bytes = p.arena_bytes,
          .instructions = count_instructions(p),
          .nodes = static_cast<std::size_t>(p.graph->size()),
          .flops = p.flops,
          .recompute_factor = p.recomputed_flops == 0 ? 1 : p.flops / (p.flops - p.recomputed_flops),
          .recordings = impl().recordings.made()};
}

std::string Plan::source() const {
  std::vector<std::pair<std::string, std::string>> sources;
  if (impl().device.is_cpu()) add_sources(impl().program, "", sources);
  else add_kernels(impl().program, "", sources);
  std::string out;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    auto& [lines, text] = sources[i];
    out += lines + "\n" + named(std::move(text), fmt::format("loop{}", i)) + "\n";
  }
  return out;
}

std::vector<std::string> Plan::loops() const {
  if (!impl().device.is_cpu()) throw DeviceError("[plan] only a plan on the CPU has loops as C++");
  std::vector<std::pair<std::string, std::string>> sources;
  add_sources(impl().program, "", sources);
  std::vector<std::string> out;
  for (auto& [lines, text] : sources) out.push_back(std::move(text));
  return out;
}

std::string Plan::str() const {
  const PlanStats s = stats();
  std::string out = fmt::format(
      "{} bytes of memory, {} instructions, {:.4g} flops, {:.3f} times those without recomputation\n",
      s.arena_bytes, s.instructions, s.flops, s.recompute_factor);
  if (impl().collectives) out += impl().device.backend()->connections(*impl().collectives);
  const Recordings& recordings = impl().recordings;
  if (!recordings.why_not().empty()) out += fmt::format("runs are not recorded: {}\n", recordings.why_not());
  else if (recordings.made() > 0)
    out += fmt::format("{} recordings of runs, {} of them by changing another\n", recordings.made(),
                       recordings.changed());
  print(impl().program, "", out);
  return out;
}

std::vector<BufferInfo> Plan::buffers() const { return impl().program.buffers; }

}  // namespace nestgrad

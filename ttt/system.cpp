#include "ttt/system.h"

#include <fmt/format.h>

#include "engine/random.h"

namespace nestgrad::ttt {

void check_complete(const System& system) {
  const std::string_view missing = !system.learner ? "learner" : !system.policy ? "policy" : "";
  if (!missing.empty())
    throw ConfigError(
        fmt::format("[ttt] the system '{}' has no {}; set System::{}", system.name, missing, missing));
}

Function trace_system(const System& system, const ProgramSizes& s, DType dtype,
                      const std::function<std::vector<Tensor>(const SystemProgram&)>& fn) {
  const Spec rows{dtype, {s.batch, s.heads, s.time, s.dim}};
  std::vector<Spec> specs{rows, rows, rows};
  const auto gate_spec = [&](bool per_feature) {
    return Spec{dtype, {s.batch, s.heads, s.time, per_feature ? s.dim : 1}};
  };
  for (const GateSpec& gate : system.gates) specs.push_back(gate_spec(gate.per_feature));
  check_complete(system);
  const SystemSizes sizes{s.heads, s.dim, s.chunk};
  const Policy policy = system.policy(sizes);
  if (system.position_rates) {
    specs.push_back(gate_spec(false));
    specs.push_back({dtype, {policy.chunk == Policy::kWholeSequence ? s.time : policy.chunk}});
  }
  return trace(
      [&](const std::vector<Tensor>& in) {
        ParamTable table(*emit_state().graph, dtype);
        SystemProgram program;
        program.learner = system.learner(Params(table), sizes);
        program.policy = policy;
        program.views = {in[0], in[1], in[2], {}, {}};
        std::size_t at = 3;
        for (const GateSpec& gate : system.gates) {
          const Tensor raw = in[at++] + gate.bias;
          program.views.gates[gate.name] = gate.shape ? gate.shape(raw) : raw;
        }
        if (system.position_rates) {
          program.views.gates["rate"] = sigmoid(in[at]);
          program.views.position = sigmoid(in[at + 1]);
        }
        if (system.prepare) system.prepare(program.views);
        program.start = for_batch(program.learner->init(), s.batch);
        program.inputs = in;
        program.inputs.insert(program.inputs.end(), table.tensors().begin(), table.tensors().end());
        return fn(program);
      },
      specs);
}

std::vector<Array> numbers_for(const Function& program, std::uint64_t seed) {
  std::vector<Array> out;
  for (std::size_t i = 0; i < program.inputs().size(); ++i)
    out.push_back(random_normal(program.input_spec(i), 0, 0.7, seed, i));
  return out;
}

}  // namespace nestgrad::ttt

// A published system in a small outer program: what the tests of ttt/learners/ run.
#pragma once

#include "tests/ttt/ttt_testing.h"
#include "ttt/system.h"

namespace nestgrad::testing {

// A program in which a system reads a sequence. Inputs: q, k, v, then what each of its gates is made of, then
// its parameters. mini_batch: the chunk.
struct SystemReading {
  Tensors inputs;
  const ttt::Learner& learner;
  Weights start;
  Views views;  // prepared
  ttt::Policy policy;
};

inline Function system_reading(const ttt::System& system, const Sizes& s,
                               const std::function<Tensors(const SystemReading&)>& fn) {
  const Spec rows = f64({s.batch, s.heads, s.time, s.dim});
  std::vector<Spec> given{rows, rows, rows};
  for (const ttt::GateSpec& gate : system.gates)
    given.push_back(f64({s.batch, s.heads, s.time, gate.per_feature ? s.dim : 1}));
  return trace(
      [&](const Tensors& in) {
        ParamTable table(*emit_state().graph, DType::f64);
        const ttt::SystemSizes sizes{s.heads, s.dim, s.mini_batch};
        const std::unique_ptr<ttt::Learner> learner = system.learner(Params(table), sizes);
        Views views{in[0], in[1], in[2], {}, {}};
        for (std::size_t i = 0; i < system.gates.size(); ++i)
          views.gates[system.gates[i].name] = system.gates[i].shape(in[3 + i]);
        if (system.prepare) system.prepare(views);
        Tensors inputs = in;
        inputs.insert(inputs.end(), table.tensors().begin(), table.tensors().end());
        return fn({inputs, *learner, ttt::for_batch(learner->init(), s.batch), views, system.policy(sizes)});
      },
      given);
}

inline Arrays numbers_of(const Function& f, std::uint64_t seed = 1) {
  Arrays out;
  for (std::size_t i = 0; i < f.inputs().size(); ++i) out.push_back(random(f.input_spec(i), seed + i));
  return out;
}

// How a system is run: in a form, or by hand.
using SystemRun = std::function<InnerLoopResult(const SystemReading&)>;

inline SystemRun in_form(FormChoice form) {
  return [form](const SystemReading& r) {
    return ttt::train_along(r.learner, r.start, r.views, {.policy = r.policy, .form = form, .block = 4});
  };
}

// Values, then gradients with respect to every input, then those of |gradient|^2 (and so on), up to `order`.
inline Function system_derivatives(const ttt::System& system, const Sizes& sizes, const SystemRun& run,
                                   int order) {
  return system_reading(system, sizes, [&](const SystemReading& r) {
    Tensors out = values_of(run(r));
    Tensor y = outer_loss(out);
    for (int n = 1; n <= order; ++n) {
      const Tensors g = grad(y, r.inputs);
      out.insert(out.end(), g.begin(), g.end());
      y = sum(square(g[0]));
      for (std::size_t i = 1; i < g.size(); ++i) y = y + sum(square(g[i]));
    }
    return out;
  });
}

}  // namespace nestgrad::testing

// Published systems in small outer programs: what the tests of ttt/learners/ run.
#pragma once

#include "tests/ttt/ttt_testing.h"
#include "ttt/system.h"

namespace nestgrad::testing {

using ttt::ProgramSizes;
using ttt::System;
using ttt::SystemProgram;

// How a system is run: in a form, or by hand.
using SystemRun = std::function<InnerLoopResult(const SystemProgram&)>;

inline SystemRun system_in(FormChoice form) {
  return [form](const SystemProgram& p) {
    return ttt::train_along(*p.learner, p.start, p.views, {.policy = p.policy, .form = form, .block = 4});
  };
}

// Values, then gradients with respect to every input, then those of |gradient|^2 (and so on), up to `order`.
inline Tensors with_derivatives(const SystemProgram& p, const SystemRun& run, int order) {
  Tensors out = values_of(run(p));
  Tensor y = outer_loss(out);
  for (int n = 1; n <= order; ++n) {
    const Tensors g = grad(y, p.inputs);
    out.insert(out.end(), g.begin(), g.end());
    y = sum(square(g[0]));
    for (std::size_t i = 1; i < g.size(); ++i) y = y + sum(square(g[i]));
  }
  return out;
}
inline Function system_derivatives(const System& system, const ProgramSizes& sizes, const SystemRun& run,
                                   int order) {
  return ttt::trace_system(system, sizes, DType::f64,
                           [&](const SystemProgram& p) { return with_derivatives(p, run, order); });
}
inline Arrays run_system(const System& system, const ProgramSizes& sizes, const SystemRun& run, int order) {
  const Function f = system_derivatives(system, sizes, run, order);
  return f(ttt::numbers_for(f, 1));
}

// Names of the forms that refuse this system. The others
// must give the numbers of the primal form, up to `order`.
inline std::string refused(const System& system, const ProgramSizes& sizes, int order,
                           double tolerance = 1e-11) {
  std::string out;
  const Arrays expected = run_system(system, sizes, system_in(FormChoice::primal), order);
  for (const FormChoice form : {FormChoice::dual, FormChoice::parallel, FormChoice::wy}) {
    const std::string form_name(ttt::name(form));
    CAPTURE(form_name);
    Arrays found;
    try {
      found = run_system(system, sizes, system_in(form), order);
    } catch (const FormError&) {
      out += (out.empty() ? "" : " ") + form_name;
      continue;
    }
    CHECK(worst_error(found, expected) < tolerance);
  }
  return out;
}

// One token of rows [.., tokens, dim].
inline Tensor token(Tensor rows, std::int64_t t) { return slice(rows, -2, t, t + 1); }

// A result made by hand, of the outputs token by token.
inline InnerLoopResult made_by_hand(const Tensors& outputs, const Weights& last) {
  InnerLoopResult out;
  out.output = concat(outputs, -2);
  out.state = {last, {}};
  return out;
}

}  // namespace nestgrad::testing

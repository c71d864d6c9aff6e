// The rules of a row: its derivative and its simplification, checked on numbers and on the graph.
#include <fmt/format.h>

#include "engine/plan/readers.h"
#include "tests/ops/sweep.h"

namespace nestgrad::testing {

namespace {

Subject subject(const Case& c, std::uint64_t seed) {
  Subject s{
      .what = c.what, .fn = c.fn(), .inputs = c.draw(seed), .active = {}, .tolerance = c.sample.tolerance};
  for (std::size_t k = 0; k < s.inputs.size(); ++k) s.active.push_back(c.differentiable(k));
  return s;
}

std::vector<Case> differentiable_cases(const Op& op) {
  std::vector<Case> out;
  for (Case& c : positive_cases(op))
    if (op.vjp && is_float(c.out().dtype)) out.push_back(std::move(c));
  return out;
}

}  // namespace

Failures check_derivatives(const Op& op) {
  Failures failures;
  for (const Case& c : differentiable_cases(op)) {
    const Subject s = subject(c, 8);
    for (const auto check : {check_grads, check_taylor, check_products, check_f32_grads}) {
      try {
        append(failures, check(s));
      } catch (const Error& e) {
        failures.push_back(fmt::format("{}: {}", c.what, e.what()));
      }
    }
  }
  return failures;
}

Failures check_mentions(const Op& op) {
  Failures failures;
  for (const Case& c : differentiable_cases(op)) {
    const std::vector<Spec> specs = c.specs();
    const OpCall call{op, specs, c.sample.attrs, c.out()};
    for (std::size_t k = 0; k < specs.size(); ++k) {
      if (!c.differentiable(k) || !op.linear_in || !op.linear_in(call, static_cast<int>(k))) continue;
      Graph g;
      const GraphScope scope(g);
      std::vector<Tensor> in;
      for (const Spec& s : specs) in.push_back(g.input(s));
      const Tensor ct = g.input(call.out), out = emit(op, in, c.sample.attrs);
      const Tensor emitted = op.vjp({in, out, ct, c.sample.attrs, static_cast<int>(k)});
      const NodeId wanted[] = {g.lift(emitted)};
      const std::vector<char> live = live_nodes(g.nodes(), wanted, {});
      const auto mentions = [&](Tensor t) { return live[static_cast<std::size_t>(t.id())] != 0; };
      if (mentions(in[k]))
        failures.push_back(
            fmt::format("{}: affine in input {}, but the derivative in it mentions it", c.what, k));
      if (mentions(out))
        failures.push_back(
            fmt::format("{}: affine in input {}, but the derivative in it mentions the output", c.what, k));
    }
  }
  return failures;
}

Failures check_simplify(const Op& op) {
  Failures failures;
  for (const Case& c : positive_cases(op)) {
    const std::vector<Array> x = c.draw(9);
    // The op, and its derivatives up to order 2.
    const TraceFn program = [&](const std::vector<Tensor>& in) {
      std::vector<Tensor> out = c.fn()(in), wrt;
      for (std::size_t k = 0; k < in.size(); ++k)
        if (c.differentiable(k)) wrt.push_back(in[k]);
      if (wrt.empty()) return out;
      for (int order = 1; order <= 2; ++order) {
        const Tensor y = out.back();
        const Tensor weights = constant(uniform({DType::f64, y.shape()}, 800));
        for (Tensor t : vjp({y}, {weights}, wrt, {.allow_zero = true})) out.push_back(t);
      }
      return out;
    };
    const Function f = trace(program, c.specs());
    const std::vector<Array> with = f.plan({.simplify = true}).run(x),
                             without = f.plan({.simplify = false}).run(x);
    for (std::size_t i = 0; i < with.size(); ++i)
      if (const double error = difference(with[i], without[i]); !(error <= 1e-13))
        failures.push_back(
            fmt::format("{}: simplification changes output {} of its program by {:.3g}", c.what, i, error));
  }
  return failures;
}

}  // namespace nestgrad::testing

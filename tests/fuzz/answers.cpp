#include "tests/fuzz/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "engine/core/random.h"
#include "ops/accumulate.h"

namespace nestgrad::fuzz {

namespace {

constexpr double kTolerance = 1e-9, kFloor = 1e-3;
constexpr double kHuge[] = {1e2, 1e5, 1e9};  // by order

// A scalar that every value has a part in.
Tensor outer_loss(const std::vector<Tensor>& values) {
  Tensor total;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Tensor part =
        sum(values[i] * (0.5 * values[i] + constant(random_normal(values[i].spec(), 0, 1, 7, i))));
    accumulate(total, part);
  }
  return total;
}

double largest(const Array& numbers) {
  double most = 0;
  for (double x : numbers.as<double>()) most = std::isfinite(x) ? std::max(most, std::abs(x)) : HUGE_VAL;
  return most;
}

}  // namespace

void Named::add(const ttt::State& state) {
  const std::vector<std::string> state_names = state.names();
  const std::vector<Tensor> flat = state.flat();
  for (std::size_t i = 0; i < flat.size(); ++i) add("the last " + state_names[i], flat[i]);
}

void Named::add_derivatives(const std::vector<Tensor>& inputs, int highest) {
  Tensor y = outer_loss(values);
  for (int n = 1; n <= highest; ++n) {
    const std::vector<Tensor> g = grad(y, inputs, {.allow_zero = true});
    for (std::size_t i = 0; i < g.size(); ++i)
      add(fmt::format("{} by {}", n == 1 ? "the gradient" : "the second gradient",
                      input_name(inputs[i].graph().node(inputs[i].id()))),
          g[i], n);
    y = sum(square(g[0]));
    for (std::size_t i = 1; i < g.size(); ++i) y = y + sum(square(g[i]));
  }
}

bool Answers::explode() const {
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (!(largest(numbers[i]) < kHuge[order[i]])) return true;
  return false;
}

Answers answers_of(const LoopCase& loop, const std::function<Named(const TracedCase&)>& fn) {
  Answers out;
  const Function f = program(loop, loop.time, [&](const TracedCase& traced) {
    const Named named = fn(traced);
    out.names = named.names, out.order = named.order;
    return named.values;
  });
  out.numbers = f(numbers_for(loop, f));
  return out;
}

Answers answers_of(const LoopCase& loop, const Run& run, int highest_order) {
  return answers_of(loop, [&](const TracedCase& traced) {
    const ttt::InnerLoopResult r = run(traced);
    Named out;
    out.add("the output", r.output);
    out.add(r.state);
    if (r.loss_initial.defined()) {
      out.add("the first loss", r.loss_initial);
      out.add("the loss before", r.loss_before);
      out.add("the loss after", r.loss_after);
    }
    out.add_derivatives(traced.inputs, highest_order);
    return out;
  });
}

ttt::InnerLoopOptions options_of(const LoopCase& l, ttt::FormChoice form, bool losses) {
  return {.policy = l.policy,
          .form = form,
          .block = l.block,
          .checkpoint_every = l.checkpoint_every,
          .track_loss = losses};
}

Run in_form(ttt::FormChoice form, bool losses) {
  return [=](const TracedCase& s) {
    return ttt::train_along(s.learner, s.start, s.views, options_of(s.loop, form, losses));
  };
}

void require_same(const std::string& what, const Answers& found, const Answers& wanted) {
  if (found.numbers.size() != wanted.numbers.size())
    throw Finding(fmt::format("{}: {} results, not {}", what, found.numbers.size(), wanted.numbers.size()));
  std::vector<double> most(3, 1e-3);
  for (std::size_t i = 0; i < wanted.numbers.size(); ++i) {
    double& of_order = most[static_cast<std::size_t>(wanted.order[i])];
    of_order = std::max(of_order, largest(wanted.numbers[i]));
    if (std::isinf(of_order)) throw Finding(fmt::format("{}: {} is not finite", what, wanted.names[i]));
  }
  for (std::size_t i = 0; i < wanted.numbers.size(); ++i) {
    const Array &a = found.numbers[i], &b = wanted.numbers[i];
    const std::string& name = wanted.names[i];
    if (a.spec() != b.spec())
      throw Finding(
          fmt::format("{}: {} is {}, not {}", what, name, to_string(a.spec()), to_string(b.spec())));
    const double error = relative_error(a, b, kFloor * most[static_cast<std::size_t>(wanted.order[i])]);
    if (!(error <= kTolerance)) throw Finding(fmt::format("{}: {} differs by {:.2g}", what, name, error));
  }
}

}  // namespace nestgrad::fuzz

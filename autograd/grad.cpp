#include "autograd/grad.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/reverse.h"
#include "autograd/why.h"
#include "engine/core/index.h"
#include "engine/plan/dependence.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

std::vector<GradSeed> seeds_of(std::span<const Tensor> values, std::span<const Tensor> cotangents) {
  std::vector<GradSeed> out;
  for (std::size_t i = 0; i < values.size(); ++i) out.push_back({values[i], cotangents[i]});
  return out;
}

// What is differentiated: the y that a user gave, or, for second derivatives, its gradients.
enum class Of : std::uint8_t { values, gradients };

// How y, in a graph below that of x, depends on x through what ops outside make of it; empty if it does not.
std::string why_none_through_outside(Tensor y, Tensor x) {
  for (const Capture& c : y.graph().captures()) {
    if (&c.outer.graph() != &x.graph() || c.outer == x) continue;
    if (!why_disconnected(y, y.graph().tensor(c.id)).meets) continue;
    const Disconnection outside = why_disconnected(c.outer, x);
    if (outside.meets) return outside.connected ? where_cut(y, c.id) : where_cut(c.outer, x.id());
  }
  return {};
}

// Is y made of x, in one graph?
bool meets(Tensor y, Tensor x) { return &y.graph() == &x.graph() && why_disconnected(y, x).meets; }

// Why no seed depends on x.
std::string why_none(std::span<const GradSeed> seeds, Of of, Tensor x) {
  const Tensor y = seeds[0].value;
  if (!y.graph().descends_from(x.graph())) return "x never meets y";
  if (&y.graph() != &x.graph())
    if (std::string why = why_none_through_outside(y, x); !why.empty()) return why;
  const Tensor here = y.graph().tensor(y.graph().lift(x));
  const auto first =
      std::ranges::find_if(seeds, [&](const GradSeed& seed) { return meets(seed.value, here); });
  if (of == Of::gradients && first == seeds.end())
    return "y is linear in it, so there is no second derivative";
  return where_cut((first == seeds.end() ? seeds[0] : *first).value, here.id());
}

std::vector<Tensor> pull_back_or_fail(std::string_view rule, std::span<const GradSeed> seeds,
                                      const std::vector<Tensor>& x, GradOptions options, Loc loc,
                                      Of of = Of::values) {
  if (seeds.empty())
    throw GradError(fmt::format("[{}] there is nothing to differentiate (at {})", rule, describe(loc)));
  check_defined(rule, "x", x, loc);
  for (const Tensor& t : x) {
    if (!is_float(t.dtype()))
      throw GradError(fmt::format("[{}] {} is an integer and has no derivative (at {})", rule, describe(t),
                                  describe(loc)));
    if (t.graph().node(t.id()).of_numbers)
      throw GradError(
          fmt::format("[{}] x = {} is a number, or made of numbers alone, and equal numbers are one "
                      "node; give the use that you mean a name with probe() (at {})",
                      rule, describe(t), describe(loc)));
  }
  const OpenGraph open(seeds[0].value);
  std::vector<Tensor> out = pull_back(seeds, x);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i].defined()) continue;
    if (!options.allow_zero) {
      const std::string y = describe(seeds[0].value);
      throw GradError(fmt::format(
          "[{}] {} on x = {}: {}. If zero is what you mean, ask for it with allow_zero (at {})", rule,
          of == Of::gradients ? "no gradient of y depends"
          : seeds.size() > 1
              ? fmt::format("none of {} values, of which y = {} is the first, depends", seeds.size(), y)
              : fmt::format("y = {} does not depend", y),
          describe(x[i]), why_none(seeds, of, x[i]), describe(loc)));
    }
    out[i] = zeros(x[i].dtype(), x[i].shape(), loc);
  }
  return out;
}

// How t depends on the values: 0 (not at all), or its mark as dependents() gives it. Nodes before the first of the values are not
// looked at.
char dependence(Tensor t, const std::vector<Tensor>& values, Follow follow) {
  NodeId first = t.id();
  for (const Tensor& v : values)
    if (&v.graph() == &t.graph()) first = std::min(first, v.id());
  std::vector<char> marked(uz(t.id() - first + 1), 0);
  for (const Tensor& v : values)
    if (&v.graph() == &t.graph() && v.id() <= t.id()) marked[uz(v.id() - first)] = 1;
  return dependents(t.graph().nodes(), std::move(marked), follow, first)[uz(t.id() - first)];
}

// Where the way from a cotangent to one of the gradients is cut; empty if it is nowhere.
std::string where_cut(Tensor cotangent, const std::vector<Tensor>& gradients) {
  for (const Tensor& g : gradients)
    if (dependence(g, {cotangent}, Follow::cuts) == kCut) return where_cut(g, cotangent.id());
  return {};
}

void check_pairs(std::string_view rule, std::string_view what, const std::vector<Tensor>& values,
                 const std::vector<Tensor>& with, Loc loc) {
  if (values.size() != with.size())
    throw GradError(fmt::format("[{}] needs one {} for each of {} values, there are {} (at {})", rule, what,
                                values.size(), with.size(), describe(loc)));
  check_defined(rule, "value", values, loc);
  check_defined(rule, what, with, loc);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i].spec() != with[i].spec())
      throw ShapeError(fmt::format("[{}] {} {} is {}, its value is {} (at {})", rule, what, i,
                                   describe(with[i]), describe(values[i]), describe(loc)));
}

}  // namespace

GradSeed seed_of_ones(Tensor value, Loc loc) {
  const Tensor one = value.graph().constant(Array::scalar(1, value.dtype()), loc);
  return {value, broadcast_to({one, loc}, value.shape())};
}

std::vector<Tensor> grad_for(std::string_view rule, Tensor y, const std::vector<Tensor>& x,
                             GradOptions options, Loc loc) {
  check_defined(rule, "y", std::span(&y, 1), loc);
  if (y.spec().size() != 1 || !is_float(y.dtype()))
    throw GradError(
        fmt::format("[{}] y must be one floating number, it is {} (at {}); sum() it, or use vjp()", rule,
                    describe(y), describe(loc)));
  const GradSeed seed = seed_of_ones(y, loc);
  return pull_back_or_fail(rule, std::span(&seed, 1), x, options, loc);
}

std::vector<Tensor> grad(Tensor y, const std::vector<Tensor>& x, GradOptions options, Loc loc) {
  return grad_for("grad", y, x, options, loc);
}

std::vector<Tensor> vjp_for(std::string_view rule, const std::vector<Tensor>& y,
                            const std::vector<Tensor>& cotangents, const std::vector<Tensor>& x,
                            GradOptions options, Loc loc) {
  check_pairs(rule, "cotangent", y, cotangents, loc);
  return pull_back_or_fail(rule, seeds_of(y, cotangents), x, options, loc);
}

std::vector<Tensor> vjp(const std::vector<Tensor>& y, const std::vector<Tensor>& cotangents,
                        const std::vector<Tensor>& x, GradOptions options, Loc loc) {
  return vjp_for("vjp", y, cotangents, x, options, loc);
}

std::vector<Tensor> jvp(const std::vector<Tensor>& y, const std::vector<Tensor>& x,
                        const std::vector<Tensor>& tangents, GradOptions options, Loc loc) {
  check_pairs("jvp", "tangent", x, tangents, loc);
  if (y.empty())
    throw GradError(fmt::format("[jvp] there is nothing to differentiate (at {})", describe(loc)));
  const OpenGraph open(y[0]);
  // The VJP is linear in u, so its value at u does not matter.
  std::vector<Tensor> u;
  std::vector<GradSeed> seeds;
  for (const Tensor& t : y) {
    u.push_back(probe({broadcast_to({zero_like(t, loc), loc}, t.shape()), loc}));
    seeds.push_back({t, u.back()});
  }
  const std::vector<Tensor> g = pull_back_or_fail("jvp", seeds, x, options, loc);
  std::vector<GradSeed> second;
  for (std::size_t i = 0; i < g.size(); ++i) second.push_back({g[i], tangents[i]});
  std::vector<Tensor> out = pull_back(second, u);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (const std::string cut = where_cut(u[i], g); !cut.empty())
      throw GradError(fmt::format(
          "[jvp] a derivative rule between x and y = {} does not pass its cotangent on: {}, so there is no forward derivative "
          "that belongs to it (at {}). Use grad or vjp, or a linear rule",
          describe(y[i]), cut, describe(loc)));
    if (out[i].defined() && dependence(out[i], u, Follow::values) != 0)
      throw GradError(fmt::format(
          "[jvp] a derivative rule between x and y = {} is not linear in its cotangent (a rule of custom_vjp that clips it, "
          "say), so there is no forward derivative that belongs to it (at {}). Use grad or vjp, or a linear rule",
          describe(y[i]), describe(loc)));
    if (out[i].defined()) continue;
    if (!options.allow_zero) {
      const auto met = std::ranges::find_if(x, [&](Tensor from) { return meets(y[i], from); });
      const std::string why =
          x.empty() ? "there is none"
                    : why_none(std::span(&seeds[i], 1), Of::values, met == x.end() ? x[0] : *met);
      throw GradError(fmt::format(
          "[jvp] y = {} does not depend on any x: {}. If zero is what you mean, ask for it with allow_zero (at {})",
          describe(y[i]), why, describe(loc)));
    }
    out[i] = zeros(y[i].dtype(), y[i].shape(), loc);
  }
  return out;
}

std::vector<Tensor> hvp(Tensor y, const std::vector<Tensor>& x, const std::vector<Tensor>& v,
                        GradOptions options, Loc loc) {
  check_pairs("hvp", "vector", x, v, loc);
  return pull_back_or_fail("hvp", seeds_of(grad_for("hvp", y, x, options, loc), v), x, options, loc,
                           Of::gradients);
}

}  // namespace nestgrad

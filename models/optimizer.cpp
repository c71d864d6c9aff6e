#include "models/optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "engine/core/convert.h"
#include "engine/io/file.h"
#include "ops/accumulate.h"
#include "ops/numerics/functions.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

// 1 where x is finite, else 0.
Tensor is_finite(Tensor x) { return less_equal(abs(x), largest_finite(x.dtype())); }

// Does the whole name match, with * for any characters and ? for one?
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*')
    return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
           matches(pattern.substr(1), name.substr(1));
  for (std::size_t skipped = 0; skipped <= name.size(); ++skipped)
    if (matches(pattern.substr(1), name.substr(skipped))) return true;
  return false;
}

}  // namespace

void AdamWOptions::check() const {
  const auto require = [](const char* field, double value, bool fine, const char* range) {
    if (!fine || !std::isfinite(value))
      throw ConfigError(fmt::format("[adamw] {} must be {}, it is {}", field, range, value));
  };
  require("beta1", beta1, beta1 >= 0 && beta1 < 1, "at least 0 and below 1");
  require("beta2", beta2, beta2 >= 0 && beta2 < 1, "at least 0 and below 1");
  require("eps", eps, eps > 0, "positive and finite");
  require("weight_decay", weight_decay, weight_decay >= 0, "0 or positive, and finite");
  require("clip", clip, clip > 0, "positive and finite; 1e30 clips no gradient");
}

std::vector<ParameterRule> rules_of(const std::vector<ParamSpec>& specs,
                                    const std::vector<ParameterGroup>& groups, const AdamWOptions& options) {
  std::vector<ParameterRule> out;
  for (const ParamSpec& p : specs)
    out.push_back({.weight_decay = p.init.kind == Init::Kind::normal ? options.weight_decay : 0});
  std::vector<bool> taken(specs.size());
  for (const ParameterGroup& group : groups) {
    if (!(group.rate >= 0) || !std::isfinite(group.rate) ||
        (group.weight_decay && (!(*group.weight_decay >= 0) || !std::isfinite(*group.weight_decay))))
      throw ConfigError(fmt::format(
          "[adamw] rate and weight_decay of the group '{}' must be 0 or positive, and finite", group.names));
    bool any = false, own = false;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (!matches(group.names, specs[i].name)) continue;
      any = true;
      if (taken[i]) continue;
      taken[i] = own = true;
      out[i].rate = group.rate;
      if (group.weight_decay) out[i].weight_decay = *group.weight_decay;
    }
    if (any && !own)
      throw ConfigError(fmt::format(
          "[adamw] the group '{}' changes nothing: all that it names belongs to groups before it; put it before them",
          group.names));
    if (any) continue;
    std::vector<std::string> names;
    for (const ParamSpec& p : specs) names.push_back(p.name);
    throw ConfigError(fmt::format("[adamw] no parameter is called '{}', as a group says; there are {}",
                                  group.names, listed(names)));
  }
  return out;
}

Tensor sum_of_squares(std::span<const Tensor> gradients, bool matrices) {
  Tensor total;
  for (const Tensor& g : gradients) {
    if (!g.defined()) continue;
    const Tensor part = matrices ? sum(square(g), {-2, -1}, kKeep) : sum(square(g));
    accumulate(total, part);
  }
  return total;
}

AdamWParameter adamw_parameter(const AdamWParameter& now, Tensor g, const AdamWStep& step,
                               const AdamWOptions& o, const ParameterRule& rule, Tensor may_step) {
  const auto kept = [&](Tensor next, Tensor before) {
    return may_step.defined() ? where(may_step, next, before) : next;
  };
  AdamWParameter out;
  out.m = kept(now.m * o.beta1 + g * (1 - o.beta1), now.m);
  out.v = kept(now.v * o.beta2 + square(g) * (1 - o.beta2), now.v);
  Tensor change = out.m * step.correction1 / (sqrt(out.v * step.correction2) + o.eps);
  if (rule.weight_decay > 0) change = change + now.param * rule.weight_decay;
  const Tensor rate = rule.rate == 1 ? step.rate : step.rate * rule.rate;
  out.param = kept(now.param - change * rate, now.param);
  return out;
}

AdamWResult adamw(const std::vector<ParamSpec>& specs, const std::vector<Tensor>& params,
                  const std::vector<Tensor>& grads, const std::vector<Tensor>& m,
                  const std::vector<Tensor>& v, const AdamWStep& step, const AdamWOptions& o) {
  return adamw(params, grads, m, v, step, o, rules_of(specs, {}, o));
}

AdamWResult adamw(const std::vector<Tensor>& params, const std::vector<Tensor>& grads,
                  const std::vector<Tensor>& m, const std::vector<Tensor>& v, const AdamWStep& step,
                  const AdamWOptions& o, const std::vector<ParameterRule>& rules) {
  o.check();
  const Scope scope("adamw");
  AdamWResult out;
  out.grad_norm = sqrt(sum_of_squares(grads));
  out.may_step = is_finite(out.grad_norm);
  if (step.loss.defined()) out.may_step = out.may_step * is_finite(step.loss);
  const Tensor clip = min(o.clip / (out.grad_norm + 1e-6), 1.0);
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!grads[i].defined()) {
      out.params.push_back(params[i]), out.m.push_back(m[i]), out.v.push_back(v[i]);
      continue;
    }
    const AdamWParameter next =
        adamw_parameter({params[i], m[i], v[i]}, grads[i] * clip, step, o, rules[i], out.may_step);
    out.params.push_back(next.param), out.m.push_back(next.m), out.v.push_back(next.v);
  }
  return out;
}

std::vector<Donation> donations(std::size_t count, std::size_t output, std::size_t input) {
  std::vector<Donation> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back({.output = output + i, .input = input + i});
  return out;
}

double cosine_rate(std::int64_t step, std::int64_t steps, std::int64_t warmup, double peak, double floor) {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double span = static_cast<double>(std::max<std::int64_t>(1, steps - 1 - warmup));
  const double progress = std::min(1.0, static_cast<double>(step - warmup) / span);
  return peak * (floor + (1 - floor) * 0.5 * (1 + m::cos(std::numbers::pi * progress)));
}

}  // namespace nestgrad

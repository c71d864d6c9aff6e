#include "ttt/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ttt/learner.h"  // OwnLines

namespace nestgrad::ttt {

namespace {
constexpr std::string_view kStepScope = "inner optimiser";
}

Hyper::Hyper(double v) : value(v) {
  if (std::isnan(v))
    throw ConfigError("[optimizer] a number that it is given is NaN; give one, a gate or a tensor");
}

Hyper Hyper::gate(std::string name) {
  if (name.empty())
    throw ConfigError(
        "[optimizer] gate(\"\") names no gate; give the name that Views::gates has it under, as gate(\"forget\")");
  Hyper h(0.0);
  h.gate_name = std::move(name);
  return h;
}

Hyper::Hyper(Tensor t) : tensor(t) {
  if (!t.defined())
    throw GraphError("[optimizer] this tensor names nothing; give a number, a gate or a tensor of the graph");
}

Tensor Hyper::at(const Gates& gates, Tensor like) const {
  if (tensor.defined()) return tensor;
  if (gate_name.empty()) return constant(value, like.dtype());
  const auto found = gates.find(gate_name);
  if (found == gates.end()) {
    std::vector<std::string> known;
    for (const auto& [name, tensor_of] : gates) known.push_back(name);
    throw ConfigError(fmt::format(
        "[optimizer] the gate '{0}' is not given to every weight that needs it; give '{0}', or '{0}.W' for each "
        "weight W, in Views::gates (of a System: in System::gates). There are: {1}",
        gate_name, known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
  }
  return of_gate ? of_gate(found->second) : found->second;
}

Gates gates_of(const std::string& weight, const Gates& gates) {
  Gates out = gates;
  const std::string suffix = "." + weight;
  for (const auto& [name, value] : gates) {
    if (!name.ends_with(suffix)) continue;
    Tensor& own = out[name.substr(0, name.size() - suffix.size())];
    own = own.defined() ? own * value : value;
  }
  return out;
}

std::string Hyper::str() const {
  if (!text.empty()) return text;
  if (!gate_name.empty()) return gate_name;
  return tensor.defined() ? "learned" : fmt::format("{}", value);
}

QuinticSteps muon_published(int steps) {
  if (steps < 0) throw ConfigError(fmt::format("[optimizer] Muon has a number of steps, not {}", steps));
  return QuinticSteps(static_cast<std::size_t>(steps), {3.4445, -4.7750, 2.0315});
}

QuinticSteps muon_tuned() {
  return {{4.0848, -6.8946, 2.9270},
          {3.9505, -6.3029, 2.6377},
          {3.7418, -5.5913, 2.3037},
          {2.8769, -3.1427, 1.2046},
          {2.8366, -3.0525, 1.2012}};
}

namespace {

void check_eps(const char* what, double eps) {
  if (!(eps >= 0 && std::isfinite(eps)))
    throw ConfigError(fmt::format("[optimizer] eps of {} is {}; it must be 0 or positive", what, eps));
}

}  // namespace

Tensor orthogonalize(Tensor x, const QuinticSteps& steps, double eps, bool in_f64) {
  check_eps("Muon", eps);
  const Scope scope("orthogonalize");
  if (in_f64 && x.dtype() != DType::f64)
    return cast(orthogonalize(cast(x, DType::f64), steps, eps), x.dtype());
  const bool tall = x.dim(-2) > x.dim(-1);
  if (tall) x = transpose(x);  // for the smaller X X'
  x = x / (norm(x, {-2, -1}, kKeep) + eps);
  const std::int64_t n = x.dim(-2);
  const Tensor identity = eye(x.dtype(), n);
  for (const auto& [a, b, c] : steps) {
    const Tensor gram = matmul(x, x, {.b = true});
    // One product, a with the rest: what is rounded in
    // directions of no gradient grows a-fold in each later step.
    // gram gram' is gram gram, and symmetric for whoever multiplies.
    x = matmul(a * identity + b * gram + c * matmul(gram, gram, {.b = true}), x);
  }
  return tall ? transpose(x) : x;
}

namespace {

Tensor norm_per(Tensor g, Per per) {
  return per == Per::column ? norm(g, {-2}, kKeep) : norm(g, {-2, -1}, kKeep);
}

std::string name_of(Per per) {
  return per == Per::column ? "column" : per == Per::matrix ? "matrix" : "all weights";
}

// One number for all weights of a (sequence, head): [.., 1, 1].
Tensor joint_norm(const std::vector<Tensor>& gradients) {
  std::vector<Tensor> each;
  for (const Tensor& g : gradients) each.push_back(norm(g, {-2, -1}, kKeep));
  return norm(concat(each, -1), {-1}, kKeep);
}

Tensor shrink(Tensor g, Tensor length, double most) { return g * (most / max(length, most)); }

}  // namespace

void InnerOptimizer::need(const Hyper& h) {
  if (!h.gate_name.empty()) gates_.push_back(h.gate_name);
}

InnerOptimizer& InnerOptimizer::scale(Hyper factor) {
  if (factor.is_one()) return *this;
  need(factor);
  parts_.push_back(
      {fmt::format("scale {}", factor.str()),
       {},
       [=](Tensor g, std::span<Tensor>, const Gates& gates, WeightKind) { return factor.at(gates, g) * g; }});
  return *this;
}

InnerOptimizer& InnerOptimizer::momentum(Hyper beta, bool nesterov) {
  need(beta);
  parts_.push_back({fmt::format("{} {}", nesterov ? "Nesterov momentum" : "momentum", beta.str()),
                    {"momentum"},
                    [=](Tensor g, std::span<Tensor> slots, const Gates& gates, WeightKind) {
                      const Tensor b = beta.at(gates, g);
                      slots[0] = b * slots[0] + g;
                      return nesterov ? g + b * slots[0] : slots[0];
                    }});
  return *this;
}

InnerOptimizer& InnerOptimizer::adam(double beta1, double beta2, double eps) {
  check_eps("Adam", eps);
  parts_.push_back({"Adam",
                    {"first moment", "second moment"},
                    [=](Tensor g, std::span<Tensor> slots, const Gates&, WeightKind) {
                      slots[0] = beta1 * slots[0] + (1 - beta1) * g;
                      slots[1] = beta2 * slots[1] + (1 - beta2) * square(g);
                      return slots[0] * rsqrt(slots[1] + eps);
                    }});
  return *this;
}

InnerOptimizer& InnerOptimizer::muon(QuinticSteps steps, double eps, bool in_f64) {
  check_eps("Muon", eps);
  parts_.push_back(
      {in_f64 ? "Muon in f64" : "Muon", {}, [=](Tensor g, std::span<Tensor>, const Gates&, WeightKind kind) {
         return kind == WeightKind::matrix ? orthogonalize(g, steps, eps, in_f64) : g;
       }});
  return *this;
}

InnerOptimizer& InnerOptimizer::normalize(Per per, double eps) {
  check_eps("normalize", eps);
  const std::string name = fmt::format("normalise per {}", name_of(per));
  if (per == Per::all) {
    joint_names_.push_back(name);
    joint_.emplace_back([=](std::vector<Tensor> gradients) {
      const Tensor length = joint_norm(gradients);
      for (Tensor& g : gradients) g = g / (length + eps);
      return gradients;
    });
    return *this;
  }
  parts_.push_back({name, {}, [=](Tensor g, std::span<Tensor>, const Gates&, WeightKind) {
                      return g / (norm_per(g, per) + eps);
                    }});
  return *this;
}

InnerOptimizer& InnerOptimizer::clip(Per per, double most) {
  if (!(most > 0 && std::isfinite(most)))
    throw ConfigError(fmt::format("[optimizer] clip needs a positive, finite norm, it is {}", most));
  const std::string name = fmt::format("clip to {} per {}", most, name_of(per));
  if (per == Per::all) {
    joint_names_.push_back(name);
    joint_.emplace_back([=](std::vector<Tensor> gradients) {
      const Tensor length = joint_norm(gradients);
      for (Tensor& g : gradients) g = shrink(g, length, most);
      return gradients;
    });
    return *this;
  }
  parts_.push_back({name, {}, [=](Tensor g, std::span<Tensor>, const Gates&, WeightKind) {
                      return shrink(g, norm_per(g, per), most);
                    }});
  return *this;
}

InnerOptimizer& InnerOptimizer::piece(std::string name, Piece fn, std::vector<std::string> slots) {
  require_function("optimiser", fmt::format("the step of the piece '{}'", name).c_str(), fn);
  has_own_pieces_ = true;
  parts_.push_back({std::move(name), std::move(slots),
                    [fn = std::move(fn)](Tensor g, std::span<Tensor> s, const Gates& gates, WeightKind) {
                      const OwnLines lines;
                      return fn(g, s, gates);
                    }});
  return *this;
}

InnerOptimizer& InnerOptimizer::keep(Hyper factor, bool before_gradient) {
  if (std::exchange(keeps_, true))
    throw ConfigError("[optimizer] keep() was called before; give it the product of what is to be kept");
  need(factor);
  keep_ = std::move(factor);
  keep_first_ = before_gradient;
  return *this;
}

InnerOptimizer& InnerOptimizer::anchor(Hyper strength, Anchor options) {
  for (const double x : {options.fisher_memory, options.follow})
    if (!(x >= 0 && x < 1))
      throw ConfigError(fmt::format(
          "[optimizer] anchor's fisher_memory is {} and its follow {}; each must be at least 0 and below 1",
          options.fisher_memory, options.follow));
  if (anchored_) throw ConfigError("[optimizer] anchor() was called before: weights have one anchor");
  need(strength);
  pull_ = std::move(strength);
  anchor_ = options;
  anchored_ = true;
  return *this;
}

InnerOptimizer& InnerOptimizer::weight_norm(double eps, bool detached) {
  set_norm(Norm::after, eps);
  detached_ = detached;
  return *this;
}

InnerOptimizer& InnerOptimizer::prenorm(double eps) {
  set_norm(Norm::master, eps);
  return *this;
}

void InnerOptimizer::set_norm(Norm norm, double eps) {
  check_eps(norm == Norm::after ? "weight_norm" : "prenorm", eps);
  if (norm_ != Norm::none)
    throw ConfigError("[optimizer] weight_norm() or prenorm() was called before: weights have one norm");
  norm_ = norm;
  norm_eps_ = eps;
}

namespace {

// The name, or with a number behind it: several pieces may call their slots the same.
std::string named_apart(const std::string& name, const std::vector<FastWeight>& taken) {
  std::string own = name;
  for (int n = 2; std::ranges::any_of(taken, [&](const FastWeight& w) { return w.name == own; }); ++n)
    own = fmt::format("{} {}", name, n);
  return own;
}

}  // namespace

std::vector<FastWeight> InnerOptimizer::slots(const FastWeight& w) const {
  std::vector<FastWeight> out;
  for (const Part& part : parts_)
    for (const std::string& name : part.slots)
      out.push_back(
          {named_apart(name, out), w.kind, broadcast_to(constant(0.0, w.value.dtype()), w.value.shape())});
  if (anchored_) {
    out.push_back({named_apart("anchor", out), w.kind, w.value});
    if (anchor_.fisher_memory > 0)
      out.push_back({named_apart("Fisher", out), w.kind,
                     broadcast_to(constant(0.0, w.value.dtype()), w.value.shape())});
  }
  if (norm_ == Norm::none || w.kind != WeightKind::matrix) return out;
  const Tensor start = detached_ ? stop_gradient(w.value) : w.value;
  out.push_back({"norm at the start", w.kind, norm(start, {-2}, kKeep)});
  if (norm_ == Norm::master) out.push_back({"master copy", w.kind, w.value});
  return out;
}

Tensor InnerOptimizer::gradient_point(std::span<const Tensor> state, const Gates& gates,
                                      const FastWeight& weight) const {
  return keep_first_ ? keep_.at(gates_of(weight.name, gates), state[0]) * state[0] : state[0];
}

std::vector<Tensor> InnerOptimizer::joint(std::vector<Tensor> gradients) const {
  for (const auto& fn : joint_) gradients = fn(std::move(gradients));
  return gradients;
}

// strength F (w - anchor); slots: the anchor, and F if it is estimated.
Tensor InnerOptimizer::pull(std::span<Tensor> slots, Tensor w, Tensor gradient, const Gates& gates) const {
  const Tensor strength = pull_.at(gates, w);
  const double memory = anchor_.fisher_memory;
  if (memory == 0) return strength * w - strength * slots[0];  // linear, with one coefficient for each
  slots[1] = memory * slots[1] + (1 - memory) * square(gradient);
  return strength * slots[1] * (w - slots[0]);
}

std::vector<Tensor> InnerOptimizer::step(std::span<const Tensor> state, Tensor g, const Gates& all_gates,
                                         const FastWeight& weight, Tensor* moved) const {
  const Scope scope(kStepScope);
  const Gates gates = gates_of(weight.name, all_gates);
  const WeightKind kind = weight.kind;
  const Tensor gradient = g;
  std::vector<Tensor> next(state.begin(), state.end());
  std::size_t at = 1;
  for (const Part& part : parts_) {
    const Scope part_scope(part.name);
    g = part.fn(g, std::span(next).subspan(at, part.slots.size()), gates, kind);
    at += part.slots.size();
  }
  const std::size_t anchor = at;
  if (anchored_) at += anchor_.fisher_memory > 0 ? 2 : 1;
  const bool normalising = norm_ != Norm::none && kind == WeightKind::matrix;
  const bool master = normalising && norm_ == Norm::master;
  Tensor w = master ? next[at + 1] : next[0];
  const Tensor found = w;
  Tensor kept, pulled;
  if (!keep_.is_one()) {
    kept = keep_.at(gates, w);
    w = kept * w;
  }
  w = w - g;
  if (anchored_) {
    const Scope anchor_scope("anchor");
    pulled = pull(std::span(next).subspan(anchor), found, gradient, gates);
    w = w - pulled;
  }
  if (master) next[at + 1] = w;
  if (normalising) {
    const Scope norm_scope(master ? "weight norm of a master copy" : "weight norm");
    w = w / (norm(w, {-2}, kKeep) + norm_eps_) * next[at];
  }
  next[0] = w;
  if (anchored_ && anchor_.follow > 0) {
    const Scope anchor_scope("anchor");
    next[anchor] = (1.0 - anchor_.follow) * next[anchor] + anchor_.follow * w;
  }
  if (!moved) return next;
  if (normalising) {
    *moved = w - state[0];
    return next;
  }
  *moved = kept.defined() ? (kept - 1.0) * found - g : -g;
  if (pulled.defined()) *moved = *moved - pulled;
  return next;
}

std::string describe_step(Tensor t) {
  const std::string& scope = t.graph().node(t.id()).scope.str();
  const std::size_t at = scope.rfind(kStepScope);
  if (at == std::string::npos || at + kStepScope.size() >= scope.size()) return describe(t);
  const std::string part = scope.substr(at + kStepScope.size() + 1);
  return fmt::format("{} in '{}'", describe(t), part.substr(0, part.find('/')));
}

std::vector<std::string> InnerOptimizer::gates() const { return gates_; }

std::string InnerOptimizer::str() const {
  std::vector<std::string> names = joint_names_;
  for (const Part& part : parts_) names.push_back(part.name);
  if (!keep_.is_one())
    names.push_back(fmt::format("keep {}{}", keep_.str(), keep_first_ ? " before the gradient" : ""));
  if (anchored_)
    names.push_back(
        fmt::format("anchor {}{}{}", pull_.str(),
                    anchor_.fisher_memory > 0 ? fmt::format(", Fisher over {}", anchor_.fisher_memory) : "",
                    anchor_.follow > 0 ? fmt::format(", following by {}", anchor_.follow) : ""));
  if (norm_ == Norm::after) names.push_back(detached_ ? "weight norm, detached" : "weight norm");
  if (norm_ == Norm::master) names.push_back("weight norm of a master copy");
  return names.empty() ? "SGD" : fmt::format("SGD, {}", fmt::join(names, ", "));
}

}  // namespace nestgrad::ttt

// The outer optimiser: AdamW (Loshchilov and Hutter 2019) with clipping by the global norm, written in ops,
// and its learning rate schedule.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/plan/plan_options.h"
#include "ttt/params.h"

namespace nestgrad {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95;  // in [0, 1)
  double eps = 1e-8;                 // positive
  // Of parameters that start normal; what starts constant or drawn otherwise (gains, biases) does not decay. Not negative.
  double weight_decay = 0.1;
  double clip = 1.0;  // largest global norm of the gradient, positive

  void check() const;  // ConfigError that names the field and its range
};

// Numbers that change from step to step, each a tensor with one element.
struct AdamWStep {
  Tensor rate;         // learning rate
  Tensor correction1;  // 1 / (1 - beta1^t)
  Tensor correction2;  // 1 / (1 - beta2^t)
  Tensor loss = {};    // if defined, it must be finite for the step to be made
};

// The sum of the squares of all gradients that are defined, []; undefined if none is. matrices: of each sequence, [batch, 1, 1]
// of gradients [batch, rows, columns].
Tensor sum_of_squares(std::span<const Tensor> gradients, bool matrices = false);

// Parameters that are trained in their own way: those whose whole name matches, where * stands for anything:
//   {.names = "blocks.*.attn.w?", .rate = 20}   {.names = "patch_embed.*", .rate = 0}
struct ParameterGroup {
  std::string names;                        // with * for any characters, and ? for one
  double rate = 1;                          // times the rate of a step; 0: frozen, no gradient is taken
  std::optional<double> weight_decay = {};  // instead of that of AdamWOptions, also of gains and biases
};

// What holds for one parameter.
struct ParameterRule {
  double rate = 1, weight_decay = 0;
};
// The first group that matches a parameter's name gives its rule. ConfigError for a group that matches none or only what groups
// before it have, or whose numbers make no sense.
std::vector<ParameterRule> rules_of(const std::vector<ParamSpec>& specs,
                                    const std::vector<ParameterGroup>& groups, const AdamWOptions& options);

// One parameter and its moments.
struct AdamWParameter {
  Tensor param, m, v;
};
// They after a step with this gradient, which is clipped already. may_step: 0 keeps all bits; undefined: the step is made.
AdamWParameter adamw_parameter(const AdamWParameter& now, Tensor gradient, const AdamWStep& step,
                               const AdamWOptions& options, const ParameterRule& rule, Tensor may_step = {});

struct AdamWResult {
  std::vector<Tensor> params, m, v;
  Tensor grad_norm;  // before clipping
  Tensor may_step;   // 1 where the step is made, 0 where a number is not finite; []
};

// A name in a checkpoint that begins so is a moment of AdamW, or an average of a parameter, and not a parameter.
inline constexpr std::string_view kMomentPrefix = "adamw.", kAveragePrefix = "average.";

// A parameter whose gradient is an undefined tensor stays as it is, without decay. One gradient at least is
// defined. Where the norm of the gradients is not finite, or the loss given, all parameters and moments keep
// their bits: so a plan may write the new ones over the old (donations). ConfigError for options that make
// no sense.
AdamWResult adamw(const std::vector<ParamSpec>& specs, const std::vector<Tensor>& params,
                  const std::vector<Tensor>& grads, const std::vector<Tensor>& m,
                  const std::vector<Tensor>& v, const AdamWStep& step, const AdamWOptions& options);
// The same with a rule for each parameter.
AdamWResult adamw(const std::vector<Tensor>& params, const std::vector<Tensor>& grads,
                  const std::vector<Tensor>& m, const std::vector<Tensor>& v, const AdamWStep& step,
                  const AdamWOptions& options, const std::vector<ParameterRule>& rules);

// PlanOptions::donate for a program whose `count` inputs from number `input` on (parameters, then moments) are written over
// by its outputs from `output` on.
std::vector<Donation> donations(std::size_t count, std::size_t output, std::size_t input);

// Linear warm-up to `peak` over the first `warmup` steps, then a cosine down to `floor` times peak at the
// last of `steps` (which is at the peak where it is the only one after the warm-up). step counts from 0.
double cosine_rate(std::int64_t step, std::int64_t steps, std::int64_t warmup, double peak,
                   double floor = 0.1);

}  // namespace nestgrad

#include "look/gradient_parts.h"

#include <fmt/format.h>

#include "autograd/grad.h"

namespace nestgrad::look {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

GradientParts::GradientParts(const InspectedLoop& inspected)
    : time_(inspected.time()),
      chunks_(inspected.chunks()),
      program_(inspected, {{DType::f64, {1, 1, time_, 1}}, {DType::f64, {chunks_, 1, 1, 1, 1}}},
               [&](OpenLoop& loop, const Tensors& masks) {
                 return outputs(loop, masks[0], masks[1], inspected);
               }) {}

GradientParts::Result GradientParts::run(const Array& reads, const Array& steps) const {
  const Arrays out = program_({reads, steps});
  Result r;
  auto at = out.begin();
  for (Values* values : {&r.full, &r.first_order, &r.gradient}) {
    values->start.assign(at, at + static_cast<std::ptrdiff_t>(weights_));
    values->sizes = at[static_cast<std::ptrdiff_t>(weights_)];
    at += static_cast<std::ptrdiff_t>(weights_) + 1;
  }
  r.loss_size = norm({*at});
  return r;
}

Tensors GradientParts::outputs(OpenLoop& loop, Tensor reads, Tensor steps, const InspectedLoop& inspected) {
  if (inspected.policy.steps > 1)
    throw ConfigError(
        fmt::format("[inspect] {}: the {} steps of a chunk have one term together, which cannot be "
                    "carried back to the point of each; take policies with one step a chunk",
                    inspected.name, inspected.policy.steps));
  const Tensor sizes = probe(full(DType::f64, {inspected.batch(), inspected.heads(), time_, 1}, 1));
  loop.views.gates[kWriteSize] = sizes;
  weights_ = loop.learning.size();
  point_per_token_ = loop.learner->optimizer().moves_gradient_point_by_token();
  Tensors wrt;
  for (std::size_t i = 0; i < weights_; ++i) wrt.push_back(loop.start[loop.learning.at(i).name]);
  wrt.push_back(sizes);
  const Tensor wanted = loop.cotangent * reads;

  InnerLoopOptions with = loop.options;
  with.gradient_offset = zero_offsets(loop.learning, chunks_);
  Tensors all = wrt;
  all.insert(all.end(), with.gradient_offset.begin(), with.gradient_offset.end());
  Tensors out = grad(sum(loop.run(with).output * wanted), all, {.allow_zero = true});
  Tensors terms(out.begin() + static_cast<std::ptrdiff_t>(wrt.size()), out.end());
  out.resize(wrt.size());
  for (Tensor& term : terms) term = term * steps;

  // What reaches them without passing through an inner gradient: from the output, and from the points where
  // each step's own term acts.
  InnerLoopOptions cut = loop.options;
  cut.policy.meta = Policy::Meta::first_order;
  cut.keep_points = true;
  const InnerLoopResult r = loop.run(cut);
  const Tensors first_order = grad(sum(r.output * wanted), wrt, {.allow_zero = true}),
                gradient = vjp(r.points, terms, wrt, {.allow_zero = true});
  out.insert(out.end(), first_order.begin(), first_order.end());
  out.insert(out.end(), gradient.begin(), gradient.end());
  out.push_back(r.output * wanted);
  return out;
}

}  // namespace nestgrad::look

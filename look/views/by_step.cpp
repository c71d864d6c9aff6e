// What each inner step adds to the gradient of the starting weights.
#include <fmt/format.h>

#include <numeric>

#include "look/gradient_parts.h"
#include "look/views.h"

namespace nestgrad::look {

namespace {

using Arrays = std::vector<Array>;

// Each sequence begins with a copy of the starting weights: their gradient is the sum of those of the copies, [batch, ..] -> [..].
Arrays of_start(const Arrays& copies) {
  Arrays out;
  for (const Array& copy : copies) {
    Array sum = Array::zeros(DType::f64, Shape(copy.shape().begin() + 1, copy.shape().end()));
    const std::span<double> to = sum.as<double>();
    for (std::size_t i = 0; i < copy.as<double>().size(); ++i) to[i % to.size()] += copy.as<double>()[i];
    out.push_back(sum);
  }
  return out;
}

}  // namespace

StepContributions contributions_by_step(const InspectedLoop& inspected) {
  const GradientParts parts(inspected);
  StepContributions out;
  const GradientParts::Result whole = parts.run(parts.every_token(), parts.every_step());
  const Arrays full = of_start(whole.full.start), first_order = of_start(whole.first_order.start);
  out.full_norm = norm(full);
  const auto along_full = [&](const Arrays& part) {
    return out.full_norm > 0 ? dot(part, full) / out.full_norm : 0.0;
  };
  out.first_order_norm = norm(first_order);
  out.first_order_projection = along_full(first_order);
  Arrays sum = first_order;
  for (std::int64_t t = 0; t < inspected.chunks(); ++t) {
    const Arrays own = of_start(parts.run(parts.every_token(), parts.step(t)).gradient.start);
    out.norm.push_back(norm(own));
    out.projection.push_back(along_full(own));
    sum = plus(sum, own);
  }
  out.claims = {{"first-order term + one term per inner step = full meta-gradient",
                 relative_distance(sum, full), kExact}};
  return out;
}

ReportView by_step_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const StepContributions r = contributions_by_step(inspected);
  ReportView view{
      "by-step", "The meta-gradient by inner step", "Which inner steps shape the outer gradient?",
      "The outer gradient of the starting weights has a part that treats every inner gradient as a "
      "constant (first order) and one second-order part for each inner step t, -eta H_t lambda_t: how "
      "the loss moves because that step's gradient would have been another one.\n\n"
      "Projection: how much a part contributes in the direction of the full gradient; negative bars "
      "pull against it. All bars add up to the norm of the full gradient.",
      r.claims};
  std::vector<std::string> names{"first order"};
  std::vector<double> projections{r.first_order_projection};
  for (std::size_t t = 0; t < r.norm.size(); ++t) {
    names.push_back(fmt::format("step {}", t));
    projections.push_back(r.projection[t]);
  }
  const std::vector<std::string> steps(names.begin() + 1, names.end());
  view.pictures = {Bars{"Projection on the full gradient",
                        fmt::format("outer loss per weight ({})", inspected.outer_unit),
                        names,
                        {{"projection", projections}}},
                   Bars{"The second-order terms alone",
                        "in the same unit",
                        steps,
                        {{"projection", r.projection}, {"norm", r.norm}}}};
  view.preformatted =
      fmt::format("full {:.6g} = first order {:.6g} + steps {:.6g}   (projections)\n", r.full_norm,
                  r.first_order_projection, std::accumulate(r.projection.begin(), r.projection.end(), 0.0));
  context.out.arrays["step_projection"] = array_of(r.projection);
  context.out.arrays["step_norm"] = array_of(r.norm);
  return view;
}

}  // namespace nestgrad::look

// The inner loss of each token, and the outer loss of its answer.
#include <fmt/format.h>

#include <cmath>

#include "look/open_loop.h"
#include "look/views.h"

namespace nestgrad::look {

namespace {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

// [batch, heads, time] -> [time]
std::vector<double> mean_over_members(const Array& losses, std::int64_t time) {
  std::vector<double> out = sum_over_members(losses, time);
  for (double& x : out) x /= static_cast<double>(losses.size() / time);
  return out;
}

}  // namespace

InnerLosses inner_losses(const InspectedLoop& inspected) {
  const Arrays r = OpenProgram(inspected, {}, [](OpenLoop& loop, const Tensors&) {
    InnerLoopOptions options = loop.options;
    options.track_loss = true;
    const InnerLoopResult run = loop.run(options);
    return Tensors{run.loss_initial, run.loss_before, run.loss_after};
  })();
  const std::int64_t time = inspected.time();
  InnerLosses out{mean_over_members(r[0], time),
                  mean_over_members(r[1], time),
                  mean_over_members(r[2], time),
                  inspected.outer_loss,
                  {}};
  // A step per token: its first token; a step per chunk: all tokens of its first chunk.
  const std::int64_t untouched =
      inspected.policy.update == Policy::Update::per_chunk ? inspected.chunk() : std::int64_t{1};
  double error = 0;
  for (std::int64_t i = 0; i < r[0].size(); ++i)
    if (i % time < untouched)
      error = worse(error, std::abs(r[0].at(i) - r[1].at(i)) / worse(1.0, std::abs(r[0].at(i))));
  out.claims = {{"before the first step the loss is that at the first weights", error, 1e-12}};
  return out;
}

ReportView losses_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const InnerLosses& r = context.losses();
  ReportView view{
      "losses", "The inner loss, token by token", "Does the layer learn while it reads?",
      "Each token is a training example of the inner model. Its loss is shown with the weights from before "
      "the first token, with the weights just before the step on that token, and just after it (Sun et al. "
      "2024, Figure 4). Where the second line falls below the first, the layer has learnt from earlier "
      "tokens; where the third falls below the second, the step itself helped.",
      r.claims};
  const bool of_tokens = std::ssize(r.outer) == inspected.time();  // or of all together
  if (of_tokens) view.reading += "\n\nBelow: the outer loss of the same tokens.";
  view.pictures = {Chart{"Inner loss",
                         "token",
                         "inner loss",
                         {line("at the first weights", r.initial), line("before the step", r.before),
                          line("after the step", r.after)}}};
  if (of_tokens)
    view.pictures.push_back(Chart{"Outer loss",
                                  "token",
                                  fmt::format("outer loss ({})", inspected.outer_unit),
                                  {line("outer loss", r.outer)}});
  context.out.arrays["inner_loss_initial"] = array_of(r.initial);
  context.out.arrays["inner_loss_before"] = array_of(r.before);
  context.out.arrays["inner_loss_after"] = array_of(r.after);
  context.out.arrays["outer_loss"] = array_of(r.outer);
  return view;
}

}  // namespace nestgrad::look

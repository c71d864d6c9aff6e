// How a write reaches later answers: as a term of the weights, and by moving later gradients.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "look/gradient_parts.h"
#include "look/views.h"

namespace nestgrad::look {

namespace {

Policy one_step_for_everything(Policy policy) {
  policy.chunk = Policy::kWholeSequence;
  policy.steps = 1;
  return policy;
}

// A learner whose loss of each token is multiplied by a number, which stands behind the token's values.
class SizedLosses : public Learner {
 public:
  explicit SizedLosses(std::unique_ptr<Learner> whole) : whole_(std::move(whole)) {}
  Weights init() const override { return whole_->init(); }
  Tensor predict(const Weights& w, Tensor x) const override { return whole_->predict(w, x); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override {
    return slice(v, -1, v.dim(-1) - 1, v.dim(-1)) * whole_->loss(w, k, values_of(v));
  }
  InnerOptimizer optimizer() const override { return whole_->optimizer(); }
  std::vector<std::string> own_gates() const override { return whole_->own_gates(); }
  Gates gates(const Weights& w, Tensor k, Tensor v, Tensor place) const override {
    return whole_->gates(w, k, values_of(v), place);
  }

 private:
  static Tensor values_of(Tensor v) { return slice(v, -1, 0, v.dim(-1) - 1); }
  std::unique_ptr<Learner> whole_;
};

// The outer loss differentiated by the size of each token's inner loss: what its writes count, found without any gate.
std::vector<double> by_size_of_loss(const InspectedLoop& inspected) {
  const std::int64_t time = inspected.time();
  const OpenProgram program(inspected, {}, [&](OpenLoop& loop, const std::vector<Tensor>&) {
    const SizedLosses learner(std::move(loop.learner));
    const Tensor sizes = probe(full(DType::f64, {inspected.batch(), inspected.heads(), time, 1}, 1));
    loop.views.v = concat({loop.views.v, sizes}, -1);
    const Tensor output = train_along(learner, loop.start, loop.views, loop.options).output;
    return grad(sum(output * loop.cotangent), {sizes}, {.allow_zero = true});
  });
  return sum_over_members(program()[0], time);
}

double largest(const Array& a) {
  double most = 0;
  for (double v : a.to_vector()) most = worse(most, std::abs(v));
  return most;
}

}  // namespace

Channels channels(const InspectedLoop& inspected) {
  const std::int64_t time = inspected.time();
  const GradientParts parts(inspected);
  Channels out;
  for (Array* a : {&out.full, &out.cumsum, &out.gradient}) *a = Array(DType::f64, {time, time});
  double loss_size = 0;
  for (std::int64_t t = 0; t < time; ++t) {
    const GradientParts::Result r = parts.run(parts.token(t), parts.every_step());
    loss_size = worse(loss_size, r.loss_size);
    const GradientParts::Values* values[] = {&r.full, &r.first_order, &r.gradient};
    Array* rows[] = {&out.full, &out.cumsum, &out.gradient};
    for (std::size_t i = 0; i < 3; ++i)
      std::ranges::copy(sum_over_members(values[i]->sizes, time),
                        rows[i]->as<double>().begin() + static_cast<std::ptrdiff_t>(t * time));
  }
  // An optimiser that divides by the size of what it is given takes every size as the same: then all of it is
  // rounding, which is small beside the loss.
  out.claims = {{"cumsum channel + gradient channel = whole derivative",
                 relative_distance(plus({out.cumsum}, {out.gradient}), {out.full}, 1e-2 * loss_size), kExact},
                {"by the size of a write = by the size of the token's inner loss, all answers together",
                 relative_distance({array_of(sum_over_members(out.full, time))},
                                   {array_of(by_size_of_loss(inspected))}, 1e-2 * loss_size),
                 kExact}};
  if (parts.point_per_token()) return out;  // such a learner has no larger mini-batches
  InspectedLoop alone = inspected;
  alone.policy = one_step_for_everything(inspected.policy);
  alone.position = Array();
  const GradientParts whole(alone);
  const Array none = whole.run(whole.every_token(), whole.every_step()).gradient.sizes;
  out.claims.push_back(
      {"with one mini-batch over the whole sequence the gradient channel is exactly zero", largest(none), 0});
  return out;
}

ReportView channels_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const Channels& r = context.channels();
  ReportView view{
      "channels", "Two channels through time", "How does what is written at one token reach a later answer?",
      "A write is the gradient step on one token. It reaches later answers in two ways: it is a term of "
      "the sum that the weights are (cumsum channel), and it moves the points at which later gradients are "
      "taken (gradient channel; Sun et al. 2024, section 2.5).\n\n"
      "Row t, column s: by how much the outer loss, one number of the whole sequence, changes through the answer to token t "
      "alone with the size of the write of token s, all heads together. Within one mini-batch the gradient channel is empty: its gradients are taken "
      "at the same weights.",
      r.claims};
  const std::string unit = fmt::format("change of the outer loss ({})", inspected.outer_unit);
  for (const auto& [title, map] :
       {std::pair{"Cumsum channel", &r.cumsum}, {"Gradient channel", &r.gradient}}) {
    Heatmap picture = token_map(title, unit, *map);
    picture.diverging = true;
    view.pictures.push_back(picture);
  }
  const std::int64_t time = inspected.time();
  std::vector<double> sums[2];
  for (int c = 0; c < 2; ++c) {
    sums[c].assign(static_cast<std::size_t>(time), 0);
    const Array& map = c == 0 ? r.cumsum : r.gradient;
    for (std::int64_t i = 0; i < map.size(); ++i)
      sums[c][static_cast<std::size_t>(i % time)] += std::abs(map.at(i));
  }
  view.pictures.push_back(Chart{"Reach of each write, all answers together",
                                "token that is written",
                                "sum of |change of the outer loss|",
                                {line("cumsum channel", sums[0]), line("gradient channel", sums[1])},
                                {},
                                false,
                                true});
  context.out.arrays["channel_cumsum"] = r.cumsum;
  context.out.arrays["channel_gradient"] = r.gradient;
  return view;
}

}  // namespace nestgrad::look

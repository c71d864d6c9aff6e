// Cheaper meta-gradients beside the full one: what they lose and what they save.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "autograd/grad.h"
#include "look/gradient_parts.h"
#include "look/views.h"

namespace nestgrad::look {

namespace {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

// Median of the seconds of a run, after one that is not counted.
double seconds_of(const Function& f, const Arrays& inputs) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRuns = 5;
  std::vector<double> times;
  for (int i = 0; i <= kRuns; ++i) {
    const auto start = Clock::now();
    f(inputs);
    if (i > 0) times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::ranges::nth_element(times, times.begin() + kRuns / 2);
  return times[kRuns / 2];
}

// A learner whose steps are multiplied by a number, and whose own gates, which need not become small with them, are constants
// of the meta-gradient as they are in the first order.
class ScaledSteps : public Learner {
 public:
  ScaledSteps(std::unique_ptr<Learner> whole, Tensor scale) : whole_(std::move(whole)), scale_(scale) {}
  Weights init() const override { return whole_->init(); }
  Tensor predict(const Weights& w, Tensor x) const override { return whole_->predict(w, x); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override { return whole_->loss(w, k, v); }
  InnerOptimizer optimizer() const override { return whole_->optimizer().scale(scale_); }
  std::vector<std::string> own_gates() const override { return whole_->own_gates(); }
  Gates gates(const Weights& w, Tensor k, Tensor v, Tensor place) const override {
    const auto constants = [](std::vector<Tensor> values) {
      for (Tensor& value : values) value = stop_gradient(value);
      return values;
    };
    std::vector<Tensor> held;
    for (std::size_t i = 0; i < w.size(); ++i) held.push_back(w.held(w.at(i).name));
    return whole_->gates(w.with(constants(w.values())).with_held(constants(held)), k, v, place);
  }

 private:
  std::unique_ptr<Learner> whole_;
  Tensor scale_;
};

struct Measured {
  Estimate estimate;
  std::vector<std::string> names;
  Arrays gradient;
};

Measured measure(const InspectedLoop& inspected, const std::string& name, Policy::Meta meta,
                 std::int64_t horizon) {
  Measured out;
  const OpenProgram program(inspected, {}, [&](OpenLoop& loop, const Tensors&) {
    out.names = loop.names;
    InnerLoopOptions options = loop.options;
    options.policy.meta = meta;
    options.policy.horizon = horizon;
    return grad(sum(loop.run(options).output * loop.cotangent), loop.trained, {.allow_zero = true});
  });
  out.gradient = program();
  const PlanStats stats = program.function().plan().stats();
  out.estimate.name = name;
  out.estimate.seconds = seconds_of(program.function(), program.fixed());
  out.estimate.bytes = stats.arena_bytes;
  out.estimate.nodes = program.function().live_nodes();
  out.estimate.flops = stats.flops;
  return out;
}

}  // namespace

Estimators estimators(const InspectedLoop& inspected) {
  std::vector<Measured> all{measure(inspected, "full", Policy::Meta::full, 1),
                            measure(inspected, "first order", Policy::Meta::first_order, 1)};
  const std::int64_t chunks = inspected.chunks();
  for (std::int64_t horizon = 1; horizon < 2 * chunks; horizon *= 2) {
    const std::int64_t steps = std::min(horizon, chunks);
    all.push_back(measure(inspected, fmt::format("truncated after {} step{}", steps, steps == 1 ? "" : "s"),
                          Policy::Meta::truncated, steps));
  }
  Estimators out;
  const Arrays& full = all[0].gradient;
  for (Measured& m : all) {
    m.estimate.norm = norm(m.gradient);
    m.estimate.cosine = cosine(m.gradient, full);
    for (std::size_t i = 0; i < m.names.size(); ++i) {
      const Arrays own{m.gradient[i]}, of_full{full[i]};
      m.estimate.parameters.push_back(
          {m.names[i], norm(own), cosine(own, of_full), norm(own) / norm(of_full)});
    }
    out.estimates.push_back(m.estimate);
  }

  // Both gradients of the starting weights, all steps multiplied by one number.
  std::size_t weights = 0;
  const OpenProgram scaled(inspected, {{DType::f64, {1, 1}}}, [&](OpenLoop& loop, const Tensors& scale) {
    out.own_gates = !loop.learner->own_gates().empty();
    const ScaledSteps learner(std::move(loop.learner), scale[0]);
    Tensors start, gradients;
    for (std::size_t i = 0; i < loop.learning.size(); ++i)
      start.push_back(loop.start[loop.learning.at(i).name]);
    weights = start.size();
    for (Policy::Meta meta : {Policy::Meta::full, Policy::Meta::first_order}) {
      InnerLoopOptions options = loop.options;
      options.policy.meta = meta;
      const Tensor output = train_along(learner, loop.start, loop.views, options).output;
      for (Tensor g : grad(sum(output * loop.cotangent), start, {.allow_zero = true})) gradients.push_back(g);
    }
    return gradients;
  });
  double turned = 0;  // 1 - cosine at the smallest steps
  for (double scale : {1.0, 1e-2, 1e-4, 1e-6, 1e-8, 1e-10}) {
    const Arrays both = scaled({Array::full(DType::f64, {1, 1}, scale)});
    const auto middle = both.begin() + static_cast<std::ptrdiff_t>(weights);
    const Arrays of_full(both.begin(), middle), first_order(middle, both.end());
    out.scale.push_back(scale);
    out.cosine.push_back(cosine(of_full, first_order));
    turned = relative_distance(of_full, first_order) == 0 ? 0 : 1 - out.cosine.back();  // both may be zero
  }
  out.claims = {
      {fmt::format(
           "first order and full gradient{} point the same way when steps are 10^10 times smaller (1 - cosine)",
           out.own_gates ? ", the learner's own gates held in both," : ""),
       turned, 1e-6},
      {"truncated after all steps = full", relative_distance(all.back().gradient, full), kExact}};
  return out;
}

ReportView estimators_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const Estimators r = estimators(inspected);
  ReportView view{
      "estimators", "First order, truncated, full",
      "What does a cheaper meta-gradient lose, and what does it save?",
      "First order treats inner gradients as constants. Truncated after k steps cuts the weights from "
      "their "
      "past every k inner steps. Cosine 1: the same direction as the full gradient; NaN: one of the two is zero. Costs are those of one "
      "forward and backward pass of this inner loop on this machine.\n\n"
      "The smaller the inner steps, the less the second-order terms matter: the curve below ends at 0.",
      r.claims};
  if (r.own_gates)
    view.reading +=
        "\n\nThis learner makes gates of its own weights, which are constants in the first order as well. What it forgets "
        "does not become less with the steps; so for the curve, unlike for the tables, they are constants in the full "
        "gradient too.";
  Table table{.title = "Estimators",
              .columns = {"estimator", "norm", "1 - cosine with full", "time (ms)", "memory (kB)",
                          "flops (k)", "graph (nodes)"}};
  for (const Estimate& e : r.estimates)
    table.rows.push_back({e.name, format_number(e.norm), format_number(worse(0, 1 - e.cosine)),
                          format_number(e.seconds * 1e3), format_number(static_cast<double>(e.bytes) / 1e3),
                          format_number(e.flops / 1e3), std::to_string(e.nodes)});
  Table parameters{.title = "First order against full, by what the outer model trains",
                   .columns = {"tensor", "norm, full", "1 - cosine", "ratio of norms"}};
  for (std::size_t i = 0; i < r.estimates[0].parameters.size(); ++i) {
    const auto &full = r.estimates[0].parameters[i], &first = r.estimates[1].parameters[i];
    parameters.rows.push_back({full.name, format_number(full.norm), format_number(worse(0, 1 - first.cosine)),
                               format_number(first.ratio)});
  }
  std::vector<double> gap;
  for (double c : r.cosine) gap.push_back(worse(1e-16, 1 - c));  // what is less is rounding
  view.pictures = {table, parameters,
                   Chart{.title = "Smaller inner steps",
                         .x_label = "inner steps, times those of the layer",
                         .y_label = "1 - cosine of first order and full (at least 1e-16)",
                         .series = {{"starting weights", r.scale, gap}},
                         .log_x = true,
                         .log_y = true}};
  return view;
}

}  // namespace nestgrad::look

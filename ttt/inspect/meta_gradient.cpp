// By inner step, by channel, by estimator: the full meta-gradient taken apart.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "autograd/grad.h"
#include "ttt/inspect/open.h"

namespace nestgrad::ttt {

namespace {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

constexpr double kExact = 1e-12;

// With the size of each token's gradient as a variable, [batch, heads, time, 1] of ones.
Views with_sizes(const Views& views, Tensor sizes) {
  Views out = views;
  const auto rate = out.gates.find("rate");
  if (rate == out.gates.end()) out.gates["rate"] = sizes;
  else rate->second = rate->second * sizes;
  return out;
}

// The gradient of the starting weights and of the tokens' sizes, and the two parts that it has.
class Parts {
 public:
  explicit Parts(const Specimen& specimen)
      : time_(specimen.time()),
        chunks_(specimen.chunks()),
        program_(specimen, {{DType::f64, {1, 1, time_, 1}}, {DType::f64, {chunks_, 1, 1, 1, 1}}},
                 [&](OpenLoop& loop, const Tensors& masks) {
                   return outputs(loop, masks[0], masks[1], specimen);
                 }) {}

  struct Values {
    Arrays start;  // of the weights that learn
    Array sizes;   // [batch, heads, time, 1]
  };
  struct Result {
    Values full, first_order, gradient;
  };
  // Of the outer loss at the tokens that `reads` marks;
  // `gradient` is the part through the steps that `steps` marks.
  Result run(const Array& reads, const Array& steps) const {
    const Arrays out = program_({reads, steps});
    Result r;
    auto at = out.begin();
    for (Values* values : {&r.full, &r.first_order, &r.gradient}) {
      values->start.assign(at, at + static_cast<std::ptrdiff_t>(weights_));
      values->sizes = at[static_cast<std::ptrdiff_t>(weights_)];
      at += static_cast<std::ptrdiff_t>(weights_) + 1;
    }
    return r;
  }
  // Has every token a point of its own where its gradient
  // is taken (InnerOptimizer::keep before the gradient)?
  bool point_per_token() const { return point_per_token_; }
  Array every_token() const { return Array::full(DType::f64, {1, 1, time_, 1}, 1); }
  Array every_step() const { return Array::full(DType::f64, {chunks_, 1, 1, 1, 1}, 1); }
  Array token(std::int64_t t) const { return one_at(t, {1, 1, time_, 1}); }
  Array step(std::int64_t t) const { return one_at(t, {chunks_, 1, 1, 1, 1}); }

 private:
  Tensors outputs(OpenLoop& loop, Tensor reads, Tensor steps, const Specimen& specimen) {
    if (specimen.policy.steps > 1)
      throw ConfigError(
          fmt::format("[inspect] {}: the {} steps of a chunk have one term together, which cannot be "
                      "carried back to the point of each; take policies with one step a chunk",
                      specimen.name, specimen.policy.steps));
    const Tensor sizes = probe(full(DType::f64, {specimen.batch(), specimen.heads(), time_, 1}, 1));
    loop.views = with_sizes(loop.views, sizes);
    weights_ = loop.learning.size();
    point_per_token_ = loop.learner->optimizer().moves_gradient_point();
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
    return out;
  }

  std::int64_t time_, chunks_;
  std::size_t weights_ = 0;
  bool point_per_token_ = false;
  OpenProgram program_;
};

Policy one_step_for_everything(Policy policy) {
  policy.chunk = Policy::kWholeSequence;
  policy.steps = 1;
  return policy;
}

double largest(const Array& a) {
  double most = 0;
  for (double v : a.to_vector()) most = std::isnan(v) ? v : std::max(most, std::abs(v));
  return most;
}

}  // namespace

StepContributions contributions_by_step(const Specimen& specimen) {
  const Parts parts(specimen);
  StepContributions out;
  const Parts::Result whole = parts.run(parts.every_token(), parts.every_step());
  out.full_norm = norm(whole.full.start);
  const auto along_full = [&](const Arrays& part) {
    return out.full_norm > 0 ? dot(part, whole.full.start) / out.full_norm : 0.0;
  };
  out.first_order_norm = norm(whole.first_order.start);
  out.first_order_projection = along_full(whole.first_order.start);
  Arrays sum = whole.first_order.start;
  for (std::int64_t t = 0; t < specimen.chunks(); ++t) {
    const Arrays own = parts.run(parts.every_token(), parts.step(t)).gradient.start;
    out.norm.push_back(norm(own));
    out.projection.push_back(along_full(own));
    sum = plus(sum, own);
  }
  out.claims = {{"first-order term + one term per inner step = full meta-gradient",
                 relative_distance(sum, whole.full.start), kExact}};
  return out;
}

Channels channels(const Specimen& specimen) {
  const std::int64_t time = specimen.time();
  const Parts parts(specimen);
  Channels out;
  for (Array* a : {&out.full, &out.cumsum, &out.gradient}) *a = Array(DType::f64, {time, time});
  for (std::int64_t t = 0; t < time; ++t) {
    const Parts::Result r = parts.run(parts.token(t), parts.every_step());
    const Parts::Values* values[] = {&r.full, &r.first_order, &r.gradient};
    Array* rows[] = {&out.full, &out.cumsum, &out.gradient};
    for (std::size_t i = 0; i < 3; ++i)
      std::ranges::copy(sum_over_members(values[i]->sizes, time),
                        rows[i]->as<double>().begin() + static_cast<std::ptrdiff_t>(t * time));
  }
  out.claims = {{"cumsum channel + gradient channel = whole derivative",
                 relative_distance(plus({out.cumsum}, {out.gradient}), {out.full}), kExact}};
  if (parts.point_per_token()) return out;  // such a learner has no larger mini-batches
  Specimen alone = specimen;
  alone.policy = one_step_for_everything(specimen.policy);
  alone.position = Array();
  const Parts whole(alone);
  const Array none = whole.run(whole.every_token(), whole.every_step()).gradient.sizes;
  out.claims.push_back(
      {"with one mini-batch over the whole sequence the gradient channel is exactly zero", largest(none), 0});
  return out;
}

// ---- estimators ----

namespace {

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

// A learner whose steps are multiplied by a number.
class Slowed : public Learner {
 public:
  Slowed(std::unique_ptr<Learner> whole, Tensor scale) : whole_(std::move(whole)), scale_(scale) {}
  Weights init() const override { return whole_->init(); }
  Tensor predict(const Weights& w, Tensor x) const override { return whole_->predict(w, x); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override { return whole_->loss(w, k, v); }
  InnerOptimizer optimizer() const override { return whole_->optimizer().scale(scale_); }

 private:
  std::unique_ptr<Learner> whole_;
  Tensor scale_;
};

struct Measured {
  Estimate estimate;
  std::vector<std::string> names;
  Arrays gradient;
};

Measured measure(const Specimen& specimen, const std::string& name, Policy::Meta meta, std::int64_t horizon) {
  Measured out;
  const OpenProgram program(specimen, {}, [&](OpenLoop& loop, const Tensors&) {
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

Estimators estimators(const Specimen& specimen) {
  std::vector<Measured> all{measure(specimen, "full", Policy::Meta::full, 1),
                            measure(specimen, "first order", Policy::Meta::first_order, 1)};
  const std::int64_t chunks = specimen.chunks();
  for (std::int64_t horizon = 1; horizon < 2 * chunks; horizon *= 2) {
    const std::int64_t steps = std::min(horizon, chunks);
    all.push_back(measure(specimen, fmt::format("truncated after {} step{}", steps, steps == 1 ? "" : "s"),
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
  const OpenProgram slowed(specimen, {{DType::f64, {1, 1}}}, [&](OpenLoop& loop, const Tensors& scale) {
    const Slowed learner(std::move(loop.learner), scale[0]);
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
    const Arrays both = slowed({Array::full(DType::f64, {1, 1}, scale)});
    const auto middle = both.begin() + static_cast<std::ptrdiff_t>(weights);
    const Arrays of_full(both.begin(), middle), first_order(middle, both.end());
    out.scale.push_back(scale);
    out.cosine.push_back(cosine(of_full, first_order));
    turned = relative_distance(of_full, first_order) == 0 ? 0 : 1 - out.cosine.back();  // both may be zero
  }
  out.claims = {
      {"first order and full gradient point the same way when steps are 10^10 times smaller (1 - cosine)",
       turned, 1e-6},
      {"truncated after all steps = full", relative_distance(all.back().gradient, full), kExact}};
  return out;
}

MetaProgram meta_program(const Specimen& specimen, DType dtype, int checkpoint_every) {
  MetaProgram out;
  const OpenProgram program(
      specimen, {},
      [&](OpenLoop& loop, const Tensors&) {
        InnerLoopOptions options = loop.options;
        options.checkpoint_every = checkpoint_every;
        const Tensor loss = sum(loop.run(options).output * loop.cotangent);
        Tensors results = grad(loss, loop.trained, {.allow_zero = true});
        results.insert(results.begin(), loss);
        out.outputs = loop.names;
        out.outputs.insert(out.outputs.begin(), "loss");
        return results;
      },
      dtype);
  out.function = program.function();
  out.inputs = program.fixed();
  return out;
}

// ---- precision ----

PrecisionProbe compare_precision(const std::vector<std::string>& names, const std::vector<Array>& low,
                                 const std::vector<Array>& high) {
  if (names.size() != low.size() || names.size() != high.size())
    throw ShapeError(fmt::format("[precision] {} names, {} tensors in f32, {} in f64", names.size(),
                                 low.size(), high.size()));
  PrecisionProbe out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (low[i].shape() != high[i].shape())
      throw ShapeError(fmt::format("[precision] '{}' is {} in f32 and {} in f64", names[i],
                                   to_string(low[i].spec()), to_string(high[i].spec())));
    const Arrays a{low[i]}, b{high[i]};
    const bool zero = norm(a) == 0 && norm(b) == 0;
    out.entries.push_back({names[i], norm(b), zero ? 1 : cosine(a, b),
                           zero ? 0 : relative_error(low[i].cast(DType::f64), high[i])});
    // A cosine that does not exist is worse than any that does.
    const auto rank = [](const PrecisionProbe::Entry& e) { return std::isnan(e.cosine) ? -2 : e.cosine; };
    if (rank(out.entries[i]) < rank(out.entries[out.worst])) out.worst = i;
  }
  out.cosine = cosine(low, high);
  return out;
}

PrecisionProbe precision(const Specimen& specimen) {
  const MetaProgram low = meta_program(specimen, DType::f32), high = meta_program(specimen);
  const Arrays a = low.function(low.inputs), b = high.function(high.inputs);
  const auto gradients = [](const auto& all) {
    return std::vector(all.begin() + 1, all.end());  // without the loss
  };
  return compare_precision(gradients(high.outputs), gradients(a), gradients(b));
}

std::string PrecisionProbe::str() const {
  if (entries.empty()) return "no tensors\n";
  std::string out = fmt::format("gradient in f32 against f64: 1 - cosine {:.2e}; worst {}\n", 1 - cosine,
                                entries[worst].name);
  for (const Entry& e : entries)
    out += fmt::format("  {:<32} 1 - cosine {:>9.2e}  largest error {:>9.2e}  norm {:.3g}\n", e.name,
                       1 - e.cosine, e.error, e.norm);
  return out;
}

}  // namespace nestgrad::ttt

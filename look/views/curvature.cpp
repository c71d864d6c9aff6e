// How the inner loss curves where the inner steps are taken.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/grad.h"
#include "engine/core/random.h"
#include "look/open_loop.h"
#include "look/views.h"

namespace nestgrad::look {

namespace {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

// [batch, heads, chunks * tokens, dim] -> [chunks * batch, heads, tokens, dim]: steps as sequences.
Tensor steps_as_batch(Tensor rows, std::int64_t chunks) {
  const std::int64_t batch = rows.dim(0), heads = rows.dim(1), tokens = rows.dim(2) / chunks;
  const Tensor parts = permute(reshape(rows, {batch, heads, chunks, tokens, rows.dim(3)}), {2, 0, 1, 3, 4});
  return reshape(parts, {chunks * batch, heads, tokens, rows.dim(3)});
}
Tensor steps_as_batch(Tensor weights) {  // [chunks, batch, ..] -> [chunks * batch, ..]
  Shape shape(weights.shape().begin() + 1, weights.shape().end());
  shape[0] *= weights.dim(0);
  return reshape(weights, shape);
}

// The gates that the learner makes itself of the points where its gradients are taken, steps as sequences.
Gates gates_made_at(const OpenLoop& loop, const Policy& policy, const Tensors& points, Tensor k, Tensor v) {
  if (loop.learner->own_gates().empty()) return {};
  const std::int64_t chunks = k.dim(0) / loop.views.k.dim(0), tokens = k.dim(2);
  Tensors start = loop.start.values();
  for (Tensor& w : start) {
    Shape shape = w.shape();
    shape.insert(shape.begin(), chunks);
    w = steps_as_batch(broadcast_to(w, shape));
  }
  const Trained now =
      restrict_to(*loop.learner, State::start(*loop.learner, loop.start.with(start)), policy.trained);
  const Tensors spread = now.start.weights.with(points).spread(tokens).values();
  return now.learner->gates(now.start.weights.with(spread).with_held(spread), k, v,
                            iota(k.dtype(), {tokens, 1}, 0));
}

// What the inner steps are taken with, steps as sequences.
struct Steps {
  Arrays points;   // per weight, where the gradient is taken
  Arrays lambdas;  // per weight, what the outer loss wants of the weights that the step finds
  Arrays rates;    // per weight, [chunks * batch, heads, tokens, 1]
  Array k, v;
};

Steps steps_of(const InspectedLoop& inspected) {
  const std::int64_t chunks = inspected.chunks();
  std::size_t n = 0;
  const OpenProgram program(inspected, {}, [&](OpenLoop& loop, const Tensors&) {
    n = loop.learning.size();
    InnerLoopOptions with = loop.options;
    with.state_offset = zero_offsets(loop.learning, chunks);
    with.keep_points = true;
    const InnerLoopResult r = loop.run(with);
    Tensors out;
    for (const Tensor& point : r.points) out.push_back(steps_as_batch(point));
    for (const Tensor& lambda : grad(sum(r.output * loop.cotangent), with.state_offset, {.allow_zero = true}))
      out.push_back(steps_as_batch(lambda));
    const Tensor k = steps_as_batch(loop.views.k, chunks), v = steps_as_batch(loop.views.v, chunks);
    Gates gates = each(loop.views.gates, [&](Tensor rows) { return steps_as_batch(rows, chunks); });
    const Tensors points(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n));
    for (const auto& [name, rows] : gates_made_at(loop, inspected.policy, points, k, v)) gates[name] = rows;
    const Shape one{chunks * inspected.batch(), inspected.heads(), inspected.chunk(), 1};
    for (std::size_t i = 0; i < n; ++i) {
      Tensor rate = full(DType::f64, one, 1);
      if (const Tensor own = rate_of(inspected.policy, gates, loop.learning.at(i)); own.defined())
        rate = rate * own;
      if (loop.views.position.defined())
        rate = rate * slice(loop.views.position, 0, inspected.chunk() - 1, inspected.chunk());
      if (inspected.policy.average) rate = rate * (1.0 / static_cast<double>(inspected.chunk()));
      out.push_back(rate);
    }
    out.push_back(k);
    out.push_back(v);
    return out;
  });
  const Arrays all = program();
  const auto part = [&](std::size_t i) {
    return Arrays(all.begin() + static_cast<std::ptrdiff_t>(i * n),
                  all.begin() + static_cast<std::ptrdiff_t>((i + 1) * n));
  };
  return {part(0), part(1), part(2), all[3 * n], all[3 * n + 1]};
}

// eta H times a direction, at every step at once: inputs are the points, the direction, the rates, k and v.
struct Product {
  Function function;
  Arrays fixed;  // inputs after the direction

  Arrays operator()(const Arrays& points, const Arrays& direction) const {
    Arrays in = points;
    in.insert(in.end(), direction.begin(), direction.end());
    in.insert(in.end(), fixed.begin(), fixed.end());
    return function(in);
  }
};

Product product_of(const InspectedLoop& inspected, const Steps& steps) {
  const std::size_t n = steps.points.size();
  std::vector<Spec> specs;
  for (const Arrays* list : {&steps.points, &steps.lambdas, &steps.rates})
    for (const Array& a : *list) specs.push_back(a.spec());
  specs.push_back(steps.k.spec());
  specs.push_back(steps.v.spec());
  Product out;
  out.fixed = steps.rates;
  out.fixed.push_back(steps.k);
  out.fixed.push_back(steps.v);
  out.function = trace(
      [&](const Tensors& in) {
        ParamTable table(*context().emit.graph, DType::f64);
        const std::unique_ptr<Learner> whole = inspected.learner(Params(table));
        const Weights start = for_batch(whole->init(), steps.k.shape()[0]);
        const Trained trained = restrict_to(*whole, State::start(*whole, start), inspected.policy.trained);
        const Weights& shape = trained.start.weights;
        const Tensor k = in[3 * n], v = in[3 * n + 1];
        // As the inner gradient sees them: held uses apart.
        Tensors at, used;
        for (std::size_t i = 0; i < n; ++i) {
          at.push_back(probe(in[i]));
          used.push_back(probe(at[i]));
        }
        const Weights seen = shape.with(used).spread(k.dim(-2)), held = shape.with(at).spread(k.dim(-2));
        const Tensor loss = trained.learner->loss(seen.with_held(held.values()), k, v);
        Tensors gradients;
        for (std::size_t i = 0; i < n; ++i)
          gradients.push_back(grad(sum(loss * in[2 * n + i]), {used[i]}, {.allow_zero = true})[0]);
        const Tensors direction(in.begin() + static_cast<std::ptrdiff_t>(n),
                                in.begin() + static_cast<std::ptrdiff_t>(2 * n));
        Tensors result = jvp(gradients, at, direction, {.allow_zero = true});
        for (Array& value : values_of(table, inspected, DType::f64)) out.fixed.push_back(std::move(value));
        return result;
      },
      specs);
  return out;
}

// Of each step and head: sum of a b over all weights. [chunks * batch, heads] flat.
std::vector<double> inner_products(const Arrays& a, const Arrays& b) {
  std::vector<double> out(static_cast<std::size_t>(a[0].shape()[0] * a[0].shape()[1]), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::size_t each = static_cast<std::size_t>(a[i].size()) / out.size();
    for (std::size_t j = 0; j < out.size() * each; ++j)
      out[j / each] += a[i].as<double>()[j] * b[i].as<double>()[j];
  }
  return out;
}

void divide(Arrays& a, const std::vector<double>& by) {
  for (Array& x : a) {
    const std::size_t each = static_cast<std::size_t>(x.size()) / by.size();
    for (std::size_t j = 0; j < static_cast<std::size_t>(x.size()); ++j)
      if (by[j / each] > 0) x.as<double>()[j] /= by[j / each];
  }
}

Arrays minus(const Arrays& a, const Arrays& b) {
  Arrays out;
  for (std::size_t i = 0; i < a.size(); ++i) {
    out.push_back(a[i].clone());
    for (std::size_t j = 0; j < static_cast<std::size_t>(a[i].size()); ++j)
      out[i].as<double>()[j] -= b[i].as<double>()[j];
  }
  return out;
}

// lambda of the weights that each step makes: those that the next one finds; after the last, none.
Arrays after_step(const Arrays& lambdas, std::int64_t batch) {
  Arrays out;
  for (const Array& a : lambdas) {
    out.push_back(Array::zeros(DType::f64, a.shape()));
    const auto from = a.as<double>();
    const std::int64_t step = a.size() / a.shape()[0] * batch;
    std::ranges::copy(from.subspan(static_cast<std::size_t>(step)), out.back().as<double>().begin());
  }
  return out;
}

}  // namespace

Curvature curvature(const InspectedLoop& inspected, int iterations) {
  const Steps steps = steps_of(inspected);
  const Product product = product_of(inspected, steps);
  const std::int64_t chunks = inspected.chunks(), batch = inspected.batch(), heads = inspected.heads();

  const Arrays lambda = after_step(steps.lambdas, batch);
  const std::vector<double> square = inner_products(lambda, lambda),
                            curved = inner_products(lambda, product(steps.points, lambda));
  const std::size_t members = square.size();

  // The power iteration, from lambda and from a random direction: the larger of both.
  std::vector<double> radius(members, 0);
  for (int from = 0; from < 2; ++from) {
    Arrays v = lambda;
    if (from == 1)
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = random_normal(v[i].spec(), 0, 1, 1, i);
    const auto sizes = [&] {
      std::vector<double> out = inner_products(v, v);
      for (double& x : out) x = std::sqrt(x);
      return out;
    };
    divide(v, sizes());
    for (int i = 0; i < iterations; ++i) {
      v = minus(v, product(steps.points, v));
      const std::vector<double> now = sizes();
      for (std::size_t m = 0; m < members; ++m) radius[m] = worse(radius[m], now[m]);
      divide(v, now);
    }
  }

  // The worst of the batch.
  Curvature out;
  out.along = Array::full(DType::f64, {chunks, heads}, std::numeric_limits<double>::quiet_NaN());
  out.radius = Array::zeros(DType::f64, {chunks, heads});
  double beyond = 0;
  for (std::size_t m = 0; m < members; ++m) {
    const std::size_t head = m % static_cast<std::size_t>(heads),
                      step = m / static_cast<std::size_t>(heads) / static_cast<std::size_t>(batch),
                      at = step * static_cast<std::size_t>(heads) + head;
    double& along = out.along.as<double>()[at];
    double& most = out.radius.as<double>()[at];
    most = worse(most, radius[m]);
    if (square[m] == 0) continue;
    const double own = curved[m] / square[m];
    beyond = worse(beyond, std::abs(1 - own) - radius[m]);
    if (std::isnan(along) || std::abs(1 - own) > std::abs(1 - along)) along = own;
  }
  out.claims = {{"along lambda no step expands more than the radius says: |1 - along| <= radius",
                 worse(0.0, beyond), 1e-12}};
  return out;
}

ReportView curvature_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const Curvature r = curvature(inspected);
  ReportView view{
      "curvature", "Curvature along the inner trajectory", "Are the inner steps too long?",
      "eta H is the inner loss's curvature times the step size, where each step takes its gradient. A step "
      "multiplies a deviation by I - eta H. Its spectral radius, found by power iteration: below 1 the "
      "step "
      "contracts, above 1 it throws deviations further away in some direction, and meta-gradients through "
      "many such steps explode.\n\n"
      "Along lambda: the same in the one direction that the outer loss asks for. 0: flat; 1: the step goes "
      "straight to the minimum along it; above 2: it overshoots further than it came.",
      r.claims};
  const auto by_head = [&](const Array& map, const std::string& title, const std::string& label) {
    Chart chart{title, "inner step", label, {}};
    for (std::int64_t h = 0; h < context.drawn_heads; ++h) {
      std::vector<double> y;
      for (std::int64_t t = 0; t < inspected.chunks(); ++t) y.push_back(map.at(t * inspected.heads() + h));
      chart.series.push_back(line(fmt::format("head {}", h), y));
    }
    return chart;
  };
  Chart radius = by_head(r.radius, "Spectral radius of I - eta H", "largest |1 - eta eigenvalue|");
  radius.reference_lines = {{"expands above", 1}};
  radius.too_much = 1;
  view.pictures = {radius,
                   by_head(r.along, "Curvature along lambda", "lambda' eta H lambda / lambda' lambda")};
  const std::vector<double> all = r.radius.to_vector();
  const auto above = std::ranges::count_if(all, [](double x) { return x > 1 + 1e-9; });
  view.preformatted =
      above == 0 ? "no step expands\n"
                 : fmt::format("{} of {} steps (of all heads) expand: radius above 1\n", above, all.size());
  context.out.arrays["curvature_along_lambda"] = r.along;
  context.out.arrays["spectral_radius"] = r.radius;
  return view;
}

}  // namespace nestgrad::look

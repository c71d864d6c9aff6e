// What inner steps make of a deviation of the weights that they find.
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

// What the inner steps are taken from, steps as sequences.
struct Steps {
  Arrays states;   // weights and slots that each step finds, as State::flat has them
  Arrays lambdas;  // per weight that learns, what the outer loss wants of the weights that the step makes
};

// What the outer loss wants of the weights that a chunk [begin, end) makes, for the answers of its own tokens: with a step a chunk all
// of them read these weights, with one a token the last; read before write, none does.
Tensors wanted_by_own_answers(const OpenLoop& loop, const State& made, std::int64_t begin, std::int64_t end) {
  const Policy& policy = loop.options.policy;
  State from = made;
  std::vector<Tensor> values = made.weights.values();
  for (Tensor& w : values) w = probe(w);
  from.weights = made.weights.with(values);
  Tensors learning;
  for (std::size_t i = 0; i < loop.learning.size(); ++i)
    learning.push_back(from.weights[loop.learning.at(i).name]);
  if (policy.read == Policy::Read::before_write) {
    for (Tensor& w : learning) w = zeros(w.dtype(), w.shape());
    return learning;
  }
  // A chunk that is asked before it learns answers with what it finds.
  InnerLoopOptions ask = {.policy = policy, .form = FormChoice::primal};
  ask.policy.chunk = Policy::kWholeSequence;
  ask.policy.update = Policy::Update::per_chunk;
  ask.policy.read = Policy::Read::before_write;
  ask.policy.query_is_key = false;
  Views views = part(loop.views, begin, end);
  if (policy.query_is_key) views.q = views.k;
  views.position = {};
  const std::int64_t first = policy.update == Policy::Update::per_token ? end - begin - 1 : 0;
  views.q = slice(views.q, 2, first, end - begin);
  const Tensor answers = train_along(*loop.learner, from, views, ask).output;
  return grad(sum(answers * slice(loop.cotangent, 2, begin + first, end)), learning, {.allow_zero = true});
}

Steps steps_of(const InspectedLoop& inspected) {
  const std::int64_t chunks = inspected.chunks(), chunk = inspected.chunk();
  std::size_t n = 0;
  const Arrays all = OpenProgram(inspected, {}, [&](OpenLoop& loop, const Tensors&) {
    n = loop.learning.size();
    InnerLoopOptions with = loop.options;
    with.state_offset = zero_offsets(loop.learning, chunks);
    // Of the weights that a step finds; those that the last one makes, nobody finds.
    const Tensors of_found =
        grad(sum(loop.run(with).output * loop.cotangent), with.state_offset, {.allow_zero = true});
    std::vector<Tensors> own(n),
        found;  // of each weight that learns, of each number of the state: step by step
    State state = State::start(*loop.learner, loop.start);
    for (std::int64_t c = 0; c < chunks; ++c) {
      const Tensors now = state.flat();
      found.resize(now.size());
      for (std::size_t i = 0; i < now.size(); ++i) found[i].push_back(now[i]);
      const std::int64_t begin = c * chunk, end = std::min(begin + chunk, inspected.time());
      state = train_along(*loop.learner, state, part(loop.views, begin, end), loop.options).state;
      const Tensors wanted = wanted_by_own_answers(loop, state, begin, end);
      for (std::size_t i = 0; i < n; ++i) own[i].push_back(wanted[i]);
    }
    Tensors out;
    for (std::size_t i = 0; i < n; ++i) {
      const Tensor later = slice(of_found[i], 0, 1, chunks);
      const Tensor last = zeros(later.dtype(), slice(of_found[i], 0, 0, 1).shape());
      out.push_back(steps_as_batch(concat({later, last}, 0)) + concat(own[i], 0));
    }
    for (const Tensors& steps : found) out.push_back(concat(steps, 0));
    return out;
  })();
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(n);
  return {{middle, all.end()}, {all.begin(), middle}};
}

// J, the weights that a step makes differentiated by those that it finds (its slots held), times a direction, or J' times one:
// of every step at once.
class StepJacobian {
 public:
  StepJacobian(const InspectedLoop& inspected, const Steps& steps, bool transposed)
      : states_(steps.states), program_(inspected, specs(steps), [&](OpenLoop& loop, const Tensors& given) {
          const std::size_t n = steps.states.size();
          return product(loop, inspected.chunks(),
                         {given.begin(), given.begin() + static_cast<std::ptrdiff_t>(n)},
                         {given.begin() + static_cast<std::ptrdiff_t>(n), given.end()}, transposed);
        }) {}
  Arrays operator()(const Arrays& direction) const {
    Arrays in = states_;
    in.insert(in.end(), direction.begin(), direction.end());
    return program_(in);
  }

 private:
  static std::vector<Spec> specs(const Steps& steps) {
    std::vector<Spec> out;
    for (const Arrays* list : {&steps.states, &steps.lambdas})
      for (const Array& a : *list) out.push_back(a.spec());
    return out;
  }
  static Tensors product(const OpenLoop& loop, std::int64_t chunks, Tensors states, const Tensors& direction,
                         bool transposed) {
    const auto steps = [&](Tensor rows) { return steps_as_batch(rows, chunks); };
    Views views = loop.views;
    views.q = steps(views.q), views.k = steps(views.k), views.v = steps(views.v);
    views.gates = each(views.gates, steps);
    for (Tensor& s : states) s = probe(s);
    const State like = State::start(*loop.learner, for_batch(loop.learner->init(), views.k.dim(0)));
    const State found = like.with(states);
    const Weights made = train_along(*loop.learner, found, views, loop.options).last();
    Tensors from, to;
    for (std::size_t i = 0; i < loop.learning.size(); ++i) {
      from.push_back(found.weights[loop.learning.at(i).name]);
      to.push_back(made[loop.learning.at(i).name]);
    }
    return transposed ? vjp(to, direction, from, {.allow_zero = true})
                      : jvp(to, from, direction, {.allow_zero = true});
  }

  Arrays states_;
  OpenProgram program_;
};

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

std::vector<double> sizes(const Arrays& a) {
  std::vector<double> out = inner_products(a, a);
  for (double& x : out) x = std::sqrt(x);
  return out;
}

void divide(Arrays& a, const std::vector<double>& by) {
  for (Array& x : a) {
    const std::size_t each = static_cast<std::size_t>(x.size()) / by.size();
    for (std::size_t j = 0; j < static_cast<std::size_t>(x.size()); ++j)
      if (by[j / each] > 0) x.as<double>()[j] /= by[j / each];
  }
}

}  // namespace

Curvature curvature(const InspectedLoop& inspected, int iterations) {
  const Steps steps = steps_of(inspected);
  const StepJacobian forward(inspected, steps, false), backward(inspected, steps, true);
  const std::int64_t chunks = inspected.chunks(), batch = inspected.batch(), heads = inspected.heads();

  const Arrays& lambda = steps.lambdas;
  const std::vector<double> square = inner_products(lambda, lambda),
                            kept = inner_products(lambda, forward(lambda));
  const std::size_t members = square.size();

  // The power iteration of J' J, whose |J v| grows towards the largest, from lambda and from a random direction: the larger of both.
  std::vector<double> expansion(members, 0);
  for (int from = 0; from < 2; ++from) {
    Arrays v = lambda;
    if (from == 1)
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = random_normal(v[i].spec(), 0, 1, 1, i);
    divide(v, sizes(v));
    for (int i = 0; i < iterations; ++i) {
      const Arrays image = forward(v);
      const std::vector<double> now = sizes(image);
      for (std::size_t m = 0; m < members; ++m) expansion[m] = worse(expansion[m], now[m]);
      v = backward(image);
      divide(v, sizes(v));
    }
  }

  // The worst of the batch.
  Curvature out;
  out.along = Array::full(DType::f64, {chunks, heads}, std::numeric_limits<double>::quiet_NaN());
  out.expansion = Array::zeros(DType::f64, {chunks, heads});
  double beyond = 0;
  for (std::size_t m = 0; m < members; ++m) {
    const std::size_t head = m % static_cast<std::size_t>(heads),
                      step = m / static_cast<std::size_t>(heads) / static_cast<std::size_t>(batch),
                      at = step * static_cast<std::size_t>(heads) + head;
    double& along = out.along.as<double>()[at];
    double& most = out.expansion.as<double>()[at];
    most = worse(most, expansion[m]);
    if (square[m] == 0) continue;
    const double own = 1 - kept[m] / square[m];
    beyond = worse(beyond, std::abs(1 - own) - expansion[m]);
    if (std::isnan(along) || std::abs(1 - own) > std::abs(1 - along)) along = own;
  }
  out.claims = {{"along lambda no step expands more than the most: |1 - along| <= expansion",
                 worse(0.0, beyond), 1e-12}};
  return out;
}

ReportView curvature_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const Curvature r = curvature(inspected);
  ReportView view{
      "curvature", "Curvature along the inner trajectory", "Are the inner steps too long?",
      "J is the derivative of the weights that a step makes by those that it finds, what the optimiser carries besides being "
      "held: I - eta H of a plain step of rate eta, where H is the curvature of the inner loss. A step multiplies a deviation by J. "
      "Expansion is the most by which it lengthens one, found by power iteration: below 1 the step contracts, above 1 it throws "
      "deviations further away in some direction; meta-gradients through many steps that do so in the same one explode.\n\n"
      "Along lambda: lambda' (I - J) lambda / lambda' lambda, in the one direction that the outer loss asks for. 0: the "
      "step leaves a deviation as it was; 1: it takes all of it back; above 2: it overshoots further than it came. What is "
      "forgotten counts as taken back.",
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
  Chart expansion = by_head(r.expansion, "Expansion of each step", "largest |J v| / |v|");
  expansion.reference_lines = {{"expands above", 1}};
  expansion.too_much = 1;
  view.pictures = {expansion,
                   by_head(r.along, "Curvature along lambda", "lambda' (I - J) lambda / lambda' lambda")};
  const std::vector<double> all = r.expansion.to_vector();
  const auto above = std::ranges::count_if(all, [](double x) { return x > 1 + 1e-9; });
  view.preformatted = above == 0 ? "no step expands\n"
                                 : fmt::format("{} of {} steps (of all heads) expand: expansion above 1\n",
                                               above, all.size());
  context.out.arrays["curvature_along_lambda"] = r.along;
  context.out.arrays["expansion"] = r.expansion;
  return view;
}

}  // namespace nestgrad::look

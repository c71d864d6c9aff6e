// One inner step in full.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "look/open_loop.h"
#include "look/views.h"

namespace nestgrad::look {

namespace {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

double mean_of(const Array& a) {
  double sum = 0;
  for (double v : a.to_vector()) sum += v;
  return sum / static_cast<double>(a.size());
}

// The gradient of the step's tokens by each weight that learns, at the point where it is taken. points:
// InnerLoopResult::points of the whole sequence.
Tensors gradients_of_step(const OpenLoop& loop, const Policy& policy, const StepCard& step,
                          const Tensors& points) {
  const std::int64_t count = step.to - step.from;
  const Views own = part(loop.views, step.from, step.to);
  Tensors at, gradients;
  Weights point = loop.start;
  Tensors values = point.values();
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Tensor here = points[i];
    at.push_back(probe(reshape(slice(here, 0, step.step, step.step + 1),
                               Shape(here.shape().begin() + 1, here.shape().end()))));
    values[point.index(loop.learning.at(i).name)] = at.back();
  }
  Tensors held = point.with(values).spread(count).values();
  for (Tensor& h : held) h = stop_gradient(h);
  point = point.with(values).spread(count).with_held(held);
  const Tensor loss = loop.learner->loss(point, own.k, own.v);
  Gates gates = own.gates;  // and those that the learner makes itself
  const std::int64_t time = loop.views.k.dim(2), chunk = std::min(policy.chunk_of(time), time);
  const Tensor place =
      iota(own.k.dtype(), {count, 1}, 0) + static_cast<double>(step.from - step.step * chunk);
  for (const auto& [name, rows] : loop.learner->gates(point, own.k, own.v, place)) gates[name] = rows;
  for (std::size_t i = 0; i < points.size(); ++i) {
    Tensor rate = rate_of(policy, gates, loop.learning.at(i));
    if (rate.defined()) rate = stop_gradient(rate);
    const Tensor rated = sum(rate.defined() ? loss * rate : loss);
    const double share = policy.average ? 1 / static_cast<double>(count) : 1;
    gradients.push_back(grad(rated * share, {at[i]}, {.allow_zero = true})[0]);
  }
  return gradients;
}

// Of each weight that learns: what the step finds, and its change; the gradients; then losses of the tokens of
// the step: at the weights found and written, and as the loop tracks them (at the first weights, before, after).
Tensors outputs_of_step(const OpenLoop& loop, const Policy& policy, const StepCard& step) {
  InnerLoopOptions options = loop.options;
  options.track_loss = true;
  options.keep_points = true;
  const InnerLoopResult whole = loop.run(options);
  options.track_loss = options.keep_points = false;
  const auto weights_at = [&](std::int64_t end) {
    if (end == 0) return loop.start;
    Views before = part(loop.views, 0, end);
    // A chunk that is the whole sequence has as many places as there are tokens.
    if (Tensor& at = before.position; at.defined() && at.dim(0) > policy.chunk_of(end))
      at = slice(at, 0, 0, policy.chunk_of(end));
    return train_along(*loop.learner, loop.start, before, options).last();
  };
  const Weights found = weights_at(step.from), written = weights_at(step.to);
  Tensors results;
  for (std::size_t i = 0; i < loop.learning.size(); ++i) {
    const std::string& name = loop.learning.at(i).name;
    results.push_back(found[name]);
    results.push_back(written[name] - found[name]);
  }
  const Tensors gradients = gradients_of_step(loop, policy, step, whole.points);
  results.insert(results.end(), gradients.begin(), gradients.end());
  const Views own = part(loop.views, step.from, step.to);
  const auto loss_at = [&](const Weights& w) {
    return loop.learner->loss(w.spread(step.to - step.from), own.k, own.v);
  };
  results.push_back(loss_at(found));
  results.push_back(loss_at(written));
  for (const Tensor& tracked : {whole.loss_initial, whole.loss_before, whole.loss_after})
    results.push_back(slice(tracked, 2, step.from, step.to));
  return results;
}

}  // namespace

StepCard explain_step(const InspectedLoop& inspected, std::int64_t token, const Channels& reach) {
  const std::int64_t time = inspected.time(), chunk = inspected.chunk();
  if (token < 0 || token >= time)
    throw ConfigError(
        fmt::format("[inspect] there is no token {}; the sequence has {}, counted from 0", token, time));
  const Policy& policy = inspected.policy;
  const bool per_chunk = policy.update == Policy::Update::per_chunk;
  const bool after = policy.read == Policy::Read::after_write;
  StepCard out;
  out.token = token;
  out.step = token / chunk;
  out.from = per_chunk ? out.step * chunk : token;
  out.to = per_chunk ? out.from + chunk : token + 1;

  const Arrays r = OpenProgram(
      inspected, {}, [&](OpenLoop& loop, const Tensors&) { return outputs_of_step(loop, policy, out); })();
  const std::size_t n = (r.size() - 5) / 3;  // weights that learn
  Arrays found, change, gradient;
  for (std::size_t i = 0; i < n; ++i) {
    found.push_back(r[2 * i]);
    change.push_back(r[2 * i + 1]);
    gradient.push_back(r[2 * n + i]);
  }
  out.state = norm(found);
  out.written = norm(change);
  out.gradient = norm(gradient);
  const Array *before = &r[3 * n], *now = before + 1, *tracked = before + 2;
  out.loss_initial = mean_of(tracked[0]);
  out.loss_before = mean_of(tracked[1]);
  out.loss_after = mean_of(tracked[2]);

  out.first_reader = after ? (per_chunk ? out.from : token) : out.to;
  if (out.first_reader >= time) out.first_reader = -1;
  // Where no later gradient has moved with the write, as of a loss that is linear in the weights, it is in none.
  bool moves = false;
  for (std::int64_t t = 0; t < time; ++t) moves = moves || reach.gradient.at(t * time + token) != 0;
  out.next_gradient = moves && (out.step + 1) * chunk < time ? (out.step + 1) * chunk : -1;
  out.strongest_reader = -1;
  double most = 0;
  for (std::int64_t t = 0; t < time; ++t)
    if (const double size = std::abs(reach.full.at(t * time + token)); size > most)
      most = size, out.strongest_reader = t;

  out.claims = {
      {"loss before = loss at the weights found",
       relative_distance({before->reshaped({before->size()})}, {tracked[1].reshaped({tracked[1].size()})}),
       1e-10},
      {"loss after = loss at the weights written",
       relative_distance({now->reshaped({now->size()})}, {tracked[2].reshaped({tracked[2].size()})}), 1e-10}};
  return out;
}

std::string StepCard::str() const {
  const auto token_text = [](std::int64_t t) {
    return t < 0 ? std::string("none in this sequence") : fmt::format("token {}", t);
  };
  std::string out = fmt::format("token {}, in inner step {}", token, step);
  if (to - from > 1) out += fmt::format(", which takes in tokens {} to {}", from, to - 1);
  out += fmt::format("\n  state read       |W| = {:.4g}\n", state);
  out += fmt::format("  loss             {:.4g} at the first weights, {:.4g} before the step, {:.4g} after\n",
                     loss_initial, loss_before, loss_after);
  out += fmt::format("  gradient         |rate x gradient| = {:.4g}\n", gradient);
  out += fmt::format("  state written    |change of W| = {:.4g}\n", written);
  out += fmt::format("  read first by    {}\n", token_text(first_reader));
  out += fmt::format("  in the gradient  of {}{}\n", token_text(next_gradient),
                     next_gradient < 0 ? "" : " and later");
  out += fmt::format("  matters most to  {}\n", token_text(strongest_reader));
  return out;
}

ReportView one_token_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const std::int64_t token = context.token();
  const StepCard card = explain_step(inspected, token, context.channels());
  ReportView view{
      "one-token", fmt::format("One step: token {}", token), "What happens when one token is read?",
      "The weights that the step finds, what it does to "
      "them, and who reads them next. Norms are taken "
      "over all weights of all heads; losses are means. The gradient is as the optimiser is given it, before the "
      "place of a token in its chunk (position rates) counts.",
      card.claims};
  view.preformatted = card.str();
  return view;
}

}  // namespace nestgrad::look

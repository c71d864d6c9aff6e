// Token by token: inner losses, one step in full, and what the keys are like.
#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "ttt/inspect/open.h"

namespace nestgrad::ttt {

namespace {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

// [batch, heads, time] -> [time]
std::vector<double> mean_over_members(const Array& losses, std::int64_t time) {
  std::vector<double> out = sum_over_members(losses, time);
  for (double& x : out) x /= static_cast<double>(losses.size() / time);
  return out;
}

double mean_of(const Array& a) {
  double sum = 0;
  for (double v : a.to_vector()) sum += v;
  return sum / static_cast<double>(a.size());
}

}  // namespace

InnerLosses inner_losses(const Specimen& specimen) {
  const Arrays r = OpenProgram(specimen, {}, [](OpenLoop& loop, const Tensors&) {
    InnerLoopOptions options = loop.options;
    options.track_loss = true;
    const InnerLoopResult run = loop.run(options);
    return Tensors{run.loss_initial, run.loss_before, run.loss_after};
  })();
  const std::int64_t time = specimen.time();
  InnerLosses out{mean_over_members(r[0], time),
                  mean_over_members(r[1], time),
                  mean_over_members(r[2], time),
                  specimen.outer_loss,
                  {}};
  // A step per token: its first token; a step per chunk: all tokens of its first chunk.
  const std::int64_t untouched =
      specimen.policy.update == Policy::Update::per_chunk ? specimen.chunk() : std::int64_t{1};
  double error = 0;
  for (std::int64_t i = 0; i < r[0].size(); ++i)
    if (i % time < untouched)
      error = std::max(error, std::abs(r[0].at(i) - r[1].at(i)) / std::max(1.0, std::abs(r[0].at(i))));
  out.claims = {{"before the first step the loss is that at the first weights", error, 1e-12}};
  return out;
}

// ---- one token ----

StepCard explain_step(const Specimen& specimen, std::int64_t token, const Channels& reach) {
  const std::int64_t time = specimen.time(), chunk = specimen.chunk();
  if (token < 0 || token >= time)
    throw ConfigError(
        fmt::format("[inspect] there is no token {}; the sequence has {}, counted from 0", token, time));
  const Policy& policy = specimen.policy;
  const bool per_chunk = policy.update == Policy::Update::per_chunk;
  const bool after = policy.read == Policy::Read::after_write;
  StepCard out;
  out.token = token;
  out.step = token / chunk;
  out.from = per_chunk ? out.step * chunk : token;
  out.to = per_chunk ? out.from + chunk : token + 1;

  std::size_t n = 0;
  const OpenProgram program(specimen, {}, [&](OpenLoop& loop, const Tensors&) {
    InnerLoopOptions options = loop.options;
    options.track_loss = true;
    options.keep_points = true;
    const InnerLoopResult whole = loop.run(options);
    options.track_loss = options.keep_points = false;
    const auto weights_at = [&](std::int64_t end) {
      if (end == 0) return loop.start;
      return train_along(*loop.learner, loop.start, part(loop.views, 0, end), options).last();
    };
    const Weights found = weights_at(out.from), written = weights_at(out.to);
    n = loop.learning.size();
    Tensors results;
    for (std::size_t i = 0; i < n; ++i) {
      const std::string& name = loop.learning.at(i).name;
      results.push_back(found[name]);
      results.push_back(written[name] - found[name]);
    }
    // The gradient of the step's tokens, at the point where it is taken.
    const std::int64_t count = out.to - out.from;
    const Views own = part(loop.views, out.from, out.to);
    Tensors at;
    Weights point = loop.start;
    Tensors values = point.values();
    for (std::size_t i = 0; i < n; ++i) {
      const Tensor here = whole.points[i];
      at.push_back(probe(reshape(slice(here, 0, out.step, out.step + 1),
                                 Shape(here.shape().begin() + 1, here.shape().end()))));
      values[point.index(loop.learning.at(i).name)] = at.back();
    }
    Tensors held = point.with(values).spread(count).values();
    for (Tensor& h : held) h = stop_gradient(h);
    point = point.with(values).spread(count).with_held(held);
    const Tensor loss = loop.learner->loss(point, own.k, own.v);
    for (std::size_t i = 0; i < n; ++i) {
      const Tensor rate = rate_of(policy, own.gates, loop.learning.at(i));
      const Tensor rated = rate.defined() ? loss * rate : loss;
      results.push_back(grad(sum(rated), {at[i]}, {.allow_zero = true})[0]);
    }

    const auto loss_at = [&](const Weights& w) { return loop.learner->loss(w.spread(count), own.k, own.v); };
    results.push_back(loss_at(found));
    results.push_back(loss_at(written));
    for (const Tensor& tracked : {whole.loss_initial, whole.loss_before, whole.loss_after})
      results.push_back(slice(tracked, 2, out.from, out.to));
    return results;
  });
  const Arrays r = program();
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
  out.next_gradient = (out.step + 1) * chunk < time ? (out.step + 1) * chunk : -1;
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
  out += fmt::format("  in the gradient  of {} and later\n", token_text(next_gradient));
  out += fmt::format("  matters most to  {}\n", token_text(strongest_reader));
  return out;
}

// ---- keys ----

namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Rows of batch entry 0 and one head.
Rows rows_of(const Array& x, std::int64_t head) {
  const std::int64_t time = x.shape()[2], dim = x.shape()[3];
  return Eigen::Map<const Rows>(x.as<double>().data() + head * time * dim, time, dim);
}

Array to_array(const Rows& rows) {
  Array out(DType::f64, {rows.rows(), rows.cols()});
  Eigen::Map<Rows>(out.as<double>().data(), rows.rows(), rows.cols()) = rows;
  return out;
}

struct Projection {
  KeyStatistics::Plane plane;
  double variance_error = 0;
};

// Two principal components of both together.
Projection project(const Rows& a, const Rows& b) {
  Rows all(a.rows() + b.rows(), a.cols());
  all << a, b;
  const Eigen::RowVectorXd mean = all.colwise().mean();
  all.rowwise() -= mean;
  const Eigen::MatrixXd covariance = all.transpose() * all / static_cast<double>(all.rows());
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(covariance);
  const Eigen::Index dim = covariance.rows(), kept = std::min<Eigen::Index>(2, dim);
  Rows axes = Rows::Zero(dim, 2);
  for (Eigen::Index i = 0; i < kept; ++i) {
    axes.col(i) = solver.eigenvectors().col(dim - 1 - i);
    Eigen::Index largest = 0;  // the sign of an axis is free: its largest entry is positive
    axes.col(i).cwiseAbs().maxCoeff(&largest);
    if (axes(largest, i) < 0) axes.col(i) = -axes.col(i);
  }
  const Rows placed = all * axes;
  const double total = covariance.trace(), shown = placed.squaredNorm() / static_cast<double>(all.rows()),
               expected = solver.eigenvalues().tail(kept).sum();
  Projection out;
  out.plane = {to_array(placed.topRows(a.rows())), to_array(placed.bottomRows(b.rows())),
               total > 0 ? shown / total : 0};
  out.variance_error = total > 0 ? std::abs(shown - expected) / total : 0;
  return out;
}

}  // namespace

KeyStatistics key_statistics(const Specimen& specimen) {
  const Array output = OpenProgram(specimen, {}, [](OpenLoop& loop, const Tensors&) {
    return Tensors{loop.run(loop.options).output};
  })()[0];
  KeyStatistics out;
  double variance_error = 0, beyond = 0;
  for (std::int64_t head = 0; head < specimen.heads(); ++head) {
    const Rows k = rows_of(specimen.k, head);
    const double mean_norm = k.rowwise().norm().mean();
    out.shift.push_back(mean_norm > 0 ? k.colwise().mean().norm() / mean_norm : 0);
    beyond = std::max(beyond, out.shift.back() - 1);
    const Projection qk = project(rows_of(specimen.q, head), k),
                     vo = project(rows_of(specimen.v, head), rows_of(output, head));
    out.queries_keys.push_back(qk.plane);
    out.values_outputs.push_back(vo.plane);
    variance_error = std::max({variance_error, qk.variance_error, vo.variance_error});
  }
  out.claims = {{"the shift ratio is at most 1", std::max(0.0, beyond), 1e-12},
                {"the plane shows the variance of the two largest eigenvalues", variance_error, 1e-12}};
  return out;
}

}  // namespace nestgrad::ttt

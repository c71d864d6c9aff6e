// Derivatives of any order of a scalar program, along fixed random directions; and the loop that a scan
// stands for.
#pragma once

#include "ops/accumulate.h"
#include "tests/testing.h"

namespace nestgrad::testing {

// A scalar made of inputs.
using Scalar = std::function<Tensor(const Tensors& inputs)>;

inline Tensor dot(const Tensors& a, const Tensors& b) {
  Tensor total;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Tensor term = sum(a[i] * b[i]);
    accumulate(total, term);
  }
  return total;
}

inline Arrays directions(const std::vector<Spec>& specs, int order) {
  return random(specs, 1000U + 100U * static_cast<unsigned>(order));
}

// L_0 = y, L_k = sum_i <dL_(k-1)/dx_i, r_i> with the directions of order k.
inline Tensor directional(Tensor y, const Tensors& x, int order) {
  std::vector<Spec> specs;
  for (const Tensor& t : x) specs.push_back(t.spec());
  for (int k = 1; k <= order; ++k) {
    Tensors r;
    for (const Array& a : directions(specs, k)) r.push_back(constant(a));
    y = dot(grad(y, x), r);
  }
  return y;
}

// The gradient of L_(order-1): every input's derivative of that order. Order 0: the value.
inline Function derivative(const Scalar& fn, const std::vector<Spec>& specs, int order) {
  return trace(
      [&](const Tensors& x) -> Tensors {
        const Tensor y = fn(x);
        return order == 0 ? Tensors{y} : grad(directional(y, x, order - 1), x);
      },
      specs);
}

// How a scan is carried out: by scan() itself, or by `unrolled`.
using Loop = std::function<ScanResult(const StepFn&, const Tensors& init, const Tensors& xs, ScanOptions)>;

inline ScanResult as_scan(const StepFn& step, const Tensors& init, const Tensors& xs,
                          ScanOptions options = {}) {
  return scan(step, init, xs, options);
}

inline ScanResult unrolled(const StepFn& step, const Tensors& init, const Tensors& xs,
                           ScanOptions options = {}) {
  const std::int64_t steps = xs.empty() ? options.steps : xs[0].dim(0);
  ScanResult result{init, {}};
  std::vector<Tensors> ys;  // by y, by time
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::int64_t t = options.reverse ? steps - 1 - i : i;
    Tensors now;
    for (const Tensor& x : xs)
      now.push_back(reshape(slice(x, 0, t, t + 1), Shape(x.shape().begin() + 1, x.shape().end())));
    const StepOutput next = step(result.carries, now);
    result.carries = next.carries;
    ys.resize(next.ys.size(), Tensors(static_cast<std::size_t>(steps)));
    for (std::size_t j = 0; j < ys.size(); ++j) {
      Shape shape = next.ys[j].shape();
      shape.insert(shape.begin(), 1);
      ys[j][static_cast<std::size_t>(t)] = reshape(next.ys[j], shape);
    }
  }
  for (const Tensors& y : ys) result.ys.push_back(concat(y, 0));
  return result;
}

// A model that learns while it reads: a weight W [3,3] that learns tanh(k W) = v by gradient descent along X [T,3].
// Inputs thk [3,3], thv [3,3], lr [1], W0 [3,3], X [T,3].
inline std::vector<Spec> learner_specs(std::int64_t steps = 6) {
  return {f64({3, 3}), f64({3, 3}), f64({1}), f64({3, 3}), f64({steps, 3})};
}
inline Tensor learner(const Tensors& in, const Loop& loop, ScanOptions options = {}) {
  const Tensor thk = in[0], thv = in[1], lr = in[2];
  const ScanResult r = loop(
      [&](const Tensors& carry, const Tensors& x) -> StepOutput {
        const Tensor row = reshape(x[0], {1, 3}), k = matmul(row, thk), v = matmul(row, thv);
        const Tensor w = carry[0];
        const Tensor loss = 0.5 * sum(square(tanh(matmul(k, w)) - v));
        const Tensor next = w - lr * grad(loss, w);
        return {{next}, {reshape(matmul(row, next), {3})}};
      },
      {in[3]}, {in[4]}, options);
  return sum(tanh(r.ys[0])) + sum(square(r.carries[0]));
}

// The same with `inner` gradient steps per token, as a loop inside the loop.
inline Tensor nested_learner(const Tensors& in, const Loop& loop, ScanOptions options = {},
                             std::int64_t inner = 3) {
  const Tensor thk = in[0], thv = in[1], lr = in[2];
  const ScanResult r = loop(
      [&](const Tensors& carry, const Tensors& x) -> StepOutput {
        const Tensor row = reshape(x[0], {1, 3}), k = matmul(row, thk), v = matmul(row, thv);
        ScanOptions steps = options;
        steps.reverse = false;
        steps.steps = inner;
        const ScanResult descent = loop(
            [&](const Tensors& w, const Tensors&) -> StepOutput {
              const Tensor loss = 0.5 * sum(square(tanh(matmul(k, w[0])) - v));
              return {{w[0] - lr * grad(loss, {w[0]})[0]}, {}};
            },
            {carry[0]}, {}, steps);
        const Tensor next = descent.carries[0];
        return {{next}, {reshape(matmul(row, next), {3})}};
      },
      {in[3]}, {in[4]}, options);
  return sum(tanh(r.ys[0])) + sum(square(r.carries[0]));
}

}  // namespace nestgrad::testing

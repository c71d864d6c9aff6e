// TTT-Linear (Sun et al. 2024): f(x) = x + LN(x W + b) learns a sequence while it reads it. What its two floors
// share: the arrays, and the gradient of the inner loss 1/2 |f(k) - v|^2 with its own derivative.
//
// Both walk through one sequence (one head of one element of the batch) after the other, so that what the
// backward pass needs of the forward pass is that of one sequence.
#pragma once

#include <vector>

#include "bench/floors/floor.h"

namespace nestgrad::floors {

// Pointers to the numbers of one sequence. Gradients are those of the whole work: what belongs to all sequences
// (of one head) is added to.
template <class T>
struct Sequence {
  std::int64_t time;
  Rows<const T> q, k, v, W;
  const T *b, *gain, *shift, *rate,
      *position;  // rates: what is learned at a token, and at its place in the chunk
  Rows<T> output;
  Rows<const T> cotangent;  // from here on only with a backward pass
  Rows<T> dq, dk, dv, dW;
  T *db, *dgain, *dshift, *drate, *dposition;
};

// ---- the inner gradient: G = dl/dz of l = 1/2 |LN(z) gain + shift + k - v|^2 ----

template <class T>
struct InnerGradient {
  Row<T> x, G;  // x: LN(z)
  T r;          // 1 / the standard deviation of z
};

template <class T>
FLOORS_INLINE InnerGradient<T> inner_gradient(Row<T> z, const Sequence<T>& s, std::int64_t t) {
  const T r = normalise(z);
  const Row<T> gain = row(s.gain);
  const Row<T> u = gain * (gain * z + row(s.shift) + row(s.k[t]) - row(s.v[t]));
  return {z, norm_gradient(u, z, r), r};
}

// What dG, the gradient with respect to G, hands back to z, to k (to v: the opposite; to the shift: the same)
// and to the gain. With e = gain x + shift + k - v and u = gain e, G = r (u - mean u - x mean(u x)).
template <class T>
struct InnerGradientBack {
  Row<T> dz, dk, dgain;
};

template <class T>
FLOORS_INLINE InnerGradientBack<T> inner_gradient_back(const Row<T>& dG, const T* x_of, const T* G_of, T r,
                                                       const Sequence<T>& s, std::int64_t t) {
  const Row<T> x = row(x_of), gain = row(s.gain);
  const Row<T> e = gain * x + row(s.shift) + row(s.k[t]) - row(s.v[t]);
  const Row<T> u = gain * e;
  const Row<T> du = norm_gradient(dG, x, r);
  const Row<T> dk = gain * du;
  const Row<T> dx = gain * dk - r * mean_of_product(u, x) * dG - r * mean_of_product(dG, x) * u;
  // dr = dG . G / r, and r changes with z as -r^2 x / 64
  const Row<T> dz = norm_gradient(dx, x, r) - r * mean_of_product(dG, row(G_of)) * x;
  return {dz, dk, du * (e + gain * x)};
}

// ---- the output: q + LN(y) gain + shift ----

// x: where LN(y) goes. -> 1 / the standard deviation of y
template <class T>
FLOORS_INLINE T write_output(Row<T> y, T* x, const Sequence<T>& s, std::int64_t t) {
  const T r = normalise(y);
  store(x, y);
  store(s.output[t], row(s.q[t]) + y * row(s.gain) + row(s.shift));
  return r;
}

// -> the gradient with respect to y
template <class T>
FLOORS_INLINE Row<T> write_output_back(const T* x_of, T r, const Sequence<T>& s, std::int64_t t) {
  const Row<T> x = row(x_of), d = row(s.cotangent[t]);
  add_to(s.dgain, d * x);
  add_to(s.dshift, d);
  return norm_gradient(d * row(s.gain), x, r);
}

// ---- the work: rates, and a Form (TttLinearCore, TttLinearOnline) for each sequence ----

template <class T>
void sigmoid(const T* from, T* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + lanes<T> <= count; i += lanes<T>) store<T>(to + i, T{1} / (T{1} + exp<T>(-load(from + i))));
  for (; i < count; ++i) to[i] = T{1} / (T{1} + std::exp(-from[i]));
}
template <class T>
void sigmoid_back(const T* value, T* gradient, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) gradient[i] *= value[i] * (T{1} - value[i]);
}

template <class T, template <class> class Form>
class TttLinear : public Floor {
 public:
  TttLinear(const Sizes& sizes, Arrays inputs)
      : Floor(sizes, std::move(inputs)), form_(sizes), rates_(tokens()), positions_(chunk()) {
    if (sizes.chunk != Form<T>::chunk || sizes.time % sizes.chunk != 0)
      throw ConfigError(
          fmt::format("[floors] mini-batches of {} in {} tokens; this program is written for {}", sizes.chunk,
                      sizes.time, Form<T>::chunk));
    const Shape sequences{sizes.batch, sizes.heads, sizes.time, kDim}, of_heads{sizes.heads, kDim};
    const auto rows = [&](const char* name) {
      return reinterpret_cast<Rows<const T>>(input<T>(name, sequences));
    };
    const auto grad_rows = [&](const char* name) { return reinterpret_cast<Rows<T>>(gradient<T>(name)); };
    raw_rates_ = input<T>("rate", {sizes.batch, sizes.heads, sizes.time, 1});
    raw_positions_ = input<T>("position", {sizes.chunk});
    first_ = {.time = sizes.time,
              .q = rows("q"),
              .k = rows("k"),
              .v = rows("v"),
              .W = reinterpret_cast<Rows<const T>>(input<T>("W1", {sizes.heads, kDim, kDim})),
              .b = input<T>("b1", {sizes.heads, 1, kDim}),
              .gain = input<T>("ttt_norm_weight", of_heads),
              .shift = input<T>("ttt_norm_bias", of_heads),
              .rate = rates_.data(),
              .position = positions_.data(),
              .output = reinterpret_cast<Rows<T>>(output<T>("output", sequences)),
              .cotangent = sizes.backward ? rows("cotangent") : nullptr,
              .dq = grad_rows("q"),
              .dk = grad_rows("k"),
              .dv = grad_rows("v"),
              .dW = grad_rows("W1"),
              .db = gradient<T>("b1"),
              .dgain = gradient<T>("ttt_norm_weight"),
              .dshift = gradient<T>("ttt_norm_bias"),
              .drate = gradient<T>("rate"),
              .dposition = gradient<T>("position")};
  }

  void run() override {
    sigmoid(raw_rates_, rates_.data(), tokens());
    sigmoid(raw_positions_, positions_.data(), chunk());
    if (sizes_.backward)
      for (const char* name : {"W1", "b1", "ttt_norm_weight", "ttt_norm_bias", "position"})
        clear(fmt::format("grad.{}", name));
    // In a model the loss reads all heads, so that no backward pass begins before the last forward pass has ended.
    const std::int64_t sequences = sizes_.batch * sizes_.heads;
    for (std::int64_t i = 0; i < sequences; ++i) form_.forward(sequence(i), i);
    if (!sizes_.backward) return;
    for (std::int64_t i = 0; i < sequences; ++i) form_.backward(sequence(i), i);
    sigmoid_back(rates_.data(), first_.drate, tokens());
    sigmoid_back(positions_.data(), first_.dposition, chunk());
  }

 private:
  std::int64_t tokens() const { return sizes_.batch * sizes_.heads * sizes_.time; }
  std::int64_t chunk() const { return sizes_.chunk; }

  Sequence<T> sequence(std::int64_t i) const {
    Sequence<T> s = first_;
    const std::int64_t tokens = i * s.time, head = i % sizes_.heads;
    for (auto* rows : {&s.q, &s.k, &s.v}) *rows += tokens;
    s.W += head * kDim;
    for (const T** vector : {&s.b, &s.gain, &s.shift}) *vector += head * kDim;
    s.rate += tokens;
    s.output += tokens;
    if (!sizes_.backward) return s;
    s.cotangent += tokens;
    for (auto* rows : {&s.dq, &s.dk, &s.dv}) *rows += tokens;
    s.dW += head * kDim;
    for (T** vector : {&s.db, &s.dgain, &s.dshift}) *vector += head * kDim;
    s.drate += tokens;
    return s;
  }

  Form<T> form_;
  std::vector<T> rates_, positions_;
  const T *raw_rates_ = nullptr, *raw_positions_ = nullptr;
  Sequence<T> first_{};
};

}  // namespace nestgrad::floors

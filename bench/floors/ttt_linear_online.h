// TTT-Linear with mini-batches of one token. Of a token, with state W, b and rate e = p r:
//
//   z = k W + b                        G = the inner gradient at z
//   y = q W + b - e (q . k + 1) G      output = q + LN(y) gain + shift
//   W <- W - e k' G, b <- b - e G
//
// Products with one row do little with each element of W that they load, so W is walked over once a token: the
// step of the token before, z and y in one pass. The backward pass needs W before each token; to keep them all
// takes more time than to make them again, by the same steps, from every 16th (they fit into the second-level
// cache then).
#pragma once

#include "bench/floors/ttt_linear.h"

namespace nestgrad::floors {

template <class T>
class TttLinearOnline {
 public:
  static constexpr int chunk = 1;

  explicit TttLinearOnline(const Sizes& sizes)
      : keep_(sizes.backward), biases_(1), saved_(1), kept_(1), replayed_(1) {
    if (!keep_) return;
    const auto time = static_cast<std::size_t>(sizes.time);
    biases_.resize(time);
    saved_.resize(time);
    kept_.resize(time / kEvery + 1);
    replayed_.resize(kEvery);
  }

  void forward(const Sequence<T>& s) {
    std::memcpy(W_.at, s.W, sizeof W_.at);
    Row<T> b = row(s.b);
    const T* G = nullptr;
    for (std::int64_t t = 0; t < s.time; ++t) {
      const auto i = static_cast<std::size_t>(keep_ ? t : 0);
      alignas(64) T z[kDim], y[kDim];
      if (t == 0) step_and_read<false>(nullptr, T{0}, nullptr, s.k[t], s.q[t], z, y);
      else step_and_read<true>(s.k[t - 1], step(s, t - 1), G, s.k[t], s.q[t], z, y);
      if (keep_ && t % kEvery == 0) kept_[i / kEvery] = W_;
      forward_token(s, t, b, row(z), row(y), saved_[i]);
      store(biases_[i].at, b);
      G = saved_[i].G;
      b = b + step(s, t) * row(G);
    }
  }

  void backward(const Sequence<T>& s) {
    dW_ = Matrix{};
    db_ = Vector{};
    for (std::int64_t from = (s.time - 1) / kEvery * kEvery; from >= 0; from -= kEvery) {
      const std::int64_t to = std::min(s.time, from + kEvery);
      replayed_[0] = kept_[static_cast<std::size_t>(from / kEvery)];
      for (std::int64_t t = from; t + 1 < to; ++t) {
        const auto i = static_cast<std::size_t>(t - from);
        replay(s.k[t], step(s, t), saved_[static_cast<std::size_t>(t)].G, replayed_[i], replayed_[i + 1]);
      }
      for (std::int64_t t = to - 1; t >= from; --t)
        backward_token(s, t, replayed_[static_cast<std::size_t>(t - from)],
                       saved_[static_cast<std::size_t>(t)]);
    }
    for (int i = 0; i < kDim; ++i) add_to(s.dW[i], row(dW_.at[i]));
    add_to(s.db, row(db_.at));
  }

 private:
  static constexpr std::int64_t kEvery = 16;
  struct alignas(64) Matrix {
    T at[kDim][kDim];
  };
  struct alignas(64) Vector {
    T at[kDim];
  };
  struct alignas(64) Saved {  // x, x_out: LN(z), LN(y); r, r_out: 1 / their standard deviations
    T x[kDim], G[kDim], x_out[kDim];
    T r, r_out, read;  // read: q . k + 1
  };

  static T step(const Sequence<T>& s, std::int64_t t) { return -s.position[0] * s.rate[t]; }

  // W <- W + step k' G (if told to), z = k_now W, y = q_now W: four registers of columns at a time, so that G
  // and both sums stay in registers.
  template <bool with_step>
  void step_and_read(const T* k, T step, const T* G, const T* k_now, const T* q_now, T* z, T* y) {
    constexpr int size = 4;
    for (int j0 = 0; j0 < kDim; j0 += size * lanes<T>) {
      Vec<T> zs[size] = {}, ys[size] = {}, g[size];
      if constexpr (with_step)
#pragma GCC unroll 4
        for (int j = 0; j < size; ++j) g[j] = load(G + j0 + j * lanes<T>) * step;
      for (int i = 0; i < kDim; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < size; ++j) {
          T* at = &W_.at[i][j0 + j * lanes<T>];
          Vec<T> w = load(at);
          if constexpr (with_step) {
            w += k[i] * g[j];
            store<T>(at, w);
          }
          zs[j] += k_now[i] * w;
          ys[j] += q_now[i] * w;
        }
#pragma GCC unroll 4
      for (int j = 0; j < size; ++j) {
        store<T>(z + j0 + j * lanes<T>, zs[j]);
        store<T>(y + j0 + j * lanes<T>, ys[j]);
      }
    }
  }

  // z = k W, y = q W
  static void forward_token(const Sequence<T>& s, std::int64_t t, const Row<T>& b, const Row<T>& z,
                            const Row<T>& y, Saved& o) {
    const InnerGradient<T> g = inner_gradient(z + b, s, t);
    o.r = g.r;
    store(o.x, g.x);
    store(o.G, g.G);
    o.read = dot(row(s.q[t]), row(s.k[t])) + 1;
    o.r_out = write_output(y + b + step(s, t) * o.read * g.G, o.x_out, s, t);
  }

  // to = from + step k' G
  static void replay(const T* k, T step, const T* G, const Matrix& from, Matrix& to) {
    const Row<T> g = step * row(G);
    for (int i = 0; i < kDim; ++i) store(to.at[i], row(from.at[i]) + k[i] * g);
  }

  // dG <- dG + step k dW, dk = dW G: one pass over dW.
  void state_back(const T* k, T step, const T* G, T* dG, T* dk) const {
    for (int i0 = 0; i0 < kDim; i0 += lanes<T>) {
      Vec<T> dots[lanes<T>] = {};
#pragma GCC unroll 4
      for (int i1 = 0; i1 < lanes<T>; i1 += 4)
        for (int j = 0; j < kDim; j += lanes<T>) {
          const Vec<T> g = load(G + j);
          Vec<T> d = load(dG + j);
#pragma GCC unroll 4
          for (int i = i1; i < i1 + 4; ++i) {
            const Vec<T> w = load(&dW_.at[i0 + i][j]);
            d += step * k[i0 + i] * w;
            dots[i] += w * g;
          }
          store<T>(dG + j, d);
        }
      store<T>(dk + i0, sums_of<T>(dots));
    }
  }

  // dq = W dy, dk = W dz, dW <- dW + q' dy + k' dz: one pass over both.
  void reads_back(const T* q, const T* k, const Matrix& W, const T* dy, const T* dz, T* dq, T* dk) {
    for (int i0 = 0; i0 < kDim; i0 += lanes<T>) {
      Vec<T> dqs[lanes<T>] = {}, dks[lanes<T>] = {};
#pragma GCC unroll 8
      for (int i1 = 0; i1 < lanes<T>; i1 += 2)
        for (int j = 0; j < kDim; j += lanes<T>) {
          const Vec<T> y = load(dy + j), z = load(dz + j);
#pragma GCC unroll 2
          for (int i = i1; i < i1 + 2; ++i) {
            const Vec<T> w = load(&W.at[i0 + i][j]);
            dqs[i] += w * y;
            dks[i] += w * z;
            store<T>(&dW_.at[i0 + i][j], load(&dW_.at[i0 + i][j]) + q[i0 + i] * y + k[i0 + i] * z);
          }
        }
      store<T>(dq + i0, sums_of<T>(dqs));
      store<T>(dk + i0, sums_of<T>(dks));
    }
  }

  // dW_, db_ come in as the gradients with respect to the state after the token, leave as those before it.
  void backward_token(const Sequence<T>& s, std::int64_t t, const Matrix& W, const Saved& o) {
    alignas(64) T dG[kDim], dk_step[kDim], dy[kDim], dz[kDim], dq_read[kDim], dk_read[kDim];
    const T e = step(s, t);
    const Row<T> G = row(o.G), dy_row = write_output_back(o.x_out, o.r_out, s, t);
    const T dread = dot(dy_row, G);  // over e
    store(dy, dy_row);
    store(dG, e * o.read * dy_row + e * row(db_.at));
    state_back(s.k[t], e, o.G, dG, dk_step);
    const T de = dot(row(s.k[t]), row(dk_step)) + dot(row(db_.at), G) + dread * o.read;
    s.drate[t] = -s.position[0] * de;
    s.dposition[0] -= s.rate[t] * de;
    const InnerGradientBack<T> back = inner_gradient_back(row(dG), o.x, o.G, o.r, s, t);
    store(dz, back.dz);
    store(s.dv[t], T{-1} * back.dk);
    add_to(s.dgain, back.dgain);
    add_to(s.dshift, back.dk);
    add_to(db_.at, row(dy) + back.dz);
    store(s.dk[t], back.dk + e * row(dk_step) + e * dread * row(s.q[t]));
    reads_back(s.q[t], s.k[t], W, dy, dz, dq_read, dk_read);
    store(s.dq[t], row(s.cotangent[t]) + row(dq_read) + e * dread * row(s.k[t]));
    add_to(s.dk[t], row(dk_read));
  }

  bool keep_;
  std::vector<Vector> biases_;
  std::vector<Saved> saved_;
  std::vector<Matrix> kept_, replayed_;
  Matrix W_, dW_;
  Vector db_;
};

}  // namespace nestgrad::floors

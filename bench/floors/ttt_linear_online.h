// TTT-Linear with mini-batches of one token. Of a token, with state W, b and rate e = p r:
//
//   z = k W + b                        G = the inner gradient at z
//   y = q W + b - e (q . k + 1) G      output = q + LN(y) gain + shift
//   W <- W - e k' G, b <- b - e G
//
// Products with one row do little with each element of W that they load, so W is walked over once a token: the
// step of the token before, z and y in one pass. The backward pass needs W before each token; to keep them all
// costs more than to take the steps back one by one, W + e k' G. That rounds once more a token, so W is also
// kept at every 32nd, and taken from there.
#pragma once

#include "bench/floors/ttt_linear.h"

namespace nestgrad::floors {

template <class T>
class TttLinearOnline {
 public:
  static constexpr int chunk = 1;

  explicit TttLinearOnline(const Sizes& sizes)
      : keep_(sizes.backward),
        saved_(keep_ ? of_all(sizes, sizes.time) : 1),
        kept_(keep_ ? of_all(sizes, sizes.time / kEvery + 1) : 1),
        last_(keep_ ? of_all(sizes, 1) : 1) {}

  // Of sequence n of all.
  void forward(const Sequence<T>& s, std::int64_t n) {
    Saved* const saved = saved_of(s, n);
    std::memcpy(W_.at, s.W, sizeof W_.at);
    Row<T> b = row(s.b);
    const T* G = nullptr;
    for (std::int64_t t = 0; t < s.time; ++t) {
      Saved& now = saved[keep_ ? t : 0];
      alignas(64) T z[kDim], y[kDim];
      if (t == 0) step_and_read<false>(nullptr, T{0}, nullptr, s.k[t], s.q[t], z, y);
      else step_and_read<true>(s.k[t - 1], step(s, t - 1), G, s.k[t], s.q[t], z, y);
      if (keep_ && t % kEvery == 0) kept_of(s, n)[t / kEvery] = W_;
      forward_token(s, t, b, row(z), row(y), now);
      G = now.G;
      b = b + step(s, t) * row(G);
    }
    if (keep_) last_.data()[n] = W_;
  }

  void backward(const Sequence<T>& s, std::int64_t n) {
    W_ = last_.data()[n];
    dW_ = Matrix{};
    db_ = Vector{};
    for (std::int64_t t = s.time - 1; t >= 0; --t) {
      if (t + 1 < s.time && (t + 1) % kEvery == 0) W_ = kept_of(s, n)[(t + 1) / kEvery];
      backward_token(s, t, saved_of(s, n)[t]);
    }
    for (int i = 0; i < kDim; ++i) add_to(s.dW[i], row(dW_.at[i]));
    add_to(s.db, row(db_.at));
  }

 private:
  static constexpr std::int64_t kEvery = 32;
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

  Saved* saved_of(const Sequence<T>& s, std::int64_t n) { return saved_.data() + (keep_ ? n * s.time : 0); }
  Matrix* kept_of(const Sequence<T>& s, std::int64_t n) { return kept_.data() + n * (s.time / kEvery + 1); }

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
      for (int i = 0; i < kDim; ++i) {
        const T ki = with_step ? k[i] : T{0}, ki_now = k_now[i], qi_now = q_now[i];
#pragma GCC unroll 4
        for (int j = 0; j < size; ++j) {
          T* at = &W_.at[i][j0 + j * lanes<T>];
          Vec<T> w = load(at);
          if constexpr (with_step) {
            w += ki * g[j];
            store<T>(at, w);
          }
          zs[j] += ki_now * w;
          ys[j] += qi_now * w;
        }
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

  // dG <- dG + step k dW, dk = dW G: one pass over dW, four rows at a time.
  void state_back(const T* k, T step, const T* G, T* dG, T* dk) const {
    for (int i0 = 0; i0 < kDim; i0 += lanes<T>) {
      Vec<T> dots[lanes<T>];
#pragma GCC unroll 4
      for (int i1 = 0; i1 < lanes<T>; i1 += 4) {
        const T(*rows)[kDim] = &dW_.at[i0 + i1];
        const T* ks = k + i0 + i1;
        const T k0 = step * ks[0], k1 = step * ks[1], k2 = step * ks[2], k3 = step * ks[3];
        Vec<T> dot0{}, dot1{}, dot2{}, dot3{};
        for (int j = 0; j < kDim; j += lanes<T>) {
          const Vec<T> g = load(G + j);
          const Vec<T> w0 = load(rows[0] + j), w1 = load(rows[1] + j), w2 = load(rows[2] + j),
                       w3 = load(rows[3] + j);
          store<T>(dG + j, load(dG + j) + k0 * w0 + k1 * w1 + k2 * w2 + k3 * w3);
          dot0 += w0 * g;
          dot1 += w1 * g;
          dot2 += w2 * g;
          dot3 += w3 * g;
        }
        dots[i1] = dot0, dots[i1 + 1] = dot1, dots[i1 + 2] = dot2, dots[i1 + 3] = dot3;
      }
      store<T>(dk + i0, sums_of<T>(dots));
    }
  }

  // dq = W dy, dk = W dz, dW <- dW + q' dy + k' dz: one pass over both, two rows at a time. If the token's step is
  // part of W it is taken back before: W <- W - step k' G.
  void reads_back(const T* q, const T* k, const T* G, T step, const T* dy, const T* dz, T* dq, T* dk) {
    for (int i0 = 0; i0 < kDim; i0 += lanes<T>) {
      Vec<T> dqs[lanes<T>], dks[lanes<T>];
#pragma GCC unroll 8
      for (int i = 0; i < lanes<T>; i += 2) {
        T(*W)[kDim] = &W_.at[i0 + i], (*dW)[kDim] = &dW_.at[i0 + i];
        const T q0 = q[i0 + i], q1 = q[i0 + i + 1], k0 = k[i0 + i], k1 = k[i0 + i + 1];
        const T step0 = step * k0, step1 = step * k1;
        Vec<T> dq0{}, dq1{}, dk0{}, dk1{};
        for (int j = 0; j < kDim; j += lanes<T>) {
          const Vec<T> y = load(dy + j), z = load(dz + j), g = load(G + j);
          const Vec<T> w0 = load(W[0] + j) - step0 * g, w1 = load(W[1] + j) - step1 * g;
          store<T>(W[0] + j, w0);
          store<T>(W[1] + j, w1);
          dq0 += w0 * y, dk0 += w0 * z;
          dq1 += w1 * y, dk1 += w1 * z;
          store<T>(dW[0] + j, load(dW[0] + j) + q0 * y + k0 * z);
          store<T>(dW[1] + j, load(dW[1] + j) + q1 * y + k1 * z);
        }
        dqs[i] = dq0, dqs[i + 1] = dq1, dks[i] = dk0, dks[i + 1] = dk1;
      }
      store<T>(dq + i0, sums_of<T>(dqs));
      store<T>(dk + i0, sums_of<T>(dks));
    }
  }

  // dW_, db_ come in as the gradients with respect to the state after the token, leave as those before it.
  void backward_token(const Sequence<T>& s, std::int64_t t, const Saved& o) {
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
    reads_back(s.q[t], s.k[t], o.G, t + 1 < s.time ? e : T{0}, dy, dz, dq_read, dk_read);
    store(s.dq[t], row(s.cotangent[t]) + row(dq_read) + e * dread * row(s.k[t]));
    add_to(s.dk[t], row(dk_read));
  }

  bool keep_;
  Kept<Saved> saved_;
  Kept<Matrix> kept_, last_;  // last_: before the last token's step
  Matrix W_, dW_;
  Vector db_;
};

}  // namespace nestgrad::floors

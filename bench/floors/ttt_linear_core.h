// TTT-Linear with mini-batches of 16 tokens, in its dual form. Of one mini-batch, with state W, b, rates p_i at
// the places and r_j of the tokens:
//
//   Z = k W + b          G = the inner gradients at Z
//   S = q k'             A_ij = -p_i r_j (S_ij + 1) for j <= i, else 0; the 1 is the bias'
//   Y = q W + b + A G    output = q + LN(Y) gain + shift
//   E_j = -p_15 r_j      W <- W + (E k)' G, b <- b + sum_j E_j G_j; (E k)_j = E_j k_j
#pragma once

#include "bench/floors/products.h"
#include "bench/floors/ttt_linear.h"

namespace nestgrad::floors {

template <class T>
class TttLinearCore {
 public:
  static constexpr int chunk = 16;

  // With a backward pass the states and intermediate values of all mini-batches of all sequences are kept.
  explicit TttLinearCore(const Sizes& sizes)
      : keep_(sizes.backward),
        states_(keep_ ? of_all(sizes, sizes.time / chunk + 1) : 1),
        saved_(keep_ ? of_all(sizes, sizes.time / chunk) : 1) {}

  // Of sequence n of all.
  void forward(const Sequence<T>& s, std::int64_t n) {
    State* const states = states_of(s, n);
    std::memcpy(states[0].W, s.W, sizeof states[0].W);
    std::memcpy(states[0].b, s.b, sizeof states[0].b);
    for (std::int64_t t = 0; t < s.time; t += chunk) {
      const std::int64_t c = keep_ ? t / chunk : 0;
      forward_chunk(s, t, states[c], states[keep_ ? c + 1 : 0], saved_of(s, n)[c]);
    }
  }

  void backward(const Sequence<T>& s, std::int64_t n) {
    d_ = State{};
    for (std::int64_t t = s.time - chunk; t >= 0; t -= chunk)
      backward_chunk(s, t, states_of(s, n)[t / chunk], saved_of(s, n)[t / chunk]);
    for (int i = 0; i < kDim; ++i) add_to(s.dW[i], row(d_.W[i]));
    add_to(s.db, row(d_.b));
  }

 private:
  using Matrix = T[chunk][kDim];
  using Scores = T[chunk][chunk];
  struct alignas(64) State {
    T W[kDim][kDim], b[kDim];
  };
  struct alignas(64) Saved {  // x, x_out: LN(Z), LN(Y); r, r_out: 1 / their standard deviations
    Matrix x, G, x_out;
    Scores S;
    T r[chunk], r_out[chunk];
  };

  State* states_of(const Sequence<T>& s, std::int64_t n) {
    return states_.data() + (keep_ ? n * (s.time / chunk + 1) : 0);
  }
  Saved* saved_of(const Sequence<T>& s, std::int64_t n) {
    return saved_.data() + (keep_ ? n * (s.time / chunk) : 0);
  }

  // -1 where a token reads what another has taught.
  struct Causal {
    Scores at;
    constexpr Causal() : at() {
      for (int i = 0; i < chunk; ++i)
        for (int j = 0; j < chunk; ++j) at[i][j] = j <= i ? -1 : 0;
    }
  };
  alignas(64) static constexpr Causal causal{};

  // E k, and E.
  static void write_steps(const Sequence<T>& s, std::int64_t t, Matrix& Ek, T (&E)[chunk]) {
    for (int i = 0; i < chunk; ++i) {
      E[i] = -s.position[chunk - 1] * s.rate[t + i];
      store(Ek[i], E[i] * row(s.k[t + i]));
    }
  }

  static void forward_chunk(const Sequence<T>& s, std::int64_t t, const State& now, State& next, Saved& o) {
    alignas(64) T kt[kDim][chunk];
    alignas(64) Matrix Z, Y, Ek;
    alignas(64) Scores A;
    alignas(64) T E[chunk];
    transpose<chunk>(s.k + t, kt);
    product<chunk>(o.S, zero, times(s.q + t, kt));
    product<chunk>(Z, each_row(now.b), times(s.k + t, now.W));
    for (int i = 0; i < chunk; ++i) {
      const InnerGradient<T> g = inner_gradient(row(Z[i]), s, t + i);
      store(o.x[i], g.x);
      store(o.G[i], g.G);
      o.r[i] = g.r;
    }
    for (int i = 0; i < chunk; ++i)
      for (int j = 0; j < chunk; j += lanes<T>)
        store<T>(&A[i][j],
                 load(&causal.at[i][j]) * s.position[i] * load(s.rate + t + j) * (load(&o.S[i][j]) + T{1}));
    product<chunk>(Y, each_row(now.b), times(s.q + t, now.W), times(A, o.G));
    for (int i = 0; i < chunk; ++i) o.r_out[i] = write_output(row(Y[i]), o.x_out[i], s, t + i);
    write_steps(s, t, Ek, E);
    product<kDim>(next.W, from(now.W), transposed_times<chunk>(Ek, o.G));
    Row<T> b = row(now.b);
    for (int i = 0; i < chunk; ++i) b = b + E[i] * row(o.G[i]);
    store(next.b, b);
  }

  // From dY to A's parts: A, dS; adds to the gradients of places, writes those of the rates, both without what E
  // adds to them. dA = dY G'.
  static void scores_back(const Sequence<T>& s, std::int64_t t, const Saved& o, const Scores& dA, Scores& A,
                          Scores& dS) {
    constexpr int size = chunk / lanes<T>;
    Vec<T> drate[size] = {};
    for (int i = 0; i < chunk; ++i) {
      Vec<T> dposition{};
#pragma GCC unroll 4
      for (int j = 0; j < size; ++j) {
        const int at = j * lanes<T>;
        const Vec<T> rate = load(s.rate + t + at), read = load(&o.S[i][at]) + T{1};
        const Vec<T> masked = load(&causal.at[i][at]) * load(&dA[i][at]);
        const Vec<T> scale = load(&causal.at[i][at]) * s.position[i] * rate;
        store<T>(&A[i][at], scale * read);
        store<T>(&dS[i][at], scale * load(&dA[i][at]));
        dposition += masked * read * rate;
        drate[j] += masked * read * s.position[i];
      }
      s.dposition[i] += sum<T>(dposition);
    }
    for (int j = 0; j < size; ++j) store<T>(s.drate + t + j * lanes<T>, drate[j]);
  }

  // What dG hands back through the inner gradients: dZ; dk and dv but for what the products add; dE.
  // Meanwhile W comes from a far cache.
  void inner_back(const Sequence<T>& s, std::int64_t t, const Saved& o, const Matrix& dG, const Matrix& dEk,
                  const T (&E)[chunk], Rows<const T> W, Matrix& dZ) {
    for (int i = 0; i < chunk; ++i) {
      const InnerGradientBack<T> back = inner_gradient_back(row(dG[i]), o.x[i], o.G[i], o.r[i], s, t + i);
      prefetch<T>(W + 4 * i, 4);
      store(dZ[i], back.dz);
      store(s.dk[t + i], back.dk + E[i] * row(dEk[i]));
      store(s.dv[t + i], T{-1} * back.dk);
      add_to(s.dgain, back.dgain);
      add_to(s.dshift, back.dk);
      const T dE = dot(row(s.k[t + i]), row(dEk[i])) + dot(row(o.G[i]), row(d_.b));
      s.drate[t + i] -= s.position[chunk - 1] * dE;
      s.dposition[chunk - 1] -= s.rate[t + i] * dE;
    }
  }

  // d_ comes in as the gradient with respect to the state after the mini-batch, leaves as that before it.
  void backward_chunk(const Sequence<T>& s, std::int64_t t, const State& now, const Saved& o) {
    alignas(64) Matrix dY, dZ, dG, dEk, Ek;
    alignas(64) T Gt[kDim][chunk], dEkt[kDim][chunk], Wt[kDim][kDim], E[chunk];
    alignas(64) Scores dA, A, dS;
    const auto q = s.q + t, k = s.k + t;
    for (int i = 0; i < chunk; ++i) store(dY[i], write_output_back(o.x_out[i], o.r_out[i], s, t + i));
    transpose<chunk>(o.G, Gt);
    product<chunk>(dA, zero, times(dY, Gt));
    scores_back(s, t, o, dA, A, dS);
    // dG = E db + A' dY + (E k) dW
    write_steps(s, t, Ek, E);
    for (int i = 0; i < chunk; ++i) store(dG[i], E[i] * row(d_.b));
    product<chunk>(dG, from(dG), transposed_times<chunk>(A, dY), times(Ek, d_.W));
    // d(E k) = G dW', as (dW G')'
    product<kDim>(dEkt, zero, times(d_.W, Gt));
    transpose<kDim>(dEkt, dEk);
    inner_back(s, t, o, dG, dEk, E, now.W, dZ);
    // dW <- dW + q' dY + k' dZ, db likewise
    product<kDim>(d_.W, from(d_.W), transposed_times<chunk>(q, dY), transposed_times<chunk>(k, dZ));
    Row<T> db = row(d_.b);
    for (int i = 0; i < chunk; ++i) db = db + row(dY[i]) + row(dZ[i]);
    store(d_.b, db);
    // dq = cotangent + dY W' + dS k, dk <- dk + dZ W' + dS' q
    transpose<kDim>(now.W, Wt);
    product<chunk>(s.dq + t, from(s.cotangent + t), times(dY, Wt), times(dS, k));
    product<chunk>(s.dk + t, from(s.dk + t), times(dZ, Wt), transposed_times<chunk>(dS, q));
  }

  bool keep_;
  Kept<State> states_;
  Kept<Saved> saved_;
  State d_;
};

}  // namespace nestgrad::floors

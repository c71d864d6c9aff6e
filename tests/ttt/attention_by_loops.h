// Attention by loops over tokens in plain numbers, and programs to compare with it.
#pragma once

#include <cmath>
#include <set>

#include "engine/core/index.h"
#include "models/traced_model.h"
#include "tests/ops/check_grads.h"
#include "tests/testing.h"
#include "ttt/attention.h"

namespace nestgrad::testing {

using ttt::AttentionOptions;

// The tokens that token t reads.
using Reads = std::function<std::set<std::int64_t>(std::int64_t t)>;

inline Reads everything(std::int64_t time) {
  return [=](std::int64_t) {
    std::set<std::int64_t> out;
    for (std::int64_t s = 0; s < time; ++s) out.insert(s);
    return out;
  };
}

// Counts back from t; window 0: to the beginning.
inline Reads backwards(std::int64_t window) {
  return [=](std::int64_t t) {
    std::set<std::int64_t> out;
    for (std::int64_t s = t; s >= 0 && (window == 0 || t - s < window); --s) out.insert(s);
    return out;
  };
}

// The window around t, pushed inside token by token.
inline Reads around(std::int64_t window, std::int64_t time) {
  return [=](std::int64_t t) {
    std::int64_t first = t - (window - 1) / 2, last = t + (window - 1) / 2;
    while (first < 0) ++first, ++last;
    while (last >= time) --first, --last;
    std::set<std::int64_t> out;
    for (std::int64_t s = first; s <= last; ++s) out.insert(s);
    return out;
  };
}

inline Reads around_2d(std::int64_t window, std::int64_t height, std::int64_t width) {
  return [=](std::int64_t t) {
    std::set<std::int64_t> out;
    for (const std::int64_t y : around(window, height)(t / width))
      for (const std::int64_t x : around(window, width)(t % width)) out.insert(y * width + x);
    return out;
  };
}

// sum_s exp(scale <q_t, k_s>) v_s / sum_s exp(scale <q_t, k_s>) over what each token reads; head after head, where
// heads share keys and values.
inline Array by_loops(const Arrays& qkv, const Reads& reads, double scale) {
  const auto &q = qkv[0], &k = qkv[1], &v = qkv[2];
  const std::int64_t sequences = q.shape()[0] * q.shape()[1], queries = q.shape()[2], time = k.shape()[2],
                     dim = q.shape()[3], out = v.shape()[3];
  Array y = Array::zeros(DType::f64, {q.shape()[0], q.shape()[1], queries, out});
  const std::int64_t each = q.shape()[1] / k.shape()[1];
  for (std::int64_t n = 0; n < sequences; ++n)
    for (std::int64_t t = 0; t < queries; ++t) {
      const std::int64_t group = n / each;
      double total = 0;
      std::vector<double> row(uz(out));
      for (const std::int64_t s : reads(t)) {
        double score = 0;
        for (std::int64_t d = 0; d < dim; ++d)
          score += q.at((n * queries + t) * dim + d) * k.at((group * time + s) * dim + d);
        const double kernel = std::exp(scale * score);
        total += kernel;
        for (std::int64_t d = 0; d < out; ++d) row[uz(d)] += kernel * v.at((group * time + s) * out + d);
      }
      for (std::int64_t d = 0; d < out; ++d)
        y.as<double>()[uz((n * queries + t) * out + d)] = row[uz(d)] / total;
    }
  return y;
}

struct LoopSizes {
  std::int64_t batch = 2, heads = 2, time = 7, dim = 4, out = 3;
  std::int64_t groups = 0;  // heads of keys and values; 0: as many as of queries
  std::vector<Spec> specs() const {
    const std::int64_t shared = groups == 0 ? heads : groups;
    return {f64({batch, heads, time, dim}), f64({batch, shared, time, dim}), f64({batch, shared, time, out})};
  }
};

using Attend = std::function<Tensor(Tensor q, Tensor k, Tensor v)>;

inline TraceFn traced(const Attend& attend) {
  return [attend](const Tensors& in) { return Tensors{attend(in[0], in[1], in[2])}; };
}

// Output, gradient, gradient of |gradient|^2.
inline Arrays derivatives(const Attend& attend, const Arrays& qkv) {
  return trace(
      [&](const Tensors& in) {
        const Tensor y = attend(in[0], in[1], in[2]);
        Tensors out{y};
        Tensor of = sum(square(y) + sin(y));
        for (int order = 1; order <= 2; ++order) {
          const Tensors g = grad(of, in);
          out.insert(out.end(), g.begin(), g.end());
          of = sum(square(g[0])) + sum(square(g[1])) + sum(square(g[2]));
        }
        return out;
      },
      {qkv[0].spec(), qkv[1].spec(), qkv[2].spec()})(qkv);
}

// Everything that is known about it: numbers in f64 and f32, derivatives.
inline void check_attention(const std::string& what, const Attend& attend, const Arrays& qkv,
                            const Reads& reads, double scale) {
  CAPTURE(what);
  const Array expected = by_loops(qkv, reads, scale);
  CHECK(relative_error(trace(traced(attend), {qkv[0].spec(), qkv[1].spec(), qkv[2].spec()})(qkv)[0],
                       expected) < 1e-14);
  Arrays narrow;
  std::vector<Spec> specs;
  for (const Array& a : qkv) narrow.push_back(a.cast(DType::f32)), specs.push_back(narrow.back().spec());
  CHECK(relative_error(trace(traced(attend), specs)(narrow)[0].cast(DType::f64), expected) < 3e-6);
  const Subject s{.what = what, .fn = traced(attend), .inputs = qkv, .active = {}, .orders = 2};
  const Failures failures = check_every_way(s);
  INFO(join(failures));
  CHECK(failures.empty());
}

// What each token reads, seen from outside: with q = 0 all scores are equal, and with v = 1 the weights come
// out. Checks that they are 1/n for the n tokens that are read, and zero, exactly, elsewhere.
inline std::vector<std::vector<std::int64_t>> seen(std::int64_t time, DType dtype, const Attend& attend) {
  std::vector<double> eye(uz(time * time));
  for (std::int64_t t = 0; t < time; ++t) eye[uz(t * time + t)] = 1;
  const Array zero = Array::zeros(dtype, {1, 1, time, 2}), one = Array::of(eye, {1, 1, time, time}, dtype);
  const Array weights = trace(traced(attend), {zero.spec(), zero.spec(), one.spec()})({zero, zero, one})[0];
  std::vector<std::vector<std::int64_t>> out(uz(time));
  for (std::int64_t t = 0; t < time; ++t) {
    for (std::int64_t s = 0; s < time; ++s)
      if (weights.at(t * time + s) != 0) out[uz(t)].push_back(s);
    for (const std::int64_t s : out[uz(t)])
      CHECK(weights.at(t * time + s) == doctest::Approx(1.0 / static_cast<double>(out[uz(t)].size())));
  }
  return out;
}

inline Attend with(const AttentionOptions& options) {
  return [options](Tensor q, Tensor k, Tensor v) { return ttt::attention(q, k, v, options); };
}

// Token t of x [batch, heads, time, dim].
inline Array token(const Array& x, std::int64_t t) {
  return trace([&](Tensor all) { return slice(all, 2, t, t + 1); }, x.spec())(x);
}

// One token of attention_step as a function: q, k, v, then the states; out, then the states.
inline TracedModel step_of(const LoopSizes& s, const AttentionOptions& options, ttt::Stream::Mode mode,
                           std::vector<std::string>* names, DType dtype = DType::f64) {
  std::vector<Spec> specs = LoopSizes{s.batch, s.heads, 1, s.dim, s.out, s.groups}.specs();
  for (Spec& spec : specs) spec.dtype = dtype;
  return trace_model(dtype, specs, [&](ParamTable&, const Tensors& in) {
    ttt::Stream stream(mode);
    Tensors out{ttt::attention_step(in[0], in[1], in[2], options, stream, "layer")};
    names->clear();
    for (const ttt::Stream::State& state : stream.states()) {
      names->push_back(state.name);
      REQUIRE(state.next.defined());
      out.push_back(mode == ttt::Stream::Mode::step ? state.next : state.value);
    }
    return out;
  });
}

// The answers of a sequence read token by token.
inline Arrays token_by_token(const LoopSizes& s, const AttentionOptions& options, const Arrays& qkv) {
  std::vector<std::string> names, same;
  const DType dtype = qkv[0].dtype();
  const TracedModel start = step_of(s, options, ttt::Stream::Mode::initial, &names, dtype),
                    step = step_of(s, options, ttt::Stream::Mode::step, &same, dtype);
  REQUIRE(names == same);
  const auto at = [&](std::int64_t t) {
    return Arrays{token(qkv[0], t), token(qkv[1], t), token(qkv[2], t)};
  };
  Arrays out = start.function(at(0)), answers;
  for (std::int64_t t = 0; t < qkv[0].shape()[2]; ++t) {
    StateDict state;
    for (std::size_t i = 0; i < names.size(); ++i) state[names[i]] = out[i + 1];
    out = step.function(step.bind(at(t), {&state}));
    answers.push_back(out[0]);
  }
  return answers;
}

}  // namespace nestgrad::testing

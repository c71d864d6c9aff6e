// The learner as attention: effective, implicit, and softmax beside them.
#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "ttt/effective_attention.h"
#include "ttt/inspect/open.h"

namespace nestgrad::ttt {

namespace {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

// [time, time]: 0 where s <= t, or minus infinity for later tokens.
Array causal_mask(std::int64_t time) {
  Array out = Array::zeros(DType::f64, {time, time});
  for (std::int64_t t = 0; t < time; ++t)
    for (std::int64_t s = t + 1; s < time; ++s)
      out.as<double>()[static_cast<std::size_t>(t * time + s)] = -HUGE_VAL;
  return out;
}

}  // namespace

AttentionMaps attention_maps(const Specimen& specimen) {
  AttentionMaps out;
  out.softmax = OpenProgram(specimen, {}, [&](OpenLoop& loop, const Tensors&) {
    const double scale = 1 / std::sqrt(static_cast<double>(loop.views.k.dim(-1)));
    const Tensor k = loop.views.k, q = specimen.policy.query_is_key ? k : loop.views.q;
    Tensor scores = matmul(q * scale, k, {.b = true});
    if (specimen.policy.causal()) scores = scores + constant(causal_mask(specimen.time()));
    return Tensors{softmax(scores, -1)};
  })()[0];
  try {
    const Arrays r = OpenProgram(specimen, {}, [&](OpenLoop& loop, const Tensors&) {
      const EffectiveAttention e =
          effective_attention(*loop.learner, loop.start, loop.views, specimen.policy);
      return Tensors{e.matrix, e.output(), loop.run(loop.options).output};
    })();
    out.effective = r[0];
    out.claims = {{"attention over the effective keys and values gives the learner's answers",
                   relative_distance({r[1]}, {r[2]}), 1e-12}};
  } catch (const FormError& e) {
    out.why_not = e.what();
  }
  return out;
}

namespace {

// [batch, ..] -> [copies * batch, ..]
Array repeated(const Array& x, std::int64_t copies) {
  Shape shape = x.shape();
  shape[0] *= copies;
  Array out(x.dtype(), shape);
  for (std::int64_t i = 0; i < copies; ++i)
    std::ranges::copy(x.as<double>(), out.as<double>().begin() + static_cast<std::ptrdiff_t>(i * x.size()));
  return out;
}

// `copies` times as many sequences, all alike.
Specimen repeated(Specimen s, std::int64_t copies) {
  for (Array* x : {&s.q, &s.k, &s.v, &s.cotangent}) *x = repeated(*x, copies);
  for (auto& [name, rows] : s.gates) rows = repeated(rows, copies);
  return s;
}

// [features * batch, 1, 1, features]: copy f asks for feature f alone.
Array feature_of_copy(std::int64_t features, std::int64_t batch) {
  Array out = Array::zeros(DType::f64, {features * batch, 1, 1, features});
  for (std::int64_t i = 0; i < features * batch; ++i)
    out.as<double>()[static_cast<std::size_t>(i * features + i / batch)] = 1;
  return out;
}

}  // namespace

ImplicitAttention implicit_attention(const Specimen& specimen) {
  const std::int64_t batch = specimen.batch(), heads = specimen.heads(), time = specimen.time(),
                     in = specimen.v.shape()[3], features = specimen.cotangent.shape()[3];
  // All features of an answer at once: a copy of the sequence for each.
  const OpenProgram program(repeated(specimen, features), {{DType::f64, {1, 1, time, 1}}},
                            [&](OpenLoop& loop, const Tensors& token) {
                              InnerLoopOptions options = loop.options;
                              options.form = FormChoice::automatic;
                              const Tensor wanted = constant(feature_of_copy(features, batch)) * token[0];
                              return grad(sum(loop.run(options).output * wanted), {loop.views.v},
                                          {.allow_zero = true});
                            });
  ImplicitAttention out;
  out.map = Array::zeros(DType::f64, {batch, heads, time, time});
  const std::span<double> map = out.map.as<double>();
  for (std::int64_t t = 0; t < time; ++t) {
    const Array d = program({one_at(t, {1, 1, time, 1})})[0];
    const std::span<const double> values = d.as<double>();
    for (std::int64_t i = 0; i < d.size(); ++i) {  // [features * batch, heads, time, in]
      const std::int64_t s = i / in % time, member = i / in / time % (batch * heads);
      const double x = values[static_cast<std::size_t>(i)];
      map[static_cast<std::size_t>((member * time + t) * time + s)] += x * x;
    }
  }
  for (double& x : map) x = std::sqrt(x);
  if (!specimen.policy.causal()) return out;
  double above = 0;
  for (std::int64_t i = 0; i < out.map.size(); ++i)
    if (i % time > i / time % time) above = std::max(above, map[static_cast<std::size_t>(i)]);
  out.claims = {{"no answer depends on a later value: zero above the diagonal", above, 0}};
  return out;
}

}  // namespace nestgrad::ttt

// How much each answer depends on each value, for any learner.
#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "look/open_loop.h"
#include "look/views.h"

namespace nestgrad::look {

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
InspectedLoop repeated(InspectedLoop s, std::int64_t copies) {
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

ImplicitAttention implicit_attention(const InspectedLoop& inspected) {
  const std::int64_t batch = inspected.batch(), heads = inspected.heads(), time = inspected.time(),
                     in = inspected.v.shape()[3], features = inspected.cotangent.shape()[3];
  // All features of an answer at once: a copy of the sequence for each.
  const OpenProgram program(repeated(inspected, features), {{DType::f64, {1, 1, time, 1}}},
                            [&](OpenLoop& loop, const std::vector<Tensor>& token) {
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
  if (!inspected.policy.causal()) return out;
  double above = 0;
  for (std::int64_t i = 0; i < out.map.size(); ++i)
    if (i % time > i / time % time) above = worse(above, map[static_cast<std::size_t>(i)]);
  out.claims = {{"no answer depends on a later value: zero above the diagonal", above, 0}};
  return out;
}

ReportView implicit_attention_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const ImplicitAttention& r = context.implicit();
  ReportView view{"implicit-attention", "Implicit attention",
                  "How much does each answer depend on each value?",
                  "|d o_t / d v_s|, for any learner, however deep: "
                  "row t, column s is the size of the derivative of "
                  "the answer to token t by the value of token s.",
                  r.claims};
  if (!inspected.policy.causal())
    view.reading += "\n\nThis learner is not causal: answers may depend on later values.";
  for (std::int64_t h = 0; h < context.drawn_heads; ++h)
    view.pictures.push_back(token_map(head_title("Implicit attention", h, inspected.heads()),
                                      "|d answer / d value| (no unit)", r.map, h));
  context.out.arrays["implicit_attention"] = r.map;
  return view;
}

}  // namespace nestgrad::look

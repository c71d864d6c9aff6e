// The learner as attention over effective keys and values, and softmax attention beside it.
#include <fmt/format.h>

#include <cmath>

#include "look/open_loop.h"
#include "look/views.h"
#include "ttt/effective_attention.h"

namespace nestgrad::look {

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

AttentionMaps attention_maps(const InspectedLoop& inspected) {
  AttentionMaps out;
  if (inspected.policy.query_is_key || inspected.q.shape()[3] == inspected.k.shape()[3])
    out.softmax = OpenProgram(inspected, {}, [&](OpenLoop& loop, const Tensors&) {
      const double scale = 1 / std::sqrt(static_cast<double>(loop.views.k.dim(-1)));
      const Tensor k = loop.views.k, q = inspected.policy.query_is_key ? k : loop.views.q;
      Tensor scores = matmul(q * scale, k, {.b = true});
      if (inspected.policy.causal()) scores = scores + constant(causal_mask(inspected.time()));
      return Tensors{softmax(scores, -1)};
    })()[0];
  try {
    const Arrays r = OpenProgram(inspected, {}, [&](OpenLoop& loop, const Tensors&) {
      Policy policy = inspected.policy;  // no derivative is taken
      policy.meta = Policy::Meta::full;
      const EffectiveAttention e = effective_attention(*loop.learner, loop.start, loop.views, policy);
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

ReportView attention_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const AttentionMaps r = attention_maps(inspected);
  ReportView view{
      "attention", "The learner as attention", "Which tokens does an answer come from?",
      "A learner whose last layer is linear answers like linear attention with keys, values and queries "
      "of its own making: row t holds the weights of the values of earlier tokens in the answer to t. "
      "Beside it, softmax attention of the same q and k.",
      r.claims};
  if (!r.effective.defined())
    view.preformatted = "This learner has no effective attention matrix: " + r.why_not + "\n";
  if (!r.softmax.defined())
    view.preformatted +=
        fmt::format("There is no softmax attention to compare with: queries have {} features and keys {}.\n",
                    inspected.q.shape()[3], inspected.k.shape()[3]);
  for (std::int64_t h = 0; h < context.drawn_heads; ++h) {
    if (r.effective.defined()) {
      Heatmap picture = token_map(head_title("Effective attention", h, inspected.heads()), "weight (no unit)",
                                  r.effective, h);
      picture.diverging = true;
      view.pictures.push_back(picture);
    }
    if (r.softmax.defined())
      view.pictures.push_back(
          token_map(head_title("Softmax attention", h, inspected.heads()), "weight (share)", r.softmax, h));
  }
  if (r.effective.defined()) context.out.arrays["effective_attention"] = r.effective;
  if (r.softmax.defined()) context.out.arrays["softmax_attention"] = r.softmax;
  return view;
}

}  // namespace nestgrad::look

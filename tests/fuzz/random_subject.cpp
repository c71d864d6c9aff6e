// A random program with its derivatives, as what is compared.
#include <algorithm>

#include "tests/fuzz/compare.h"
#include "tests/fuzz/random_graph.h"

namespace nestgrad::fuzz {

namespace {

Tensors with_derivatives(Tensors out, const Tensors& in, std::size_t order) {
  const auto weighted = [](Tensor t, const Array& weight) {
    return sum((t.dtype() == DType::f64 ? t : cast(t, DType::f64)) * constant(weight));
  };
  std::vector<Spec> specs;
  Tensors x, values{constant(0.5, DType::f64)};
  for (const Tensor& t : in)
    if (is_float(t.dtype())) x.push_back(t);
  for (const Tensor& t : out) specs.push_back(t.spec());
  const Arrays weights = direction(specs, 0);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (is_float(out[i].dtype())) values[0] = values[0] + weighted(out[i], weights[i]);
  specs.clear();
  for (const Tensor& t : in) specs.push_back(t.spec());
  for (std::size_t k = 1; k <= order; ++k) {
    const Arrays way = direction(specs, k);
    const Tensors g = grad(values.back(), x, {.allow_zero = true});
    values.push_back(constant(0.0, DType::f64));
    for (std::size_t i = 0, j = 0; i < in.size(); ++i)
      if (is_float(in[i].dtype())) values.back() = values.back() + weighted(g[j++], way[i]);
    if (k == order) out.insert(out.end(), g.begin(), g.end());
  }
  out.insert(out.end(), values.begin(), values.end());
  return out;
}

}  // namespace

Subject random_subject(Draws& draws) {
  Subject s;
  const std::size_t begin = draws.used();
  RandomGraph made(draws);
  s.specs = made.inputs();
  const Function program = trace([&](const Tensors& in) { return made.outputs(in); }, s.specs);
  const std::vector<std::uint32_t> drawn(draws.drawn().begin() + static_cast<std::ptrdiff_t>(begin),
                                         draws.drawn().begin() + static_cast<std::ptrdiff_t>(draws.used()));
  s.exact_gradients = made.is_exact();
  std::size_t order = draws.of(std::vector<std::size_t>{0, 1, 1, 2, 1, 2, 3});
  if (program.live_nodes() > 100) order = std::min<std::size_t>(order, 2);
  if (program.live_nodes() > 300) order = std::min<std::size_t>(order, 1);
  s.orders = order + 1;
  s.fn = [drawn, order](const Tensors& in) {
    Draws again(drawn);
    RandomGraph same(again);
    same.inputs();
    return with_derivatives(same.outputs(in), in, order);
  };
  s.f = trace(s.fn, s.specs).to(Device::cpu());
  for_each_node(s.f.graph().nodes(), [&](const GraphNode& n) {
    const bool is_scan = n.op->kind == OpKind::scan;
    s.narrow = s.narrow || n.spec.dtype == DType::f32;
    s.has_bodies = s.has_bodies || is_scan || n.attrs.find<CustomAttrs>();
    s.has_empty = s.has_empty || (n.spec.size() == 0 && !is_scan);
  });
  return s;
}

}  // namespace nestgrad::fuzz

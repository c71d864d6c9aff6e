// Random programs of the engine, with their derivatives up to the third order; compare.h says what is
// compared. At the end of a campaign of 2000 cases or more every op of the table, and every kind of step,
// must have been in one.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tests/fuzz/compare.h"
#include "tests/fuzz/random_graph.h"

namespace nestgrad::fuzz {

namespace {

struct Coverage {
  long cases = 0, derivatives = 0, skipped = 0, on_cuda = 0;
  std::set<std::string> ops;
};
Coverage covered;

// Outputs of a program; all derivatives of the highest order; L_0, a weighted sum of the outputs, and L_k,
// the derivative of L_(k-1) along the direction of order k.
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

Subject drawn_subject(Draws& draws) {
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
  s.f = trace(s.fn, s.specs);
  for_each_node(s.f.graph().nodes(), [&](const Node& n) {
    const bool is_scan = n.op->kind == OpKind::scan;
    s.narrow = s.narrow || n.spec.dtype == DType::f32;
    s.has_scan = s.has_scan || is_scan;
    s.has_empty = s.has_empty || (n.spec.size() == 0 && !is_scan);
  });
  return s;
}

void check(Draws& draws) {
  const Subject s = drawn_subject(draws);
  draws.say(s.f.str());
  ++covered.cases;
  for_each_node(s.f.graph().nodes(), [](const Node& n) { covered.ops.emplace(n.op->name); });
  const Arrays in = numbers_for(s.specs, draws.seed(), draws.one_in(3));
  check_texts(s);
  check_plans(s, in, draws);
  check_replays(s, in, draws);
  check_nonfinite(s, in);
  if (Device::cuda_count() > 0 && draws.one_in(6)) {
    check_cuda(s, in, draws);
    ++covered.on_cuda;
  }
  if (s.orders > 1 && s.exact_gradients)
    ++(check_derivatives(s, draws.seed()) ? covered.derivatives : covered.skipped);
}

// What a long campaign never met.
int report(int code) {
  if (covered.cases < 2000) return code;
  fmt::print(
      "{} programs ran on CUDA; the derivatives of {} were held against differences, of {} nothing could be "
      "said\n",
      covered.on_cuda, covered.derivatives, covered.skipped);
  std::string missing;
  for (const Op* op : op_table())
    if (!covered.ops.contains(std::string(op->name))) missing += fmt::format(" {}", op->name);
  for (const auto& [kind, times] : RandomGraph::made())
    if (times == 0) missing += fmt::format(" {}", kind);
  if (missing.empty()) return code;
  fmt::print("never in a program:{}\n", missing);
  return 1;
}

}  // namespace

}  // namespace nestgrad::fuzz

int main(int argc, char** argv) {
  using namespace nestgrad::fuzz;
  return report(
      run_campaign(argc, argv, "programs_fuzz",
                   "Random programs, with derivatives, run in every way that there is. After 2000 cases "
                   "every op of the table must have been in one.",
                   check));
}

#include "autograd/fold_scales.h"

#include <algorithm>
#include <utility>

#include "engine/core/index.h"
#include "engine/core/rewrite.h"
#include "engine/plan/readers.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/rules.h"

namespace nestgrad {

namespace {

// s A B, and which of the two factors is scaled instead.
struct ScaledProduct {
  Tensor number, product;
  std::size_t factor = 0;
};

// Is it one number for each matrix?
bool is_number(Tensor s) {
  for (int axis = std::max(0, s.rank() - 2); axis < s.rank(); ++axis)
    if (s.dim(axis) != 1) return false;
  return true;
}

ScaledProduct scaled_product(Tensor t) {
  if (node_of(t).op != &mul_op) return {};
  for (const std::size_t i : {0U, 1U}) {
    const Tensor product = input_of(t, i), number = input_of(t, 1 - i);
    if (node_of(product).op != &matmul_op || product.spec() != t.spec() || !is_number(number)) continue;
    const Tensor a = input_of(product, 0), b = input_of(product, 1);
    const std::size_t factor = a.spec().size() < b.spec().size() ? 0 : 1;
    const Tensor x = factor == 0 ? a : b;
    if (x.spec().size() >= product.spec().size()) continue;
    // The number's own leading axes must be axes of the factor.
    bool fits = number.rank() <= x.rank();
    for (int axis = 0; fits && axis < number.rank(); ++axis)
      fits = number.dim(axis) == 1 || number.dim(axis) == x.dim(x.rank() - number.rank() + axis);
    if (fits) return {number, product, factor};
  }
  return {};
}

// w - s A B, or w + s A B, with the scale in the smaller factor; undefined if t is no such sum.
Tensor folded(Tensor t, NodeId& product) {
  const Op* const op = node_of(t).op;
  if (op != &sub_op && op != &add_op) return {};
  for (const std::size_t i : {1U, 0U}) {
    if (i == 0 && op == &sub_op) continue;
    const Tensor w = input_of(t, 1 - i), update = input_of(t, i);
    if (w.spec() != t.spec() || update.spec() != t.spec()) continue;
    const ScaledProduct p = scaled_product(update);
    if (!p.product.defined() || node_of(p.product).region != node_of(t).region) continue;
    product = p.product.id();
    const GraphNode& n = node_of(p.product);
    const auto [transpose_a, transpose_b] = n.attrs.as<MatmulAttrs>();
    Tensor factors[] = {input_of(p.product, 0), input_of(p.product, 1)};
    const ContextGuard guard;
    label_like(node_of(update));
    Tensor& scaled = factors[p.factor];
    scaled = scaled * p.number;
    if (op == &sub_op) scaled = -scaled;
    label_like(n);
    const Tensor whole = matmul(factors[0], factors[1], {transpose_a, transpose_b});
    label_like(node_of(t));
    return w + whole;
  }
  return {};
}

}  // namespace

void fold_scales(Graph& graph, std::vector<Tensor>& carries, const std::vector<Tensor>& kept) {
  struct Fold {
    std::size_t carry;
    Tensor before;
    NodeId product;
  };
  std::vector<Fold> folds;
  for (std::size_t i = 0; i < carries.size(); ++i) {
    if (&carries[i].graph() != &graph) continue;
    NodeId product = -1;
    if (const Tensor now = folded(carries[i], product); now.defined())
      folds.push_back({i, std::exchange(carries[i], now), product});
  }
  if (folds.empty()) return;
  std::vector<NodeId> wanted;
  for (const std::vector<Tensor>* all : {&std::as_const(carries), &kept})
    for (const Tensor& t : *all)
      if (&t.graph() == &graph) wanted.push_back(t.id());
  const std::vector<char> live = live_nodes(graph.nodes(), wanted, {});
  for (const Fold& fold : folds)
    if (live[uz(fold.product)]) carries[fold.carry] = fold.before;
}

}  // namespace nestgrad

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "cuda/passes.h"
#include "engine/core/index.h"
#include "engine/plan/readers.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/table.h"

namespace nestgrad::cuda {

namespace {

using Order = std::vector<int>;  // axis i of the result is axis order[i] of what it is made of

Shape permuted(const Shape& from, const Order& order) {
  Shape out;
  for (const int axis : order) out.push_back(from[uz(axis)]);
  return out;
}

// of[i] for each i of `by`: the order of `by` after that of `of`.
Order after(const Order& of, const Order& by) {
  Order out;
  for (const int axis : by) out.push_back(of[uz(axis)]);
  return out;
}

Order unmoved(int rank) {
  Order out(uz(rank));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

bool keeps_matrices(const Order& order) {
  const int rank = static_cast<int>(order.size());
  return rank > 2 && order[uz(rank) - 1] == rank - 1 && order[uz(rank) - 2] == rank - 2;
}

// With axes of one in front.
Shape padded(const Shape& shape, int rank) {
  Shape out(uz(rank) - shape.size(), 1);
  out.insert(out.end(), shape.begin(), shape.end());
  return out;
}

Tensor reshaped(Tensor from, const Shape& shape) {
  return from.shape() == shape ? from : reshape(from, shape);
}

Tensor moved(Tensor from, const Order& order) {
  return moves_elements(from.shape(), order) ? permute(from, order)
                                             : reshaped(from, permuted(from.shape(), order));
}

// Bytes that permutes move. Those of scans that are cut into slices count nothing where the scan reads or writes them in place.
double bytes_permuted(const Lowered& lowered, const ScanTest& is_sliced) {
  const Graph& graph = *lowered.graph;
  const std::vector<char> live = live_nodes(graph.nodes(), lowered.outputs, lowered.inputs);
  const Readers readers = readers_of(graph, live, lowered.outputs);
  double bytes = 0;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const GraphNode& n = graph.node(id);
    if (!live[uz(id)] || n.op != &permute_op) continue;
    const NodeId in = n.inputs[0];
    const bool is_written = graph.node(in).op->kind == OpKind::stack && readers[uz(in)].size() == 1 &&
                            is_sliced(lowered, graph.node(in).inputs[0]);
    const bool is_read = std::ranges::all_of(readers[uz(id)], [&](const Reader& r) {
      return reads_step_by_step(graph, r) && is_sliced(lowered, r.id);
    });
    if (!is_written && !is_read) bytes += static_cast<double>(n.spec.bytes());
  }
  return bytes;
}

class PermuteLate {
 public:
  // stacks: what scans make of each step is late from the beginning, with its steps behind the batch axes.
  PermuteLate(const Lowered& from, bool stacks)
      : from_(from),
        stacks_(stacks),
        old_(*from.graph),
        to_(old_.nodes()),
        late_(uz(old_.size())),
        arranged_(uz(old_.size())),
        readers_(readers_of(old_, live_nodes(old_.nodes(), from.outputs, from.inputs), from.outputs)) {}

  Lowered run() {
    for (NodeId id = 0; id < old_.size(); ++id) {
      label_like(old_.node(id));
      if (!make_late(id)) {
        const std::vector<Tensor> in = plain_inputs(id);
        to_[id] = to_.copy(id, in);
        if (stacks_ && old_.node(id).op->kind == OpKind::stack) write_late(id);
      }
    }
    for (const NodeId id : from_.outputs) plain(id);
    for (const NodeId id : from_.inputs) plain(id);
    return to_.lowered(from_.inputs, from_.outputs);
  }

  int sums() const { return sums_; }  // that became products

 private:
  // The old value is permute(base, order); its last two axes are where they were.
  struct Late {
    Tensor base;
    Order order;
  };

  const Spec& spec(NodeId id) const { return old_.node(id).spec; }

  Tensor plain(NodeId id) {
    if (!to_[id].defined()) {
      label_like(old_.node(id));
      to_[id] = moved(late_[uz(id)]->base, late_[uz(id)]->order);
    }
    return to_[id];
  }
  std::vector<Tensor> plain_inputs(NodeId id) {
    std::vector<Tensor> out;
    for (const NodeId in : old_.node(id).inputs) out.push_back(plain(in));
    label_like(old_.node(id));
    return out;
  }

  // What an operand is made of, with as many axes as the result, and where its axes come from.
  struct Source {
    Shape shape;
    Order order;
  };
  Source source_of(NodeId id, int rank) const {
    const int more = rank - spec(id).rank();
    Source out{padded(late_[uz(id)] ? late_[uz(id)]->base.shape() : spec(id).shape, rank), unmoved(rank)};
    if (late_[uz(id)])
      for (std::size_t i = 0; i < late_[uz(id)]->order.size(); ++i)
        out.order[i + uz(more)] = late_[uz(id)]->order[i] + more;
    return out;
  }
  // Its axes as the base of a result has them that is late by `order`.
  Order arrangement(const Source& source, const Order& order) const {
    return after(source.order, inverse_order(order));
  }

  double price_of_arranging(NodeId id, const Order& order) const {
    if (spec(id).size() == 1 || arranged_[uz(id)].contains(order)) return 0;
    const Source source = source_of(id, static_cast<int>(order.size()));
    if (!moves_elements(source.shape, arrangement(source, order))) return 0;
    return static_cast<double>(spec(id).bytes());
  }
  double price_of_plain(NodeId id) {
    return !late_[uz(id)] || to_[id].defined() ? 0 : static_cast<double>(spec(id).bytes());
  }
  Tensor arranged(NodeId id, const Order& order) {
    if (spec(id).size() == 1) return plain(id);
    Tensor& known = arranged_[uz(id)][order];
    if (known.defined()) return known;
    const Source source = source_of(id, static_cast<int>(order.size()));
    const Tensor base = late_[uz(id)] ? late_[uz(id)]->base : to_[id];
    label_like(old_.node(id));
    return known = moved(reshaped(base, source.shape), arrangement(source, order));
  }

  void set_late(NodeId id, Tensor base, const Order& order) {
    if (moves_elements(base.shape(), order)) late_[uz(id)] = Late{base, order};
    else to_[id] = reshaped(base, spec(id).shape);
  }

  // [steps, ..batch.., m, n] as [..batch.., steps, m, n].
  void write_late(NodeId id) {
    const int rank = spec(id).rank();
    if (rank < 4) return;
    Order order = unmoved(rank);
    std::rotate(order.begin(), order.begin() + 1, order.end() - 2);
    if (moves_elements(spec(id).shape, order))
      set_late(id, permute(std::exchange(to_[id], {}), order), inverse_order(order));
  }

  // False: it is to be copied.
  bool make_late(NodeId id) {
    const GraphNode& n = old_.node(id);
    if (n.op == &permute_op) return permute_later(id);
    if (n.op == &sum_op && sum_of_products(id)) return true;
    if (std::ranges::none_of(n.inputs, [&](NodeId in) { return late_[uz(in)].has_value(); })) return false;
    if (n.op->element_loop || n.op == &matmul_op) return operate_first(id);
    if (n.op == &sum_op || n.op == &max_over_op) return reduce_first(id);
    if (n.op == &reshape_op) return reshape_first(id);
    return false;
  }

  bool permute_later(NodeId id) {
    const GraphNode& n = old_.node(id);
    const NodeId in = n.inputs[0];
    const Shape& axes = n.attrs.as<PermuteAttrs>().order;
    Order order(axes.begin(), axes.end());
    Tensor base = late_[uz(in)] ? late_[uz(in)]->base : to_[in];
    if (late_[uz(in)]) order = after(late_[uz(in)]->order, order);
    const std::size_t rank = order.size();
    if (rank > 2 && order[rank - 1] == static_cast<int>(rank) - 2 &&
        order[rank - 2] == static_cast<int>(rank) - 1) {
      // Matrices are transposed at once, and their order stays for later.
      Order transposed = unmoved(static_cast<int>(rank));
      std::swap(transposed[rank - 1], transposed[rank - 2]);
      std::swap(order[rank - 1], order[rank - 2]);
      if (moves_elements(base.shape(), order)) base = moved(base, transposed);
      else std::swap(order[rank - 1], order[rank - 2]);
    }
    if (!keeps_matrices(order) && moves_elements(base.shape(), order)) {
      to_[id] = moved(base, order);
      return true;
    }
    set_late(id, base, order);
    return true;
  }

  // An op that does not care in which order its batch axes are, or all, if it is elementwise.
  bool operate_first(NodeId id) {
    const GraphNode& n = old_.node(id);
    const int rank = n.spec.rank();
    double best = 0;
    for (const NodeId in : n.inputs) best += price_of_plain(in);
    const Order* chosen = nullptr;
    for (const NodeId in : n.inputs) {
      if (!late_[uz(in)] || spec(in).rank() != rank) continue;
      double price = 0;
      for (const NodeId other : n.inputs) price += price_of_arranging(other, late_[uz(in)]->order);
      if (price <= best && (!chosen || price < best)) best = price, chosen = &late_[uz(in)]->order;
    }
    if (!chosen) return false;
    const Order order = *chosen;
    std::vector<Tensor> in;
    for (const NodeId i : n.inputs) in.push_back(arranged(i, order));
    label_like(n);
    set_late(id, to_.graph().append(*n.op, in, n.attrs, n.loc), order);
    return true;
  }

  bool reduce_first(NodeId id) {
    const GraphNode& n = old_.node(id);
    const Late& late = *late_[uz(n.inputs[0])];
    Shape axes;
    for (const std::int64_t axis : n.attrs.as<ReduceAttrs>().axes) axes.push_back(late.order[uz(axis)]);
    std::ranges::sort(axes);
    set_late(id, to_.graph().append(*n.op, std::array{late.base}, ReduceAttrs{axes}, n.loc), late.order);
    return true;
  }

  // Where only axes of one come or go.
  bool reshape_first(NodeId id) {
    const GraphNode& n = old_.node(id);
    const Late& late = *late_[uz(n.inputs[0])];
    const auto extents = [](const Shape& shape) {
      std::vector<int> axes;
      for (std::size_t i = 0; i < shape.size(); ++i)
        if (shape[i] != 1) axes.push_back(static_cast<int>(i));
      return axes;
    };
    const Shape& was = spec(n.inputs[0]).shape;
    const std::vector<int> before = extents(was), now = extents(n.spec.shape);
    if (before.size() != now.size()) return false;
    for (std::size_t k = 0; k < now.size(); ++k)
      if (was[uz(before[k])] != n.spec.shape[uz(now[k])]) return false;
    // Axes with an extent stand in the new base where they stand in the new shape, but in the order of the base.
    const std::vector<int> in_base = extents(late.base.shape());
    Order order = unmoved(n.spec.rank());
    Shape shape = n.spec.shape;
    for (std::size_t k = 0; k < now.size(); ++k) {
      const auto place = std::ranges::find(in_base, late.order[uz(before[k])]) - in_base.begin();
      order[uz(now[k])] = now[uz(place)];
      shape[uz(now[uz(place)])] = n.spec.shape[uz(now[k])];
    }
    if (!keeps_matrices(order)) return false;
    set_late(id, reshaped(late.base, shape), order);
    return true;
  }

  // A sum over the last batch axis of A' B, which only this reads, is one product over the rows of all its members. Where that would
  // leave most of a GPU without work, a few products, and the sum of these.
  bool sum_of_products(NodeId id) {
    const GraphNode& n = old_.node(id);
    const NodeId in = n.inputs[0];
    if (old_.node(in).op != &matmul_op || readers_[uz(in)].size() != 1) return false;
    const Tensor product = late_[uz(in)] ? late_[uz(in)]->base : to_[in];
    const Order order = late_[uz(in)] ? late_[uz(in)]->order : unmoved(spec(in).rank());
    const GraphNode& made = product.graph().node(product.id());
    const Shape& axes = n.attrs.as<ReduceAttrs>().axes;
    const int rank = product.rank();
    if (made.op != &matmul_op || rank < 3 || axes.size() != 1 || order[uz(axes[0])] != rank - 3) return false;
    const MatmulAttrs& turned = made.attrs.as<MatmulAttrs>();
    const std::int64_t members = product.shape()[uz(rank - 3)], parts = parts_of(product.shape());
    if (!turned.a || turned.b || parts == members) return false;
    std::vector<Tensor> operands;
    for (const NodeId i : made.inputs) {
      Shape shape = padded(to_.graph().node(i).spec.shape, rank);
      if (shape[uz(rank - 3)] != members) return false;
      shape[uz(rank - 3)] = parts;
      shape[uz(rank - 2)] *= members / parts;
      operands.push_back(reshape(to_.graph().tensor(i), shape));
    }
    label_like(n);
    Tensor whole = to_.graph().append(matmul_op, operands, turned, n.loc);
    if (parts > 1) whole = to_.graph().append(sum_op, std::array{whole}, ReduceAttrs{{rank - 3}}, n.loc);
    set_late(id, whole, order);
    ++sums_;
    return true;
  }

  // Of how many products the sum of all members of the last batch axis is made: the fewest that
  // fill a GPU; by the shape, so that sums do not depend on the device.
  std::int64_t parts_of(const Shape& product) const {
    constexpr std::int64_t kTile = 64, kEnoughTiles = 256;
    const std::size_t rank = product.size();
    const std::int64_t members = product[rank - 3];
    std::int64_t tiles = 1;
    for (std::size_t axis = 0; axis < rank; ++axis)
      if (axis != rank - 3) tiles *= axis < rank - 3 ? product[axis] : (product[axis] + kTile - 1) / kTile;
    std::int64_t parts = 1;
    while (parts < members && parts * tiles < kEnoughTiles) do
        ++parts;
      while (members % parts != 0);
    return parts;
  }

  const Lowered& from_;
  bool stacks_;
  const Graph& old_;
  Rewriter to_;
  std::vector<std::optional<Late>> late_;
  std::vector<std::map<Order, Tensor>> arranged_;
  Readers readers_;
  int sums_ = 0;
};

}  // namespace

Lowered permute_late(const Lowered& from, const ScanTest& is_sliced) {
  Lowered best = from;
  double least = bytes_permuted(from, is_sliced);
  int most = 0;  // products of the best that stand for sums
  for (const bool stacks : {false, true}) {
    PermuteLate pass(from, stacks);
    Lowered next = pass.run();
    const double bytes = bytes_permuted(next, is_sliced);
    if (bytes > least || (bytes == least && pass.sums() <= most)) continue;
    best = std::move(next), least = bytes, most = pass.sums();
  }
  return best;
}

}  // namespace nestgrad::cuda

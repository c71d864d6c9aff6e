// Products that go over one matrix are done one after the other, where nothing between them forbids it: their
// compiled code then goes over it once, or transposes it once (engine/plan/body_order.h, body_source.h), and for
// kernels it is still in the cache. No bit changes.
#include <algorithm>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/plan/body_order.h"
#include "engine/plan/fusion.h"

namespace nestgrad {

namespace {

class Gatherer {
 public:
  Gatherer(const Graph& graph, Fusion& fusion) : graph_(graph), fusion_(fusion), order_(fusion.order) {}

  void run() {
    if (order_.size() > kMostInstructions) return;
    for (std::size_t i = 1; i < order_.size(); ++i)
      if (const Matrix matrix = matrix_of(order_[i]); matrix.node >= 0) gather(i, matrix);
  }

 private:
  using Group = Fusion::Group;

  NodeId root_of(NodeId id) const { return root_of_alias(graph_, id); }

  struct Matrix {
    NodeId node = -1;
    bool transposed = false;  // copied to be multiplied
    bool operator==(const Matrix&) const = default;
  };
  // What a product with one row multiplies, or one of a transposed matrix, or what one with one term is added to;
  // node -1: it is none of these.
  Matrix matrix_of(const Group& group) const {
    if (group.nodes.size() != 1) return {};
    const NodeId id = group.nodes[0];
    const auto sum = fusion_.sums.find(id);
    const GraphNode& n = graph_.node(sum == fusion_.sums.end() ? id : sum->second);
    if (!n.op->products) return {};
    const auto products = n.op->products(NodeCall(graph_.nodes(), n));
    if (!products || products->n < 2) return {};
    const bool transposed = products->transpose_b && products->m > 1;
    if ((products->m == 1 || transposed) && products->k > 1) return {root_of(n.inputs[1]), transposed};
    if (products->k == 1 && products->m > 1 && sum != fusion_.sums.end())
      return {root_of(fusion_.inputs_of(graph_, id)[2])};
    return {};
  }

  bool reads(const Group& reader, const Group& writer) const {
    return std::ranges::any_of(reader.nodes, [&](NodeId id) {
      return std::ranges::any_of(fusion_.inputs_of(graph_, id), [&](NodeId in) {
        return std::ranges::find(writer.nodes, root_of(in)) != writer.nodes.end();
      });
    });
  }

  // Moves group i up to an earlier product of the same matrix, or that one down to it.
  void gather(std::size_t i, Matrix matrix) {
    bool up = true;
    for (std::size_t other = i; other-- > 0 && i - other <= kFarthestProduct;) {
      const Group& group = order_[other];
      if (is_scan(graph_.node(group.nodes[0]))) return;
      const bool follows = matrix == Matrix{group.nodes[0]};  // a step from what the other step makes
      if ((follows || matrix_of(group) == matrix) && (follows || !reads(order_[i], group))) {
        const auto at = [&](std::size_t k) { return order_.begin() + static_cast<std::ptrdiff_t>(k); };
        if (up) std::rotate(at(other + 1), at(i), at(i + 1));
        else if (!is_read_between(other, i)) std::rotate(at(other), at(other + 1), at(i));
        else return;
        return;
      }
      up = up && !reads(order_[i], group);
    }
  }
  bool is_read_between(std::size_t group, std::size_t end) const {
    for (std::size_t k = group + 1; k < end; ++k)
      if (reads(order_[k], order_[group])) return true;
    return false;
  }

  const Graph& graph_;
  const Fusion& fusion_;
  std::vector<Group>& order_;
};

}  // namespace

void gather_products(const Graph& graph, Fusion& fusion) { Gatherer(graph, fusion).run(); }

}  // namespace nestgrad

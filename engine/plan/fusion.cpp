#include "engine/plan/fusion.h"

#include <algorithm>
#include <set>

#include "engine/core/index.h"
#include "engine/core/node_call.h"

namespace nestgrad {

namespace {

// Walks the graph in order. What may be part of a cluster waits in an open one, for others to join; a cluster
// is issued when something else wants to read from it. So whatever a member needs is issued before, and
// whatever needs a member after.
class Fuser {
 public:
  Fuser(const Graph& graph, const std::vector<char>& live, const Readers& readers)
      : graph_(graph), live_(live), readers_(readers), in_cluster_(uz(graph.size()), -1) {}

  Fusion run(bool sums) {
    if (sums) find_sums();
    for (NodeId id = 0; id < graph_.size(); ++id)
      if (live_[uz(id)] && !terms_.contains(id)) place(id);
    while (!open_.empty()) issue(open_.front());
    return std::move(out_);
  }

 private:
  // More wait for nobody: each node asks them all.
  static constexpr std::size_t kMostOpen = 64;

  struct Cluster {
    Spec shape;
    std::vector<NodeId> nodes;
    std::set<NodeId> inputs;
    bool has_narrow = false;
  };

  const GraphNode& node(NodeId id) const { return graph_.node(id); }
  NodeId root_of(NodeId id) const { return root_of_alias(graph_, id); }

  // Sums of which the kernel of one term adds the other.
  void find_sums() {
    const auto only_reader_is = [&](NodeId term, NodeId id) {
      return std::ranges::all_of(readers_[uz(term)], [&](const Reader& r) { return r.id == id; });
    };
    for (NodeId id = 0; id < graph_.size(); ++id) {
      const GraphNode& n = node(id);
      if (!live_[uz(id)] || !n.op->is_addition || n.inputs[0] == n.inputs[1]) continue;
      if (node(n.inputs[0]).spec != n.spec || node(n.inputs[1]).spec != n.spec) continue;
      for (NodeId term : {n.inputs[1], n.inputs[0]}) {
        const auto plus = node(term).op->kernel_adding_to;
        if (!plus || !only_reader_is(term, id) || !plus(NodeCall(graph_.nodes(), node(term)))) continue;
        out_.sums.emplace(id, term);
        terms_.insert(term);
        break;
      }
    }
  }

  // ---- clusters ----

  bool is_reduction(NodeId id) const {
    const GraphNode& n = node(id);
    if (!n.op->row_reduction || n.op->row_reduction(NodeCall(graph_.nodes(), n)) == nullptr) return false;
    const std::int64_t row = node(n.inputs[0]).spec.shape.back();
    return row > 1 && row <= kMostClusterRow;
  }

  void place(NodeId id) {
    const GraphNode& n = node(id);
    if (n.op->is_alias) return;
    const bool reduction = !n.op->element_loop && is_reduction(id);
    const bool may_join = (n.op->element_loop || reduction) && !out_.sums.contains(id) && n.spec.size() > 0 &&
                          n.spec.rank() <= static_cast<int>(kMostClusterRank);
    int joins = -1;
    if (may_join) join_inputs(id);
    if (may_join)
      for (std::size_t i = open_.size(); i-- > 0 && joins < 0;)
        if (suits(open_[i], id, reduction)) joins = open_[i];
    for (NodeId in : out_.inputs_of(graph_, id))
      if (const int cluster = in_cluster_[uz(root_of(in))]; cluster != joins) issue(cluster);
    if (is_scan(n))  // what waits would hold on to memory that the scan could use
      while (!open_.empty()) issue(open_.front());
    if (!may_join) return out_.order.push_back({{id}, n.spec});
    if (joins < 0) {
      if (open_.size() == kMostOpen) issue(open_.front());
      joins = static_cast<int>(clusters_.size());
      clusters_.push_back({reduction ? node(n.inputs[0]).spec : n.spec, {}, {}});
      open_.push_back(joins);
    }
    Cluster& c = clusters_[uz(joins)];
    c.nodes.push_back(id);
    c.has_narrow = c.has_narrow || n.spec != c.shape;
    for (NodeId in : n.inputs)
      if (in_cluster_[uz(root_of(in))] != joins) c.inputs.insert(in);
    in_cluster_[uz(id)] = joins;
  }

  // Open clusters that this node reads from become one, as far as they may: what one of two branches waits for, the
  // other can wait for as well. Neither needs the other, as it would have been issued.
  void join_inputs(NodeId id) {
    int into = -1;
    for (NodeId in : node(id).inputs) {
      const int cluster = in_cluster_[uz(root_of(in))];
      if (cluster < 0 || cluster == into || root_of(in) != in) continue;
      if (into < 0) into = cluster;
      else if (may_merge(into, cluster)) merge(into, cluster);
    }
  }

  static std::size_t most_ops(bool has_narrow) { return has_narrow ? kMostRowOps : kMostClusterOps; }

  // With room for one more.
  bool may_merge(int a, int b) const {
    const Cluster &x = clusters_[uz(a)], &y = clusters_[uz(b)];
    const bool narrow = x.has_narrow || y.has_narrow;
    if (x.shape != y.shape || x.nodes.size() + y.nodes.size() >= most_ops(narrow)) return false;
    if (narrow && x.shape.shape.back() > kMostClusterRow) return false;
    const auto is_new = [&](NodeId in) { return !x.inputs.contains(in); };
    return x.inputs.size() + uz(std::ranges::count_if(y.inputs, is_new)) < kMostClusterInputs;
  }

  void merge(int into, int from) {
    Cluster &x = clusters_[uz(into)], &y = clusters_[uz(from)];
    for (NodeId id : y.nodes) in_cluster_[uz(id)] = into;
    x.nodes.insert(x.nodes.end(), y.nodes.begin(), y.nodes.end());
    std::ranges::sort(x.nodes);  // as in the graph: what a member needs is before it
    x.inputs.merge(y.inputs);
    x.has_narrow = x.has_narrow || y.has_narrow;
    y.nodes.clear();
    std::erase(open_, from);
  }

  // May the node become part of the cluster? Only what shares a value with it does; a single element is read at no cost.
  bool suits(int cluster, NodeId id, bool reduction) const {
    const Cluster& c = clusters_[uz(cluster)];
    const Spec& spec = reduction ? node(node(id).inputs[0]).spec : node(id).spec;
    if (c.nodes.size() >= most_ops(c.has_narrow || reduction || node(id).spec != c.shape)) return false;
    bool shares = false;
    std::size_t more = 0;
    for (NodeId in : node(id).inputs) {
      const bool inside = in_cluster_[uz(root_of(in))] == cluster;
      if (inside && root_of(in) != in) return false;  // a member under another shape
      const bool read = c.inputs.contains(in);
      shares = shares || inside || (read && node(in).spec.size() > 1);
      if (!inside && !read) ++more;
    }
    if (!shares || c.inputs.size() + more > kMostClusterInputs) return false;
    if (spec == c.shape) return !c.has_narrow || spec.shape.back() <= kMostClusterRow;
    return !reduction && c.has_narrow && spec == narrow_spec(c.shape);
  }

  void issue(int cluster) {
    if (cluster < 0) return;
    for (NodeId id : clusters_[uz(cluster)].nodes) in_cluster_[uz(id)] = -1;
    out_.order.push_back({std::move(clusters_[uz(cluster)].nodes), clusters_[uz(cluster)].shape});
    std::erase(open_, cluster);
  }

  const Graph& graph_;
  const std::vector<char>& live_;
  const Readers& readers_;
  std::set<NodeId> terms_;
  std::vector<Cluster> clusters_;
  std::vector<int> open_;
  std::vector<int> in_cluster_;  // node -> the open cluster that it is part of; -1: none
  Fusion out_;
};

}  // namespace

std::vector<NodeId> Fusion::inputs_of(const Graph& graph, NodeId id) const {
  const auto sum = sums.find(id);
  const std::vector<NodeId>& own = graph.node(id).inputs;
  if (sum == sums.end()) return own;
  std::vector<NodeId> inputs = graph.node(sum->second).inputs;
  inputs.push_back(own[own[0] == sum->second]);
  return inputs;
}

Fusion fuse(const Graph& graph, const std::vector<char>& live, const Readers& readers, bool sums) {
  return Fuser(graph, live, readers).run(sums);
}

Fusion unfused(const Graph& graph, const std::vector<char>& live) {
  Fusion out;
  for (NodeId id = 0; id < graph.size(); ++id)
    if (live[uz(id)] && !graph.node(id).op->is_alias) out.order.push_back({{id}, graph.node(id).spec});
  return out;
}

ClusterText text_of(const Fusion::Group& group, const Graph& graph, const Readers& readers) {
  ClusterText text;
  const std::vector<NodeId>& nodes = group.nodes;
  int outputs = 0;
  for (NodeId id : nodes) {
    const GraphNode& n = graph.node(id);
    ClusterOp op{.op = n.op, .operands = {}, .narrow = n.spec != group.shape};
    if (!n.op->element_loop) op.reduce = n.op->row_reduction(NodeCall(graph.nodes(), n));
    for (NodeId in : n.inputs) {
      if (const auto inside = std::ranges::find(nodes, in); inside != nodes.end()) {
        op.operands.push_back(~static_cast<int>(inside - nodes.begin()));
        continue;
      }
      const auto known = std::ranges::find(text.inputs, in) - text.inputs.begin();
      op.operands.push_back(static_cast<int>(known));
      if (uz(known) == text.inputs.size()) text.inputs.push_back(in), text.last_read.push_back(0);
      text.last_read[uz(known)] = text.ops.size();
    }
    const auto is_outside = [&](const Reader& r) { return std::ranges::find(nodes, r.id) == nodes.end(); };
    if (std::ranges::any_of(readers[uz(id)], is_outside)) op.output = outputs++;
    text.ops.push_back(std::move(op));
  }
  return text;
}

}  // namespace nestgrad

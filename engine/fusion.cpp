#include "engine/fusion.h"

#include <algorithm>
#include <set>

#include "engine/cluster.h"
#include "engine/lower.h"

namespace nestgrad {

namespace {

std::size_t idx(std::int64_t id) { return static_cast<std::size_t>(id); }

// Walks the graph in order. What may be part of a cluster waits in an open one, for others to join; a cluster
// is issued when something else wants to read from it. So whatever a member needs is issued before, and
// whatever needs a member after.
class Fuser {
 public:
  Fuser(const Graph& graph, const std::vector<char>& live, const std::vector<NodeId>& outputs)
      : graph_(graph), live_(live), outputs_(outputs), in_cluster_(idx(graph.size()), -1) {}

  Fusion run() {
    find_sums();
    for (NodeId id = 0; id < graph_.size(); ++id)
      if (live_[idx(id)] && !terms_.contains(id)) place(id);
    while (!open_.empty()) issue(open_.front());
    return std::move(out_);
  }

 private:
  struct Cluster {
    Spec shape;
    std::vector<NodeId> nodes;
    std::set<NodeId> inputs;
    bool has_narrow = false;
  };

  const Node& node(NodeId id) const { return graph_.node(id); }
  NodeId root_of(NodeId id) const {
    while (node(id).op->alias) id = node(id).inputs[0];
    return id;
  }

  // Sums of which the kernel of one term adds the other.
  void find_sums() {
    const auto readers = readers_of(graph_, live_, outputs_);
    const auto only_reader_is = [&](NodeId term, NodeId id) {
      return std::ranges::all_of(readers[idx(term)], [&](const Reader& r) { return r.id == id; });
    };
    for (NodeId id = 0; id < graph_.size(); ++id) {
      const Node& n = node(id);
      if (!live_[idx(id)] || !n.op->adds || n.inputs[0] == n.inputs[1]) continue;
      if (node(n.inputs[0]).spec != n.spec || node(n.inputs[1]).spec != n.spec) continue;
      for (NodeId term : {n.inputs[1], n.inputs[0]}) {
        const auto plus = node(term).op->plus;
        if (!plus || !only_reader_is(term, id) || !plus(NodeCall(graph_.nodes(), node(term)))) continue;
        out_.sums.emplace(id, term);
        terms_.insert(term);
        break;
      }
    }
  }

  // ---- clusters ----

  std::vector<NodeId> needs(NodeId id) const {
    std::vector<NodeId> out;
    for (NodeId in : node(id).inputs) {
      if (!terms_.contains(in)) out.push_back(root_of(in));
      else
        for (NodeId of_term : node(in).inputs) out.push_back(root_of(of_term));
    }
    return out;
  }

  bool is_reduction(NodeId id) const {
    const Node& n = node(id);
    if (!n.op->rows || n.op->rows(NodeCall(graph_.nodes(), n)) == nullptr) return false;
    const std::int64_t row = node(n.inputs[0]).spec.shape.back();
    return row > 1 && row <= kMostClusterRow;
  }

  void place(NodeId id) {
    const Node& n = node(id);
    if (n.op->alias) return;
    const bool reduction = !n.op->loop && is_reduction(id);
    const bool may_join = (n.op->loop || reduction) && !out_.sums.contains(id) && n.spec.size() > 0 &&
                          n.spec.rank() <= static_cast<int>(kMostClusterRank);
    int joins = -1;
    if (may_join)
      for (std::size_t i = open_.size(); i-- > 0 && joins < 0;)
        if (suits(open_[i], id, reduction)) joins = open_[i];
    for (NodeId in : needs(id))
      if (in_cluster_[idx(in)] != joins) issue(in_cluster_[idx(in)]);
    if (n.op->kind == OpKind::scan)  // what waits would hold on to memory that the scan could use
      while (!open_.empty()) issue(open_.front());
    if (!may_join) return out_.order.push_back({{id}, n.spec});
    if (joins < 0) {
      joins = static_cast<int>(clusters_.size());
      clusters_.push_back({reduction ? node(n.inputs[0]).spec : n.spec, {}, {}});
      open_.push_back(joins);
    }
    Cluster& c = clusters_[idx(joins)];
    c.nodes.push_back(id);
    c.has_narrow = c.has_narrow || n.spec != c.shape;
    for (NodeId in : n.inputs)
      if (in_cluster_[idx(root_of(in))] != joins) c.inputs.insert(in);
    in_cluster_[idx(id)] = joins;
  }

  // May the node become part of the cluster? Only what shares a value with it does.
  bool suits(int cluster, NodeId id, bool reduction) const {
    const Cluster& c = clusters_[idx(cluster)];
    if (c.nodes.size() == kMostClusterOps) return false;
    bool shares = false;
    std::size_t more = 0;
    for (NodeId in : node(id).inputs) {
      const bool inside = in_cluster_[idx(root_of(in))] == cluster;
      if (inside && root_of(in) != in) return false;  // a member under another shape
      shares = shares || inside || c.inputs.contains(in);
      if (!inside && !c.inputs.contains(in)) ++more;
    }
    if (!shares || c.inputs.size() + more > kMostClusterInputs) return false;
    const Spec& spec = reduction ? node(node(id).inputs[0]).spec : node(id).spec;
    if (spec == c.shape) return !c.has_narrow || spec.shape.back() <= kMostClusterRow;
    return !reduction && c.has_narrow && spec == narrow_spec(c.shape);
  }

  void issue(int cluster) {
    if (cluster < 0) return;
    for (NodeId id : clusters_[idx(cluster)].nodes) in_cluster_[idx(id)] = -1;
    out_.order.push_back({std::move(clusters_[idx(cluster)].nodes), clusters_[idx(cluster)].shape});
    std::erase(open_, cluster);
  }

  const Graph& graph_;
  const std::vector<char>& live_;
  const std::vector<NodeId>& outputs_;
  std::set<NodeId> terms_;
  std::vector<Cluster> clusters_;
  std::vector<int> open_;
  std::vector<int> in_cluster_;  // node -> the open cluster that it is part of; -1: none
  Fusion out_;
};

}  // namespace

Fusion fuse(const Graph& graph, const std::vector<char>& live, const std::vector<NodeId>& outputs) {
  return Fuser(graph, live, outputs).run();
}

Fusion unfused(const Graph& graph, const std::vector<char>& live) {
  Fusion out;
  for (NodeId id = 0; id < graph.size(); ++id)
    if (live[idx(id)] && !graph.node(id).op->alias) out.order.push_back({{id}, graph.node(id).spec});
  return out;
}

}  // namespace nestgrad

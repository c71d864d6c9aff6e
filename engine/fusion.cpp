#include "engine/fusion.h"

#include <algorithm>

#include "engine/cluster.h"
#include "engine/lower.h"

namespace nestgrad {

namespace {

std::size_t idx(NodeId id) { return static_cast<std::size_t>(id); }

class Fuser {
 public:
  Fuser(const Graph& graph, const std::vector<char>& live, const std::vector<NodeId>& outputs)
      : graph_(graph), live_(live), only_reader_(idx(graph.size()), -1) {
    const auto readers = readers_of(graph, live, outputs);
    for (std::size_t id = 0; id < readers.size(); ++id)
      if (!readers[id].empty() &&
          std::ranges::all_of(readers[id], [&](const Reader& r) { return r.id == readers[id][0].id; }))
        only_reader_[id] = readers[id][0].id;
  }

  Fusion run() {
    find_sums();
    find_clusters();
    return std::move(out_);
  }

 private:
  static constexpr std::size_t kClusterOps = 9;

  const Node& node(NodeId id) const { return graph_.node(id); }

  // Sums of which the kernel of one term adds the other.
  void find_sums() {
    for (NodeId id = 0; id < graph_.size(); ++id) {
      const Node& n = node(id);
      if (!live_[idx(id)] || !n.op->adds || n.inputs[0] == n.inputs[1]) continue;
      if (node(n.inputs[0]).spec != n.spec || node(n.inputs[1]).spec != n.spec) continue;
      for (NodeId term : {n.inputs[1], n.inputs[0]}) {
        const auto plus = node(term).op->plus;
        if (!plus || only_reader_[idx(term)] != id || !with_call(graph_.nodes(), node(term), plus)) continue;
        out_.sums.emplace(id, term);
        out_.heads.emplace(term, id);
        break;
      }
    }
  }

  // An elementwise node whose one reader is elementwise and of the same shape is computed with that reader.
  void find_clusters() {
    const auto may_join = [&](NodeId id) { return node(id).op->loop && !out_.sums.contains(id); };
    std::vector<std::size_t> ops(only_reader_.size(), 1);
    for (NodeId id = graph_.size(); id-- > 0;) {
      const NodeId next = only_reader_[idx(id)];
      if (!live_[idx(id)] || next < 0 || !may_join(id) || !may_join(next)) continue;
      const NodeId head = out_.head_of(next);
      if (node(id).spec != node(head).spec || node(id).spec.rank() > kMostClusterRank) continue;
      if (ops[idx(head)] == kClusterOps) continue;
      out_.heads.emplace(id, head);
      ++ops[idx(head)];
    }
    for (NodeId id = 0; id < graph_.size(); ++id)
      if (const NodeId head = out_.head_of(id); head != id && !out_.sums.contains(head))
        out_.clusters[head].push_back(id);
  }

  const Graph& graph_;
  const std::vector<char>& live_;
  std::vector<NodeId> only_reader_;  // -1: none, several, or the caller
  Fusion out_;
};

}  // namespace

Fusion fuse(const Graph& graph, const std::vector<char>& live, const std::vector<NodeId>& outputs) {
  return Fuser(graph, live, outputs).run();
}

}  // namespace nestgrad

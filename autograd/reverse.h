// Reverse: reverse-mode differentiation, from seeds (values with their cotangents) back to `wrt`. It visits
// each node after all that read it, asks its op for the cotangents of its inputs, and adds them up. Nodes
// older than all of `wrt` cannot depend on them and are not looked at: a gradient in each step of a long loop
// costs as much as its step.
#pragma once

#include <map>
#include <unordered_map>

#include "autograd/grad.h"
#include "engine/core/body.h"

namespace nestgrad {

// Sets where leaves go that rules make (ones, zeros): the open graph if it is y's or within it, else y's.
class OpenGraph : ContextGuard {
 public:
  explicit OpenGraph(Tensor y) {
    Graph*& open = context().emit.graph;
    if (!open || !open->descends_from(y.graph())) open = &y.graph();
  }
};

// grad() and vjp() for a function that is made of them: its name, `rule`, stands before their errors.
std::vector<Tensor> grad_for(std::string_view rule, Tensor y, const std::vector<Tensor>& x,
                             GradOptions options, Loc loc);
std::vector<Tensor> vjp_for(std::string_view rule, const std::vector<Tensor>& y,
                            const std::vector<Tensor>& cotangents, const std::vector<Tensor>& x,
                            GradOptions options, Loc loc);

class Reverse {
 public:
  Reverse(Graph& graph, std::span<const GradSeed> seeds, std::span<const NodeId> wrt,
          std::span<const Tensor> initial);
  Tensor cotangent(NodeId id) const;  // after run()
  void run();

 private:
  // Cotangents of what a scan gives.
  struct ScanCotangents {
    std::map<std::int64_t, Tensor> finals;  // last carries, by carry
    std::map<std::int64_t, Tensor> stacks;  // values of all steps, by body node
  };

  // Cotangents that are zero but for a range of one axis, as those of slices, by where it begins: no two meet. They wait to become one
  // tensor, so that many slices of one tensor cost what the tensor costs, and not each as much.
  struct Ranges {
    struct Range {
      std::int64_t end;
      Tensor padded, inside;  // with the zeros, and without
    };
    int axis = 0;
    std::map<std::int64_t, Range> by_begin;
    ThreadContext::Emit last;  // where the last one was made: of whose line and scope what adds them up is
  };

  bool depends(NodeId id) const { return id >= first_ && depends_[at(id)]; }  // on `wrt`
  std::size_t at(NodeId id) const { return static_cast<std::size_t>(id - first_); }
  void add(NodeId id, Tensor ct);
  bool waits(NodeId id, Tensor ct);  // is it such a range, that meets none which waits?
  void add_ranges(NodeId id);        // all that wait
  void through_op(NodeId id);
  void through_scan(NodeId id);  // scan_vjp.cpp

  Graph& graph_;
  NodeId first_ = 0;           // of `wrt`, the oldest
  std::vector<NodeId> order_;  // the nodes between `wrt` and the seeds, inputs first
  int level_ = 1;              // of the nodes that the walk appends: one above what it differentiates
  // By id - first_, up to the newest of seeds and `wrt`.
  std::vector<char> depends_;
  std::vector<Tensor> cotangents_;
  std::unordered_map<NodeId, ScanCotangents> scans_;
  std::unordered_map<NodeId, Ranges> ranges_;
};

}  // namespace nestgrad

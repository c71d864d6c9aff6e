#include "engine/plan/slicing.h"

#include <algorithm>
#include <map>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/plan/liveness.h"

namespace nestgrad {

namespace {

// The last two axes belong to matrix products, which are faster whole.
constexpr int kFirstFromEnd = 3;

// Slices are run in groups where no op of one has more flops than a product of a row with a 64x64 matrix
// (twice over), of as many as keep what they carry in the first level of the cache, and leave work for some
// threads.
constexpr double kSmallOp = 16384;
constexpr std::int64_t kMostJoined = 8;
constexpr std::size_t kJoinedBytes = 16 << 10;
constexpr int kSlicesLeft = 4;

// The nodes of a scan's body of whose values somebody reads the stack.
std::vector<NodeId> stacked_nodes(const Graph& graph, const Readers& readers, NodeId scan) {
  std::vector<NodeId> out;
  for (NodeId stack : results_of(graph, readers, scan).stacks) out.push_back(shown_by(graph.node(stack)));
  return out;
}

class Slicer {
 public:
  Slicer(const GraphBody& body, const std::vector<NodeId>& stacked) : body_(body), wanted_(stacked) {
    wanted_.insert(wanted_.end(), body.outs.begin(), body.outs.end());
    std::vector<NodeId> inputs(uz(body.inputs()));
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<NodeId>(i);
    live_ = live_nodes(body.nodes, wanted_, inputs);
  }

  std::optional<SlicedBody> run() {
    find_axes();
    if (flows_.empty()) return {};
    join_small_slices();
    if (build()) return std::move(out_);
    if (groups_.back() == 1) return {};
    leave_apart();
    if (!build()) return {};
    return std::move(out_);
  }

  // By carry: the axes, counted from the end, over which its slices are added up.
  std::vector<std::vector<int>> summed() {
    std::vector<std::vector<int>> out(uz(body_.carries));
    find_axes();
    bool any = false;
    for (std::size_t c = 0; c < out.size(); ++c)
      for (std::size_t a = 0; a < flows_.size(); ++a) {
        if (flows_[a][uz(body_.outs[c])].kind != AxisFlow::Kind::partial) continue;
        out[c].push_back(from_end_[a]);
        any = true;
      }
    if (any && !build()) return std::vector<std::vector<int>>(out.size());
    return out;
  }

 private:
  const GraphNode& node(NodeId id) const { return body_.nodes[uz(id)]; }

  // ---- which axes ----

  void find_axes() {
    int rank = 0;
    for (int i = 0; i < body_.inputs(); ++i) rank = std::max(rank, body_.spec(i).rank());
    for (int from_end = rank; from_end >= kFirstFromEnd; --from_end) try_axis(from_end);
  }

  void try_axis(int from_end) {
    const auto place = [&](NodeId id) { return node(id).spec.rank() - from_end; };
    std::int64_t extent = 1;
    for (NodeId i = 0; i < body_.carries + body_.xs && extent == 1; ++i)
      if (place(i) >= 0) extent = node(i).spec.shape[uz(place(i))];
    if (extent < 2) return;  // one slice, or none: nothing to run apart
    std::vector<std::pair<NodeId, AxisFlow>> seeds;
    for (NodeId i = 0; i < body_.inputs(); ++i)
      seeds.emplace_back(i, place(i) >= 0 && node(i).spec.shape[uz(place(i))] == extent
                                ? AxisFlow::along(place(i))
                                : AxisFlow::free());
    // A carry to which sums over slices are added is such a sum itself.
    for (bool again = true; again;) {
      again = false;
      const std::vector<AxisFlow> flows = follow(body_.nodes, seeds, {.positional = false, .partial = true});
      bool fits = true;
      for (std::size_t c = 0; c < uz(body_.carries); ++c) {
        const AxisFlow& next = flows[uz(body_.outs[c])];
        AxisFlow& seed = seeds[c].second;
        if (next.kind == seed.kind && next.axis == seed.axis) continue;
        fits = false;
        if (seed.kind != AxisFlow::Kind::free || next.kind == AxisFlow::Kind::along) return;
        seed = AxisFlow::partial();
        again = true;
      }
      if (!fits) continue;
      for (NodeId id : wanted_)
        if (flows[uz(id)].kind == AxisFlow::Kind::mixed) return;
      for (NodeId id : stacked())
        if (flows[uz(id)].kind == AxisFlow::Kind::partial) return;
      if (sums_again(flows)) return;
      flows_.push_back(flows);
      from_end_.push_back(from_end);
      out_.extents.push_back(extent);
      groups_.push_back(1);
      return;
    }
  }
  // Is a carry the sum over the slices of one axis, and the same for all slices of another? Then it would be
  // added up once for each slice of the other.
  bool sums_again(const std::vector<AxisFlow>& flows) const {
    return std::ranges::any_of(body_.outs, [&](NodeId id) {
      return std::ranges::any_of(flows_, [&](const std::vector<AxisFlow>& others) {
        const AxisFlow::Kind a = flows[uz(id)].kind, b = others[uz(id)].kind;
        return (a == AxisFlow::Kind::partial && b == AxisFlow::Kind::free) ||
               (a == AxisFlow::Kind::free && b == AxisFlow::Kind::partial);
      });
    });
  }
  std::span<const NodeId> stacked() const {
    return std::span(wanted_).first(wanted_.size() - body_.outs.size());
  }

  // Slices whose ops have little to do run in groups along the innermost axis, so that calls of kernels take
  // less of the time. A product and its derivatives take equally many flops, so a loop and its derivative are
  // grouped alike.
  void join_small_slices() {
    std::size_t carried = 1;  // bytes of the largest array that one slice carries
    for (NodeId c = 0; c < body_.carries; ++c) carried = std::max(carried, bytes_of_slice(c));
    double flops = 0;  // of the largest op of one slice
    for (NodeId id = body_.inputs(); id < static_cast<NodeId>(body_.nodes.size()); ++id)
      if (live_[uz(id)] && node(id).op->cost)
        flops = std::max(flops, node(id).op->cost(NodeCall(body_.nodes, node(id))).flops / out_.slices());
    if (flops > kSmallOp) return;
    std::int64_t& extent = out_.extents.back();
    for (std::int64_t group = std::min(extent, kMostJoined); group > 1; --group)
      if (extent % group == 0 && uz(group) * carried <= kJoinedBytes &&
          out_.slices() >= kSlicesLeft * group) {
        extent /= group, groups_.back() = group;
        return;
      }
  }
  std::size_t bytes_of_slice(NodeId id) const {
    std::size_t bytes = size_of(node(id).spec.dtype);
    for (int axis = 0; axis < node(id).spec.rank(); ++axis) bytes *= uz(extent_of(id, axis));
    return bytes;
  }
  void leave_apart() {
    out_.extents.back() *= groups_.back();
    groups_.back() = 1;
    made_.clear();
  }

  // ---- the body of one slice ----

  bool is_along(NodeId id, int axis) const {
    return std::ranges::any_of(flows_, [&](const std::vector<AxisFlow>& f) {
      return f[uz(id)].kind == AxisFlow::Kind::along && f[uz(id)].axis == axis;
    });
  }
  // What one slice has of an axis.
  std::int64_t extent_of(NodeId id, int axis) const {
    for (std::size_t a = 0; a < flows_.size(); ++a)
      if (flows_[a][uz(id)].kind == AxisFlow::Kind::along && flows_[a][uz(id)].axis == axis)
        return groups_[a];
    return node(id).spec.shape[uz(axis)];
  }

  using Cuts = std::vector<std::pair<int, std::int64_t>>;  // axis, extent that is left of it

  // The value of node `id` for one slice, moreover cut along axes along which it does not vary. Undefined
  // where there is none.
  Tensor make(NodeId id, const Cuts& cuts) {
    if (const auto known = made_.find({id, cuts}); known != made_.end()) return known->second;
    const GraphNode& n = node(id);
    for (const std::vector<AxisFlow>& f : flows_)
      if (f[uz(id)].kind == AxisFlow::Kind::mixed) return {};  // nobody wants it, but a scan has it as input
    Spec target = n.spec;
    for (int axis = 0; axis < target.rank(); ++axis) target.shape[uz(axis)] = extent_of(id, axis);
    for (const auto& [axis, extent] : cuts) target.shape[uz(axis)] = extent;
    label_like(n);
    Tensor out;
    if (n.op->kind == OpKind::input) {
      if (!cuts.empty()) return {};
      out = out_.graph->input(target, input_name(n));
    } else {
      if (n.op->kind != OpKind::value && n.op->kind != OpKind::constant) return {};
      std::vector<Tensor> in;
      for (std::size_t k = 0; k < n.inputs.size(); ++k) {
        in.push_back(make(n.inputs[k], cuts_of(n, k, target)));
        if (!in.back().defined()) return {};
      }
      Attrs attrs = n.attrs;
      if (attrs.find<ShapeAttrs>()) attrs = ShapeAttrs{target.shape};
      label_like(n);
      out = out_.graph->append(*n.op, in, std::move(attrs), n.loc);
    }
    if (out.spec() != target) return {};
    made_.emplace(std::pair{id, cuts}, out);
    return out;
  }

  // Axes of input k of extent above 1, not cut yet, that go to an axis of which less is left now.
  Cuts cuts_of(const GraphNode& n, std::size_t k, const Spec& target) const {
    Cuts out;
    if (target.shape == n.spec.shape || !n.op->axes) return out;
    const NodeCall call(body_.nodes, n);
    for (int axis = 0; axis < call.in(k).rank(); ++axis) {
      if (call.in(k).shape[uz(axis)] == 1 || is_along(n.inputs[k], axis)) continue;
      const int to = n.op->axes(call, static_cast<int>(k), axis);
      if (to >= 0 && target.shape[uz(to)] < n.spec.shape[uz(to)])
        out.emplace_back(axis, target.shape[uz(to)]);
    }
    return out;
  }

  // false: there is a value of which the slices are nothing, or lie in pieces.
  bool build() {
    out_.graph = std::make_shared<Graph>();
    out_.made.assign(body_.nodes.size(), -1);
    out_.parts.resize(body_.nodes.size());
    ContextGuard guard;
    context().emit.graph = out_.graph.get();
    for (NodeId id = 0; id < static_cast<NodeId>(body_.nodes.size()); ++id) {
      if (id >= body_.inputs() && !live_[uz(id)]) continue;
      const Tensor t = make(id, {});
      if (!t.defined()) return false;
      out_.made[uz(id)] = t.id();
    }
    std::vector<NodeId> shown = wanted_;
    for (NodeId id = 0; id < body_.inputs(); ++id) shown.push_back(id);
    for (NodeId id : shown) {
      if (lies_in_pieces(id)) return false;
      out_.parts[uz(id)] = part(id);
    }
    return true;
  }

  // Is an axis cut behind one that is not? Then the part of a slice is no single stretch of memory.
  bool lies_in_pieces(NodeId id) const {
    bool inside = true;  // of the part, from the last axis on
    for (int axis = node(id).spec.rank(); axis-- > 0;) {
      if (!inside && extent_of(id, axis) != 1) return true;
      inside = inside && !is_along(id, axis);
    }
    return false;
  }

  SliceOf part(NodeId id) const {
    const Shape& shape = node(id).spec.shape;
    const std::size_t element = size_of(node(id).spec.dtype);
    SliceOf out{.bytes = bytes_of_slice(id)};
    const Shape strides = strides_of(shape);
    for (int slice = 0; slice < out_.slices(); ++slice) {
      std::size_t at = 0;
      bool owner = true;
      std::int64_t rest = slice;
      for (std::size_t a = flows_.size(); a-- > 0; rest /= out_.extents[a]) {
        const std::int64_t index = rest % out_.extents[a] * groups_[a];
        const AxisFlow& f = flows_[a][uz(id)];
        if (f.kind == AxisFlow::Kind::along) at += uz(index * strides[uz(f.axis)]) * element;
        else owner = owner && index == 0;
      }
      out.at.push_back(at);
      out.owner.push_back(owner);
    }
    for (const std::vector<AxisFlow>& f : flows_)
      out.partial = out.partial || f[uz(id)].kind == AxisFlow::Kind::partial;
    return out;
  }

  const GraphBody& body_;
  std::vector<NodeId> wanted_;
  std::vector<char> live_;
  std::vector<std::vector<AxisFlow>> flows_;  // one per axis along which it is cut
  std::vector<int> from_end_;                 // which axes these are, counted from the end
  std::vector<std::int64_t> groups_;          // by axis: how much of it one slice has
  std::map<std::pair<NodeId, Cuts>, Tensor> made_;
  SlicedBody out_;
};

}  // namespace

int SlicedBody::slices() const {
  std::int64_t n = 1;
  for (std::int64_t extent : extents) n *= extent;
  return static_cast<int>(n);
}

std::optional<SlicedBody> slice_scan(const Graph& graph, const Readers& readers, NodeId scan) {
  return Slicer(body_of(graph.node(scan)), stacked_nodes(graph, readers, scan)).run();
}

namespace {

// The scans of a graph in their order, and what there is to know of each to cut it.
class Scans {
 public:
  explicit Scans(const Lowered& lowered)
      : graph_(*lowered.graph), live_(live_nodes(graph_.nodes(), lowered.outputs, lowered.inputs)) {
    for (NodeId id = 0; id < graph_.size(); ++id) {
      const GraphNode& n = graph_.node(id);
      if (is_scan(n)) ids_.push_back(id);
      if (live_[uz(id)] && n.attrs.find<StackAttrs>()) stacked_[n.inputs[0]].push_back(shown_by(n));
    }
  }
  std::size_t size() const { return ids_.size(); }
  bool is_read(std::size_t i) const { return live_[uz(ids_[i])] != 0; }
  const GraphBody& body(std::size_t i) const { return body_of(graph_.node(ids_[i])); }
  const std::vector<NodeId>& stacked(std::size_t i) { return stacked_[ids_[i]]; }

 private:
  const Graph& graph_;
  std::vector<char> live_;
  std::vector<NodeId> ids_;
  std::map<NodeId, std::vector<NodeId>> stacked_;
};

}  // namespace

bool sums_alike(const Lowered& made, const Lowered& from) {
  Scans now(made), before(from);
  if (now.size() != before.size()) return false;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (!now.is_read(i)) continue;
    const std::vector<NodeId>&stacked = now.stacked(i), &stacked_before = before.stacked(i);
    if (&now.body(i) == &before.body(i) && stacked == stacked_before) continue;
    if (Slicer(now.body(i), stacked).summed() != Slicer(before.body(i), stacked_before).summed())
      return false;
  }
  return true;
}

}  // namespace nestgrad

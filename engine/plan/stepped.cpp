#include "engine/plan/stepped.h"

#include <algorithm>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/plan/readers.h"

namespace nestgrad {

Stepped stepped(const SliceOf& part, std::size_t step) { return {step, part.at}; }

std::optional<Stepped> stepped(const SliceOf& part, const Spec& value, const OpView& view) {
  if (value.size() == 0) return std::nullopt;
  const std::size_t element = size_of(value.dtype);
  const Shape dense = strides_of(value.shape);
  const auto stride = [&](int axis) { return view.strides[uz(axis) + 1]; };  // the first is time
  std::int64_t inside = 1;
  for (int axis = value.rank(); axis-- > 0 && uz(inside) * element < part.bytes;) {
    const std::int64_t extent = value.shape[uz(axis)];
    if (extent > 1 && stride(axis) != inside) return std::nullopt;
    inside *= extent;
  }
  if (view.strides[0] < 0) return std::nullopt;
  Stepped out{uz(view.strides[0]) * element, {}};
  for (std::size_t from : part.at) {
    std::int64_t at = view.offset;
    for (int axis = 0; axis < value.rank(); ++axis)
      at +=
          static_cast<std::int64_t>(from / element) / dense[uz(axis)] % value.shape[uz(axis)] * stride(axis);
    out.at.push_back(uz(at) * element);
  }
  return out;
}

Stepped slice_by_slice(const SliceOf& part, std::size_t steps) {
  Stepped out{part.bytes, {}};
  for (std::size_t s = 0; s < part.at.size(); ++s) out.at.push_back(s * steps * part.bytes);
  return out;
}

std::optional<OpView> inverse(const OpView& view, const Spec& in, const Spec& out) {
  if (in.size() != out.size() || view.offset != 0) return std::nullopt;
  const Shape from = strides_of(in.shape), to = strides_of(out.shape);
  OpView back{0, Shape(in.shape.size(), 0)};
  for (std::size_t axis = 0; axis < in.shape.size(); ++axis) {
    if (in.shape[axis] == 1) continue;
    std::size_t k = 0;  // the axis of the output that walks along this one
    while (k < out.shape.size() && (out.shape[k] != in.shape[axis] || view.strides[k] != from[axis])) ++k;
    if (k == out.shape.size()) return std::nullopt;
    back.strides[axis] = to[k];
  }
  return back;
}

StepLayouts lay_out_steps(const Graph& graph, const std::vector<char>& live, const Readers& readers,
                          const std::function<SliceOf(NodeId scan, NodeId what)>& part_of) {
  StepLayouts out;
  const auto all_scans = [&](NodeId id, const std::function<bool(SliceOf, const Spec&)>& suits) {
    return std::ranges::all_of(readers[uz(id)], [&](const Reader& r) {
      return reads_step_by_step(graph, r) &&
             suits(part_of(r.id, r.operand), body_of(graph.node(r.id)).spec(r.operand));
    });
  };
  const auto view_of = [&](const GraphNode& n) { return n.op->view(NodeCall(graph.nodes(), n)); };
  for (NodeId id = 0; id < graph.size(); ++id)
    if (const GraphNode& n = graph.node(id); live[uz(id)] && n.op->view)
      if (all_scans(id, [&](const SliceOf& part, const Spec& value) {
            return stepped(part, value, view_of(n)).has_value();
          }))
        out.read_in_place.insert(id);
  for (NodeId id = 0; id < graph.size(); ++id) {
    const GraphNode& n = graph.node(id);
    const StackAttrs* stack = n.attrs.find<StackAttrs>();
    if (!live[uz(id)] || !stack) continue;
    const NodeId scan = n.inputs[0], what = stack->node;
    const SliceOf part = part_of(scan, what);
    const NodeId first = readers[uz(id)][0].id;
    if (readers[uz(id)].size() == 1 && first >= 0 && graph.node(first).op->view) {
      const auto back = inverse(view_of(graph.node(first)), n.spec, graph.node(first).spec);
      if (!out.read_in_place.contains(first) && back &&
          stepped(part, body_of(graph.node(scan)).spec(what), *back))
        out.written_as.emplace(id, first);
    } else if (!part.partial && std::ranges::count(part.owner, 0) == 0 &&
               all_scans(id, [&](const SliceOf& theirs, const Spec&) { return theirs.same_bytes(part); })) {
      out.slice_by_slice.emplace(id, slice_by_slice(part, uz(stack->steps)));
    }
  }
  return out;
}

}  // namespace nestgrad

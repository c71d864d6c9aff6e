// broadcast_to: repeats axes of extent 1 (and missing leading axes) up to a shape.
#include <fmt/format.h>

#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"

namespace nestgrad {

namespace {

Spec infer_broadcast(const OpCall& c) {
  const Shape& shape = c.attrs.as<ShapeAttrs>().shape;
  if (broadcast_shapes(c, c.in[0].shape, shape) != shape)
    c.shape_error(fmt::format("cannot be broadcast to {}", to_string(shape)));
  return {c.in[0].dtype, shape};
}

OpView broadcast_view(const OpCall& c) {
  const Shape from = strides_of(c.in[0].shape);
  const int shift = c.out.rank() - c.in[0].rank();
  OpView view;
  for (int d = 0; d < c.out.rank(); ++d)
    view.strides.push_back(d < shift || c.in[0].shape[uz(d - shift)] == 1 ? 0 : from[uz(d - shift)]);
  return view;
}

int broadcast_axes(const OpCall& c, int, int axis) {
  const int to = axis + c.out.rank() - c.in[0].rank();
  return c.in[0].shape[uz(axis)] == c.out.shape[uz(to)] ? to : -1;
}

}  // namespace

constinit const Op broadcast_op = {
    .name = "broadcast_to",
    .doc = "Repeats axes of extent 1 and missing leading axes.",
    .infer = infer_broadcast,
    .vjp = [](const VjpCall& c) { return c.ct; },  // grad sums it down
    .simplify = drop_if_nothing_changes,
    .linear_in = always_linear,
    .is_linear = true,
    .axes = broadcast_axes,
    .broadcasts = true,
    .cost = copy_cost,
    .cpu = copy_view,
    .view = broadcast_view,
    .read_attrs = attrs_from<ShapeAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{3, 1}}}, .attrs = ShapeAttrs{{2, 3, 4}}},
              {.inputs = {{{}}}, .attrs = ShapeAttrs{{3}}},
              {.inputs = {{{2, 3}}}, .attrs = ShapeAttrs{{2, 1}}, .error = "cannot be broadcast to [2,1]"}};
    }};

Tensor broadcast_to(Operand x, const Shape& shape) {
  return emit(broadcast_op, {x.tensor()}, ShapeAttrs{shape}, x.loc);
}

Tensor zeros(DType dtype, const Shape& shape, Loc loc) { return full(dtype, shape, 0, loc); }
Tensor full(DType dtype, const Shape& shape, double value, Loc loc) {
  const Tensor number = constant(value, dtype, loc);
  return shape.empty() ? number : broadcast_to({number, loc}, shape);
}
Tensor zero_like(Tensor x, Loc loc) { return x.graph().constant(Array::scalar(0, x.dtype()), loc); }

}  // namespace nestgrad

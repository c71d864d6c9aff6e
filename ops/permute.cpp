// permute: out[i_0, i_1, ..] = x at the same index with its axes in the given order.
#include <fmt/format.h>

#include <numeric>

#include "engine/core/node_text.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"

namespace nestgrad {

namespace {

std::vector<int> order_of(const Attrs& a) {
  const Shape& order = a.as<PermuteAttrs>().order;
  return {order.begin(), order.end()};
}

Spec infer_permute(const OpCall& c) {
  const Shape& order = c.attrs.as<PermuteAttrs>().order;
  std::vector<std::int64_t> sorted(order), all(uz(c.in[0].rank()));
  std::ranges::sort(sorted);
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all)
    c.shape_error(fmt::format("{} is not an order of the axes; name each axis once", to_string(order)));
  Shape shape;
  for (std::int64_t axis : order) shape.push_back(c.in[0].shape[uz(axis)]);
  return {c.in[0].dtype, std::move(shape)};
}

OpView permute_view(const OpCall& c) {
  const Shape from = strides_of(c.in[0].shape);
  OpView view;
  for (const int axis : order_of(c.attrs)) view.strides.push_back(from[uz(axis)]);
  return view;
}

Tensor simplify_permute(Tensor t) {
  const Tensor x = input_of(t);
  const std::vector<int> order = order_of(node_of(t).attrs);
  if (!moves_elements(x.shape(), order)) return reshape(x, t.shape());
  if (node_of(x).op != &permute_op) return {};
  const std::vector<int> first = order_of(node_of(x).attrs);
  std::vector<int> both;
  for (const int axis : order) both.push_back(first[uz(axis)]);
  return permute(input_of(x), both);
}

}  // namespace

bool moves_elements(const Shape& from, std::span<const int> order) {
  int last = -1;
  for (const int axis : order) {
    if (from[uz(axis)] == 1) continue;
    if (axis < last) return true;
    last = axis;
  }
  return false;
}

std::vector<int> inverse_order(std::span<const int> order) {
  std::vector<int> out(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) out[uz(order[i])] = static_cast<int>(i);
  return out;
}

Tensor transposed_input(Tensor t) {
  if (node_of(t).op != &permute_op) return {};
  std::vector<int> order = order_of(node_of(t).attrs);
  if (order.size() < 2) return {};
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return std::ranges::is_sorted(order) ? input_of(t) : Tensor();
}

constinit const Op permute_op = {
    .name = "permute",
    .doc = "Axes in another order: output axis i is input axis order[i].",
    .infer = infer_permute,
    .vjp = [](const VjpCall& c) { return permute(c.ct, inverse_order(order_of(c.attrs))); },
    .simplify = simplify_permute,
    .linear_in = always_linear,
    .is_linear = true,
    .axes = [](const OpCall& c, int, int axis) { return inverse_order(order_of(c.attrs))[uz(axis)]; },
    .cost = copy_cost,
    .cpu = copy_view,
    .view = permute_view,
    .read_attrs = attrs_from<PermuteAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 3, 4}}}, .attrs = PermuteAttrs{{2, 0, 1}}},
              {.inputs = {{{2, 3, 4, 2}}}, .attrs = PermuteAttrs{{0, 2, 1, 3}}},
              {.inputs = {{{2, 3}}}, .attrs = PermuteAttrs{{0, 0}}, .error = "is not an order of the axes"}};
    }};

Tensor permute(Operand x, const std::vector<int>& order) {
  Shape axes;
  for (int axis : order) axes.push_back(normal_axis("permute", axis, x));
  return emit(permute_op, {x.tensor()}, PermuteAttrs{axes}, x.loc);
}

Tensor transpose(Operand x) {
  const int rank = x.tensor().rank();
  if (rank < 2)
    throw call_error<ShapeError>("transpose", x.loc, "needs two axes, x is {}", describe(x.tensor()));
  std::vector<int> order(uz(rank));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[uz(rank - 1)], order[uz(rank - 2)]);
  return permute(x, order);
}

}  // namespace nestgrad

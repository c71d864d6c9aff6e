// reshape: the same elements under another shape. Costs nothing: the output is the input's buffer.
#include <fmt/format.h>

#include "engine/core/node_text.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"

namespace nestgrad {

namespace {

Spec infer_reshape(const OpCall& c) {
  const Shape& shape = c.attrs.as<ShapeAttrs>().shape;
  if (numel(shape) != c.in[0].size())
    c.shape_error(fmt::format("{} elements cannot be arranged as {}", c.in[0].size(), to_string(shape)));
  return {c.in[0].dtype, shape};
}

// How many axes of none stand before an axis, and how many elements the others make. A product of all extents
// would be 0 from the first axis of none on, and tell no axis behind it from another.
struct Before {
  int none = 0;
  std::int64_t elements = 1;
  void pass(std::int64_t extent) {
    if (extent == 0) ++none;
    else elements *= extent;
  }
  bool operator==(const Before&) const = default;
};

// An axis survives if as much stands before it, and its extent is the same. Of axes of extent 1 there may be several
// that it can be. Then it keeps its place if nothing before it has changed (what is behind it was split or joined), else
// its place from the end if nothing behind it has changed.
int reshape_axes(const OpCall& c, int, int axis) {
  const Shape& from = c.in[0].shape;
  const Shape& to = c.out.shape;
  Before before, prefix;
  for (int i = 0; i < axis; ++i) before.pass(from[uz(i)]);
  std::vector<int> places;
  for (int i = 0; i < c.out.rank(); prefix.pass(to[uz(i++)]))
    if (prefix == before && to[uz(i)] == from[uz(axis)]) places.push_back(i);
  const auto is_place = [&](int i) { return std::ranges::find(places, i) != places.end(); };
  if (is_place(axis) && std::equal(from.begin(), from.begin() + axis, to.begin())) return axis;
  const auto behind = static_cast<int>(from.size()) - axis;
  if (const int place = c.out.rank() - behind;
      is_place(place) && std::equal(from.begin() + axis, from.end(), to.begin() + place))
    return place;
  return places.empty() ? -1 : places[0];
}

Tensor simplify_reshape(Tensor t) {
  const Tensor x = input_of(t);
  if (x.shape() == t.shape()) return x;
  return node_of(x).op == node_of(t).op ? reshape(input_of(x), t.shape()) : Tensor();
}

}  // namespace

constinit const Op reshape_op = {
    .name = "reshape",
    .doc = "The same elements, in the same order, under another shape.",
    .infer = infer_reshape,
    .vjp = [](const VjpCall& c) { return reshape(c.ct, c.in[0].shape()); },
    .simplify = simplify_reshape,
    .linear_in = always_linear,
    .is_linear = true,
    .axes = reshape_axes,
    .is_alias = true,
    .cost = no_cost,
    .cpu = copy_bytes,
    .read_attrs = attrs_from<ShapeAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {
          {.inputs = {{{2, 6}}}, .attrs = ShapeAttrs{{2, 2, 3}}},
          {.inputs = {{{4, 3}}}, .attrs = ShapeAttrs{{12}}},
          {.inputs = {{{1}}}, .attrs = ShapeAttrs{}},
          {.inputs = {{{4, 3}}}, .attrs = ShapeAttrs{{5}}, .error = "12 elements cannot be arranged as [5]"}};
    }};

Tensor reshape(Operand x, const Shape& wanted) {
  Shape shape = wanted;
  std::int64_t known = 1, open = -1;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] == -1 && open < 0) open = static_cast<std::int64_t>(i);
    else if (shape[i] == -1)
      throw call_error<ShapeError>("reshape", x.loc,
                                   "only one extent can be -1, to be found: {} wanted of x = {}",
                                   to_string(wanted), describe(x.tensor()));
    else if (__builtin_mul_overflow(known, shape[i], &known)) break;  // infer refuses it
  if (open >= 0) {
    const std::int64_t size = x.tensor().spec().size();
    if (known > 0 && size % known != 0)
      throw call_error<ShapeError>("reshape", x.loc,
                                   "{} elements cannot be arranged as {}, whatever stands for -1: x = {}",
                                   size, to_string(wanted), describe(x.tensor()));
    shape[uz(open)] = known ? size / known : 0;
  }
  return emit(reshape_op, {x.tensor()}, ShapeAttrs{shape}, x.loc);
}

}  // namespace nestgrad

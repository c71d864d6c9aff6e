// slice and pad: a range of one axis, and zeros around one axis. Each is the other's derivative.
#include <fmt/format.h>

#include "engine/core/node_text.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"

namespace nestgrad {

namespace {

Spec infer_slice(const OpCall& c) {
  const auto [axis, begin, end] = c.attrs.as<SliceAttrs>();
  Spec out = c.in[0];
  c.check_axis(axis, out.shape);
  std::int64_t& extent = out.shape[uz(axis)];
  if (begin < 0 || begin > end || end > extent)
    c.shape_error(fmt::format("range {}..{} does not fit axis {} of extent {}", begin, end, axis, extent));
  extent = end - begin;
  return out;
}

OpView slice_view(const OpCall& c) {
  const SliceAttrs& range = c.attrs.as<SliceAttrs>();
  const Shape strides = strides_of(c.in[0].shape);
  return {range.begin * strides[uz(range.axis)], strides};
}

Spec infer_pad(const OpCall& c) {
  const auto [axis, before, after] = c.attrs.as<PadAttrs>();
  Spec out = c.in[0];
  c.check_axis(axis, out.shape);
  if (before < 0 || after < 0)
    c.shape_error(fmt::format("padding {},{} is negative; use slice()", before, after));
  std::int64_t& extent = out.shape[uz(axis)];
  if (__builtin_add_overflow(extent, before, &extent) || __builtin_add_overflow(extent, after, &extent))
    c.shape_error(fmt::format("padding {},{} is too large", before, after));
  return out;
}

OpKernel pad_kernel(const OpCall& c) {
  const PadAttrs& pad = c.attrs.as<PadAttrs>();
  const Shape to = strides_of(c.out.shape);
  return [bytes = c.out.bytes(), copy = StridedCopy(c.in[0].shape, strides_of(c.in[0].shape), to,
                                                    size_of(c.out.dtype), 0, pad.before * to[uz(pad.axis)])](
             const std::byte* const* in, std::byte* out) {
    std::memset(out, 0, bytes);
    copy(in[0], out);
  };
}

template <class T>
int other_axes(const OpCall& c, int, int axis) {
  return axis == c.attrs.as<T>().axis ? -1 : axis;
}

std::string describe_range(const Attrs& a) {
  const auto [axis, begin, end] = a.as<SliceAttrs>();
  return fmt::format("axis={}, {}..{}", axis, begin, end);
}

std::string describe_padding(const Attrs& a) {
  const auto [axis, before, after] = a.as<PadAttrs>();
  return fmt::format("axis={}, {} before, {} after", axis, before, after);
}

}  // namespace

constinit const Op slice_op = {.name = "slice",
                               .doc = "The range begin..end of one axis.",
                               .infer = infer_slice,
                               .vjp =
                                   [](const VjpCall& c) {
                                     const auto [axis, begin, end] = c.attrs.as<SliceAttrs>();
                                     return pad(c.ct, axis, begin, c.in[0].shape()[uz(axis)] - end);
                                   },
                               .simplify = drop_if_nothing_changes,
                               .linear_in = always_linear,
                               .is_linear = true,
                               .axes = other_axes<SliceAttrs>,
                               .cost = copy_cost,
                               .cpu = copy_view,
                               .view = slice_view,
                               .describe = describe_range,
                               .read_attrs = attrs_from<SliceAttrs>,
                               .samples = []() -> std::vector<OpSample> {
                                 return {{.inputs = {{{3, 5}}}, .attrs = SliceAttrs{1, 1, 4}},
                                         {.inputs = {{{4, 2, 2}}}, .attrs = SliceAttrs{0, 3, 4}},
                                         {.inputs = {{{3, 5}}},
                                          .attrs = SliceAttrs{1, 2, 6},
                                          .error = "range 2..6 does not fit axis 1 of extent 5"}};
                               }};

constinit const Op pad_op = {.name = "pad",
                             .doc = "Zeros before and after along one axis.",
                             .infer = infer_pad,
                             .vjp =
                                 [](const VjpCall& c) {
                                   const auto [axis, before, after] = c.attrs.as<PadAttrs>();
                                   return slice(c.ct, axis, before, before + c.in[0].shape()[uz(axis)]);
                                 },
                             .simplify = drop_if_nothing_changes,
                             .linear_in = always_linear,
                             .is_linear = true,
                             .axes = other_axes<PadAttrs>,
                             .cost = copy_cost,
                             .cpu = pad_kernel,
                             .describe = describe_padding,
                             .read_attrs = attrs_from<PadAttrs>,
                             .samples = []() -> std::vector<OpSample> {
                               return {
                                   {.inputs = {{{3, 2}}}, .attrs = PadAttrs{1, 1, 2}},
                                   {.inputs = {{{2, 3}}}, .attrs = PadAttrs{0, 0, 1}},
                                   {.inputs = {{{3, 5}}}, .attrs = PadAttrs{1, -1, 0}, .error = "negative"}};
                             }};

Tensor drop_if_nothing_changes(Tensor t) {
  const Tensor x = input_of(t);
  return x.shape() == t.shape() ? x : Tensor();
}

int normal_axis(std::string_view name, int axis, const Operand& x) {
  const int rank = x.tensor().rank();
  if (axis < -rank || axis >= rank)
    throw call_error<ShapeError>(name, x.loc, "axis {} does not exist, rank is {}: x is {}", axis, rank,
                                 describe(x.tensor()));
  return axis < 0 ? axis + rank : axis;
}

Tensor slice(Operand x, int axis, std::int64_t begin, std::int64_t end) {
  return emit(slice_op, {x.tensor()}, SliceAttrs{normal_axis("slice", axis, x), begin, end}, x.loc);
}

Tensor pad(Operand x, int axis, std::int64_t before, std::int64_t after) {
  return emit(pad_op, {x.tensor()}, PadAttrs{normal_axis("pad", axis, x), before, after}, x.loc);
}

}  // namespace nestgrad

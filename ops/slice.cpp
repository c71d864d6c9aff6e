// slice and pad: a range of one axis, and zeros around one axis. Each is the other's derivative.
#include <fmt/format.h>

#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"

namespace nestgrad {

namespace {

int axis_of(const Attrs& a) { return static_cast<int>(a.ints[0]); }

Spec infer_slice(const Call& c) {
  const std::int64_t begin = c.attrs.ints[1], end = c.attrs.ints[2];
  Spec out = c.in[0];
  std::int64_t& extent = out.shape[uz(axis_of(c.attrs))];
  if (begin < 0 || begin > end || end > extent)
    c.shape_error(
        fmt::format("range {}..{} does not fit axis {} of extent {}", begin, end, axis_of(c.attrs), extent));
  extent = end - begin;
  return out;
}

View slice_view(const Call& c) {
  const Shape strides = strides_of(c.in[0].shape);
  return {c.attrs.ints[1] * strides[uz(axis_of(c.attrs))], strides};
}

Spec infer_pad(const Call& c) {
  Spec out = c.in[0];
  if (c.attrs.ints[1] < 0 || c.attrs.ints[2] < 0)
    c.shape_error(fmt::format("padding {},{} is negative; use slice()", c.attrs.ints[1], c.attrs.ints[2]));
  std::int64_t& extent = out.shape[uz(axis_of(c.attrs))];
  if (__builtin_add_overflow(extent, c.attrs.ints[1], &extent) ||
      __builtin_add_overflow(extent, c.attrs.ints[2], &extent))
    c.shape_error(fmt::format("padding {},{} is too large", c.attrs.ints[1], c.attrs.ints[2]));
  return out;
}

Kernel pad_kernel(const Call& c) {
  const Shape to = strides_of(c.out.shape);
  return [bytes = c.out.bytes(),
          copy = StridedCopy(c.in[0].shape, strides_of(c.in[0].shape), to, size_of(c.out.dtype), 0,
                             c.attrs.ints[1] * to[uz(axis_of(c.attrs))])](const std::byte* const* in,
                                                                          std::byte* out) {
    std::memset(out, 0, bytes);
    copy(in[0], out);
  };
}

int other_axes(const Call& c, int, int axis) { return axis == axis_of(c.attrs) ? -1 : axis; }

std::string describe_range(const Attrs& a) {
  return fmt::format("axis={}, {}..{}", a.ints[0], a.ints[1], a.ints[2]);
}

const Op& slice_op =
    register_op({.name = "slice",
                 .doc = "The range begin..end of one axis.",
                 .infer = infer_slice,
                 .vjp =
                     [](const VjpCall& c) {
                       const std::int64_t extent = c.in[0].shape()[uz(axis_of(c.attrs))];
                       return pad(c.ct, axis_of(c.attrs), c.attrs.ints[1], extent - c.attrs.ints[2]);
                     },
                 .cpu = copy_view,
                 .view = slice_view,
                 .linear_in = always_linear,
                 .axes = other_axes,
                 .cost = copy_cost,
                 .simplify = drop_if_nothing_changes,
                 .describe = describe_range,
                 .samples = []() -> std::vector<Sample> {
                   return {{.inputs = {{{3, 5}}}, .attrs = {.ints = {1, 1, 4}}},
                           {.inputs = {{{4, 2, 2}}}, .attrs = {.ints = {0, 3, 4}}},
                           {.inputs = {{{3, 5}}},
                            .attrs = {.ints = {1, 2, 6}},
                            .error = "range 2..6 does not fit axis 1 of extent 5"}};
                 },
                 .linear = true});

const Op& pad_op =
    register_op({.name = "pad",
                 .doc = "Zeros before and after along one axis.",
                 .infer = infer_pad,
                 .vjp =
                     [](const VjpCall& c) {
                       const std::int64_t extent = c.in[0].shape()[uz(axis_of(c.attrs))];
                       return slice(c.ct, axis_of(c.attrs), c.attrs.ints[1], c.attrs.ints[1] + extent);
                     },
                 .cpu = pad_kernel,
                 .linear_in = always_linear,
                 .axes = other_axes,
                 .cost = copy_cost,
                 .simplify = drop_if_nothing_changes,
                 .describe =
                     [](const Attrs& a) {
                       return fmt::format("axis={}, {} before, {} after", a.ints[0], a.ints[1], a.ints[2]);
                     },
                 .samples = []() -> std::vector<Sample> {
                   return {{.inputs = {{{3, 2}}}, .attrs = {.ints = {1, 1, 2}}},
                           {.inputs = {{{2, 3}}}, .attrs = {.ints = {0, 0, 1}}},
                           {.inputs = {{{3, 5}}}, .attrs = {.ints = {1, -1, 0}}, .error = "negative"}};
                 },
                 .linear = true});

}  // namespace

Tensor drop_if_nothing_changes(Tensor t) {
  const Tensor x = input_of(t);
  return x.shape() == t.shape() ? x : Tensor();
}

int normal_axis(std::string_view name, int axis, int rank) {
  if (axis < -rank || axis >= rank)
    throw ShapeError(fmt::format("[{}] axis {} does not exist, rank is {}", name, axis, rank));
  return axis < 0 ? axis + rank : axis;
}

Tensor slice(Operand x, int axis, std::int64_t begin, std::int64_t end) {
  return emit(slice_op, {x.tensor}, {.ints = {normal_axis("slice", axis, x.tensor.rank()), begin, end}},
              x.loc);
}

Tensor pad(Operand x, int axis, std::int64_t before, std::int64_t after) {
  return emit(pad_op, {x.tensor}, {.ints = {normal_axis("pad", axis, x.tensor.rank()), before, after}},
              x.loc);
}

}  // namespace nestgrad

// concat: arrays one after another along an axis. What is made of it: stack, and split, which undoes it.
#include <fmt/format.h>

#include "engine/core/node_text.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/strided.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

constexpr std::size_t kMaxParts = 32;  // longer lists become a tree

Spec infer_concat(const OpCall& c) {
  const auto axis = uz(c.attrs.as<ConcatAttrs>().axis);
  Spec out = c.in[0];
  c.check_axis(c.attrs.as<ConcatAttrs>().axis, out.shape);
  for (std::size_t i = 1; i < c.in.size(); ++i) {
    Spec expected = out;
    if (c.in[i].rank() == out.rank()) expected.shape[axis] = c.in[i].shape[axis];
    if (c.in[i].dtype != out.dtype) c.dtype_error("element types differ; cast() one of them");
    if (c.in[i] != expected) c.shape_error(fmt::format("parts must agree in every axis but {}", axis));
    out.shape[axis] += c.in[i].shape[axis];
  }
  return out;
}

OpKernel concat_kernel(const OpCall& c) {
  const auto axis = uz(c.attrs.as<ConcatAttrs>().axis);
  const Shape to = strides_of(c.out.shape);
  std::vector<StridedCopy> copies;
  std::int64_t at = 0;
  for (const Spec& in : c.in) {
    copies.emplace_back(in.shape, strides_of(in.shape), to, size_of(in.dtype), 0, at * to[axis]);
    at += in.shape[axis];
  }
  return [copies = std::move(copies)](const std::byte* const* in, std::byte* out) {
    for (std::size_t i = 0; i < copies.size(); ++i) copies[i](in[i], out);
  };
}

}  // namespace

constinit const Op concat_op = {
    .name = "concat",
    .doc = "Arrays one after another along an axis.",
    .infer = infer_concat,
    .vjp =
        [](const VjpCall& c) {
          const auto axis = uz(c.attrs.as<ConcatAttrs>().axis);
          std::int64_t at = 0;
          for (int i = 0; i < c.input; ++i) at += c.in[uz(i)].shape()[axis];
          return slice(c.ct, static_cast<int>(axis), at, at + c.in[uz(c.input)].shape()[axis]);
        },
    .linear_in = always_linear,
    .is_linear = true,
    .axes = [](const OpCall& c, int, int axis) { return axis == c.attrs.as<ConcatAttrs>().axis ? -1 : axis; },
    .cost = elementwise_cost,
    .cpu = concat_kernel,
    .read_attrs = attrs_from<ConcatAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 3}}, {{2, 1}}, {{2, 2}}}, .attrs = ConcatAttrs{1}},
              {.inputs = {{{1, 3}}, {{2, 3}}}, .attrs = ConcatAttrs{0}},
              {.inputs = {{{2, 3}}, {{3, 2}}}, .attrs = ConcatAttrs{0}, .error = "every axis but 0"}};
    }};

Tensor concat(const std::vector<Tensor>& parts, int axis, Loc loc) {
  if (parts.empty()) throw ShapeError(fmt::format("[concat] needs at least one part (at {})", describe(loc)));
  check_defined("concat", "part", parts, loc);
  const int normal = normal_axis("concat", axis, {parts[0], loc});
  if (parts.size() == 1) return parts[0];
  if (parts.size() <= kMaxParts) return emit(concat_op, parts, ConcatAttrs{normal}, loc);
  std::vector<Tensor> groups;
  for (std::size_t i = 0; i < parts.size(); i += kMaxParts)
    groups.push_back(
        concat({parts.begin() + static_cast<std::ptrdiff_t>(i),
                parts.begin() + static_cast<std::ptrdiff_t>(std::min(i + kMaxParts, parts.size()))},
               normal, loc));
  return concat(groups, normal, loc);
}

Tensor stack(const std::vector<Tensor>& parts, int axis, Loc loc) {
  const CompositeScope scope("stack", loc);
  if (parts.empty()) throw ShapeError(fmt::format("[stack] needs at least one part (at {})", describe(loc)));
  check_defined("stack", "part", parts, loc);
  const int rank = parts[0].rank();
  if (axis < -rank - 1 || axis > rank)
    throw ShapeError(
        fmt::format("[stack] axis {} does not exist, rank is {} with the new one: part 0 is {} (at {})", axis,
                    rank + 1, describe(parts[0]), describe(loc)));
  const int normal = axis < 0 ? axis + rank + 1 : axis;
  std::vector<Tensor> rows;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].shape() != parts[0].shape())
      throw ShapeError(fmt::format("[stack] parts must have one shape: part 0 is {}, part {} is {} (at {})",
                                   describe(parts[0]), i, describe(parts[i]), describe(loc)));
    Shape row = parts[i].shape();
    row.insert(row.begin() + normal, 1);
    rows.push_back(reshape({parts[i], loc}, row));
  }
  return concat(rows, normal, loc);
}

std::vector<Tensor> split(Operand x, int axis, const std::vector<std::int64_t>& sizes) {
  const CompositeScope scope("split", x.loc);
  const int normal = normal_axis("split", axis, x);
  std::int64_t rest = x.tensor().dim(normal);
  bool fits = true;
  for (const std::int64_t size : sizes) {
    fits = fits && 0 <= size && size <= rest;
    rest -= fits ? size : 0;
  }
  if (!fits || rest != 0)
    throw call_error<ShapeError>("split", x.loc, "the sizes {} do not add up to axis {} of x, {}",
                                 to_string(sizes), normal, describe(x.tensor()));
  std::vector<Tensor> parts;
  std::int64_t at = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(slice(x, normal, at, at + size));
    at += size;
  }
  return parts;
}

}  // namespace nestgrad

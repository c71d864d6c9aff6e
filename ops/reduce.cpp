// sum and max over axes. Sums of f32 are made in double, of parts of at most eight elements in f32
// (ops/numerics/lane_sum.h), in an order fixed by the shape.
#include "ops/reduce.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "engine/core/node_text.h"
#include "engine/core/threads.h"
#include "ops/kernels.h"
#include "ops/rules.h"
#include "ops/simplify.h"

namespace nestgrad {

const Shape& axes_of(const Attrs& a) { return a.as<ReduceAttrs>().axes; }

Spec infer_reduce(const OpCall& c) {
  Spec out = c.in[0];
  for (std::int64_t axis : axes_of(c.attrs)) {
    c.check_axis(axis, out.shape);
    out.shape[uz(axis)] = 1;
  }
  return out;
}

int reduce_axes(const OpCall& c, int, int axis) {
  return std::ranges::find(axes_of(c.attrs), axis) == axes_of(c.attrs).end() ? axis : -1;
}

std::string describe_axes(const Attrs& a) { return fmt::format("axes={}", fmt::join(axes_of(a), ",")); }

std::vector<OpSample> reduce_samples() {
  return {{.inputs = {{{3, 4}}}, .attrs = ReduceAttrs{{1}}},
          {.inputs = {{{3, 4}}}, .attrs = ReduceAttrs{{0}}},
          {.inputs = {{{2, 3, 2, 2}}}, .attrs = ReduceAttrs{{0, 2}}},
          {.inputs = {{{2, 3, 2, 2}}}, .attrs = ReduceAttrs{{1, 3}}},
          {.inputs = {{{2, 3}}}, .attrs = ReduceAttrs{{0, 1}}},
          {.inputs = {{{2, 3}}}, .attrs = ReduceAttrs{{2}}, .error = "axis 2 does not exist"}};
}

std::vector<std::int64_t> reduced_axes(std::string_view op, const std::vector<int>& axes, const Operand& x) {
  std::vector<std::int64_t> out;
  for (int axis : axes) out.push_back(normal_axis(op, axis, x));
  std::ranges::sort(out);
  if (std::ranges::adjacent_find(out) != out.end())
    throw call_error<ShapeError>(op, x.loc, "an axis is named twice in {}: x is {}", fmt::join(axes, ","),
                                 describe(x.tensor()));
  return out;
}

Tensor drop_axes(Tensor x, const std::vector<std::int64_t>& axes, Loc loc) {
  Shape shape;
  for (int d = 0; d < x.rank(); ++d)
    if (std::ranges::find(axes, d) == axes.end()) shape.push_back(x.shape()[uz(d)]);
  return reshape({x, loc}, shape);
}

ReducePlan::ReducePlan(const OpCall& c) {
  const Shape& shape = c.in[0].shape;
  const Shape strides = strides_of(shape);
  const auto is_reduced = [&](std::size_t d) {
    return std::ranges::find(axes_of(c.attrs), static_cast<std::int64_t>(d)) != axes_of(c.attrs).end();
  };
  // The innermost axes of one kind are one run.
  std::size_t d = shape.size();
  while (d > 0 && shape[d - 1] == 1) --d;
  rows = d > 0 && !is_reduced(d - 1);
  while (d > 0 && (shape[d - 1] == 1 || is_reduced(d - 1) != rows)) inner *= shape[--d];
  const auto offsets = [&](bool reduced) {
    std::vector<std::int64_t> out{0};
    // What is empty has none, however large its other extents are.
    if (numel(reduced ? shape : c.out.shape) == 0) return std::vector<std::int64_t>();
    for (std::size_t i = 0; i < d; ++i) {
      if (is_reduced(i) != reduced) continue;
      std::vector<std::int64_t> next;
      for (std::int64_t base : out)
        for (std::int64_t k = 0; k < shape[i]; ++k) next.push_back(base + k * strides[i]);
      out = std::move(next);
    }
    return out;
  };
  out_starts = offsets(false);
  steps = offsets(true);
}

namespace {

// Columns of a sum over rows that one thread takes at once: as many as there are, but some for each thread.
std::int64_t tile_of(std::int64_t columns) {
  constexpr std::int64_t kLeast = 256, kMost = 2048;
  return std::clamp(columns / thread_count() / kLeast * kLeast, kLeast, kMost);
}

// One: a run to a number. Across: runs to a run.
template <class T>
using One = T (*)(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner);
// Short: of rows of less than ReduceKernel::kMostShort elements, one behind the other, each to a number.
template <class T>
using Short = void (*)(const T* x, std::int64_t rows, std::int64_t n, T* y);
template <class T>
using Across = void (*)(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, T* y);

template <class T>
OpKernel reduce_call(const OpCall& c, One<T> one, Short<T> short_rows, Across<T> across) {
  ReducePlan plan(c);
  const std::int64_t n = plan.inner, rows = c.out.size();
  if (!plan.rows && n > 0 && n < ReduceKernel<T>::kMostShort && rows * n == c.in[0].size())
    return [=](const std::byte* const* in, std::byte* out) {
      const T* x = reinterpret_cast<const T*>(in[0]);
      T* y = reinterpret_cast<T*>(out);
      in_blocks(rows, kGrain / n, [&](std::int64_t begin, std::int64_t end) {
        short_rows(x + begin * n, end - begin, n, y + begin);
      });
    };
  return [plan = std::move(plan), one, across](const std::byte* const* in, std::byte* out) {
    const T* x = reinterpret_cast<const T*>(in[0]);
    T* y = reinterpret_cast<T*>(out);
    const auto count = static_cast<std::int64_t>(plan.steps.size());
    const std::int64_t columns = tile_of(plan.inner);
    const std::int64_t terms = count * (plan.rows ? std::min(columns, plan.inner) : plan.inner);
    // Each part is an output, or a tile of the outputs of one run.
    const std::int64_t tiles = plan.rows ? (plan.inner + columns - 1) / columns : 1;
    const auto parts = static_cast<std::int64_t>(plan.out_starts.size()) * tiles;
    in_blocks(parts, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, terms)),
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t part = begin; part < end; ++part) {
                  const T* from = x + plan.out_starts[uz(part / tiles)];
                  if (!plan.rows) {
                    y[part] = one(from, plan.steps.data(), count, plan.inner);
                    continue;
                  }
                  const std::int64_t tile = part % tiles * columns;
                  across(from + tile, plan.steps.data(), count, std::min(columns, plan.inner - tile),
                         y + part / tiles * plan.inner + tile);
                }
              });
  };
}

std::vector<int> all_axes(const Operand& x) {
  std::vector<int> all(uz(x.tensor().rank()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Is it over the last axis, and over no other of more than one element?
bool is_over_rows(const OpCall& c) {
  const Shape& axes = axes_of(c.attrs);
  const std::int64_t last = c.in[0].rank() - 1;
  return !axes.empty() && axes.back() == last && std::ranges::all_of(axes, [&](std::int64_t axis) {
    return axis == last || c.in[0].shape[uz(axis)] == 1;
  });
}

// Over axes of extent 1 nothing is added. A sum over all leading axes of A'B is the product of the stacked A
// and B: one product instead of many.
Tensor simplify_sum(Tensor t) {
  const Tensor x = input_of(t);
  if (x.shape() == t.shape()) return x;
  if (const Tensor factored = factor_out(t); factored.defined()) return factored;
  if (!t.graph().options().stack || node_of(x).op != &matmul_op ||
      node_of(x).attrs != MatmulAttrs{.a = true, .b = false})
    return {};
  const Tensor a = input_of(x, 0), b = input_of(x, 1);
  std::vector<std::int64_t> batch(uz(x.rank() - 2));
  std::iota(batch.begin(), batch.end(), 0);
  if (batch.empty() || x.spec().size() == 0 || axes_of(node_of(t).attrs) != batch || a.rank() != x.rank() ||
      b.rank() != x.rank())
    return {};
  for (std::int64_t d : batch)
    if (a.shape()[uz(d)] != x.shape()[uz(d)] || b.shape()[uz(d)] != x.shape()[uz(d)]) return {};
  const Tensor stacked = matmul(reshape(a, {-1, a.dim(-1)}), reshape(b, {-1, b.dim(-1)}), {true, false});
  return reshape(stacked, t.shape());
}

}  // namespace

constinit const Op sum_op = {
    .name = "sum",
    .doc = "Sum over axes, which stay with extent 1.",
    .infer = infer_reduce,
    .vjp = [](const VjpCall& c) { return broadcast_to(c.ct, c.in[0].shape()); },
    .simplify = simplify_sum,
    .linear_in = always_linear,
    .is_linear = true,
    .axes = reduce_axes,
    .sums_over = [](const OpCall& c, int axis) { return reduce_axes(c, 0, axis) < 0; },
    .cost =
        [](const OpCall& c) {
          return OpCost{static_cast<double>(c.in[0].size()), copy_cost(c).bytes};
        },
    .cpu =
        [](const OpCall& c) {
          return dispatch(c.out.dtype, [&]<class T>(T) {
            return reduce_call<T>(c, reduce_kernel<T>().sum, reduce_kernel<T>().sum_short,
                                  reduce_kernel<T>().sum_across);
          });
        },
    .row_reduction = [](const OpCall& c) -> RowReduction {
      if (!is_over_rows(c)) return nullptr;
      return dispatch(c.out.dtype, []<class T>(T) -> RowReduction { return reduce_kernel<T>().sum_row; });
    },
    .describe = describe_axes,
    .read_attrs = attrs_from<ReduceAttrs>,
    .samples = reduce_samples};

constinit const Op max_over_op = {
    .name = "max_over",
    .doc = "Largest value over axes, which stay with extent 1.",
    .infer =
        [](const OpCall& c) {
          Spec out = infer_reduce(c);
          for (std::int64_t axis : axes_of(c.attrs))
            if (c.in[0].shape[uz(axis)] == 0) c.shape_error("no elements, so none is the largest or least");
          return out;
        },
    // Shared equally among equals, so that the rule is symmetric.
    .vjp =
        [](const VjpCall& c) {
          const Tensor hit = equal(c.in[0], c.out);
          std::vector<int> axes(axes_of(c.attrs).begin(), axes_of(c.attrs).end());
          return c.ct * (hit / sum(hit, axes, kKeep));
        },
    .axes = reduce_axes,
    .cost =
        [](const OpCall& c) {
          return OpCost{static_cast<double>(c.in[0].size()), copy_cost(c).bytes};
        },
    .cpu =
        [](const OpCall& c) {
          return dispatch(c.out.dtype, [&]<class T>(T) {
            return reduce_call<T>(c, reduce_kernel<T>().max, reduce_kernel<T>().max_short,
                                  reduce_kernel<T>().max_across);
          });
        },
    .row_reduction = [](const OpCall& c) -> RowReduction {
      if (!is_over_rows(c)) return nullptr;
      return dispatch(c.out.dtype, []<class T>(T) -> RowReduction { return reduce_kernel<T>().max_row; });
    },
    .describe = describe_axes,
    .read_attrs = attrs_from<ReduceAttrs>,
    .samples = reduce_samples};

Tensor sum(Operand x, const std::vector<int>& axes, bool keep) {
  const auto normal = reduced_axes("sum", axes, x);
  if (normal.empty()) return x.tensor();
  const Tensor kept = emit(sum_op, {x.tensor()}, ReduceAttrs{normal}, x.loc);
  return keep ? kept : drop_axes(kept, normal, x.loc);
}

Tensor sum(Operand x) { return sum(x, all_axes(x)); }

Tensor mean(Operand x, const std::vector<int>& axes, bool keep) {
  const CompositeCall call("mean");
  if (!is_float(x.tensor().dtype()))
    throw call_error<DTypeError>("mean", x.loc,
                                 "integers have no mean of their own type; cast() first: x is {}",
                                 describe(x.tensor()));
  reduced_axes("mean", axes, x);  // so that an error speaks of the mean
  const Tensor total = sum(x, axes, keep);
  const double count = static_cast<double>(x.tensor().spec().size()) /
                       static_cast<double>(std::max<std::int64_t>(1, total.spec().size()));
  return Operand(total, x.loc) * Operand(1.0 / count, x.loc);
}

Tensor mean(Operand x) { return mean(x, all_axes(x)); }

Tensor max(Operand x, const std::vector<int>& axes, bool keep) {
  const CompositeCall call("max");
  const auto normal = reduced_axes("max", axes, x);
  if (normal.empty()) return x.tensor();
  const Tensor kept = emit(max_over_op, {x.tensor()}, ReduceAttrs{normal}, x.loc);
  return keep ? kept : drop_axes(kept, normal, x.loc);
}

Tensor max(Operand x) { return max(x, all_axes(x)); }

Tensor min(Operand x, const std::vector<int>& axes, bool keep) {
  const CompositeCall call("min");
  reduced_axes("min", axes, x);       // so that an error speaks of x, and not of -x
  if (!is_float(x.tensor().dtype()))  // -1 - x takes every integer, -x not the least
    return Operand(-1, x.loc) - Operand(max({Operand(-1, x.loc) - x, x.loc}, axes, keep), x.loc);
  return -Operand(max({-x, x.loc}, axes, keep), x.loc);
}

Tensor min(Operand x) { return min(x, all_axes(x)); }

Tensor max(Operand x, std::initializer_list<int> axes, bool keep) { return max(x, std::vector(axes), keep); }
Tensor min(Operand x, std::initializer_list<int> axes, bool keep) { return min(x, std::vector(axes), keep); }

Tensor sum_to(Operand x, const Shape& shape) {
  const Tensor t = x.tensor();
  if (t.shape() == shape) return t;
  const int lead = t.rank() - static_cast<int>(shape.size());
  bool fits = lead >= 0;  // would an array of this shape broadcast to x?
  for (int d = std::max(lead, 0); fits && d < t.rank(); ++d)
    fits = shape[uz(d - lead)] == 1 || shape[uz(d - lead)] == t.dim(d);
  if (!fits)
    throw call_error<ShapeError>("sum_to", x.loc,
                                 "{} does not broadcast to x, so x has no sum of that shape: x is {}",
                                 to_string(shape), describe(t));
  std::vector<int> axes;
  for (int d = 0; d < t.rank(); ++d)
    if (d < lead || (shape[uz(d - lead)] == 1 && t.dim(d) != 1)) axes.push_back(d);
  return reshape({sum(x, axes, kKeep), x.loc}, shape);
}

}  // namespace nestgrad

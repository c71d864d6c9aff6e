// Ops that look at positions: iota, tril, cumsum.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/core/node_text.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/strided.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

// ---- iota ----

OpKernel iota_kernel(const OpCall& c) {
  const auto axis = uz(c.attrs.as<IotaAttrs>().axis);
  const std::int64_t inner = strides_of(c.out.shape)[axis], extent = c.out.shape[axis];
  return dispatch(c.out.dtype, [&]<class T>(T) -> OpKernel {
    return [=, size = c.out.size()](const std::byte* const*, std::byte* out) {
      if (size == 0) return;  // whatever the axis has
      T* y = reinterpret_cast<T*>(out);
      for (std::int64_t i = 0; i < extent; ++i) std::fill_n(y + i * inner, inner, static_cast<T>(i));
      for (std::int64_t at = extent * inner; at < size; at += extent * inner)
        std::copy_n(y, extent * inner, y + at);
    };
  });
}

}  // namespace

constinit const Op iota_op = {
    .name = "iota",
    .doc = "0, 1, 2, .. along one axis.",
    .infer =
        [](const OpCall& c) {
          const IotaAttrs& a = c.attrs.as<IotaAttrs>();
          c.check_axis(a.axis, a.shape);
          if (a.dtype == DType::i32 && a.shape[uz(a.axis)] - 1 > std::numeric_limits<std::int32_t>::max())
            c.shape_error(fmt::format("{} is more than the numbers of i32 from 0 on", a.shape[uz(a.axis)]));
          return Spec{a.dtype, a.shape};
        },
    .why_no_derivative = "it has no inputs",
    .cost = elementwise_cost,
    .cpu = iota_kernel,
    .describe = [](const Attrs& a) { return fmt::format("axis={}", a.as<IotaAttrs>().axis); },
    .read_attrs = attrs_from<IotaAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {}, .attrs = IotaAttrs{1, DType::f64, {2, 3}}},
              {.inputs = {}, .attrs = IotaAttrs{2, DType::f64, {2, 3}}, .error = "axis 2 does not exist"}};
    }};

namespace {

// ---- tril ----

template <class T>
OpKernel tril_kernel(const OpCall& c) {
  const std::int64_t cols = c.out.shape.back(), rows = c.out.shape[uz(c.out.rank() - 2)];
  return [=, size = c.out.size(), diagonal = c.attrs.as<TrilAttrs>().diagonal](const std::byte* const* in,
                                                                               std::byte* out) {
    const T* x = reinterpret_cast<const T*>(in[0]);
    T* y = reinterpret_cast<T*>(out);
    for (std::int64_t base = 0, row = 0; base < size; base += cols, row = row + 1 == rows ? 0 : row + 1) {
      const std::int64_t keep = std::clamp<std::int64_t>(row + diagonal + 1, 0, cols);
      std::copy_n(x + base, keep, y + base);
      std::fill_n(y + base + keep, cols - keep, T(0));
    }
  };
}

}  // namespace

constinit const Op tril_op = {
    .name = "tril",
    .doc = "Keeps x[.., i, j] where j <= i + diagonal, zero elsewhere.",
    .infer =
        [](const OpCall& c) {
          if (c.in[0].rank() < 2) c.shape_error("needs two axes");
          if (const std::int64_t diagonal = c.attrs.as<TrilAttrs>().diagonal;
              diagonal != static_cast<int>(diagonal))
            c.shape_error(fmt::format("diagonal {} is out of reach", diagonal));
          return c.in[0];
        },
    .vjp = [](const VjpCall& c) { return tril(c.ct, static_cast<int>(c.attrs.as<TrilAttrs>().diagonal)); },
    .linear_in = always_linear,
    .axes = [](const OpCall& c, int, int axis) { return axis < c.out.rank() - 2 ? axis : -1; },
    .may_reuse = [](const OpCall&, int) { return true; },
    .cost = elementwise_cost,
    .cpu =
        [](const OpCall& c) { return dispatch(c.out.dtype, [&]<class T>(T) { return tril_kernel<T>(c); }); },
    .read_attrs = attrs_from<TrilAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{3, 3}}}, .attrs = TrilAttrs{0}},
              {.inputs = {{{2, 4, 3}}}, .attrs = TrilAttrs{-1}},
              {.inputs = {{{2, 5}}}, .attrs = TrilAttrs{2}},
              {.inputs = {{{4}}}, .attrs = TrilAttrs{0}, .error = "needs two axes"}};
    }};

namespace {

// ---- cumsum ----

template <class T>
OpKernel cumsum_kernel(const OpCall& c) {
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  const bool reverse = c.attrs.as<CumsumAttrs>().reverse;
  const auto axis = uz(c.attrs.as<CumsumAttrs>().axis);
  const std::int64_t extent = c.out.shape[axis], stride = strides_of(c.out.shape)[axis];
  return [=, outer = c.out.size() / std::max<std::int64_t>(1, extent * stride)](const std::byte* const* in,
                                                                                std::byte* out) {
    const T* x = reinterpret_cast<const T*>(in[0]);
    T* y = reinterpret_cast<T*>(out);
    if (outer * extent * stride == 0) return;
    if (stride < 8)  // a few lines, whose elements lie together: one after the other
      return in_blocks(outer, std::max<std::int64_t>(1, kGrain / (extent * stride)),
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t o = begin; o < end; ++o)
                           for (std::int64_t j = 0; j < stride; ++j) {
                             Acc acc = 0;
                             for (std::int64_t i = 0; i < extent; ++i) {
                               const std::int64_t at =
                                   (o * extent + (reverse ? extent - 1 - i : i)) * stride + j;
                               acc += static_cast<Acc>(x[at]);
                               y[at] = static_cast<T>(acc);
                             }
                           }
                       });
    // Lines side by side, so that memory is walked through in its order; each line is added up by itself.
    constexpr std::int64_t kLines = 64;
    const std::int64_t groups = (stride + kLines - 1) / kLines;
    in_blocks(outer * groups, std::max<std::int64_t>(1, kGrain / (extent * std::min(stride, kLines))),
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t g = begin; g < end; ++g) {
                  const std::int64_t first = g % groups * kLines, lines = std::min(kLines, stride - first);
                  Acc acc[kLines];
                  std::fill_n(acc, lines, Acc(0));
                  for (std::int64_t i = 0; i < extent; ++i) {
                    const std::int64_t at =
                        (g / groups * extent + (reverse ? extent - 1 - i : i)) * stride + first;
                    for (std::int64_t j = 0; j < lines; ++j) {
                      acc[j] += static_cast<Acc>(x[at + j]);
                      y[at + j] = static_cast<T>(acc[j]);
                    }
                  }
                }
              });
  };
}

}  // namespace

constinit const Op cumsum_op = {
    .name = "cumsum",
    .doc = "Running sum along one axis, from either end.",
    .infer =
        [](const OpCall& c) {
          c.check_axis(c.attrs.as<CumsumAttrs>().axis, c.in[0].shape);
          return c.in[0];
        },
    .vjp =
        [](const VjpCall& c) {
          const auto [axis, reverse] = c.attrs.as<CumsumAttrs>();
          return cumsum(c.ct, axis, !reverse);
        },
    .linear_in = always_linear,
    .axes = [](const OpCall& c, int, int axis) { return axis == c.attrs.as<CumsumAttrs>().axis ? -1 : axis; },
    .cost = elementwise_cost,
    .cpu =
        [](const OpCall& c) {
          return dispatch(c.out.dtype, [&]<class T>(T) { return cumsum_kernel<T>(c); });
        },
    .describe =
        [](const Attrs& a) {
          const auto [axis, reverse] = a.as<CumsumAttrs>();
          return fmt::format("axis={}{}", axis, reverse ? ", reverse" : "");
        },
    .read_attrs = attrs_from<CumsumAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{3, 4}}}, .attrs = CumsumAttrs{1, 0}},
              {.inputs = {{{3, 4, 2}}}, .attrs = CumsumAttrs{1, 1}},
              {.inputs = {{{3}}}, .attrs = CumsumAttrs{1, 0}, .error = "axis 1 does not exist"}};
    }};

Tensor iota(DType dtype, const Shape& shape, int axis, Loc loc) {
  const int normal = axis < 0 ? axis + static_cast<int>(shape.size()) : axis;
  return emit(iota_op, std::span<const Tensor>{}, IotaAttrs{normal, dtype, shape}, loc);
}

Tensor tril(Operand x, int diagonal) { return emit(tril_op, {x.tensor()}, TrilAttrs{diagonal}, x.loc); }

Tensor cumsum(Operand x, int axis, bool reverse) {
  return emit(cumsum_op, {x.tensor()}, CumsumAttrs{normal_axis("cumsum", axis, x), reverse}, x.loc);
}

Tensor eye(DType dtype, std::int64_t n, Loc loc) {
  const CompositeScope scope("eye", loc);
  return equal(iota(dtype, {n, n}, 0, loc), iota(dtype, {n, n}, 1, loc));
}

Tensor one_hot(Operand indices, std::int64_t n, DType dtype) {
  const CompositeScope scope("one_hot", indices.loc);
  if (indices.tensor().dtype() != DType::i32)
    throw call_error<DTypeError>("one_hot", indices.loc, "indices must be i32; cast() them: they are {}",
                                 describe(indices.tensor()));
  Shape column = indices.tensor().shape();
  column.push_back(1);
  return cast(equal(reshape(indices, column), iota(DType::i32, {n}, 0)), dtype);
}

}  // namespace nestgrad

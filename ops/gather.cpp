// gather and scatter_add: rows of a table by index, and their sums back. Each is the other's derivative.
#include <fmt/format.h>

#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/strided.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

Spec infer_gather(const OpCall& c) {
  if (c.in[1].dtype != DType::i32) c.dtype_error("indices must be i32");
  if (c.in[0].rank() < 1) c.shape_error("the table needs at least one axis");
  Shape shape = c.in[1].shape;
  shape.insert(shape.end(), c.in[0].shape.begin() + 1, c.in[0].shape.end());
  return {c.in[0].dtype, std::move(shape)};
}

void check_index(std::string_view op, std::int64_t index, std::int64_t rows) {
  if (index < 0 || index >= rows)
    throw ValueError(fmt::format("[{}] index {} is outside of the table's {} rows", op, index, rows));
}

// kBytes: of a row, where the compiler is to know it; 0: `bytes`.
template <std::size_t kBytes>
OpKernel gather_rows(std::int64_t rows, std::int64_t count, std::size_t bytes) {
  return [=](const std::byte* const* in, std::byte* out) {
    const std::size_t size = kBytes ? kBytes : bytes;
    const auto* index = reinterpret_cast<const std::int32_t*>(in[1]);
    for (std::int64_t i = 0; i < count; ++i) {
      check_index("gather", index[i], rows);
      std::memcpy(out + uz(i) * size, in[0] + uz(index[i]) * size, size);
    }
  };
}

OpKernel gather_kernel(const OpCall& c) {
  const std::int64_t rows = c.in[0].shape[0], count = c.in[1].size();
  const std::size_t bytes = c.in[0].bytes() / uz(std::max<std::int64_t>(1, rows));
  switch (bytes) {
    case 4:
      return gather_rows<4>(rows, count, bytes);
    case 8:
      return gather_rows<8>(rows, count, bytes);
    case 16:
      return gather_rows<16>(rows, count, bytes);
    default:
      return gather_rows<0>(rows, count, bytes);
  }
}

Spec infer_scatter(const OpCall& c) {
  if (c.in[0].dtype != DType::i32) c.dtype_error("indices must be i32");
  const Shape& index = c.in[0].shape;
  const Shape& updates = c.in[1].shape;
  if (updates.size() < index.size() || !std::equal(index.begin(), index.end(), updates.begin()))
    c.shape_error("updates must begin with the shape of the indices");
  const std::int64_t rows = c.attrs.as<ScatterAttrs>().rows;
  if (rows < 0) c.shape_error(fmt::format("a table of {} rows", rows));
  Shape shape{rows};
  shape.insert(shape.end(), updates.begin() + static_cast<std::ptrdiff_t>(index.size()), updates.end());
  return {c.in[1].dtype, std::move(shape)};
}

template <class T>
OpKernel scatter_kernel(const OpCall& c) {
  const std::int64_t rows = c.out.shape[0], count = c.in[0].size(),
                     width = c.out.size() / std::max<std::int64_t>(1, rows);
  return [=, bytes = c.out.bytes()](const std::byte* const* in, std::byte* out) {
    const auto* index = reinterpret_cast<const std::int32_t*>(in[0]);
    const T* from = reinterpret_cast<const T*>(in[1]);
    T* to = reinterpret_cast<T*>(out);
    std::memset(out, 0, bytes);
    for (std::int64_t i = 0; i < count; ++i) {
      check_index("scatter_add", index[i], rows);
      for (std::int64_t j = 0; j < width; ++j) to[index[i] * width + j] += from[i * width + j];
    }
  };
}

std::vector<OpSample> gather_samples() {
  return {{.inputs = {{{5, 3}}, {{2, 4}, 0, 4.999, DType::i32}}},
          {.inputs = {{{4}}, {{3}, 0, 3.999, DType::i32}}},
          {.inputs = {{{4}}, {{3}}}, .error = "indices must be i32"}};
}

}  // namespace

constinit const Op gather_op = {
    .name = "gather",
    .doc = "Rows of a table at integer indices.",
    .infer = infer_gather,
    .vjp = [](const VjpCall& c) { return scatter_add(c.in[1], c.ct, c.in[0].shape()[0]); },
    .linear_in = [](const OpCall&, int input) { return input == 0; },
    // Row axes of the table follow the index axes; index axes lead.
    .axes = [](const OpCall& c, int input,
               int axis) { return input == 1  ? axis
                                  : axis == 0 ? -1
                                              : axis - 1 + c.in[1].rank(); },
    .cost = copy_cost,
    .cpu = gather_kernel,
    .samples = gather_samples};

constinit const Op scatter_op = {
    .name = "scatter_add",
    .doc = "Zeros, plus each update row added at its index, in index order.",
    .infer = infer_scatter,
    .vjp = [](const VjpCall& c) { return gather(c.ct, c.in[0]); },
    .linear_in = [](const OpCall&, int input) { return input == 1; },
    .axes = [](const OpCall& c, int input,
               int axis) { return input == 1 && axis >= c.in[0].rank() ? axis - c.in[0].rank() + 1 : -1; },
    .cost = elementwise_cost,
    .cpu =
        [](const OpCall& c) {
          return dispatch(c.out.dtype, [&]<class T>(T) { return scatter_kernel<T>(c); });
        },
    .read_attrs = attrs_from<ScatterAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 4}, 0, 4.999, DType::i32}, {{2, 4, 3}}}, .attrs = ScatterAttrs{5}},
              {.inputs = {{{3}, 0, 1.999, DType::i32}, {{3}}}, .attrs = ScatterAttrs{2}},
              {.inputs = {{{3}, 0, 1, DType::i32}, {{4}}},
               .attrs = ScatterAttrs{2},
               .error = "must begin with the shape of the indices"}};
    }};

Tensor gather(Operand table, Operand indices) {
  return emit(gather_op, {table.tensor(), indices.tensor()}, {}, table.loc);
}

Tensor scatter_add(Operand indices, Operand updates, std::int64_t n) {
  return emit(scatter_op, {indices.tensor(), updates.tensor()}, ScatterAttrs{n}, indices.loc);
}

}  // namespace nestgrad

// gather, scatter_add and index_add: rows of a table by index, and their sums back, to zeros or to another table. gather and
// scatter_add are each other's derivative.
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

// The table of so many rows to which updates of this spec are added at indices of that one.
Spec infer_table(const OpCall& c, const Spec& index, const Spec& updates, std::int64_t rows) {
  if (index.dtype != DType::i32) c.dtype_error("indices must be i32");
  if (updates.rank() < index.rank() ||
      !std::equal(index.shape.begin(), index.shape.end(), updates.shape.begin()))
    c.shape_error("updates must begin with the shape of the indices");
  if (rows < 0) c.shape_error(fmt::format("a table of {} rows", rows));
  Shape shape{rows};
  shape.insert(shape.end(), updates.shape.begin() + index.rank(), updates.shape.end());
  return {updates.dtype, std::move(shape)};
}

Spec infer_scatter(const OpCall& c) {
  return infer_table(c, c.in[0], c.in[1], c.attrs.as<ScatterAttrs>().rows);
}

Spec infer_index_add(const OpCall& c) {
  const Spec& table = c.in[0];
  if (table.rank() < 1) c.shape_error("the table needs at least one axis");
  if (table.dtype != c.in[2].dtype) c.dtype_error("table and updates must have one type");
  const Spec added = infer_table(c, c.in[1], c.in[2], table.shape[0]);
  if (added != table) c.shape_error("updates must end with the shape of a row of the table");
  return added;
}

// Adds to the table. An index outside is found before anything is written, as the table may be the caller's.
template <class T>
void add_rows(std::string_view op, const std::byte* indices, const std::byte* updates, std::byte* table,
              std::int64_t count, std::int64_t rows, std::int64_t width) {
  const auto* index = reinterpret_cast<const std::int32_t*>(indices);
  const T* from = reinterpret_cast<const T*>(updates);
  T* to = reinterpret_cast<T*>(table);
  for (std::int64_t i = 0; i < count; ++i) check_index(op, index[i], rows);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < width; ++j) to[index[i] * width + j] += from[i * width + j];
}

template <class T>
OpKernel scatter_kernel(const OpCall& c) {
  const std::int64_t rows = c.out.shape[0], count = c.in[0].size(),
                     width = c.out.size() / std::max<std::int64_t>(1, rows);
  return [=, bytes = c.out.bytes()](const std::byte* const* in, std::byte* out) {
    std::memset(out, 0, bytes);
    add_rows<T>("scatter_add", in[0], in[1], out, count, rows, width);
  };
}

template <class T>
OpKernel index_add_kernel(const OpCall& c) {
  const std::int64_t rows = c.out.shape[0], count = c.in[1].size(),
                     width = c.out.size() / std::max<std::int64_t>(1, rows);
  return [=, bytes = c.out.bytes()](const std::byte* const* in, std::byte* out) {
    if (out != in[0]) std::memcpy(out, in[0], bytes);
    add_rows<T>("index_add", in[1], in[2], out, count, rows, width);
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

constinit const Op index_add_op = {
    .name = "index_add",
    .doc = "A table, plus each update row added at its index, in index order.",
    .infer = infer_index_add,
    .vjp = [](const VjpCall& c) { return c.input == 0 ? c.ct : gather(c.ct, c.in[1]); },
    .linear_in = [](const OpCall&, int input) { return input != 1; },
    // Axes of a row of the table, and those of an update's.
    .axes =
        [](const OpCall& c, int input, int axis) {
          return input == 0 && axis > 0                 ? axis
                 : input == 2 && axis >= c.in[1].rank() ? axis - c.in[1].rank() + 1
                                                        : -1;
        },
    .may_reuse = [](const OpCall&, int input) { return input == 0; },
    .cost = elementwise_cost,
    .cpu =
        [](const OpCall& c) {
          return dispatch(c.out.dtype, [&]<class T>(T) { return index_add_kernel<T>(c); });
        },
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{5, 3}}, {{2, 4}, 0, 4.999, DType::i32}, {{2, 4, 3}}}},
              {.inputs = {{{2}}, {{3}, 0, 1.999, DType::i32}, {{3}}}},
              {.inputs = {{{2, 3}}, {{3}, 0, 1, DType::i32}, {{4, 3}}},
               .error = "must begin with the shape of the indices"},
              {.inputs = {{{2, 3}}, {{3}, 0, 1, DType::i32}, {{3, 2}}},
               .error = "must end with the shape of a row"}};
    }};

Tensor gather(Operand table, Operand indices) {
  return emit(gather_op, {table.tensor(), indices.tensor()}, {}, table.loc);
}

Tensor scatter_add(Operand indices, Operand updates, std::int64_t n) {
  return emit(scatter_op, {indices.tensor(), updates.tensor()}, ScatterAttrs{n}, indices.loc);
}

Tensor index_add(Operand table, Operand indices, Operand updates) {
  return emit(index_add_op, {table.tensor(), indices.tensor(), updates.tensor()}, {}, table.loc);
}

}  // namespace nestgrad

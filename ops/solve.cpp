// Linear systems: triangular_solve, op(L) x = b with L lower triangular; solve, op(A) x = b with any square
// A. op: as it is, or transposed. Leading axes broadcast; every column of b is a system of its own.
#include <fmt/format.h>

#include <algorithm>

#include "ops/attrs.h"
#include "ops/kernels.h"
#include "ops/ops.h"
#include "ops/strided.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

std::int64_t equations(const OpCall& c) { return c.in[0].shape.back(); }

// ---- what both ops share: shapes, axes, the walk over the systems ----

Spec infer_system(const OpCall& c) {
  if (c.in[0].dtype != c.in[1].dtype || !is_float(c.in[0].dtype))
    c.dtype_error("needs a matrix and a right-hand side of one floating type; cast() them");
  if (c.in[0].rank() < 2 || c.in[1].rank() < 2)
    c.shape_error("needs at least two axes each; reshape a vector to [n,1]");
  const Shape& a = c.in[0].shape;
  const Shape& b = c.in[1].shape;
  const std::int64_t rows = a[a.size() - 2], n = a.back(), unknown = b[b.size() - 2];
  if (rows != n) c.shape_error(fmt::format("the matrix is not square ({} rows, {} columns)", rows, n));
  if (unknown != n)
    c.shape_error(
        fmt::format("the right-hand side has {} rows, the matrix {}; need b.rows == a.rows", unknown, n));
  Shape shape = broadcast_shapes(c, batch_of(a), batch_of(b));
  shape.insert(shape.end(), {n, b.back()});
  return {c.in[0].dtype, std::move(shape)};
}

// Batch axes go where broadcasting puts them, columns of
// b stay; the equations of a system are solved together.
int system_axes(const OpCall& c, int input, int axis) {
  const Spec& in = c.in[uz(input)];
  const int from_end = in.rank() - axis, to = c.out.rank() - from_end;
  if (from_end <= 2) return input == 1 && from_end == 1 ? to : -1;
  return in.shape[uz(axis)] == c.out.shape[uz(to)] ? to : -1;
}

// The cotangent of the matrix in op(A) x = b is -ct_b x', or its transpose.
Tensor matrix_ct(Tensor ct_b, Tensor x, bool transposed) {
  return -(transposed ? matmul(x, ct_b, {false, true}) : matmul(ct_b, x, {false, true}));
}

// Calls solver(A, is A another than in the last call, b, x, n, m) for every system: A [n, n], b and x [n, m].
template <class T, class Solver>
OpKernel each_system(const OpCall& c, Solver solver) {
  const Shape batch = batch_of(c.out.shape);
  return [solver, n = equations(c), m = c.out.shape.back(), at_a = matrix_offsets(batch, c.in[0].shape),
          at_b = matrix_offsets(batch, c.in[1].shape)](const std::byte* const* in, std::byte* out) mutable {
    const T* a = reinterpret_cast<const T*>(in[0]);
    const T* b = reinterpret_cast<const T*>(in[1]);
    T* x = reinterpret_cast<T*>(out);
    if (n == 0 || m == 0) return;
    for (std::size_t i = 0; i < at_a.size(); ++i, x += n * m)
      solver(a + at_a[i], i == 0 || at_a[i] != at_a[i - 1], b + at_b[i], x, n, m);
  };
}

// ---- triangular_solve ----

// ct_b = op(L)'^-1 ct; that of L only where L is read.
Tensor triangular_solve_vjp(const VjpCall& c) {
  const bool transposed = c.attrs.as<TriangularSolveAttrs>().transpose;
  const bool unit = c.attrs.as<TriangularSolveAttrs>().unit;
  const Tensor ct_b = triangular_solve(c.in[0], c.ct, {.transpose = !transposed, .unit = unit});
  return c.input == 1 ? ct_b : tril(matrix_ct(ct_b, c.out, transposed), unit ? -1 : 0);
}

template <class T>
OpKernel triangular_solve_kernel(const OpCall& c) {
  const bool transposed = c.attrs.as<TriangularSolveAttrs>().transpose;
  const bool unit = c.attrs.as<TriangularSolveAttrs>().unit;
  return each_system<T>(c, [=, substitute = solve_kernel<T>().substitute](const T* l, bool, const T* b, T* x,
                                                                          std::int64_t n, std::int64_t m) {
    std::copy_n(b, n * m, x);
    substitute(l, x, n, m, !transposed, transposed, unit);
  });
}

}  // namespace

constinit const Op triangular_solve_op = {
    .name = "triangular_solve",
    .doc = "x with op(L) x = b, reading the lower triangle of L.",
    .infer = infer_system,
    .vjp = triangular_solve_vjp,
    .linear_in = [](const OpCall&, int input) { return input == 1; },
    .axes = system_axes,
    .cost =
        [](const OpCall& c) {
          return OpCost{static_cast<double>(c.out.size() * equations(c)), elementwise_cost(c).bytes};
        },
    .cpu =
        [](const OpCall& c) {
          return c.out.dtype == DType::f32 ? triangular_solve_kernel<float>(c)
                                           : triangular_solve_kernel<double>(c);
        },
    .describe =
        [](const Attrs& a) {
          const auto [transposed, unit] = a.as<TriangularSolveAttrs>();
          return fmt::format("{}{}", transposed ? "L'" : "L", unit ? ", unit" : "");
        },
    .read_attrs = attrs_from<TriangularSolveAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{3, 3}, 0.5, 1.5, {}}, {{3, 2}}}, .attrs = TriangularSolveAttrs{false, false}},
              {.inputs = {{{2, 3, 3}, 0.5, 1.5, {}}, {{3, 2}}}, .attrs = TriangularSolveAttrs{true, false}},
              {.inputs = {{{3, 3}}, {{2, 3, 1}}}, .attrs = TriangularSolveAttrs{false, true}},
              {.inputs = {{{2, 1, 4, 4}}, {{3, 4, 2}}}, .attrs = TriangularSolveAttrs{true, true}},
              {.inputs = {{{3, 4}}, {{3, 2}}},
               .attrs = TriangularSolveAttrs{false, false},
               .error = "the matrix is not square (3 rows, 4 columns)"},
              {.inputs = {{{3, 3}}, {{2, 3}}},
               .attrs = TriangularSolveAttrs{false, false},
               .error = "the right-hand side has 2 rows, the matrix 3; need b.rows == a.rows"},
              {.inputs = {{{3, 3}}, {{3}}},
               .attrs = TriangularSolveAttrs{true, false},
               .error = "reshape a vector to [n,1]"},
              {.inputs = {{{2, 3, 3}}, {{4, 3, 1}}},
               .attrs = TriangularSolveAttrs{false, true},
               .error = "shapes do not broadcast"},
              {.inputs = {{{3, 3}}, {{3, 2}, 0, 1, DType::i32}},
               .attrs = TriangularSolveAttrs{false, false},
               .error = "of one floating type; cast() them"}};
    }};

namespace {

// ---- solve ----

// ct_b = op(A)'^-1 ct.
Tensor solve_vjp(const VjpCall& c) {
  const bool transposed = c.attrs.as<SolveAttrs>().transpose;
  const Tensor ct_b = solve(c.in[0], c.ct, {.transpose = !transposed});
  return c.input == 1 ? ct_b : matrix_ct(ct_b, c.out, transposed);
}

// Systems that follow each other with one matrix factor it once. The factors' memory belongs to the kernel.
template <class T>
OpKernel lu_kernel(const OpCall& c) {
  const auto rows = uz(equations(c));
  return each_system<T>(
      c, [transposed = c.attrs.as<SolveAttrs>().transpose, lu = std::vector<T>(rows * rows),
          order = std::vector<std::int64_t>(rows), &kernel = solve_kernel<T>()](
             const T* a, bool another, const T* b, T* x, std::int64_t n, std::int64_t m) mutable {
        if (another) {
          for (std::int64_t i = 0; i < n; ++i)
            for (std::int64_t j = 0; j < n; ++j) lu[uz(i * n + j)] = transposed ? a[j * n + i] : a[i * n + j];
          kernel.factor(lu.data(), order.data(), n);
        }
        for (std::int64_t i = 0; i < n; ++i) std::copy_n(b + order[uz(i)] * m, m, x + i * m);
        kernel.substitute(lu.data(), x, n, m, true, false, true);
        kernel.substitute(lu.data(), x, n, m, false, false, false);
      });
}

}  // namespace

constinit const Op solve_op = {
    .name = "solve",
    .doc = "x with op(A) x = b, by LU with partial pivoting.",
    .infer = infer_system,
    .vjp = solve_vjp,
    .linear_in = [](const OpCall&, int input) { return input == 1; },
    .axes = system_axes,
    .cost =
        [](const OpCall& c) {
          const auto n = static_cast<double>(equations(c));
          return OpCost{
              n * (2.0 / 3 * static_cast<double>(c.in[0].size()) + 2.0 * static_cast<double>(c.out.size())),
              elementwise_cost(c).bytes};
        },
    .cpu =
        [](const OpCall& c) {
          return c.out.dtype == DType::f32 ? lu_kernel<float>(c) : lu_kernel<double>(c);
        },
    .describe = [](const Attrs& a) { return std::string(a.as<SolveAttrs>().transpose ? "A'" : "A"); },
    .read_attrs = attrs_from<SolveAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{3, 3}}, {{3, 2}}}, .attrs = SolveAttrs{false}},
              {.inputs = {{{2, 2, 2}}, {{2, 3}}}, .attrs = SolveAttrs{true}},
              {.inputs = {{{3, 3}}, {{2, 3, 1}}}, .attrs = SolveAttrs{true}},
              {.inputs = {{{2, 1, 2, 2}}, {{3, 2, 1}}}, .attrs = SolveAttrs{false}},
              {.inputs = {{{3, 4}}, {{3, 2}}},
               .attrs = SolveAttrs{false},
               .error = "the matrix is not square (3 rows, 4 columns)"},
              {.inputs = {{{2, 3, 3}}, {{4, 2}}},
               .attrs = SolveAttrs{true},
               .error = "the right-hand side has 4 rows, the matrix 3; need b.rows == a.rows"},
              {.inputs = {{{3, 3}}, {{3}}}, .attrs = SolveAttrs{false}, .error = "reshape a vector to [n,1]"},
              {.inputs = {{{3, 3}, 0, 1, DType::i32}, {{3, 2}}},
               .attrs = SolveAttrs{false},
               .error = "of one floating type; cast() them"}};
    }};

Tensor triangular_solve(Operand l, Operand b, TriangularSolveOptions options) {
  return emit(triangular_solve_op, {l.tensor(), b.tensor()},
              TriangularSolveAttrs{options.transpose, options.unit}, l.loc);
}

Tensor solve(Operand a, Operand b, SolveOptions options) {
  return emit(solve_op, {a.tensor(), b.tensor()}, SolveAttrs{options.transpose}, a.loc);
}

}  // namespace nestgrad

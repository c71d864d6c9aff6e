// matmul: C[.., m, n] = A[.., m, k] B[.., k, n], either operand
// with its last two axes swapped; leading axes broadcast.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "engine/core/threads.h"
#include "ops/attrs.h"
#include "ops/gemm.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"

namespace nestgrad {

namespace {

constexpr std::int64_t kSymmetricFrom = 64;  // rows of A from which on half of A A' may be left out

struct Extents {
  std::int64_t m, n, ka, kb;
};

bool flag_a(const Attrs& a) { return a.as<MatmulAttrs>().a; }
bool flag_b(const Attrs& a) { return a.as<MatmulAttrs>().b; }

Extents extents(const OpCall& c) {
  const Shape& a = c.in[0].shape;
  const Shape& b = c.in[1].shape;
  const std::int64_t a0 = a[a.size() - 2], a1 = a[a.size() - 1], b0 = b[b.size() - 2], b1 = b[b.size() - 1];
  return {flag_a(c.attrs) ? a1 : a0, flag_b(c.attrs) ? b0 : b1, flag_a(c.attrs) ? a0 : a1,
          flag_b(c.attrs) ? b1 : b0};
}

Spec infer_matmul(const OpCall& c) {
  if (c.in[0].dtype != c.in[1].dtype || !is_float(c.in[0].dtype))
    c.dtype_error("needs two operands of one floating type; cast() them");
  if (c.in[0].rank() < 2 || c.in[1].rank() < 2)
    c.shape_error("needs at least two axes each; reshape a vector to [1,n] or [n,1]");
  const Extents e = extents(c);
  if (e.ka != e.kb)
    c.shape_error(fmt::format("inner dimensions differ ({} against {}); need a.{} == b.{}", e.ka, e.kb,
                              flag_a(c.attrs) ? "rows" : "cols", flag_b(c.attrs) ? "cols" : "rows"));
  Shape shape = broadcast_shapes(c, batch_of(c.in[0].shape), batch_of(c.in[1].shape));
  shape.insert(shape.end(), {e.m, e.n});
  return {c.in[0].dtype, std::move(shape)};
}

// The products of which a call consists.
OpProducts products_of(const OpCall& c) {
  const Extents e = extents(c);
  const Shape batch = batch_of(c.out.shape), batch_a = batch_of(c.in[0].shape),
              batch_b = batch_of(c.in[1].shape);
  OpProducts p{.m = e.m, .n = e.n, .k = e.ka, .transpose_a = flag_a(c.attrs), .transpose_b = flag_b(c.attrs)};
  // Rows of all batch members against one right-hand side are one product.
  if (!p.transpose_a && numel(batch_b) == 1 && numel(batch_a) == numel(batch)) {
    p.m *= numel(batch);
  } else {
    p.a = matrix_offsets(batch, c.in[0].shape);
    p.b = matrix_offsets(batch, c.in[1].shape);
  }
  return p;
}

// Is it C = A A', if both operands are one array?
bool may_be_symmetric(const OpCall& c, bool plus) {
  return flag_b(c.attrs) && !flag_a(c.attrs) && !plus && c.in[0] == c.in[1];
}

// The product, or (plus) the product and a third operand of its shape added up.
template <class T>
OpKernel typed_matmul(const OpCall& c, bool plus) {
  const OpProducts p = products_of(c);
  return [ao = p.a, bo = p.b, plus, count = p.count(), size = p.m * p.n,
          product = Gemm<T>(p.m, p.n, p.k, p.transpose_a, p.transpose_b),
          half = may_be_symmetric(c, plus) ? std::optional(Gemm<T>::symmetric(p.m, p.k)) : std::nullopt](
             const std::byte* const* in, std::byte* out) {
    const T* a = reinterpret_cast<const T*>(in[0]);
    const T* b = reinterpret_cast<const T*>(in[1]);
    T* y = reinterpret_cast<T*>(out);
    const T* d = plus ? reinterpret_cast<const T*>(in[2]) : nullptr;
    const Gemm<T>* const whole = half && a == b ? &*half : &product;
    const auto multiply = [&](std::int64_t i, int own, int parts) {
      (parts == 1 ? *whole : product)
          .part(a + ao[uz(i)], b + bo[uz(i)], d ? d + i * size : nullptr, y + i * size, own, parts);
    };
    // Whole products to each thread if there are enough of them, else rows of each.
    const auto [all, each] = product.sharing(count);
    const auto part = [&, all = all, each = each](int i, int) {
      if (each > 1) return multiply(i / each, i % each, each);
      for (std::int64_t k = i * count / all; k < (i + 1) * count / all; ++k) multiply(k, 0, 1);
    };
    if (all == 1) part(0, 0);
    else in_parallel(all, thread_count(), std::ref(part));
  };
}

OpKernel matmul_kernel(const OpCall& c, bool plus) {
  return c.out.dtype == DType::f32 ? typed_matmul<float>(c, plus) : typed_matmul<double>(c, plus);
}

OpKernel matmul_plus(const OpCall& c) {
  return extents(c).ka <= Gemm<float>::kBlock ? matmul_kernel(c, true) : OpKernel();
}

// What one thread multiplies, each element of C being one sum.
std::optional<OpProducts> small_products(const OpCall& c) {
  OpProducts p = products_of(c);
  const bool is_shared = p.m * p.n * p.k * p.count() >= Gemm<float>::kShare;
  const bool halves = may_be_symmetric(c, false) && p.m >= kSymmetricFrom;
  if (is_shared || halves || p.k > kGemmBlock) return {};
  return p;
}

// dA = dC B' and dB = A' dC, written for each pair of flags. Broadcast axes are summed by grad.
Tensor matmul_vjp(const VjpCall& c) {
  const bool ta = flag_a(c.attrs), tb = flag_b(c.attrs);
  const Tensor a = c.in[0], b = c.in[1];
  if (c.input == 0) return ta ? matmul(b, c.ct, {tb, true}) : matmul(c.ct, b, {false, !tb});
  return tb ? matmul(c.ct, a, {true, ta}) : matmul(a, c.ct, {!ta, false});
}

// Batch axes go where broadcasting puts them; rows of a and columns of b stay; contracted axes go nowhere.
int matmul_axes(const OpCall& c, int input, int axis) {
  const Spec& in = c.in[uz(input)];
  const bool swapped = input == 0 ? flag_a(c.attrs) : flag_b(c.attrs);
  const int from_end = in.rank() - axis;
  if (from_end > 2) {
    const int to = axis + c.out.rank() - in.rank();
    return in.shape[uz(axis)] == c.out.shape[uz(to)] ? to : -1;
  }
  const bool is_row = (from_end == 2) != swapped;
  if (input == 0) return is_row ? c.out.rank() - 2 : -1;
  return is_row ? -1 : c.out.rank() - 1;
}

// A transposed operand is read through the flag instead of being copied.
Tensor absorb_transpose(Tensor t) {
  MatmulOptions flags{flag_a(node_of(t).attrs), flag_b(node_of(t).attrs)};
  const Tensor a = transposed_input(input_of(t, 0)), b = transposed_input(input_of(t, 1));
  if (!a.defined() && !b.defined()) return {};
  flags.a = flags.a != a.defined();
  flags.b = flags.b != b.defined();
  return matmul(a.defined() ? a : input_of(t, 0), b.defined() ? b : input_of(t, 1), flags);
}

// One number times a row or a column (for each batch member): elementwise, and so beside other such ops.
Tensor as_scaling(Tensor t) {
  const Tensor a = input_of(t, 0), b = input_of(t, 1);
  const bool swap_a = flag_a(node_of(t).attrs), swap_b = flag_b(node_of(t).attrs);
  const std::int64_t m = t.dim(-2), n = t.dim(-1), k = a.dim(swap_a ? -2 : -1);
  if (k != 1 || (m != 1 && n != 1) || !t.graph().options().round) return {};
  const auto shaped = [](Tensor x, bool swap) {
    Shape shape = x.shape();
    if (swap) std::swap(shape[shape.size() - 2], shape.back());
    return swap ? reshape(x, shape) : x;  // of one row or column: it lies in memory as its transpose does
  };
  return shaped(a, swap_a) * shaped(b, swap_b);
}

Tensor simplify_matmul(Tensor t) {
  const Tensor scaling = as_scaling(t);
  return scaling.defined() ? scaling : absorb_transpose(t);
}

}  // namespace

constinit const Op matmul_op = {
    .name = "matmul",
    .doc = "Matrix product over the last two axes, C = op(A) op(B).",
    .infer = infer_matmul,
    .vjp = matmul_vjp,
    .simplify = simplify_matmul,
    .linear_in = always_linear,
    .is_product = true,
    .axes = matmul_axes,
    .broadcasts = true,
    .cost =
        [](const OpCall& c) {
          return OpCost{2.0 * static_cast<double>(c.out.size() * extents(c).ka), elementwise_cost(c).bytes};
        },
    .cpu = [](const OpCall& c) { return matmul_kernel(c, false); },
    .kernel_adding_to = matmul_plus,
    .products = small_products,
    .describe = [](const Attrs& a) { return std::string(flag_a(a) ? "a'" : "") + (flag_b(a) ? "b'" : ""); },
    .read_attrs = attrs_from<MatmulAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{3, 4}}, {{4, 2}}}, .attrs = MatmulAttrs{false, false}},
              {.inputs = {{{4, 3}}, {{4, 2}}}, .attrs = MatmulAttrs{true, false}},
              {.inputs = {{{2, 3, 4}}, {{2, 2, 4}}}, .attrs = MatmulAttrs{false, true}},
              {.inputs = {{{2, 1, 4, 3}}, {{3, 2, 4}}}, .attrs = MatmulAttrs{true, true}},
              {.inputs = {{{2, 3, 4}}, {{4, 2}}}, .attrs = MatmulAttrs{false, false}},
              {.inputs = {{{4, 4}}, {{2, 4, 4}}}, .attrs = MatmulAttrs{false, false}},
              {.inputs = {{{16, 32}}, {{64, 8}}},
               .attrs = MatmulAttrs{false, false},
               .error = "[matmul] inner dimensions differ (32 against 64); need a.cols == b.rows"},
              {.inputs = {{{3}}, {{3, 2}}}, .attrs = MatmulAttrs{false, false}, .error = "reshape a vector"}};
    }};

Tensor matmul(Operand a, Operand b, MatmulOptions t) {
  return emit(matmul_op, {a.tensor(), b.tensor()}, MatmulAttrs{t.a, t.b}, a.loc);
}

}  // namespace nestgrad

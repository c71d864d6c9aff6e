// Every op as a function. Tensors are dense and row-major; axes may be negative (from the end). An operand
// may be a number. Elementwise ops broadcast as NumPy does. All element types of one call must agree: cast()
// is explicit. Errors: ShapeError, DTypeError, with op, shapes and line.
#pragma once

#include <concepts>

#include "engine/core/graph.h"

namespace nestgrad {

// ---- elementwise (ops/elementwise.def has the formulas) ----
// A user's macros with the names of elementwise.def stay what they are.
#pragma push_macro("UNARY")
#pragma push_macro("BINARY")
#pragma push_macro("TERNARY")
#pragma push_macro("UNARY_STEP")
#pragma push_macro("BINARY_STEP")
#undef UNARY
#undef BINARY
#undef TERNARY
#undef UNARY_STEP
#undef BINARY_STEP
#define UNARY(name, ...) Tensor name(Operand x);
#define BINARY(name, ...) Tensor name(Operand a, Operand b);
#define TERNARY(name, ...) Tensor name(Operand a, Operand b, Operand c);
#include "ops/elementwise.def"
#pragma pop_macro("UNARY")
#pragma pop_macro("BINARY")
#pragma pop_macro("TERNARY")
#pragma pop_macro("UNARY_STEP")
#pragma pop_macro("BINARY_STEP")

Tensor operator+(Operand a, Operand b);
Tensor operator-(Operand a, Operand b);
Tensor operator*(Operand a, Operand b);
Tensor operator/(Operand a, Operand b);
Tensor operator-(Operand x);
// a becomes the name of the result; nothing is overwritten.
Tensor& operator+=(Tensor& a, Operand b);
Tensor& operator-=(Tensor& a, Operand b);
Tensor& operator*=(Tensor& a, Operand b);
Tensor& operator/=(Tensor& a, Operand b);
// Masks: 1 where it holds, else 0, of the operands' type: greater(a, b) and its like. `a == b` asks whether
// both are the same tensor (a bool); equal(a, b) compares the numbers.
Tensor operator>(Operand a, Operand b);
Tensor operator>=(Operand a, Operand b);
Tensor operator<(Operand a, Operand b);
Tensor operator<=(Operand a, Operand b);
// a where the mask is not zero, else b: another name of select.
Tensor where(Operand mask, Operand a, Operand b);
// min(max(x, low), high): x held between the bounds, which are numbers or tensors; where low > high it is
// high. The derivative passes where low <= x <= high. NaN stays NaN.
Tensor clip(Operand x, Operand low, Operand high);

// ---- matrix products: [.., m, k] x [.., k, n] -> [.., m, n]; leading dimensions broadcast ----
struct MatmulOptions {
  bool a = false, b = false;  // use the operand's last two axes swapped
};
Tensor matmul(Operand a, Operand b, MatmulOptions transpose = {});

// ---- linear systems: matrix [.., n, n], b [.., n, m] -> x [.., n, m]; leading dimensions broadcast ----
// ShapeError where the matrix is not square or b has not its rows, DTypeError for anything but one floating type.
struct TriangularSolveOptions {
  bool transpose = false;  // solve L' x = b
  bool unit = false;       // the diagonal is ones; what stands there is not read
};
// x with L x = b by substitution. Above its diagonal L is not read. A zero on the diagonal divides as `/`
// does: infinity or NaN.
Tensor triangular_solve(Operand l, Operand b, TriangularSolveOptions options = {});
struct SolveOptions {
  bool transpose = false;  // solve A' x = b
};
// x with A x = b by LU with partial pivoting. Where elimination meets a pivot of exactly zero, x has
// infinities or NaN; a singular matrix whose last pivot is mere rounding gives huge numbers instead.
Tensor solve(Operand a, Operand b, SolveOptions options = {});

// ---- reductions: over the axes, which then go, or with keep (kKeep) stay with extent 1 ----
// ShapeError for an axis that x does not have, or that is named twice. Over no axes x is left as it is.
inline constexpr bool kKeep = true;
Tensor sum(Operand x, const std::vector<int>& axes, bool keep = false);
Tensor sum(Operand x);  // over everything, to a scalar
Tensor sum(Operand x, std::same_as<int> auto axis, bool keep = false) {
  return sum(x, std::vector{axis}, keep);
}
Tensor mean(Operand x, const std::vector<int>& axes, bool keep = false);
Tensor mean(Operand x);
Tensor mean(Operand x, std::same_as<int> auto axis, bool keep = false) {
  return mean(x, std::vector{axis}, keep);
}
// The largest, or smallest, element over the axes; where several are, they share the derivative. ShapeError
// where there is none.
Tensor max(Operand x, const std::vector<int>& axes, bool keep = false);
Tensor min(Operand x, const std::vector<int>& axes, bool keep = false);
Tensor max(Operand x);
Tensor min(Operand x);
// max(x, {0}) means axis 0, and never a number; max(x, 0) is the larger of each element and the number 0.
Tensor max(Operand x, std::initializer_list<int> axes, bool keep = false);
Tensor min(Operand x, std::initializer_list<int> axes, bool keep = false);
Tensor sum_to(Operand x, const Shape& shape);  // undoes a broadcast from `shape`

// ---- shapes ----
Tensor reshape(Operand x, const Shape& shape);  // one extent may be -1
Tensor permute(Operand x, const std::vector<int>& order);
Tensor transpose(Operand x);  // swaps the last two axes
Tensor broadcast_to(Operand x, const Shape& shape);
Tensor slice(Operand x, int axis, std::int64_t begin, std::int64_t end);
Tensor pad(Operand x, int axis, std::int64_t before, std::int64_t after);  // with zeros
Tensor concat(const std::vector<Tensor>& parts, int axis, Loc loc = Loc::current());
// Parts of one shape [..] side by side along a new axis: [.., n, ..]. With axis -1 the new one is the last.
Tensor stack(const std::vector<Tensor>& parts, int axis, Loc loc = Loc::current());
// The parts that concat() along the axis would make x of; the sizes add up to x's.
std::vector<Tensor> split(Operand x, int axis, const std::vector<std::int64_t>& sizes);

// ---- indices ----
// Rows of table [n, ...] at indices i32 [...]: -> [indices..,
// ...]. ValueError at run time if an index is outside.
Tensor gather(Operand table, Operand indices);
// Zeros [n, ...] plus updates [indices.., ...] added at their rows, in index order.
Tensor scatter_add(Operand indices, Operand updates, std::int64_t n);
// The table [n, ...] plus updates [indices.., ...] added at their rows, in index order. A loop whose carry it updates
// takes the time of the updates, not of the table. ValueError at run time if an index is outside.
Tensor index_add(Operand table, Operand indices, Operand updates);
Tensor iota(DType dtype, const Shape& shape, int axis, Loc loc = Loc::current());  // 0, 1, 2, .. along axis
Tensor eye(DType dtype, std::int64_t n, Loc loc = Loc::current());  // [n, n], ones on the diagonal
Tensor one_hot(Operand indices, std::int64_t n, DType dtype);       // i32 [...] -> [..., n]
Tensor tril(Operand x, int diagonal = 0);  // keeps x[.., i, j] where j <= i + diagonal
Tensor cumsum(Operand x, int axis, bool reverse = false);

// ---- types, constants, gradient control ----
Tensor cast(Operand x, DType dtype);
Tensor zeros(DType dtype, const Shape& shape, Loc loc = Loc::current());
Tensor full(DType dtype, const Shape& shape, double value, Loc loc = Loc::current());
Tensor zero_like(Tensor x, Loc loc = Loc::current());  // a scalar zero of x's type, in x's graph
Tensor stop_gradient(Operand x);
Tensor probe(Operand x);  // x under a name of its own: never shared, never simplified before grad

// ---- composites ----
Tensor softmax(Operand x, int axis);
Tensor log_softmax(Operand x, int axis);
Tensor logsumexp(Operand x, int axis, bool keep = false);
// Per-token loss [...] in nats from logits [..., classes] and labels i32 [...]: -log_softmax at the label, to about a
// rounding of 1 however large the logits are; a loss far below that is 0. ValueError for a label that is no class.
Tensor cross_entropy(Operand logits, Operand labels);
// Norms of rows. Where (x - mean)^2, in the other two x^2, overflows (|x| from 1.8e19 on in f32, 1.3e154 in f64), what they make
// of x is zero, and so are its derivatives: layer_norm gives its shift.
// Over the last axis, biased variance (Ba et al. 2016); gain and shift broadcast against x.
Tensor layer_norm(Operand x, Operand gain, Operand shift, double eps = 1e-6);
Tensor rms_norm(Operand x, Operand gain, double eps = 1e-6);  // Zhang and Sennrich 2019
Tensor l2_norm(Operand x, double eps = 1e-6);                 // x / sqrt(sum x^2 + eps) over the last axis
// sqrt(sum x^2) over the axes. Where the sum is zero the norm is zero and so are its derivatives of every
// order (it has none there); NaN stays NaN. Squares that underflow count as zero: |x| below 1e-23 in f32,
// 1e-162 in f64.
Tensor norm(Operand x, const std::vector<int>& axes, bool keep = false);
// Rotary embedding (Su et al. 2021), interleaved pairs.
// x [.., time, dim], dim even; positions [time] (float), or [.., time, 1] whose leading axes broadcast against x.
Tensor rope(Operand x, Operand positions, double theta = 10000.0);
// Depthwise convolution without padding: x [batch, time + taps - 1, dim], weight [dim, 1, taps], bias [dim]
// or undefined -> [batch, time, dim]. The last tap meets the latest row.
Tensor conv1d(Operand x, Operand weight, Tensor bias);
// The same, causal: zeros stand before the first row. x [batch, time, dim].
Tensor causal_conv1d(Operand x, Operand weight, Tensor bias);
// Depthwise 3x3 convolution, zero padding 1. x [batch, height, width, dim], weight [dim, 1, 3, 3], bias [dim]
// or undefined.
Tensor depthwise_conv3x3(Operand x, Operand weight, Tensor bias);

// ---- shape arithmetic shared by rows ----
Shape broadcast_shapes(const OpCall& call, const Shape& a, const Shape& b);
// From 0 on; ShapeError if x has no such axis.
int normal_axis(std::string_view op, int axis, const Operand& x);

}  // namespace nestgrad

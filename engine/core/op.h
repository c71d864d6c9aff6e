// Op: one row of the op table, a constant but for `cuda`. Any thread may read it. Backends, derivative,
// analyses, printer and tests ask the row; few places (simplification, forms, CUDA) ask for a certain op.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/attrs.h"

namespace nestgrad {

struct Op;
struct GraphNode;  // engine/core/graph.h
class Backend;     // engine/plan/backend.h

// One use of an op: what a shape rule, a kernel factory or an analysis may look at.
struct OpCall {
  const Op& op;
  std::span<const Spec> in;
  const Attrs& attrs;
  Spec out;  // not yet known inside `infer`
  // Where the inputs came from, for messages: nodes `ids` of a graph. Empty where the caller has none.
  const std::deque<GraphNode>* nodes = nullptr;
  std::span<const NodeId> ids = {};
  [[noreturn]] void shape_error(const std::string& message) const;  // "[op] message: operands"
  [[noreturn]] void dtype_error(const std::string& message) const;
  // ShapeError if what has this shape has no such axis: attributes may come from a file.
  void check_axis(std::int64_t axis, const Shape& shape) const;
  std::string operands() const;  // a is f64[2,3] from input 'x' (file.cpp:9), b is ..
};

// One use of an op while it is differentiated: the cotangent of input `input` is asked for.
struct VjpCall {
  std::span<const Tensor> in;
  Tensor out;
  Tensor ct;  // cotangent of the output
  const Attrs& attrs;
  int input;
};

// A kernel made for one call: addresses of dense row-major inputs, address of the output.
using OpKernel = std::function<void(const std::byte* const* in, std::byte* out)>;

// A run of an elementwise kernel: n elements of each operand, contiguous or one for all, to n of the output.
using ElementLoop = void (*)(const std::byte* const* in, std::byte* out, std::int64_t n);
// Reduces n contiguous elements to one.
using RowReduction = void (*)(const std::byte* in, std::byte* out, std::int64_t n);

// Where the elements of a rearrangement lie in its input: element i of the output is element
// offset + i . strides of the input.
struct OpView {
  std::int64_t offset = 0;
  Shape strides;
};

// Products C = op(A) op(B) of equal extents; op: as it is, or transposed. All are dense and row-major, the C one after
// the other; a, b: where each A and B begins, in elements.
struct OpProducts {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::vector<std::int64_t> a{0}, b{0};

  std::int64_t count() const { return static_cast<std::int64_t>(a.size()); }
  bool operator==(const OpProducts&) const = default;
};

struct OpCost {
  double flops = 0, bytes = 0;
};

// A case for the tests of the table. `error` set: the call must be refused with that text in the message.
struct OpSample {
  struct Input {
    Shape shape;
    double low = -1.5, high = 1.5;  // domain of uniformly drawn values
    std::optional<DType> dtype;     // none: the floating type under test
  };
  std::vector<Input> inputs;
  Attrs attrs;
  std::string error;
  double tolerance = 1;  // factor on the sweep's tolerances, for ill-conditioned formulas
};

// final, stack: the last carry of a scan, and the values of all its steps.
enum class OpKind : std::uint8_t { value, input, constant, scan, final, stack };

// What an op over the processes of a run (ops/collectives.h) makes of its input: a value that is the same in all of them, or each
// one's own.
enum class OpProcesses : std::uint8_t { none, input_to_own, same_to_own, own_to_same, own_to_own };

struct Op {
  // ---- what it is ----
  std::string_view name;
  std::string_view doc;  // one sentence and the formula
  OpKind kind = OpKind::value;

  // ---- what it means ----
  // Shape and type of the output, or a ShapeError / DTypeError through OpCall.
  Spec (*infer)(const OpCall&) = nullptr;
  // Cotangent of one input, written in ops. It may have the broadcast shape of the output: grad sums it down.
  Tensor (*vjp)(const VjpCall&) = nullptr;
  // Where vjp is null. Ops whose output is of integer type need neither.
  std::string_view why_no_derivative = {};
  // Why this input has no derivative although others have one; empty if it has one. Not asked of integers.
  std::string_view (*why_no_derivative_in)(int input) = nullptr;
  // The same op in simpler ops: the reference of a fused kernel, and what a backend without a kernel runs.
  Tensor (*expand)(std::span<const Tensor>, const Attrs&) = nullptr;
  // A cheaper equal expression over the same inputs, or an undefined tensor. Plans use it, traces never.
  Tensor (*simplify)(Tensor) = nullptr;

  // ---- facts that analyses read ----
  // Is the output affine in this input, the others held fixed? Its derivative then does not read this input.
  bool (*linear_in)(const OpCall&, int input) = nullptr;
  bool is_linear = false;    // in all its inputs together: f(x + y) = f(x) + f(y), so that sums pass through
  bool is_product = false;   // where linear_in holds of an input, linear and not merely affine: 0 gives 0
  bool is_addition = false;  // the output is the first input plus the second
  // Where does this axis of this input go, if the op treats slices along it independently? -1: nowhere.
  int (*axes)(const OpCall&, int input, int axis) = nullptr;
  bool (*sums_over)(const OpCall&, int axis) = nullptr;  // does it add up its input over this axis?
  // Is an input repeated along the output axes to which `axes` sends none of its own?
  bool broadcasts = false;
  bool is_alias = false;  // the output is the input's bytes under another shape
  bool is_shared = true;  // equal calls are one node (false: every call is a node of its own)
  // May the output take this input's buffer? (Element i must be read before it is written.)
  bool (*may_reuse)(const OpCall&, int input) = nullptr;
  OpProcesses processes = OpProcesses::none;
  OpCost (*cost)(const OpCall&) = nullptr;

  // ---- kernels ----
  OpKernel (*cpu)(const OpCall&) = nullptr;
  // A kernel that queues its work there. Filled in by cuda/ where it is linked, before the first plan.
  mutable OpKernel (*cuda)(const OpCall&, Backend&) = nullptr;
  // The inner loop of an elementwise op, for several ops that run as one instruction (a cluster). All
  // operands and the output have this type; stretched[k]: operand k is one element, repeated.
  ElementLoop (*element_loop)(DType, const std::vector<char>& stretched) = nullptr;
  // Of a reduction over the last axis: the kernel of one row. Null where another axis of more than one element is
  // reduced as well.
  RowReduction (*row_reduction)(const OpCall&) = nullptr;
  // A kernel with one more operand, to which it adds the op's value; that may be the output's own buffer. The
  // bits are those of `cpu` and an addition. Empty where there is none for this call.
  OpKernel (*kernel_adding_to)(const OpCall&) = nullptr;
  // Of an op whose kernels multiply matrices: which. Nothing where threads would share them.
  std::optional<OpProducts> (*products)(const OpCall&) = nullptr;
  // Of an op that only rearranges its one input.
  OpView (*view)(const OpCall&) = nullptr;

  // ---- text and tests ----
  std::string (*describe)(const Attrs&) = nullptr;  // attributes for printing
  // Attributes rebuilt from Attrs::numbers(), of an op that has some: attrs_from<SliceAttrs>.
  std::optional<Attrs> (*read_attrs)(std::span<const std::int64_t> numbers) = nullptr;
  std::vector<OpSample> (*samples)() = nullptr;
};

// All rows, in the order of their names: those of ops/table.def.
std::span<const Op* const> op_table();
const Op* find_op(std::string_view name);  // null if there is none

Spec infer(const OpCall& call);
Spec infer(const Op& op, std::span<const Spec> in, const Attrs& attrs);
OpCost elementwise_cost(const OpCall& call);  // a flop an output element; the bytes of inputs and output

}  // namespace nestgrad

// The sweep can fail: copies of rows, each wrong in one way, are caught by the check meant for it.
#include <doctest/doctest.h>

#include <cstring>
#include <deque>

#include "ops/attrs.h"
#include "ops/ops.h"
#include "tests/ops/sweep.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// A copy of a row, not in the table, that outlives every graph made with it.
template <class Change>
const Op& altered(std::string_view name, Change change) {
  static std::deque<Op> rows;
  rows.push_back(*find_op(name));
  change(rows.back());
  return rows.back();
}

// The altered row fails with `text`; the true row does not fail.
template <class Change>
void check_caught(Failures (*check)(const Op&), std::string_view name, std::string_view text, Change change) {
  CAPTURE(name);
  CHECK(check(*find_op(name)).empty());
  const Failures failures = check(altered(name, change));
  INFO(join(failures));
  CHECK(!failures.empty());
  CHECK(join(failures).find(text) != std::string::npos);
}

bool yes(const OpCall&, int) { return true; }
int same_axis(const OpCall&, int, int axis) { return axis; }

}  // namespace

TEST_CASE("a wrong derivative is caught, with op, sample, input, order and both values") {
  const auto caught = [](std::string_view name, std::string_view text, Tensor (*vjp)(const VjpCall&)) {
    check_caught(check_derivatives, name, text, [&](Op& op) { op.vjp = vjp; });
  };
  caught("exp", "exp, sample 0: order 1 derivative in input 0 is",
         [](const VjpCall& c) { return c.ct * c.in[0]; });
  // Flags of the operands swapped: another shape, or the same shape and other numbers.
  caught("matmul", "matmul, sample",
         [](const VjpCall& c) { return c.input == 0 ? matmul(c.ct, c.in[1]) : matmul(c.in[0], c.ct); });
  // No broadcast back to the summed shape.
  caught("sum", "[sum_to]", [](const VjpCall& c) { return c.ct; });
  caught("div", "derivative in input 1",
         [](const VjpCall& c) { return c.input == 0 ? c.ct / c.in[1] : -(c.ct * c.out); });
  // Right to first order only, and to second order only.
  caught("tanh", "order 2 derivative",
         [](const VjpCall& c) { return c.ct * (1.0 - square(stop_gradient(c.out))); });
  caught("exp", "order 3 derivative", [](const VjpCall& c) {
    const Tensor y = c.out, fixed = stop_gradient(y);
    return c.ct * (fixed + (y - fixed) * 1.0 - 0.5 * square(y - fixed));
  });
  // Off by one part in a million.
  caught("sin", "order 1 derivative", [](const VjpCall& c) { return c.ct * cos(c.in[0]) * (1 + 1e-6); });
}

TEST_CASE("each derivative check sees a wrong rule on its own") {
  const Op& wrong =
      altered("sin", [](Op& op) { op.vjp = [](const VjpCall& c) { return c.ct * cos(c.in[0]) * 1.01; }; });
  const Op& flat = altered(
      "sin", [](Op& op) { op.vjp = [](const VjpCall& c) { return c.ct * stop_gradient(cos(c.in[0])); }; });
  // Not linear in the cotangent.
  const Op& bent = altered(
      "sin", [](Op& op) { op.vjp = [](const VjpCall& c) { return c.ct * abs(c.ct) * cos(c.in[0]); }; });
  // Right in f64 only.
  const Op& narrow = altered("sin", [](Op& op) {
    op.vjp = [](const VjpCall& c) {
      return c.ct * cos(c.in[0]) * (c.ct.dtype() == DType::f32 ? 1.001 : 1.0);
    };
  });
  const auto subject = [](const Op& op) {
    const Case c = positive_cases(op)[0];
    return Subject{.what = c.what, .fn = c.fn(), .inputs = c.draw(8), .active = {}};
  };
  CHECK(!check_grads(subject(wrong)).empty());
  CHECK(!check_grads(subject(flat)).empty());
  CHECK(!check_taylor(subject(wrong)).empty());
  CHECK(!check_taylor(subject(flat)).empty());
  CHECK(!check_products(subject(wrong)).empty());
  CHECK_THROWS_WITH_AS(check_products(subject(bent)), doctest::Contains("is not linear in its cotangent"),
                       GradError);
  CHECK(check_grads(subject(narrow)).empty());
  CHECK(!check_f32_grads(subject(narrow)).empty());
}

TEST_CASE("a derivative that mentions too much is caught, though its numbers are right") {
  const auto roundabout = [](Op& op) {
    op.vjp = [](const VjpCall& c) { return c.input == 0 ? c.ct * c.out / c.in[0] : c.ct * c.in[0]; };
  };
  const Op& row = altered("mul", roundabout);
  Subject s{.what = "mul",
            .fn = [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{emit(row, in)}; },
            .inputs = {uniform({DType::f64, {3}}, 1, 1, 2), uniform({DType::f64, {3}}, 2, 1, 2)},
            .active = {}};
  CHECK(check_grads(s).empty());
  check_caught(check_mentions, "mul", "affine in input 0, but the derivative in it mentions it", roundabout);
  check_caught(check_mentions, "neg", "mentions the output", [](Op& op) {
    op.vjp = [](const VjpCall& c) { return -(c.ct + 0.0 * stop_gradient(c.out)); };
  });
}

TEST_CASE("a wrong fact is caught") {
  check_caught(check_linear_in, "sin", "declared affine in input 0, but", [](Op& op) { op.linear_in = yes; });
  check_caught(check_linear_in, "relu", "declared affine in input 0, but",
               [](Op& op) { op.linear_in = yes; });
  check_caught(check_linear_in, "div", "declared affine in input 1, but", [](Op& op) { op.linear_in = yes; });
  check_caught(check_linear_in, "neg", "not declared affine in input 0, but it is",
               [](Op& op) { op.linear_in = nullptr; });
  check_caught(check_sums, "mul", "declared linear, but", [](Op& op) { op.is_linear = true; });
  check_caught(check_sums, "add", "declared a product, but", [](Op& op) { op.is_product = true; });
  check_caught(check_sums, "reshape", "not the shape that it is told", [](Op& op) {
    op.infer = [](const OpCall& c) { return Spec{c.in[0].dtype, {c.in[0].size()}}; };
  });
  check_caught(check_attributes, "slice", "are not read back",
               [](Op& op) { op.read_attrs = attrs_from<PadAttrs>; });
  check_caught(check_attributes, "slice", "are not read back", [](Op& op) { op.read_attrs = nullptr; });
  check_caught(check_sums, "max_over", "does not add up", [](Op& op) {
    op.sums_over = [](const OpCall& c, int axis) { return c.out.shape[static_cast<std::size_t>(axis)] == 1; };
  });
  check_caught(check_axes, "cumsum", "moves element", [](Op& op) { op.axes = same_axis; });
  check_caught(check_axes, "matmul", "", [](Op& op) { op.axes = same_axis; });
  check_caught(check_axes, "permute", "cannot go to axis", [](Op& op) { op.axes = same_axis; });
  check_caught(check_axes, "scatter_add", "moves element", [](Op& op) {
    op.axes = [](const OpCall& c, int input, int axis) {
      return input == 1 && axis >= c.in[0].rank() ? c.out.rank() - 1
             : input == 1 && c.in[0].rank() == 1  ? 0
                                                  : -1;
    };
    op.samples = [] {
      return std::vector<OpSample>{
          {.inputs = {{{5}, 0, 4.999, DType::i32}, {{5}}}, .attrs = ScatterAttrs{5}}};
    };
  });
  check_caught(check_broadcasts, "pad", "varies although nothing", [](Op& op) { op.broadcasts = true; });
  check_caught(check_broadcasts, "tril", "varies although nothing", [](Op& op) { op.broadcasts = true; });
  check_caught(check_may_reuse, "permute", "", [](Op& op) { op.may_reuse = yes; });
  check_caught(check_may_reuse, "sum", "has not the size of the output", [](Op& op) { op.may_reuse = yes; });
  check_caught(check_alias, "neg", "not the bytes of the input", [](Op& op) { op.is_alias = true; });
}

TEST_CASE("a wrong kernel, expansion or simplification is caught") {
  const auto doubled = [](std::span<const Tensor> in, const Attrs&) -> Tensor { return in[0] * 2.0; };
  const auto squared = [](std::span<const Tensor> in, const Attrs&) -> Tensor { return in[0] * in[0]; };
  CHECK(check_expand(altered("square", [&](Op& op) { op.expand = squared; })).empty());
  check_caught(check_expand, "square", "kernel and expansion differ", [&](Op& op) { op.expand = doubled; });
  check_caught(check_f32, "square", "away from that in f64", [](Op& op) {
    op.cpu = [](const OpCall& c) -> OpKernel {
      return [spec = c.out](const std::byte* const*, std::byte* out) {
        const Array ones = Array::full(spec.dtype, spec.shape, spec.dtype == DType::f32 ? 1 : 1.00001);
        std::memcpy(out, ones.data(), ones.bytes());
      };
    };
  });
  check_caught(check_simplify, "tanh", "simplification changes output 0", [](Op& op) {
    op.simplify = [](Tensor t) { return t.graph().tensor(t.graph().node(t.id()).inputs[0]); };
  });
}

TEST_CASE("an incomplete row is caught") {
  check_caught(check_complete, "exp", "no doc", [](Op& op) { op.doc = {}; });
  check_caught(check_complete, "exp", "no infer", [](Op& op) { op.infer = nullptr, op.samples = nullptr; });
  check_caught(check_complete, "exp", "neither a kernel nor an expansion", [](Op& op) { op.cpu = nullptr; });
  check_caught(check_complete, "exp", "no cost", [](Op& op) { op.cost = nullptr; });
  check_caught(check_complete, "exp", "no positive sample", [](Op& op) { op.samples = nullptr; });
  check_caught(check_complete, "exp", "neither a rule nor a reason", [](Op& op) { op.vjp = nullptr; });
  check_caught(check_complete, "exp", "both a rule and a reason",
               [](Op& op) { op.why_no_derivative = "no"; });
  check_caught(check_complete, "sum", "an alias of another size", [](Op& op) { op.is_alias = true; });
}

TEST_CASE("a wrong error is caught") {
  check_caught(check_errors, "add", "is accepted, the row says that it is refused", [](Op& op) {
    op.samples = [] { return std::vector<OpSample>{{.inputs = {{{3}}, {{3}}}, .error = "anything"}}; };
  });
  check_caught(check_errors, "add", "it should contain 'another text'", [](Op& op) {
    op.samples = [] { return std::vector<OpSample>{{.inputs = {{{3}}, {{2}}}, .error = "another text"}}; };
  });
  check_caught(check_errors, "add", "refused by another type",
               [](Op& op) { op.infer = [](const OpCall&) -> Spec { throw ValueError("no"); }; });
  check_caught(check_errors, "add", "does not begin with the op", [](Op& op) {
    op.infer = [](const OpCall&) -> Spec {
      throw ShapeError("they do not broadcast at axis -1 (3 against 4): f64[2,3] f64[4]");
    };
  });
}

#include "ops/simplify.h"

#include <array>
#include <cmath>
#include <optional>

#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/rules.h"

namespace nestgrad {

namespace {

bool is(Tensor t, const Op& op) { return node_of(t).op == &op; }

// Numbers of which a few may be multiplied with each other, without leaving the range of f32.
bool is_moderate(double x) { return std::abs(x) > 1e-6 && std::abs(x) < 1e6; }

Tensor if_same_spec(Tensor t, Tensor x) { return x.spec() == t.spec() ? x : Tensor(); }

// x where t = x * c for a number c.
struct Scaled {
  Tensor x;
  double by = 1;
};
Scaled scaled(Tensor t) {
  if (is(t, neg_op)) return {input_of(t), -1};
  if (!is(t, mul_op)) return {};
  for (std::size_t i : {0U, 1U})
    if (const auto c = known_number(input_of(t, i));
        c && is_moderate(*c) && input_of(t, 1 - i).spec() == t.spec())
      return {input_of(t, 1 - i), *c};
  return {};
}

// a's product plus b's as one product, if they have a factor in common: A X + B X = (A + B) X.
Tensor one_product(Tensor a, Tensor b) {
  if (!is(a, matmul_op) || !is(b, matmul_op) || a.spec() != b.spec()) return {};
  const auto flags = [](Tensor t) {
    const auto [of_a, of_b] = node_of(t).attrs.as<MatmulAttrs>();
    return std::array{of_a, of_b};
  };
  for (const std::size_t shared : {1U, 0U}) {
    const std::size_t other = 1 - shared;
    if (input_of(a, shared).id() != input_of(b, shared).id() || flags(a)[shared] != flags(b)[shared])
      continue;
    const Tensor x = input_of(a, other);
    Tensor y = input_of(b, other);
    if (flags(a)[other] != flags(b)[other]) y = transpose(y);
    if (x.spec() != y.spec()) continue;
    const MatmulOptions both{flags(a)[0], flags(a)[1]};
    return shared == 1 ? matmul(x + y, input_of(a, 1), both) : matmul(input_of(a, 0), x + y, both);
  }
  return {};
}

// A sum, with the product b added to one of its products.
Tensor merged_into(Tensor sum, Tensor b, int depth) {
  if (sum.spec() != b.spec()) return {};
  if (const Tensor one = one_product(sum, b); one.defined()) return one;
  if (!is(sum, add_op) || depth == 0) return {};
  for (const std::size_t i : {0U, 1U})
    if (const Tensor merged = merged_into(input_of(sum, i), b, depth - 1); merged.defined())
      return input_of(sum, 1 - i) + merged;
  return {};
}

// x + t where t adds rows up at their indices (scatter_add, perhaps with more added to it): each row goes to x itself, for which a
// table of zeros need neither be made nor be added.
Tensor rows_added_to(Tensor x, Tensor t, int depth) {
  if (x.spec() != t.spec() || is(x, matmul_op)) return {};  // a product is added to the rows
  if (is(t, scatter_op)) return index_add(x, input_of(t, 0), input_of(t, 1));
  if (!is(t, index_add_op) || depth == 0) return {};
  const Tensor inner = rows_added_to(x, input_of(t, 0), depth - 1);
  return inner.defined() ? index_add(inner, input_of(t, 1), input_of(t, 2)) : Tensor();
}

Tensor times(Tensor x, double c) { return c == 1 ? x : c == -1 ? -x : x * constant(c, x.dtype()); }

}  // namespace

std::optional<double> known_number(Tensor t) {
  while (is(t, reshape_op) || is(t, broadcast_op)) t = input_of(t);
  const GraphNode& n = node_of(t);
  if (n.op->kind != OpKind::constant || literal_of(n).size() != 1) return std::nullopt;
  return literal_of(n).item();
}

Tensor times_one(Tensor t) {
  for (std::size_t i : {0U, 1U}) {
    const Tensor x = input_of(t, i);
    const auto c = known_number(input_of(t, 1 - i));
    if (!c || x.spec() != t.spec()) continue;
    if (*c == 1) return x;
    if (!t.graph().options().round) return {};
    if (!is_moderate(*c) || !is_float(x.dtype())) continue;
    if (const Scaled inner = scaled(x); inner.x.defined()) return times(inner.x, inner.by * *c);
  }
  return {};
}

Tensor over_one(Tensor t) {
  return known_number(input_of(t, 1)) == 1.0 ? if_same_spec(t, input_of(t, 0)) : Tensor();
}

Tensor plus_zero(Tensor t) {
  const Tensor a = input_of(t, 0), b = input_of(t, 1);
  const bool round = t.graph().options().round;
  if (round && known_number(b) == 0.0) return if_same_spec(t, a);
  if (round && known_number(a) == 0.0) return if_same_spec(t, b);
  if (is(b, neg_op)) return a - input_of(b);
  if (is(a, neg_op)) return b - input_of(a);
  if (!round) return {};
  for (const std::size_t i : {1U, 0U})
    if (const Tensor table = rows_added_to(input_of(t, 1 - i), input_of(t, i), 4); table.defined())
      return table;
  for (const std::size_t i : {0U, 1U})
    if (node_of(input_of(t, i)).op == &matmul_op)
      if (const Tensor merged = merged_into(input_of(t, 1 - i), input_of(t, i), 4); merged.defined())
        return merged;
  return {};
}

Tensor minus_zero(Tensor t) {
  const Tensor a = input_of(t, 0), b = input_of(t, 1);
  // x - (-0) is x + 0, which is not x where that is -0.
  if (known_number(b) == 0.0 && (t.graph().options().round || !std::signbit(*known_number(b))))
    return if_same_spec(t, a);
  return is(b, neg_op) ? a + input_of(b) : Tensor();
}

Tensor known_power(Tensor t) {
  const Tensor x = input_of(t);
  const auto n = known_number(input_of(t, 1));
  if (!n || x.spec() != t.spec() || !t.graph().options().round) return {};
  if (*n == 2) return square(x);
  if (*n == 3) return x * square(x);
  return *n == -1 ? reciprocal(x) : Tensor();
}

Tensor double_negation(Tensor t) {
  const Tensor x = input_of(t);
  if (is(x, neg_op)) return input_of(x);
  if (!is_float(x.dtype()) || !t.graph().options().round) return {};
  if (is(x, sub_op) && x.spec() == t.spec()) return input_of(x, 1) - input_of(x, 0);
  const Scaled inner = scaled(x);
  return inner.x.defined() ? times(inner.x, -inner.by) : Tensor();
}

Tensor simplify_elementwise(Tensor t) {
  const GraphNode& n = node_of(t);
  const Op& op = *n.op;
  const Attrs attrs = n.attrs;
  const Loc loc = n.loc;
  std::vector<Tensor> in, narrow;
  std::vector<Spec> specs;
  bool numbers = true, spread = false;
  for (std::size_t i = 0; i < n.inputs.size(); ++i) {
    in.push_back(input_of(t, i));
    specs.push_back(in[i].spec());
    narrow.push_back(node_of(in[i]).op == &broadcast_op ? input_of(in[i]) : in[i]);
    numbers = numbers && node_of(in[i]).op->kind == OpKind::constant && in[i].spec().size() == 1;
    spread = spread || narrow[i].id() != in[i].id();
  }
  if (numbers && op.cpu) {
    std::vector<const std::byte*> operands;
    for (const Tensor& x : in) operands.push_back(literal_of(node_of(x)).data());
    Array value(t.spec());
    op.cpu(OpCall{op, specs, attrs, t.spec()})(operands.data(), value.data());
    return constant(value, loc);
  }
  if (!spread) return {};
  const auto shape_of = [&](const std::vector<Tensor>& operands) {
    std::vector<Spec> given;
    for (const Tensor& x : operands) given.push_back(x.spec());
    return infer(op, given, attrs).shape;
  };
  // Each operand as narrow as the others allow.
  std::vector<Tensor> chosen = in;
  for (std::size_t i = 0; i < in.size(); ++i) {
    std::vector<Tensor> tried = chosen;
    tried[i] = narrow[i];
    if (shape_of(tried) == t.shape()) chosen = tried;
  }
  for (std::size_t i = 0; i < in.size(); ++i)
    if (chosen[i].id() != in[i].id()) return emit(op, chosen, attrs, loc);
  // All of them: the op first, then the spreading.
  if (numel(shape_of(narrow)) < t.spec().size()) return broadcast_to(emit(op, narrow, attrs, loc), t.shape());
  return {};
}

Tensor factor_out(Tensor t) {
  const Tensor x = input_of(t);
  if (!t.graph().options().round) return {};
  if (!is_float(x.dtype()) || x.spec().size() <= t.spec().size()) return {};
  const Shape& reduced = node_of(t).attrs.as<ReduceAttrs>().axes;
  const std::vector<int> axes(reduced.begin(), reduced.end());
  if (is(x, neg_op)) return -sum(input_of(x), axes, kKeep);
  if (!is(x, mul_op)) return {};
  for (std::size_t i : {0U, 1U}) {
    const Tensor factor = input_of(x, i), rest = input_of(x, 1 - i);
    if (rest.spec() != x.spec()) continue;
    bool same_for_all = true;
    for (int axis : axes) {
      const int own = axis - (x.rank() - factor.rank());
      same_for_all = same_for_all && (own < 0 || factor.dim(own) == 1);
    }
    if (same_for_all) return sum(rest, axes, kKeep) * factor;
  }
  return {};
}

}  // namespace nestgrad

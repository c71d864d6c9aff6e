// The steps of random programs that are one op.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/random.h"
#include "tests/fuzz/random_graph.h"

namespace nestgrad::fuzz {

namespace {

// A row of ops/elementwise.def.
struct Unary {
  const char* name;
  Tensor (*fn)(Operand);
  double low, high;
  bool any_type;
};
struct Binary {
  const char* name;
  Tensor (*fn)(Operand, Operand);
  double low_a, high_a, low_b, high_b;
  bool any_type;
};

constexpr bool FLOAT = false, ANY = true;

const std::vector<Unary>& unaries() {
  static const std::vector<Unary> rows = {
#define UNARY(name, formula, kernel, vjp, low, high, kind, ...) {#name, name, low, high, kind},
#define UNARY_STEP(name, formula, kernel, low, high, kind) {#name, name, low, high, kind},
#define BINARY(...)
#define TERNARY(...)
#include "ops/elementwise.def"
  };
  return rows;
}

const std::vector<Binary>& binaries() {
  static const std::vector<Binary> rows = {
#define UNARY(...)
#define BINARY(name, formula, kernel, vjp_a, vjp_b, low_a, high_a, low_b, high_b, kind, ...) \
  {#name, name, low_a, high_a, low_b, high_b, kind},
#define BINARY_STEP(name, formula, kernel, low_a, high_a, low_b, high_b, kind) \
  {#name, name, low_a, high_a, low_b, high_b, kind},
#define TERNARY(...)
#include "ops/elementwise.def"
  };
  return rows;
}

// The largest |fn| over a grid of [low_a, high_a] x [low_b, high_b]; infinite if it is no number somewhere.
double largest(const std::function<Tensor(Tensor, Tensor)>& fn, double low_a, double high_a, double low_b,
               double high_b) {
  constexpr std::int64_t kPoints = 17;
  Graph graph(GraphMode::eager);
  const GraphScope scope(graph);
  const auto grid = [&](double low, double high, const Shape& shape) {
    return reshape(iota(DType::f64, {kPoints}, 0) * ((high - low) / (kPoints - 1)) + low, shape);
  };
  double most = 0;
  for (double y : eval(fn(grid(low_a, high_a, {kPoints, 1}), grid(low_b, high_b, {1, kPoints}))).to_vector())
    most = std::isfinite(y) ? std::max(most, std::abs(y)) : kUnknown;
  return most;
}

// The same for operands up to these sizes, which are rounded up; remembered.
double largest_of(const Unary& op, double most) {
  static std::map<std::pair<const Unary*, double>, double> known;
  const double a = std::exp2(std::ceil(std::log2(most)));
  const auto [entry, is_new] = known.emplace(std::pair(&op, a), 0);
  if (is_new) entry->second = largest([&](Tensor x, Tensor) { return op.fn(x); }, -a, a, 0, 0);
  return entry->second;
}
double largest_of(const Binary& op, double most_a, double most_b) {
  static std::map<std::tuple<const Binary*, double, double>, double> known;
  const double a = std::exp2(std::ceil(std::log2(most_a))), b = std::exp2(std::ceil(std::log2(most_b)));
  const auto [entry, is_new] = known.emplace(std::tuple(&op, a, b), 0);
  if (is_new) entry->second = largest(op.fn, -a, a, -b, b);
  return entry->second;
}

Tensor into(Tensor x, double low, double high) { return sigmoid(x) * (high - low) + low; }

}  // namespace

// ---- elementwise ----

void RandomGraph::unary() {
  const Unary& op = draws_->of(unaries());
  const Value x = op.any_type ? any() : any_float();
  double most = largest_of(op, std::max(x.most, 1.0));
  if (std::isfinite(most) || maybe(16)) return add(op.fn(x.t), most);
  most = largest([&](Tensor t, Tensor) { return op.fn(t); }, op.low, op.high, 0, 0);
  add(op.fn(into(x.t, op.low, op.high)), most);
}

void RandomGraph::binary() {
  const Binary& op = draws_->of(binaries());
  Value a = op.any_type ? any() : any_float();
  Value b = maybe(4) ? a : broadcasting(a.t.dtype(), a.t.shape());
  double most = largest_of(op, std::max(a.most, 1.0), std::max(b.most, 1.0));
  if (!std::isfinite(most) && !maybe(16)) {
    const auto narrow = [](Value v, double low, double high) {
      return low < 0 ? v : Value{into(v.t, low, high), std::max(-low, high)};
    };
    a = narrow(a, op.low_a, op.high_a);
    b = narrow(b, op.low_b, op.high_b);
    most =
        largest(op.fn, op.low_a < 0 ? -a.most : op.low_a, a.most, op.low_b < 0 ? -b.most : op.low_b, b.most);
  }
  if (!maybe(5)) return add(op.fn(a.t, b.t), most);
  const double number = draws_->of(std::vector<double>{1, 2, 3});  // in every op's domain
  if (maybe(2)) add(op.fn(a.t, number), largest_of(op, std::max(a.most, 1.0), number));
  else add(op.fn(number, b.t), largest_of(op, number, std::max(b.most, 1.0)));
}

void RandomGraph::chosen() {
  const Value a = any(), b = broadcasting(a.t.dtype(), a.t.shape()), mask = fitting(a.t.dtype(), a.t.shape());
  const double most = std::max(a.most, b.most);
  switch (below(4)) {
    case 0:
      return add(select(greater(mask.t, 0), a.t, b.t), most);
    case 1:
      return add(select(mask.t, a.t, b.t), most);
    case 2:
      return add(select(equal(a.t, b.t), a.t, 0), a.most);
    default:
      return add(select(less_equal(a.t, b.t), 1, b.t), std::max(1.0, b.most));
  }
}

// ---- reductions ----

void RandomGraph::reduced() {
  const int which = below(5);
  const Value x = which == 4 ? any_with_axes(1, true) : which == 0 || which == 2 ? any() : any_float();
  const double size = static_cast<double>(x.t.spec().size());
  const bool keep = maybe(2);
  const std::vector<int> axes = some_axes(x.t);
  switch (which) {
    case 0:
      return add(sum(x.t, axes, keep), x.most * size);
    case 1:
      return add(mean(x.t, axes, keep), size > 0 ? x.most : kUnknown);
    case 2:
      return size > 0 ? add(max(x.t, axes, keep), x.most) : add(sum(x.t), 0);
    case 3:
      return add(mean(x.t), size > 0 ? x.most : kUnknown);
    default:
      return add(logsumexp(x.t, axis_of(x.t), keep), x.most + 5);
  }
}

void RandomGraph::summed_to() {
  const Value x = any();
  Shape shape(x.t.shape().begin() + below(x.t.rank() + 1), x.t.shape().end());
  for (std::int64_t& n : shape)
    if (maybe(2)) n = 1;
  add(sum_to(x.t, shape), x.most * static_cast<double>(x.t.spec().size()));
}

// ---- shapes ----

void RandomGraph::reshaped() {
  const Value x = any();
  std::int64_t left = x.t.spec().size();
  Shape shape;
  if (left == 0) shape = draws_->of(std::vector<Shape>{{0}, {0, 2}, {3, 0, 1}});
  while (left > 1 && shape.size() < 4) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t n = left; n > 0; --n)
      if (left % n == 0) divisors.push_back(n);
    shape.push_back(shape.size() == 3 ? left : draws_->of(divisors));
    left /= shape.back();
  }
  if (maybe(4)) shape.insert(shape.begin() + below(static_cast<int>(shape.size()) + 1), 1);
  if (x.t.spec().size() > 0 && !shape.empty() && maybe(3))
    shape[at(below(static_cast<int>(shape.size())))] = -1;
  add(reshape(x.t, shape), x.most);
}

void RandomGraph::permuted() {
  const Value x = any();
  if (x.t.rank() >= 2 && maybe(2)) return add(transpose(x.t), x.most);
  std::vector<int> order;
  for (int d = 0; d < x.t.rank(); ++d) order.insert(order.end() - below(d + 1), d);
  add(permute(x.t, order), x.most);
}

void RandomGraph::spread() {
  const Value x = any();
  Shape shape = x.t.shape();
  for (std::int64_t& n : shape)
    if (n == 1) n = extent(3);
  for (int more = below(3); more > 0; --more) shape.insert(shape.begin(), extent(2));
  add(broadcast_to(x.t, shape), x.most);
}

void RandomGraph::cut() {
  const Value x = any();
  if (x.t.rank() == 0) return add(x.t + x.t, 2 * x.most);
  const int axis = axis_of(x.t);
  const int n = static_cast<int>(x.t.dim(axis)), begin = below(n);
  const int end = n == 0 || maybe(20) ? begin : begin + 1 + below(n - begin);
  add(slice(x.t, axis, begin, end), x.most);
}

void RandomGraph::padded() {
  const Value x = any();
  if (x.t.rank() == 0) return add(x.t * x.t, x.most * x.most);
  const int axis = axis_of(x.t), before = below(3);
  add(pad(x.t, axis, before, below(3)), x.most);
}

void RandomGraph::joined() {
  const Value x = any();
  if (x.t.rank() == 0) return add(concat({reshape(x.t, {1}), reshape(x.t, {1})}, 0), x.most);
  const int axis = axis_of(x.t);
  Tensors parts{x.t};
  double most = x.most;
  for (int more = below(3); more > 0; --more) {
    Shape shape = x.t.shape();
    shape[at(axis < 0 ? axis + x.t.rank() : axis)] = extent(2);
    const Value part = maybe(2) ? x : fitting(x.t.dtype(), shape);
    parts.insert(parts.begin() + below(static_cast<int>(parts.size()) + 1), part.t);
    most = std::max(most, part.most);
  }
  add(concat(parts, axis), most);
}

// ---- indices ----

void RandomGraph::gathered() {
  Value table = any();
  if (table.t.rank() == 0 || table.t.dim(0) == 0) table = fit(table, {draws_->between(1, 3), 2});
  add(gather(table.t, index_below(table.t.dim(0)).t), table.most);
}

void RandomGraph::scattered() {
  const std::int64_t n = draws_->between(1, 4);
  const Value rows = index_below(n);
  Shape shape = rows.t.shape();
  for (std::int64_t e : some_shape(2, 3)) shape.push_back(e);
  const Value updates = fit(any(), shape);
  const double terms = static_cast<double>(rows.t.spec().size());
  add(scatter_add(rows.t, updates.t, n), std::max(1.0, terms) * updates.most);
}

// To a table: by index_add, or as a sum of which a plan makes one.
void RandomGraph::added_at() {
  Value table = any();
  if (table.t.rank() == 0 || table.t.dim(0) == 0) table = fit(table, {draws_->between(1, 3), 2});
  const std::int64_t n = table.t.dim(0);
  const Value rows = index_below(n);
  Shape shape = rows.t.shape();
  shape.insert(shape.end(), table.t.shape().begin() + 1, table.t.shape().end());
  const Value updates = fit(any_of(table.t.dtype()), shape);
  const double most = table.most + std::max(1.0, static_cast<double>(rows.t.spec().size())) * updates.most;
  add(maybe(2) ? index_add(table.t, rows.t, updates.t) : table.t + scatter_add(rows.t, updates.t, n), most);
}

void RandomGraph::counted() {
  Shape shape = some_shape(3, 4);
  if (shape.empty()) shape.push_back(3);
  const DType dtype = draws_->of(std::vector<DType>{dtype_, DType::i32});
  add(iota(dtype, shape, below(static_cast<int>(shape.size()))), 4);
}

void RandomGraph::one_hots() {
  const Value i = any_of(DType::i32);
  add(one_hot(i.t, extent(4), draws_->of(std::vector<DType>{dtype_, DType::i32})), 1);
}

void RandomGraph::lower_triangle() {
  const Value x = any_with_axes(2, false);
  add(tril(x.t, draws_->of(std::vector<int>{0, 1, -1, 2, -3})), x.most);
}

void RandomGraph::cumulated() {
  const Value x = any_with_axes(1, false);
  const int axis = axis_of(x.t);
  add(cumsum(x.t, axis, maybe(2)), x.most * static_cast<double>(x.t.dim(axis)));
}

// ---- types, constants, gradient control ----

void RandomGraph::converted() {
  const Value v = as(any(), draws_->of(std::vector<DType>{DType::i32, DType::f64, DType::f32}));
  add(v.t, v.most);
}

void RandomGraph::number() {
  const Shape shape = some_shape(3, 3);
  switch (below(5)) {
    case 0:
      return add(zeros(dtype_, shape), 0);
    case 1:
      return add(full(dtype_, shape, 0.5), 1);
    case 2:
      return add(zero_like(any().t), 0);
    case 3: {
      Array digits(DType::i32, shape);
      for (std::int32_t& x : digits.as<std::int32_t>()) x = below(4) - 1;
      return add(constant(digits), 2);
    }
    default:
      return add(constant(random_uniform({dtype_, shape}, -1, 1, draws_->seed(), 0)), 1);
  }
}

void RandomGraph::named() {
  const Value x = any();
  add(probe(x.t), x.most);
}

void RandomGraph::stopped() {
  const Value x = any();
  exact_ = false;
  add(stop_gradient(x.t), x.most);
}

// ---- products and systems ----

void RandomGraph::product() {
  const Value a = any_with_axes(2, false);
  const MatmulOptions flags{.a = maybe(3), .b = maybe(3)};
  const std::int64_t inner = a.t.dim(flags.a ? -2 : -1), columns = extent(3);
  Shape shape;
  if (below(3) == 0) shape.assign(a.t.shape().begin(), a.t.shape().end() - 2);
  for (std::int64_t& n : shape)
    if (n == 1 || maybe(3)) n = n == 1 ? extent(2) : 1;
  shape.push_back(flags.b ? columns : inner);
  shape.push_back(flags.b ? inner : columns);
  const Value b = fitting(a.t.dtype(), shape);
  add(matmul(a.t, b.t, flags), a.most * b.most * static_cast<double>(std::max<std::int64_t>(1, inner)));
}

void RandomGraph::system() {
  const std::int64_t n = extent(3);
  Shape batch = some_shape(1, 3), matrix = batch, sides = maybe(2) ? batch : Shape{};
  matrix.insert(matrix.end(), {n, n});
  sides.insert(sides.end(), {n, extent(3)});
  const Value m = any_of(dtype_), b = fitting(dtype_, sides);
  // Far from singular, but for a few.
  const Tensor scaled = fit(m, matrix).t * (0.2 / std::max(m.most, 1.0));
  const Tensor a = scaled + one_hot(iota(DType::i32, {n}, 0), n, dtype_) * (maybe(20) ? 0.0 : 2.0);
  const bool flag = maybe(2);
  if (maybe(2)) return add(solve(a, b.t, {.transpose = flag}), 4 * b.most);
  add(triangular_solve(a, b.t, {.transpose = flag, .unit = maybe(3)}), 4 * b.most);
}

}  // namespace nestgrad::fuzz

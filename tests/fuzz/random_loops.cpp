// The steps of random programs that hold other steps: loops, rules, recomputed regions; and derivatives.
#include <algorithm>
#include <limits>
#include <utility>

#include "tests/fuzz/random_graph.h"

namespace nestgrad::fuzz {

namespace {

constexpr int kDeepest = 2;  // loops, rules and regions in each other

Tensors tensors_of(const auto& values) {
  Tensors out;
  for (const auto& v : values) out.push_back(v.t);
  return out;
}

std::vector<double> bounds_of(const auto& values) {
  std::vector<double> out;
  for (const auto& v : values) out.push_back(v.most);
  return out;
}

}  // namespace

const std::vector<RandomGraph::Kind>& RandomGraph::kinds() {
  using G = RandomGraph;
  static const std::vector<Kind> all = {{"unary", 8, &G::unary},
                                        {"binary", 12, &G::binary},
                                        {"select", 2, &G::chosen},
                                        {"reduction", 5, &G::reduced},
                                        {"sum_to", 2, &G::summed_to},
                                        {"reshape", 3, &G::reshaped},
                                        {"permute", 3, &G::permuted},
                                        {"broadcast_to", 2, &G::spread},
                                        {"slice", 2, &G::cut},
                                        {"pad", 2, &G::padded},
                                        {"concat", 2, &G::joined},
                                        {"gather", 2, &G::gathered},
                                        {"scatter_add", 2, &G::scattered},
                                        {"index_add", 2, &G::added_at},
                                        {"iota", 1, &G::counted},
                                        {"one_hot", 1, &G::one_hots},
                                        {"tril", 1, &G::lower_triangle},
                                        {"cumsum", 2, &G::cumulated},
                                        {"cast", 2, &G::converted},
                                        {"constant", 2, &G::number},
                                        {"probe", 1, &G::named},
                                        {"stop_gradient", 1, &G::stopped},
                                        {"matmul", 5, &G::product},
                                        {"linear system", 2, &G::system},
                                        {"softmax", 2, &G::softmaxes},
                                        {"cross_entropy", 1, &G::classified},
                                        {"normalisation", 2, &G::normalised},
                                        {"norm", 1, &G::norms},
                                        {"rope", 1, &G::turned},
                                        {"causal_attention", 2, &G::attended},
                                        {"conv1d", 1, &G::convolved},
                                        {"depthwise_conv3x3", 1, &G::convolved_twice},
                                        {"collective", 2, &G::shared},
                                        {"scan", 9, &G::loop},
                                        {"learner", 3, &G::learner},
                                        {"heads", 4, &G::heads},
                                        {"relay", 5, &G::relayed},
                                        {"custom_vjp", 2, &G::ruled},
                                        {"checkpoint", 2, &G::recomputed},
                                        {"grad", 4, &G::gradient},
                                        {"vjp, jvp, hvp", 2, &G::products_with_derivatives}};
  return all;
}

// ---- loops ----

// A scan while it is made: a carry never leaves the bound that it begins with.
struct RandomGraph::Loop {
  ScanOptions options;
  Values init, xs;
  std::vector<double> ys;  // bounds
};

void RandomGraph::draw_operands(Loop& loop) {
  loop.options.reverse = maybe(2);
  loop.options.checkpoint_every = below(4);
  std::int64_t steps = 0;
  for (int more = below(4); more > 0; --more) {
    Value x = any();
    if (steps == 0 && x.t.rank() > 0 && x.t.dim(0) > 0 && x.t.dim(0) < 6) steps = x.t.dim(0);
    if (steps == 0) steps = draws_->between(1, 4);
    if (x.t.rank() == 0 || x.t.dim(0) != steps) {
      Shape shape = some_shape(2, 3);
      shape.insert(shape.begin(), steps);
      x = fit(x, shape);
    }
    loop.xs.push_back(x);
  }
  if (loop.xs.empty()) loop.options.steps = draws_->between(1, 4);
  for (int more = loop.xs.empty() ? 1 + below(3) : below(4); more > 0; --more) loop.init.push_back(any());
  for (Value& v : loop.init) v.most = std::max(v.most, 1.0);
}

StepOutput RandomGraph::step_of(Loop& loop, const Tensors& carries, const Tensors& xs) {
  regions_.emplace_back();
  for (std::size_t i = 0; i < xs.size(); ++i) add(xs[i], loop.xs[i].most);
  for (std::size_t i = 0; i < carries.size(); ++i) add(carries[i], loop.init[i].most);
  some_steps(6);
  StepOutput next;
  for (std::size_t i = 0; i < carries.size(); ++i) {
    const Tensor c = carries[i];
    const double most = loop.init[i].most;
    Tensor after = c;
    const int which = below(4);
    if (which > 0) after = within(fitting(c.dtype(), c.shape()), most).t;
    if (which > 1 && is_float(c.dtype())) after = c * 0.5 + after * 0.5;
    next.carries.push_back(after);
  }
  for (int more = below(4); more > 0; --more) {
    const Value y = any();
    next.ys.push_back(y.t);
    loop.ys.push_back(y.most);
  }
  regions_.pop_back();
  return next;
}

void RandomGraph::loop() {
  if (depth_ >= kDeepest) return unary();
  Loop loop;
  draw_operands(loop);
  ++depth_;
  const ScanResult made =
      scan([&](const Tensors& carries, const Tensors& xs) { return step_of(loop, carries, xs); },
           tensors_of(loop.init), tensors_of(loop.xs), loop.options);
  --depth_;
  for (std::size_t i = 0; i < made.carries.size(); ++i) add(made.carries[i], loop.init[i].most);
  for (std::size_t i = 0; i < made.ys.size(); ++i) add(made.ys[i], loop.ys[i]);
}

// A weight for each of a batch that learns in each step by the gradient of a loss of its own: a loop over
// slices, if nothing joins them.
void RandomGraph::learner() {
  if (depth_ >= kDeepest) return binary();
  const std::int64_t rows = draws_->between(1, 3), dim = draws_->between(1, 3);
  const Shape batch = draws_->of(std::vector<Shape>{{}, {2}, {2, 3}, {1, 2}, {0}});
  Shape weight = batch, x{draws_->between(1, 4)};
  weight.insert(weight.end(), {dim, dim});
  x.insert(x.end(), batch.begin(), batch.end());
  x.insert(x.end(), {rows, dim});
  const int loss = below(3);
  const Value rate = maybe(2) ? any_of(dtype_) : Value{};
  const ScanOptions options{.reverse = maybe(2), .checkpoint_every = below(4)};
  const bool has_momentum = maybe(2);
  const Tensor start = within(fitting(dtype_, weight), 1).t;
  ++depth_;
  const ScanResult made = scan(
      [&](const Tensors& c, const Tensors& xs) -> StepOutput {
        const Tensor w = c[0], k = xs[0], y = matmul(loss == 2 ? softmax(k, -1) : k, w);
        const Tensor error = loss == 1 ? tanh(y) - k : y - k;
        Tensor step = grad(sum(square(error)), w) * 0.05;
        if (rate.t.defined()) step = step * sigmoid(mean(rate.t));
        const Tensor momentum = has_momentum ? c[1] * 0.5 + step : step;
        return {{w - momentum, momentum}, {matmul(k, w - momentum)}};
      },
      {start, zeros(dtype_, weight)}, {within(fitting(dtype_, x), 1).t}, options);
  --depth_;
  add(made.carries[0], kUnknown);
  add(made.ys[0], kUnknown);
}

// One op that mostly leaves the leading axes alone.
Tensor RandomGraph::step_of_heads(const Tensors& values, std::int64_t dim) {
  const auto pick = [&] { return values[values.size() - 1 - at(below(static_cast<int>(values.size())))]; };
  const auto is_matrix = [&](Tensor t) { return t.dim(-1) == dim && t.dim(-2) == dim; };
  const Tensor x = pick(), y = pick();
  switch (below(10)) {
    case 0:
      return x + y;
    case 1:
      return x * y * 0.5;
    case 2:
      return is_matrix(x) && is_matrix(y) ? matmul(x, y, {.a = maybe(2), .b = maybe(2)}) * 0.3 : x - y;
    case 3:
      return tanh(x);
    case 4:
      return softmax(x, maybe(3) ? -2 : -1);
    case 5:
      return x - mean(x, {-1}, kKeep);
    case 6:
      return select(greater(x, y), x, y);
    case 7:
      return transpose(x);
    case 8:
      return reshape(exp(-square(reshape(x, {-1, x.dim(-2), x.dim(-1)}))), x.shape());
    default:
      return x - sum(x, some_axes(x), kKeep) * 0.1;
  }
}

// Many sequences and heads, each with a state of its own; what they share, and sums over them.
void RandomGraph::heads() {
  if (depth_ >= kDeepest) return binary();
  const Shape batch = draws_->of(std::vector<Shape>{{2}, {2, 3}, {3, 2}, {1, 2}, {2, 1, 2}, {0, 2}});
  const std::int64_t dim = draws_->between(1, 3), steps = draws_->between(1, 4);
  const auto shape = [&](bool timed) {
    Shape out(batch.begin() + (maybe(4) ? 1 : 0), batch.end());
    for (std::int64_t& n : out)
      if (maybe(5)) n = 1;
    if (timed) out.insert(out.begin(), steps);
    const bool is_number = maybe(5);
    out.insert(out.end(), {is_number ? 1 : dim, is_number ? 1 : dim});
    return out;
  };
  const auto fitted = [&](const Shape& s) { return within(fitting(dtype_, s), 1).t; };
  Tensors init, xs, shared;
  for (int more = 1 + below(3); more > 0; --more) init.push_back(fitted(shape(false)));
  for (int more = 1 + below(2); more > 0; --more) xs.push_back(fitted(shape(true)));
  for (int more = below(3); more > 0; --more) shared.push_back(fitted(shape(false)));
  const ScanOptions options{.reverse = maybe(2), .checkpoint_every = below(4)};
  ++depth_;
  const ScanResult made = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        Tensors values = shared;
        values.insert(values.end(), x.begin(), x.end());
        values.insert(values.end(), c.begin(), c.end());
        for (int more = 1 + below(6); more > 0; --more) values.push_back(step_of_heads(values, dim));
        if (maybe(4)) values.push_back(grad(sum(values.back()), {c[0]}, {.allow_zero = true})[0]);
        StepOutput next{c, {}};
        for (Tensor& carry : next.carries) {
          // The latest value of its shape; or the sum of one that is larger.
          const Tensor v = values[values.size() - 1 - at(below(static_cast<int>(values.size())))];
          if (v.shape() == carry.shape()) carry = maybe(3) ? v : tanh(carry * 0.9 + v);
          else if (spreads_to(carry.shape(), v.shape())) carry = carry + sum_to(v, carry.shape()) * 0.1;
        }
        for (int more = below(3); more > 0; --more) next.ys.push_back(values[values.size() - at(more)]);
        return next;
      },
      init, xs, options);
  --depth_;
  for (const Tensor& t : made.carries) add(t, kUnknown);
  for (const Tensor& t : made.ys) add(t, kUnknown);
}

// Loops of which each reads, step by step, what an earlier one makes: its own part of it, or what all parts
// have in common. They are cut in slices along one or both of two axes, by where the states meet: reader and
// maker often in equal numbers, of which not each has the same part.
void RandomGraph::relayed() {
  if (depth_ >= kDeepest) return binary();
  const std::int64_t n = draws_->between(2, 3), m = draws_->between(1, 3);
  const std::int64_t dim = draws_->between(1, 2), steps = draws_->between(1, 4);
  const ScanOptions options{.reverse = maybe(2), .checkpoint_every = below(4)};
  Tensors passed{within(fitting(dtype_, {steps, n, m, dim, dim}), 1).t};
  ++depth_;
  for (int more = 2 + below(2); more > 0; --more) {
    const Tensor read = passed[passed.size() - 1 - at(below(static_cast<int>(passed.size())))];
    const std::vector<int> shared = draws_->of(std::vector<std::vector<int>>{{0, 1}, {0}, {1}, {}});
    const int meets = below(4), made = below(3);  // meets: bits, along the first axis and along the second
    const bool is_flat = shared.size() == 2 && !maybe(3);
    const Shape state = is_flat ? Shape{n, dim, dim} : Shape{n, maybe(3) ? 1 : m, dim, dim};
    const Shape whole = is_flat ? Shape{n, 1, dim, dim} : state;
    const ScanResult out = scan(
        [&](const Tensors& c, const Tensors& xs) -> StepOutput {
          Tensor x = shared.empty() ? xs[0] : mean(xs[0], shared, !is_flat);
          if (!is_flat && state[1] != x.dim(1)) x = mean(x, {1}, kKeep);
          Tensor next = tanh(c[0] * 0.5 + x);
          if ((meets & 1) != 0) next = next - mean(next, {0}, kKeep);
          if ((meets & 2) != 0 && !is_flat) next = next - mean(next, {1}, kKeep);
          const Tensor y = made == 0 ? next : made == 1 ? c[0] * next : exp(-square(next));
          return {{next}, {broadcast_to(reshape(y, whole), {n, m, dim, dim})}};
        },
        {within(fitting(dtype_, state), 1).t}, {read}, options);
    passed.push_back(out.ys[0]);
    add(out.carries[0], kUnknown);
  }
  --depth_;
  add(passed.back(), kUnknown);
}

// ---- rules and regions ----

Tensor RandomGraph::closed_body(const Tensors& in, const std::vector<double>& most) {
  regions_.push_back({{}, true});
  for (std::size_t i = 0; i < in.size(); ++i) add(in[i], most[i]);
  some_steps(4);
  const Tensor out = any_float().t;
  regions_.pop_back();
  return out;
}

// The rule is the derivative, by the same steps again; or its half, which only tells one rule from another.
void RandomGraph::ruled() {
  if (depth_ >= kDeepest) return unary();
  Values operands;
  do operands.push_back(any_float());
  while (operands.size() < 3 && below(2) > 0);
  const std::vector<double> most = bounds_of(operands);
  const bool is_half = maybe(4);
  const std::size_t begin = draws_->used();
  const int steps = steps_left_, gradients = gradients_left_;
  if (is_half) exact_ = false;
  ++depth_;
  const Tensor y = custom_vjp([&](const Tensors& in) { return closed_body(in, most); },
                              [&](const Tensors& in, Tensor, Tensor ct) -> Tensors {
                                const auto& drawn = draws_->drawn();
                                Draws again(std::vector<std::uint32_t>(
                                    drawn.begin() + static_cast<std::ptrdiff_t>(begin), drawn.end()));
                                Draws* const draws = std::exchange(draws_, &again);
                                const int left = std::exchange(steps_left_, steps),
                                          kept = std::exchange(gradients_left_, gradients);
                                const Tensor out = closed_body(in, most);
                                draws_ = draws, steps_left_ = left, gradients_left_ = kept;
                                return vjp({out}, {is_half ? ct * 0.5 : ct}, in, {.allow_zero = true});
                              },
                              tensors_of(operands));
  --depth_;
  add(y, 8);
}

void RandomGraph::recomputed() {
  if (depth_ >= kDeepest) return unary();
  Values inner;
  ++depth_;
  const Tensors out = checkpoint([&] {
    regions_.emplace_back();
    some_steps(5);
    for (int more = 1 + below(2); more > 0; --more) inner.push_back(any());
    regions_.pop_back();
    return tensors_of(inner);
  });
  --depth_;
  for (std::size_t i = 0; i < out.size(); ++i) add(out[i], inner[i].most);
}

// ---- derivatives ----

void RandomGraph::gradient() {
  const Tensor y = sum(any_float().t);
  Tensors x = variables();
  if (x.empty() || gradients_left_-- <= 0) return add(y, kUnknown);
  while (x.size() > 2 || (x.size() == 2 && maybe(2))) x.erase(x.begin() + below(static_cast<int>(x.size())));
  for (const Tensor& g : grad(y, x, {.allow_zero = true})) add(g, kUnknown);
}

void RandomGraph::products_with_derivatives() {
  const Tensors all = variables();
  const Value y = any_float();
  if (all.empty() || gradients_left_-- <= 0) return add(y.t + y.t, 2 * y.most);
  const Tensor x = all[all.size() - 1 - at(below(static_cast<int>(all.size())))];
  const GradOptions options{.allow_zero = true};
  switch (below(3)) {
    case 0:
      return add(vjp({y.t}, {fitting(y.t.dtype(), y.t.shape()).t}, {x}, options)[0], kUnknown);
    case 1:
      return add(jvp({y.t}, {x}, {fitting(x.dtype(), x.shape()).t}, options)[0], kUnknown);
    default:
      return add(hvp(sum(y.t), {x}, {fitting(x.dtype(), x.shape()).t}, options)[0], kUnknown);
  }
}

}  // namespace nestgrad::fuzz

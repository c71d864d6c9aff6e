// The frame of random programs: inputs and outputs, choosing values and making them fit. What the steps are
// is in random_steps.cpp, random_composites.cpp and random_loops.cpp.
#include "tests/fuzz/random_graph.h"

#include <algorithm>
#include <cmath>

namespace nestgrad::fuzz {

namespace {

constexpr std::int64_t kMostElements = 96, kMostElementsWide = 1000;
constexpr int kMostAxes = 5;
constexpr double kMostSettled = 8;  // so far from 1 may the values be that steps are given

std::map<std::string, long>& counts() {
  static std::map<std::string, long> all;
  return all;
}

bool broadcast_together(const Shape& a, const Shape& b) {
  std::int64_t size = 1;
  for (std::size_t d = 1; d <= std::max(a.size(), b.size()); ++d) {
    const std::int64_t x = d <= a.size() ? a[a.size() - d] : 1, y = d <= b.size() ? b[b.size() - d] : 1;
    if (x != y && x != 1 && y != 1) return false;
    size *= x == 1 ? y : x;
  }
  return size <= kMostElements;
}

}  // namespace

const std::map<std::string, long>& RandomGraph::made() {
  for (const Kind& k : kinds()) counts().try_emplace(k.name, 0);
  return counts();
}

bool spreads_to(const Shape& a, const Shape& b) {
  if (a.size() > b.size()) return false;
  for (std::size_t d = 0; d < a.size(); ++d)
    if (a[d] != b[b.size() - a.size() + d] && a[d] != 1) return false;
  return true;
}

// ---- inputs and outputs ----

std::vector<Spec> RandomGraph::inputs() {
  wide_ = maybe(8);
  if (maybe(5)) dtype_ = DType::f32, exact_ = false;
  std::vector<Spec> specs;
  do specs.push_back({specs.empty() || !maybe(5) ? dtype_ : DType::i32, some_shape(4, 4)});
  while (specs.size() < 5 && below(4) > 0);
  return specs;
}

Tensors RandomGraph::outputs(const Tensors& inputs) {
  regions_.assign(1, {});
  for (const Tensor& t : inputs) add(t, is_float(t.dtype()) ? 1 : 3);
  some_steps(steps_left_);
  Tensors out;
  do {
    switch (below(8)) {
      case 7:
        out.push_back(constant(Array::of({1, 2, 3}, {3}, dtype_)));
        break;
      case 6:
        out.push_back(inputs[at(below(static_cast<int>(inputs.size())))]);
        break;
      case 5: {
        const Tensor t = out.empty() ? inputs[0] : out[0];
        out.push_back(reshape(t, {t.spec().size()}));
        break;
      }
      default:
        out.push_back(any().t);
    }
  } while (out.size() < 5 && below(3) > 0);
  return out;
}

void RandomGraph::some_steps(int most) {
  int weights = 0;
  for (const Kind& k : kinds()) weights += k.weight;
  for (int i = 0; i < most && steps_left_ > 0; ++i) {
    int draw = below(weights + weights / 20) - weights / 20;
    if (draw < 0) return;
    const Kind* kind = kinds().data();
    while (draw >= kind->weight) draw -= (kind++)->weight;
    --steps_left_;
    (this->*kind->make)();
    ++counts()[kind->name];
  }
}

void RandomGraph::add(Tensor t, double most) {
  if (t.spec().size() > (wide_ ? kMostElementsWide : kMostElements) || t.rank() > kMostAxes) return;
  regions_.back().values.push_back(within({t, most}, kMostSettled));
}

RandomGraph::Value RandomGraph::within(Value v, double most) {
  if (v.most <= most) return v;
  if (!is_float(v.t.dtype())) return {min(max(v.t, -std::floor(most)), std::floor(most)), most};
  const bool is_known = std::isfinite(v.most);
  switch (below(is_known ? 3 : 2)) {
    case 0:
      return {tanh(v.t), 1};
    case 1:
      return {sin(v.t), 1};
    default:
      return {v.t * (most / v.most), most};
  }
}

// ---- draws ----

std::vector<int> RandomGraph::some_axes(Tensor t) {
  std::vector<int> axes;
  for (int d = 0; d < t.rank(); ++d)
    if (maybe(2)) axes.push_back(maybe(4) ? d - t.rank() : d);
  return axes;
}

std::int64_t RandomGraph::extent(int most) {
  if (maybe(30)) return 0;
  if (wide_ && maybe(3)) return draws_->of(std::vector<std::int64_t>{5, 8, 9, 17, 33});
  return draws_->between(1, most);
}

Shape RandomGraph::some_shape(int most_axes, int most_extent) {
  Shape shape;
  std::int64_t size = 1;
  for (int axes = below(most_axes + 1); axes > 0; --axes) {
    shape.push_back(size > kMostElements / 4 ? 1 : extent(most_extent));
    size *= shape.back();
  }
  return shape;
}

// ---- values ----

RandomGraph::Values RandomGraph::visible(const std::function<bool(Tensor)>& fits) const {
  std::size_t first = regions_.size() - 1;
  while (first > 0 && !regions_[first].closed) --first;
  Values out;
  for (; first < regions_.size(); ++first)
    for (const Value& v : regions_[first].values)
      if (fits(v.t)) out.push_back(v);
  return out;
}

RandomGraph::Value RandomGraph::any_float() {
  const Values floats = visible([](Tensor t) { return is_float(t.dtype()); });
  return floats.empty() ? as(any(), dtype_) : one_of(floats);
}

RandomGraph::Value RandomGraph::any_of(DType dtype) {
  const Values fits = visible([&](Tensor t) { return t.dtype() == dtype; });
  return fits.empty() ? as(any(), dtype) : one_of(fits);
}

RandomGraph::Value RandomGraph::any_with_axes(int axes, bool filled) {
  const Values fits = visible(
      [&](Tensor t) { return is_float(t.dtype()) && t.rank() >= axes && (!filled || t.spec().size() > 0); });
  if (!fits.empty() && !maybe(6)) return one_of(fits);
  Shape shape;
  for (int d = 0; d < axes; ++d) shape.push_back(draws_->between(1, 3));
  return fit(any_float(), shape);
}

// What is no small number, NaN for one, is the integer 0.
RandomGraph::Value RandomGraph::as(Value v, DType dtype) {
  if (v.t.dtype() == dtype) return v;
  if (dtype == DType::f32 || v.t.dtype() == DType::f32) exact_ = false;
  if (is_float(dtype)) return {cast(v.t, dtype), v.most};
  return {cast(select(less(abs(v.t), 100.0), v.t, 0.0), dtype), std::min(v.most, 100.0)};
}

RandomGraph::Value RandomGraph::fit(Value v, const Shape& shape) {
  const std::int64_t has = v.t.spec().size(), wants = numel(shape);
  if (v.t.shape() == shape) return v;
  if (spreads_to(v.t.shape(), shape)) return {broadcast_to(v.t, shape), v.most};
  if (has == wants) return {reshape(v.t, shape), v.most};
  Tensor flat = reshape(v.t, {has});
  if (has > wants) flat = slice(flat, 0, has - wants, has);
  else if (has == 0 || maybe(3)) flat = pad(flat, 0, 0, wants - has);
  else flat = slice(concat(Tensors(at((wants + has - 1) / has), flat), 0), 0, 0, wants);
  return {reshape(flat, shape), v.most};
}

RandomGraph::Value RandomGraph::broadcasting(DType dtype, const Shape& shape) {
  const Value v = any_of(dtype);
  if (broadcast_together(v.t.shape(), shape)) return v;
  Shape some(shape.begin() + below(static_cast<int>(shape.size()) + 1), shape.end());
  for (std::int64_t& n : some)
    if (maybe(3)) n = 1;
  return fit(v, some);
}

RandomGraph::Value RandomGraph::index_below(std::int64_t n) {
  const double last = static_cast<double>(n - 1);
  return {min(max(any_of(DType::i32).t, 0), last), last};
}

// Tensors of the graph that is being made: those of the graphs around it are captured, and a derivative in
// them may be refused.
Tensors RandomGraph::variables() {
  // What is made of numbers alone is none: equal ones are one node.
  const Graph& here = *context().emit.graph;
  Tensors out;
  for (const Value& v : visible([&](Tensor t) {
         return is_float(t.dtype()) && &t.graph() == &here && !here.node(t.id()).of_numbers;
       }))
    out.push_back(v.t);
  return out;
}

void for_each_node(const std::deque<GraphNode>& nodes, const std::function<void(const GraphNode&)>& visit) {
  for (const GraphNode& n : nodes) {
    visit(n);
    for (const BodyPtr& body : n.attrs.bodies()) for_each_node(body->nodes, visit);
  }
}

}  // namespace nestgrad::fuzz

// The declared facts of a row, checked on numbers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "engine/core/index.h"
#include "ops/ops.h"
#include "tests/ops/sweep.h"

namespace nestgrad::testing {

namespace {

// The index along `axis` of flat element i.
std::int64_t index_along(const Shape& shape, int axis, std::int64_t i) {
  return i / strides_of(shape)[uz(axis)] % shape[uz(axis)];
}

bool same_element(const Array& a, const Array& b, std::int64_t i) {
  const std::size_t bytes = size_of(a.dtype());
  return std::memcmp(a.data() + uz(i) * bytes, b.data() + uz(i) * bytes, bytes) == 0;
}

// a with every element whose index along `axis` passes `take` replaced by the one of b.
template <class Take>
Array mixed(const Array& a, const Array& b, int axis, Take take) {
  Array out = a.clone();
  const std::size_t bytes = size_of(a.dtype());
  for (std::int64_t i = 0; i < a.size(); ++i)
    if (take(index_along(a.shape(), axis, i)))
      std::memcpy(out.data() + uz(i) * bytes, b.data() + uz(i) * bytes, bytes);
  return out;
}

Array elementwise(const Array& a, const Array& b, double sign) {
  Array out = a.clone();
  for (std::int64_t i = 0; i < a.size(); ++i) out.as<double>()[uz(i)] += sign * b.at(i);
  return out;
}

// How far f(x + u) - f(x) is from not depending on x, in input k; 0 where f is not finite.
double curvature(const Case& c, std::size_t k, std::uint64_t seed, bool widen) {
  std::vector<Array> at = c.draw(seed, widen);
  const Array x = at[k], z = c.draw(seed + 1, widen)[k], u = uniform(x.spec(), seed + 2);
  const auto f = [&](const Array& v) {
    at[k] = v;
    return c.run(at).cast(DType::f64);
  };
  const Array left = elementwise(f(elementwise(x, u, 1)), f(x), -1),
              right = elementwise(f(elementwise(z, u, 1)), f(z), -1);
  double worst = 0;
  for (std::int64_t i = 0; i < left.size(); ++i)
    if (const double d = std::abs(left.at(i) - right.at(i)); std::isfinite(d))
      worst = std::max(worst, d / (1 + std::abs(left.at(i))));
  return worst;
}

// Slice `slice` of an axis of an input moves element `element` outside of slice `slice` of an output axis.
struct Stray {
  std::int64_t slice, element;
};
std::optional<Stray> stray(const Case& c, std::size_t k, int axis, int to) {
  const std::vector<Array> x = c.draw(1), other = c.draw(2);
  const Array y = c.run(x);
  for (std::int64_t s = 0; s < x[k].shape()[uz(axis)]; ++s) {
    std::vector<Array> moved = x;
    moved[k] = mixed(x[k], other[k], axis, [&](std::int64_t i) { return i == s; });
    const Array z = c.run(moved);
    for (std::int64_t i = 0; i < y.size(); ++i)
      if (index_along(y.shape(), to, i) != s && !same_element(y, z, i)) return Stray{s, i};
  }
  return std::nullopt;
}

// Does the output vary along an axis although no input varies along an axis for which `goes` holds?
template <class Goes>
bool varies_by_itself(const Case& c, int to, Goes goes) {
  std::vector<Array> x = c.draw(3);
  for (std::size_t k = 0; k < x.size(); ++k)
    for (int axis = 0; axis < x[k].spec().rank(); ++axis) {
      if (!goes(k, axis)) continue;
      // Every slice becomes a copy of the first.
      const std::int64_t stride = strides_of(x[k].shape())[uz(axis)];
      const std::size_t bytes = size_of(x[k].dtype());
      for (std::int64_t i = 0; i < x[k].size(); ++i)
        std::memcpy(x[k].data() + uz(i) * bytes,
                    x[k].data() + uz(i - index_along(x[k].shape(), axis, i) * stride) * bytes, bytes);
    }
  const Array y = c.run(x);
  const std::int64_t stride = strides_of(y.shape())[uz(to)];
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const double first = y.at(i - index_along(y.shape(), to, i) * stride);
    if (!(std::abs(y.at(i) - first) <= 1e-13 * (1 + std::abs(first)))) return true;
  }
  return false;
}

}  // namespace

Failures check_linear_in(const Op& op) {
  Failures failures;
  constexpr double kRounding = 1e-12;
  for (const Case& c : positive_cases(op)) {
    const std::vector<Spec> specs = c.specs();
    const OpCall call{op, specs, c.sample.attrs, c.out()};
    for (std::size_t k = 0; k < specs.size(); ++k) {
      if (!is_float(specs[k].dtype)) continue;
      const bool declared = op.linear_in && op.linear_in(call, static_cast<int>(k));
      // The analyses ask only where a derivative passes: a step is affine in no useful sense.
      if (!declared && !c.differentiable(k)) continue;
      double worst = 0;
      for (std::uint64_t trial = 0; trial < 8; ++trial)
        worst = std::max(worst, curvature(c, k, 20 + 10 * trial, trial % 2 == 1));
      if (declared && worst > kRounding)
        failures.push_back(fmt::format("{}: declared affine in input {}, but its slope changes by {:.3g}",
                                       c.what, k, worst));
      // The derivative of an op beside its composite may be one op for all inputs, which then reads this one.
      if (!declared && !op.expand && worst <= kRounding)
        failures.push_back(
            fmt::format("{}: not declared affine in input {}, but it is, to {:.3g}", c.what, k, worst));
    }
  }
  return failures;
}

Failures check_attributes(const Op& op) {
  Failures failures;
  for (const Case& c : positive_cases(op)) {
    const std::vector<std::int64_t> numbers = c.sample.attrs.numbers();
    const auto read = op.read_attrs ? op.read_attrs(numbers) : std::optional<Attrs>(Attrs());
    if (read != c.sample.attrs)
      failures.push_back(fmt::format("{}: the attributes are not read back from their numbers", c.what));
    if (op.read_attrs && !op.read_attrs({}) && !numbers.empty() &&
        op.read_attrs(std::span(numbers).first(numbers.size() - 1)) == c.sample.attrs)
      failures.push_back(fmt::format("{}: a missing number is not noticed", c.what));
  }
  return failures;
}

Failures check_sums(const Op& op) {
  Failures failures;
  for (const Case& c : positive_cases(op)) {
    const std::vector<Spec> specs = c.specs();
    const OpCall call{op, specs, c.sample.attrs, c.out()};
    if (const ShapeAttrs* told = c.sample.attrs.find<ShapeAttrs>(); told && told->shape != call.out.shape)
      failures.push_back(fmt::format("{}: not the shape that it is told", c.what));
    if (specs.empty() || !std::ranges::all_of(specs, [](const Spec& s) { return is_float(s.dtype); }))
      continue;
    // f(x + y) against f(x) + f(y).
    const std::vector<Array> x = c.draw(31), y = c.draw(32);
    std::vector<Array> both;
    for (std::size_t k = 0; k < x.size(); ++k) both.push_back(elementwise(x[k], y[k], 1));
    const double error = difference(c.run(both).cast(DType::f64),
                                    elementwise(c.run(x).cast(DType::f64), c.run(y).cast(DType::f64), 1));
    if (op.is_linear && !(error <= 1e-12))
      failures.push_back(
          fmt::format("{}: declared linear, but f(x + y) is {:.3g} from f(x) + f(y)", c.what, error));
    for (std::size_t k = 0; op.is_product && k < x.size(); ++k) {
      if (!op.linear_in(call, static_cast<int>(k))) continue;
      std::vector<Array> at = x;
      at[k] = Array::zeros(specs[k].dtype, specs[k].shape);
      const Array nothing = c.run(at).cast(DType::f64);
      if (difference(nothing, Array::zeros(DType::f64, nothing.shape())) != 0)
        failures.push_back(fmt::format("{}: declared a product, but not 0 where input {} is", c.what, k));
    }
    // The sum over one slice after the other.
    for (int axis = 0; op.sums_over && axis < specs[0].rank(); ++axis) {
      if (!op.sums_over(call, axis)) continue;
      Array terms = Array::zeros(DType::f64, call.out.shape);
      const Array zero = Array::zeros(DType::f64, specs[0].shape);
      for (std::int64_t s = 0; s < specs[0].shape[uz(axis)]; ++s)
        terms =
            elementwise(terms, c.run({mixed(zero, x[0], axis, [&](std::int64_t i) { return i == s; })}), 1);
      if (difference(c.run(x), terms) > 1e-12)
        failures.push_back(fmt::format("{}: does not add up axis {}", c.what, axis));
    }
  }
  return failures;
}

Failures check_axes(const Op& op) {
  Failures failures;
  if (!op.axes) return failures;
  for (const Case& c : positive_cases(op)) {
    const std::vector<Spec> specs = c.specs();
    const OpCall call{op, specs, c.sample.attrs, c.out()};
    const auto goes_to = [&](std::size_t k, int axis) { return op.axes(call, static_cast<int>(k), axis); };
    for (std::size_t k = 0; k < specs.size(); ++k)
      for (int axis = 0; axis < specs[k].rank(); ++axis) {
        const int declared = goes_to(k, axis);
        const std::int64_t extent = specs[k].shape[uz(axis)];
        if (declared >= call.out.rank() || (declared >= 0 && call.out.shape[uz(declared)] != extent)) {
          failures.push_back(fmt::format("{}: axis {} of input {} cannot go to axis {} of {}", c.what, axis,
                                         k, declared, to_string(call.out)));
          continue;
        }
        // Found, not read: the row may be wrong about every input.
        const auto goes_where = [&](int to) {
          return [&, to](std::size_t j, int a) {
            return specs[j].shape[uz(a)] == extent && !stray(c, j, a, to);
          };
        };
        if (declared >= 0) {
          if (const auto found = stray(c, k, axis, declared))
            failures.push_back(fmt::format(
                "{}: slice {} of axis {} of input {} moves element {}, outside of slice {} of output axis {}",
                c.what, found->slice, axis, k, found->element, found->slice, declared));
          else if (varies_by_itself(c, declared, goes_where(declared)))
            failures.push_back(fmt::format(
                "{}: what becomes of a slice of axis {} of input {} depends on its place", c.what, axis, k));
          continue;
        }
        for (int to = 0; to < call.out.rank() && extent > 1; ++to)
          if (call.out.shape[uz(to)] == extent && goes_where(to)(k, axis) &&
              !varies_by_itself(c, to, goes_where(to)))
            failures.push_back(fmt::format(
                "{}: axis {} of input {} is said to go nowhere, but goes to axis {}", c.what, axis, k, to));
      }
  }
  return failures;
}

Failures check_broadcasts(const Op& op) {
  Failures failures;
  if (!op.broadcasts || !op.axes) return failures;
  for (const Case& c : positive_cases(op)) {
    const std::vector<Spec> specs = c.specs();
    const OpCall call{op, specs, c.sample.attrs, c.out()};
    for (int to = 0; to < call.out.rank(); ++to)
      if (varies_by_itself(
              c, to, [&](std::size_t k, int axis) { return op.axes(call, static_cast<int>(k), axis) == to; }))
        failures.push_back(
            fmt::format("{}: output axis {} varies although nothing that maps to it does", c.what, to));
  }
  return failures;
}

Failures check_may_reuse(const Op& op) {
  Failures failures;
  if (!op.may_reuse || !op.cpu) return failures;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Case& c : positive_cases(op, dtype)) {
      const std::vector<Spec> specs = c.specs();
      const OpCall call{op, specs, c.sample.attrs, c.out()};
      const OpKernel kernel = op.cpu(call);
      const auto overwritten = [&](std::vector<Array> in, const std::vector<std::size_t>& together) {
        const Array buffer = in[together[0]].clone();
        for (std::size_t k : together) in[k] = buffer;
        const Array apart = c.run(in);
        Array target = buffer.clone();
        std::vector<const std::byte*> p;
        for (std::size_t k = 0; k < in.size(); ++k)
          p.push_back(std::ranges::find(together, k) != together.end() ? target.data() : in[k].data());
        kernel(p.data(), target.data());
        if (std::memcmp(target.data(), apart.data(), apart.bytes()) != 0)
          failures.push_back(
              fmt::format("{}: written over input {}, the output has other bits", c.what, together[0]));
      };
      std::vector<std::size_t> reusable;
      for (std::size_t k = 0; k < specs.size(); ++k) {
        if (!op.may_reuse(call, static_cast<int>(k))) continue;
        reusable.push_back(k);
        if (specs[k].bytes() != call.out.bytes())
          failures.push_back(fmt::format("{}: input {} has not the size of the output", c.what, k));
        else overwritten(c.draw(4), {k});
      }
      if (reusable.size() > 1) overwritten(c.draw(4), reusable);  // x op x, over x
    }
  return failures;
}

// A plan may put an array at any element of its arena.
Failures check_placement(const Op& op) {
  Failures failures;
  if (!op.cpu) return failures;
  constexpr std::size_t kPlaces = 16;  // elements: the 64 bytes of the widest vector, in f32
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Case& c : positive_cases(op, dtype)) {
      const std::vector<Spec> specs = c.specs();
      const OpCall call{op, specs, c.sample.attrs, c.out()};
      const OpKernel kernel = op.cpu(call);
      const std::vector<Array> in = c.draw(8);
      const Array expected = c.run(in);
      for (std::size_t place = 0; place < kPlaces; ++place) {
        std::vector<Array> room;  // each operand at another offset
        const auto put = [&](std::size_t bytes, DType of, std::size_t offset) {
          room.emplace_back(DType::i32, Shape{static_cast<std::int64_t>(bytes / 4 + 2 * kPlaces + 1)});
          return room.back().data() + offset % kPlaces * size_of(of);
        };
        std::vector<const std::byte*> operands;
        for (std::size_t k = 0; k < in.size(); ++k) {
          std::byte* p = put(in[k].bytes(), in[k].dtype(), place + 3 * k + 1);
          std::memcpy(p, in[k].data(), in[k].bytes());
          operands.push_back(p);
        }
        std::byte* out = put(expected.bytes(), expected.dtype(), place);
        kernel(operands.data(), out);
        if (std::memcmp(out, expected.data(), expected.bytes()) == 0) continue;
        failures.push_back(
            fmt::format("{} in {}: other bits {} elements further", c.what, name(dtype), place));
        break;
      }
    }
  return failures;
}

Failures check_alias(const Op& op) {
  Failures failures;
  if (!op.is_alias) return failures;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Case& c : positive_cases(op, dtype)) {
      const std::vector<Array> x = c.draw(5);
      const Array y = c.run(x), planned = trace(c.fn(), c.specs())(x).at(0);
      for (const Array& out : {y, planned})
        if (x.size() != 1 || x[0].bytes() != out.bytes() ||
            std::memcmp(x[0].data(), out.data(), out.bytes()) != 0)
          failures.push_back(c.what + ": declared an alias, but the output is not the bytes of the input");
    }
  return failures;
}

Failures check_expand(const Op& op) {
  Failures failures;
  if (!op.expand || !op.cpu) return failures;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Case& c : positive_cases(op, dtype)) {
      const std::vector<Array> x = c.draw(6);
      const Function expanded = trace(
          [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{op.expand(in, c.sample.attrs)}; },
          c.specs());
      const double error = difference(c.run(x), expanded(x).at(0));
      if (!(error <= (dtype == DType::f32 ? 1e-6 : 1e-14) * c.sample.tolerance))
        failures.push_back(
            fmt::format("{} in {}: kernel and expansion differ by {:.3g}", c.what, name(dtype), error));
    }
  return failures;
}

Failures check_f32(const Op& op) {
  Failures failures;
  const std::vector<Case> narrow = positive_cases(op, DType::f32), wide = positive_cases(op, DType::f64);
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    const std::vector<Array> x = narrow[i].draw(7);
    std::vector<Array> same_numbers;
    for (const Array& a : x) same_numbers.push_back(a.dtype() == DType::f32 ? a.cast(DType::f64) : a);
    const double error =
        difference(narrow[i].run(x).cast(DType::f64), wide[i].run(same_numbers).cast(DType::f64));
    if (!(error <= 5e-7 * narrow[i].sample.tolerance))
      failures.push_back(
          fmt::format("{}: the f32 result is {:.3g} away from that in f64", narrow[i].what, error));
  }
  return failures;
}

}  // namespace nestgrad::testing

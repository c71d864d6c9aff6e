#include "tests/ops/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/core/random.h"
#include "ops/ops.h"

namespace nestgrad::testing {

std::vector<Spec> Case::specs() const {
  std::vector<Spec> out;
  for (const OpSample::Input& in : sample.inputs) out.push_back({in.dtype.value_or(dtype), in.shape});
  return out;
}

Spec Case::out() const { return infer(op, specs(), sample.attrs); }

std::vector<Array> Case::draw(std::uint64_t seed, bool widen) const {
  std::vector<Array> out;
  for (std::size_t k = 0; k < sample.inputs.size(); ++k) {
    const OpSample::Input& in = sample.inputs[k];
    const double top = std::max(std::abs(in.low), std::abs(in.high));
    const double low = widen && !in.dtype ? -top : in.low, high = widen && !in.dtype ? top : in.high;
    const Spec spec = specs()[k];
    const auto n = static_cast<std::uint64_t>(spec.size());
    // Element i lies in the middle of a stratum of its own.
    std::vector<std::uint64_t> stratum(n);
    std::iota(stratum.begin(), stratum.end(), std::uint64_t{0});
    for (std::uint64_t i = n; i > 1; --i)
      std::swap(stratum[i - 1], stratum[random_below(static_cast<std::uint32_t>(i), seed, 10 + k, i)]);
    const Array jitter = uniform({DType::f64, spec.shape}, seed * 16 + k, 0.3, 0.7);
    std::vector<double> values;
    for (std::uint64_t i = 0; i < n; ++i)
      values.push_back(low + (high - low) *
                                 (static_cast<double>(stratum[i]) + jitter.at(static_cast<std::int64_t>(i))) /
                                 static_cast<double>(n));
    out.push_back(Array::of(values, spec.shape).cast(spec.dtype));
  }
  return out;
}

TraceFn Case::fn() const {
  return [&row = op, attrs = sample.attrs](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{emit(row, in, attrs)};
  };
}

Array Case::run(const std::vector<Array>& inputs) const {
  std::vector<Spec> in;
  std::vector<const std::byte*> p;
  for (const Array& a : inputs) in.push_back(a.spec()), p.push_back(a.data());
  if (!op.cpu) return trace(fn(), in)(inputs).at(0);
  Array y(infer(op, in, sample.attrs));
  op.cpu({op, in, sample.attrs, y.spec()})(p.data(), y.data());
  return y;
}

bool Case::differentiable(std::size_t input) const {
  return op.vjp && is_float(out().dtype) && is_float(specs()[input].dtype) &&
         !(op.why_no_derivative_in && !op.why_no_derivative_in(static_cast<int>(input)).empty());
}

std::vector<Case> positive_cases(const Op& op, DType dtype) {
  std::vector<Case> out;
  if (!op.samples) return out;
  std::size_t index = 0;
  for (OpSample& s : op.samples()) {
    std::string what = fmt::format("{}, sample {}", op.name, index++);
    if (s.error.empty()) out.push_back({op, std::move(s), dtype, std::move(what)});
  }
  return out;
}

Failures checked(Failures (*check)(const Op&), const Op& op) {
  try {
    return check(op);
  } catch (const std::exception& e) {
    return {fmt::format("{}: {}", op.name, e.what())};
  }
}

bool has_own_body(const Op& op) { return op.kind == OpKind::value && !op.cpu && op.expand && !op.samples; }
bool is_elementwise(const Op& op) { return op.broadcasts && op.may_reuse; }

Failures check_complete(const Op& op) {
  Failures failures;
  const auto need = [&](bool ok, std::string_view what) {
    if (!ok) failures.push_back(fmt::format("{}: {}", op.name, what));
  };
  need(!op.name.empty(), "no name");
  need(!op.doc.empty(), "no doc");
  need(op.infer, "no infer");
  if (op.kind != OpKind::value || has_own_body(op)) return failures;
  need(op.cpu || op.expand, "neither a kernel nor an expansion");
  need(op.cost, "no cost");
  need(!(op.vjp && !op.why_no_derivative.empty()), "both a rule and a reason why there is none");
  need(!op.why_no_derivative_in || op.vjp, "a cut input, but no rule for the others");
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::vector<Case> cases = positive_cases(op, dtype);
    need(!cases.empty(), "no positive sample");
    for (const Case& c : cases) {
      const Spec out = c.out();
      need(!is_float(out.dtype) || op.vjp || !op.why_no_derivative.empty(),
           "neither a rule nor a reason why there is none");
      need(!op.is_alias || (c.specs().size() == 1 && c.specs()[0].bytes() == out.bytes()),
           "an alias of another size");
      if (!op.cost) continue;
      const OpCost cost = op.cost({op, c.specs(), c.sample.attrs, out});
      need(cost.flops >= 0 && cost.bytes >= 0 && std::isfinite(cost.flops + cost.bytes),
           "a cost that is no number");
    }
  }
  return failures;
}

Failures check_errors(const Op& op) {
  Failures failures;
  std::size_t index = 0;
  for (const OpSample& s : op.samples()) {
    const std::string what = fmt::format("{}, sample {}", op.name, index++);
    if (s.error.empty()) continue;
    const Case c{op, s, DType::f64, what};
    std::string message;
    try {
      trace(c.fn(), c.specs());
      failures.push_back(what + " is accepted, the row says that it is refused");
      continue;
    } catch (const ShapeError& e) {
      message = e.what();
    } catch (const DTypeError& e) {
      message = e.what();
    } catch (const std::exception& e) {
      failures.push_back(
          fmt::format("{}: refused by another type than ShapeError or DTypeError: {}", what, e.what()));
      continue;
    }
    if (message.find(s.error) == std::string::npos)
      failures.push_back(
          fmt::format("{}: the message is '{}', it should contain '{}'", what, message, s.error));
    if (!message.starts_with(fmt::format("[{}] ", op.name)))
      failures.push_back(fmt::format("{}: the message does not begin with the op: '{}'", what, message));
    for (const Spec& spec : c.specs())
      if (message.find(to_string(spec)) == std::string::npos)
        failures.push_back(fmt::format("{}: the message does not show the operand {}: '{}'", what,
                                       to_string(spec), message));
    if (message.find("(at sweep.cpp:") == std::string::npos)
      failures.push_back(fmt::format("{}: the message does not name the line: '{}'", what, message));
  }
  return failures;
}

double difference(const Array& a, const Array& b) {
  if (a.spec() != b.spec()) return std::numeric_limits<double>::infinity();
  double worst = 0, scale = 1;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double x = a.at(i), y = b.at(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x - y));
    scale = std::max(scale, std::abs(y));
  }
  return worst / scale;
}

}  // namespace nestgrad::testing

// Derivatives against differences of values, in f64.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/random.h"
#include "tests/fuzz/compare.h"

namespace nestgrad::fuzz {

namespace {

// L_0, L_1, .. at a point.
std::vector<double> values_at(const Subject& s, Plan& plan, const Arrays& at) {
  const Arrays out = plan.run(at);
  std::vector<double> values;
  for (std::size_t k = out.size() - s.orders; k < out.size(); ++k) values.push_back(out[k].item());
  return values;
}

Arrays along(const Arrays& at, const Arrays& way, double h) {
  Arrays out;
  for (std::size_t i = 0; i < at.size(); ++i) {
    out.push_back(at[i].clone());
    if (!is_float(at[i].dtype())) continue;
    for (std::int64_t j = 0; j < at[i].size(); ++j)
      out[i].as<double>()[static_cast<std::size_t>(j)] += h * way[i].at(j);
  }
  return out;
}

}  // namespace

Arrays direction(const std::vector<Spec>& specs, std::size_t order) {
  Arrays out;
  for (const Spec& spec : specs)
    out.push_back(random_uniform({DType::f64, spec.shape}, -1, 1, 1000 + order, out.size()));
  return out;
}

bool check_derivatives(const Subject& s, std::uint64_t seed) {
  constexpr double kStep = 1e-4;
  const Arrays at = numbers_for(s.specs, seed);
  Plan plan = s.f.plan();
  const std::vector<double> here = values_at(s, plan, at);
  for (std::size_t k = 1; k < s.orders; ++k) {
    const Arrays way = direction(s.specs, k);
    const auto value = [&](double h) { return values_at(s, plan, along(at, way, h))[k - 1]; };
    const double f0 = here[k - 1], up = value(kStep), down = value(-kStep), up2 = value(kStep / 2),
                 down2 = value(-kStep / 2);
    const double wide = (up - down) / (2 * kStep), narrow = (up2 - down2) / kStep;
    const double found = here[k], expected = (4 * narrow - wide) / 3;
    const double scale = std::max({1.0, std::abs(f0), std::abs(expected), std::abs(found)});
    // Values may be finite where their derivatives are not: sqrt(0).
    if (!std::isfinite(expected) || !std::isfinite(f0) || !std::isfinite(found) || scale > 1e6) return false;
    // The slopes of both sides differ by a step times the second derivative; at a kink by more.
    const double sides = std::abs(up - 2 * f0 + down) / kStep,
                 sides2 = std::abs(up2 - 2 * f0 + down2) * 2 / kStep;
    if (std::abs(wide - narrow) > 1e-5 * scale || sides2 > 0.6 * sides + 1e-7 * scale) return false;
    if (!(std::abs(found - expected) < 1e-6 * scale + std::abs(wide - narrow)))
      throw Finding(fmt::format("the derivative of order {} is {}, by differences {}", k, found, expected));
  }
  return true;
}

}  // namespace nestgrad::fuzz

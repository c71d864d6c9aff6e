#include "tests/ops/check_grads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/core/random.h"
#include "ops/accumulate.h"
#include "ops/ops.h"

namespace nestgrad::testing {

void append(Failures& to, Failures more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::string join(const Failures& failures) {
  std::string text;
  for (const std::string& f : failures) text += "\n  " + f;
  return text;
}

Array uniform(const Spec& spec, std::uint64_t seed, double low, double high) {
  constexpr std::uint64_t kStream = 77;
  if (is_float(spec.dtype)) return random_uniform(spec, low, high, seed, kStream);
  return random_uniform({DType::f64, spec.shape}, low, high, seed, kStream).cast(spec.dtype);
}

namespace {

std::vector<Spec> specs_of(const std::vector<Array>& arrays) {
  std::vector<Spec> specs;
  for (const Array& a : arrays) specs.push_back(a.spec());
  return specs;
}

std::vector<std::size_t> active_inputs(const Subject& s) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < s.inputs.size(); ++i)
    if (is_float(s.inputs[i].dtype()) && (s.active.empty() || s.active[i])) out.push_back(i);
  return out;
}

// a + h b
Array axpy(const Array& a, double h, const Array& b) {
  Array out = a.clone();
  for (std::int64_t i = 0; i < a.size(); ++i) out.as<double>()[uz(i)] += h * b.at(i);
  return out;
}

double dot(const Array& a, const Array& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

// The derivative of f(h) at 0, to h^4.
constexpr double kStep = 5e-4;
template <class F>
auto five_points(const F& f) {
  const auto near1 = f(kStep), near2 = f(-kStep), far1 = f(2 * kStep), far2 = f(-2 * kStep);
  return (8 * (near1 - near2) - (far1 - far2)) / (12 * kStep);
}

// One random number per output element: <fn(x), it> makes a function one number.
Tensor weighted(const std::vector<Tensor>& y, std::uint64_t seed) {
  Tensor total;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const Array u = uniform({DType::f64, y[i].shape()}, seed + i).cast(y[i].dtype());
    const Tensor term = sum(y[i] * constant(u));
    accumulate(total, term);
  }
  return total;
}

constexpr GradOptions kZeros{.allow_zero = true};

}  // namespace

Failures check_grads(const Subject& s) {
  const std::vector<std::size_t> active = active_inputs(s);
  const std::size_t n = active.size();
  const auto direction = [&](int order, std::size_t k) {
    return uniform(s.inputs[active[k]].spec(), 1000 + 10 * static_cast<std::uint64_t>(order) + k);
  };
  // Outputs: for each order, the derivative of order - 1, then its slopes along each input's direction.
  const Function f = trace(
      [&](const std::vector<Tensor>& in) {
        std::vector<Tensor> x, out;
        for (std::size_t i : active) x.push_back(in[i]);
        Tensor d = weighted(s.fn(in), 500);
        for (int order = 1; order <= s.orders; ++order) {
          out.push_back(d);
          const std::vector<Tensor> g = grad(d, x, kZeros);
          Tensor next;
          for (std::size_t k = 0; k < n; ++k) {
            out.push_back(sum(g[k] * constant(direction(order, k))));
            accumulate(next, out.back());
          }
          d = next;
        }
        return out;
      },
      specs_of(s.inputs));
  const std::vector<Array> at_x = f(s.inputs);
  Failures failures;
  for (int order = 1; order <= s.orders; ++order) {
    const std::size_t row = uz(order - 1) * (n + 1);
    for (std::size_t k = 0; k < n; ++k) {
      const Array v = direction(order, k);
      const double numeric = five_points([&](double h) {
        std::vector<Array> moved = s.inputs;
        moved[active[k]] = axpy(moved[active[k]], h, v);
        return f(moved)[row].item();
      });
      const double analytic = at_x[row + 1 + k].item();
      const double scale = std::max({1.0, std::abs(numeric), std::abs(analytic), std::abs(at_x[row].item())});
      if (!(std::abs(numeric - analytic) <= 1e-8 * s.tolerance * scale))
        failures.push_back(
            fmt::format("{}: order {} derivative in input {} is {:.12g}, the central difference is {:.12g}",
                        s.what, order, active[k], analytic, numeric));
    }
  }
  return failures;
}

Failures check_taylor(const Subject& s) {
  const std::vector<std::size_t> active = active_inputs(s);
  std::vector<Array> v;
  for (std::size_t k = 0; k < active.size(); ++k) v.push_back(uniform(s.inputs[active[k]].spec(), 2000 + k));
  const Function f = trace(
      [&](const std::vector<Tensor>& in) {
        std::vector<Tensor> x;
        for (std::size_t i : active) x.push_back(in[i]);
        std::vector<Tensor> out{weighted(s.fn(in), 600)};
        for (int order = 1; order <= s.orders; ++order) {
          const std::vector<Tensor> g = grad(out.back(), x, kZeros);
          Tensor next;
          for (std::size_t k = 0; k < x.size(); ++k) {
            const Tensor term = sum(g[k] * constant(v[k]));
            accumulate(next, term);
          }
          out.push_back(next);
        }
        return out;
      },
      specs_of(s.inputs));
  const std::vector<Array> coefficients = f(s.inputs);
  constexpr int kHalvings = 4;
  double scale = 1;
  for (const Array& c : coefficients) scale = std::max(scale, std::abs(c.item()));
  std::vector<double> remainders(kHalvings);  // of the polynomial so far
  for (int j = 0; j < kHalvings; ++j) {
    std::vector<Array> moved = s.inputs;
    for (std::size_t k = 0; k < active.size(); ++k)
      moved[active[k]] = axpy(moved[active[k]], std::ldexp(1.0, -5 - j), v[k]);
    remainders[uz(j)] = f(moved)[0].item() - coefficients[0].item();
  }
  Failures failures;
  double factorial = 1;
  for (int order = 1; order <= s.orders; ++order) {
    factorial *= order;
    double best = -100;  // the rate; a remainder at the level of rounding has none
    for (int j = 0; j < kHalvings; ++j) {
      double& r = remainders[uz(j)];
      r -= coefficients[uz(order)].item() * std::pow(std::ldexp(1.0, -5 - j), order) / factorial;
      if (std::abs(r) < 1e-14 * s.tolerance * scale) best = order + 1;
      else if (j > 0) best = std::max(best, std::log2(std::abs(remainders[uz(j - 1)] / r)));
    }
    if (!(best > order + 0.7))
      failures.push_back(fmt::format("{}: the Taylor remainder of order {} shrinks as h^{:.2f}, not h^{}",
                                     s.what, order, best, order + 1));
  }
  return failures;
}

Failures check_products(const Subject& s) {
  const std::vector<std::size_t> active = active_inputs(s);
  std::vector<Array> u, v;
  for (std::size_t k = 0; k < active.size(); ++k) u.push_back(uniform(s.inputs[active[k]].spec(), 3000 + k));
  std::size_t outputs = 0;
  // Outputs: y, J u, J' v.
  const Function f = trace(
      [&](const std::vector<Tensor>& in) {
        std::vector<Tensor> x, ut, vt;
        for (std::size_t i : active) x.push_back(in[i]);
        for (const Array& a : u) ut.push_back(constant(a));
        std::vector<Tensor> y = s.fn(in);
        outputs = y.size();
        for (std::size_t i = 0; i < outputs; ++i) {
          v.push_back(uniform({DType::f64, y[i].shape()}, 4000 + i).cast(y[i].dtype()));
          vt.push_back(constant(v.back()));
        }
        std::vector<Tensor> out = y;
        for (Tensor t : jvp(y, x, ut, kZeros)) out.push_back(t);
        for (Tensor t : vjp(y, vt, x, kZeros)) out.push_back(t);
        return out;
      },
      specs_of(s.inputs));
  const std::vector<Array> out = f(s.inputs);
  double forward = 0, backward = 0, scale = 1e-300;
  for (std::size_t i = 0; i < outputs; ++i) {
    forward += dot(out[outputs + i], v[i]);
    scale += std::sqrt(dot(out[outputs + i], out[outputs + i]) * dot(v[i], v[i]));
  }
  for (std::size_t k = 0; k < active.size(); ++k) backward += dot(out[2 * outputs + k], u[k]);
  Failures failures;
  if (!(std::abs(forward - backward) <= 1e-12 * s.tolerance * scale))
    failures.push_back(
        fmt::format("{}: <J u, v> is {:.17g}, <u, J' v> is {:.17g}", s.what, forward, backward));
  const auto moved_outputs = [&](double h) {
    std::vector<Array> moved = s.inputs;
    for (std::size_t k = 0; k < active.size(); ++k) moved[active[k]] = axpy(moved[active[k]], h, u[k]);
    return f(moved);
  };
  const std::vector<Array> p1 = moved_outputs(kStep), m1 = moved_outputs(-kStep),
                           p2 = moved_outputs(2 * kStep), m2 = moved_outputs(-2 * kStep);
  for (std::size_t i = 0; i < outputs; ++i)
    for (std::int64_t e = 0; e < out[i].size(); ++e) {
      const double numeric = (8 * (p1[i].at(e) - m1[i].at(e)) - (p2[i].at(e) - m2[i].at(e))) / (12 * kStep);
      const double analytic = out[outputs + i].at(e);
      if (!(std::abs(numeric - analytic) <=
            1e-9 * s.tolerance * std::max({1.0, std::abs(numeric), std::abs(out[i].at(e))}))) {
        failures.push_back(
            fmt::format("{}: J u at element {} of output {} is {:.12g}, the central difference is {:.12g}",
                        s.what, e, i, analytic, numeric));
        break;
      }
    }
  return failures;
}

Failures check_f32_grads(const Subject& s) {
  const std::vector<std::size_t> active = active_inputs(s);
  // The same numbers in both types: those of f32.
  std::vector<Array> narrow, wide;
  for (const Array& a : s.inputs) {
    narrow.push_back(is_float(a.dtype()) ? a.cast(DType::f32) : a);
    wide.push_back(is_float(a.dtype()) ? narrow.back().cast(DType::f64) : a);
  }
  const TraceFn gradient = [&](const std::vector<Tensor>& in) {
    std::vector<Tensor> x;
    for (std::size_t i : active) x.push_back(in[i]);
    return grad(weighted(s.fn(in), 700), x, kZeros);
  };
  const std::vector<Array> g32 = trace(gradient, specs_of(narrow))(narrow),
                           g64 = trace(gradient, specs_of(wide))(wide);
  Failures failures;
  for (std::size_t k = 0; k < g32.size(); ++k)
    if (const double error = relative_error(g32[k], g64[k], 1); !(error <= 1e-5 * s.tolerance))
      failures.push_back(fmt::format("{}: the f32 gradient of input {} is {:.3g} away from that in f64",
                                     s.what, active[k], error));
  return failures;
}

Failures check_every_way(const Subject& s) {
  Failures failures;
  for (const auto check : {check_grads, check_taylor, check_products, check_f32_grads})
    append(failures, check(s));
  return failures;
}

}  // namespace nestgrad::testing

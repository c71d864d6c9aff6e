// The promise: Mamba-2, the trapezoidal rule of its successor and Kimi delta attention are the recurrences of their
// papers, as values and as derivatives, in every form; and their gates start as published.
#include "ops/accumulate.h"
#include "tests/ttt/system_testing.h"
#include "ttt/layer.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::system_named;

namespace {

constexpr double kTolerance = 1e-11;
const ProgramSizes kSizes{.time = 10};

// A = exp(A_log), the only outer parameter of these systems.
Tensor decay_rate(const SystemProgram& p) { return exp(p.inputs.back()); }
// [.., 1, dim] -> [.., dim, 1]
Tensor column(Tensor row) { return transpose(row); }

// Mamba-2 without a state: y_t = sum over s <= t of exp(-A (dt_{s+1} + .. + dt_t)) dt_s <C_t, B_s> x_s
// (Dao and Gu 2024, equation 16: the matrix L).
InnerLoopResult mamba2_as_attention(const SystemProgram& p) {
  const Tensor dt = p.views.gates.at("rate"), a = decay_rate(p);
  const std::int64_t time = p.views.k.dim(2);
  const auto weight = [&](std::int64_t s, std::int64_t t) {
    Tensor w = token(dt, s);
    for (std::int64_t r = s + 1; r <= t; ++r) w = w * exp(-a * token(dt, r));
    return w;
  };
  Tensors outputs;
  Tensor last;
  for (std::int64_t t = 0; t < time; ++t) {
    Tensor y;
    for (std::int64_t s = 0; s <= t; ++s) {
      const Tensor pair = matmul(token(p.views.q, t), token(p.views.k, s), {.b = true});
      accumulate(y, weight(s, t) * pair * token(p.views.v, s));
    }
    outputs.push_back(y);
  }
  for (std::int64_t s = 0; s < time; ++s)
    accumulate(last, weight(s, time - 1) * matmul(token(p.views.k, s), token(p.views.v, s), {.a = true}));
  return made_by_hand(outputs, p.start.with({last}));
}

// Proposition 1 of Mamba-3.
InnerLoopResult trapezoid_by_hand(const SystemProgram& p) {
  Tensor w = p.start.at(0).value, before;
  Tensors outputs;
  for (std::int64_t t = 0; t < p.views.k.dim(2); ++t) {
    const Tensor dt = token(p.views.gates.at("dt"), t), lambda = token(p.views.gates.at("lambda"), t);
    const Tensor a = exp(-decay_rate(p) * dt);
    const Tensor now = matmul(token(p.views.k, t), token(p.views.v, t), {.a = true});
    w = a * w + lambda * dt * now;
    if (before.defined()) w = w + (1.0 - lambda) * dt * a * before;
    before = now;
    outputs.push_back(matmul(token(p.views.q, t), w));
  }
  return made_by_hand(outputs, p.start.with({w}));
}

// Equation 1 of Kimi Linear: S_t = (I - rate k'k) diag(a) S_{t-1} + rate k'v.
InnerLoopResult kimi_by_hand(const SystemProgram& p) {
  Tensor w = p.start.at(0).value;
  Tensors outputs;
  const Tensor identity =
      equal(iota(w.dtype(), {w.dim(-2), w.dim(-2)}, 0), iota(w.dtype(), {w.dim(-2), w.dim(-2)}, 1));
  for (std::int64_t t = 0; t < p.views.k.dim(2); ++t) {
    const Tensor k = token(p.views.k, t), rate = token(p.views.gates.at("rate"), t);
    const Tensor a = exp(-decay_rate(p) * column(token(p.views.gates.at("dt"), t)));
    w = matmul(identity - rate * matmul(k, k, {.a = true}), a * w) +
        rate * matmul(k, token(p.views.v, t), {.a = true});
    outputs.push_back(matmul(token(p.views.q, t), w));
  }
  return made_by_hand(outputs, p.start.with({w}));
}

// The system with step sizes around 0.7, not 0.01, so that no derivative is small beside rounding.
System with_large_steps(const std::string& name) {
  System system = system_named(name);
  for (ttt::GateSpec& gate : system.gates)
    if (gate.drawn_bias) gate.bias = 0;
  return system;
}

double error_by_hand(const std::string& name, const SystemRun& by_hand) {
  const System system = with_large_steps(name);
  return worst_error(run_system(system, kSizes, system_in(FormChoice::automatic), 2),
                     run_system(system, kSizes, by_hand, 2));
}

// Parameters of a layer of this system as they start.
std::vector<double> starts_as(const std::string& system, const std::string& param, std::uint64_t seed) {
  std::vector<double> out;
  trace(
      [&](const Tensors&) {
        ParamTable table(*context().emit.graph, DType::f64);
        const Params params(table);
        const ttt::TTTLayer layer(params, {.width = 64, .heads = 16},
                                  std::make_unique<ttt::ProjectedViews>(params, 64), system_named(system),
                                  "layer");
        ttt::Stream stream;
        layer(constant(random(f64({1, 3, 64}), 1)), stream);
        for (const ParamSpec& spec : table.specs())
          if (spec.name == param) out = initial_value(spec, DType::f64, seed).to_vector();
        return Tensors{};
      },
      {});
  return out;
}

}  // namespace

TEST_CASE("Mamba-2 is attention with a mask of decays, to order 2") {
  CHECK(error_by_hand("mamba-2", mamba2_as_attention) < kTolerance);
}
TEST_CASE("the trapezoidal rule is that of its paper, to order 2") {
  CHECK(error_by_hand("mamba-3-trapezoid", trapezoid_by_hand) < kTolerance);
}
TEST_CASE("Kimi delta attention is the recurrence of its paper, to order 2") {
  CHECK(error_by_hand("kimi-delta-attention", kimi_by_hand) < kTolerance);
}

TEST_CASE("Mamba-2, the trapezoidal rule and Kimi delta attention: all valid forms agree to order 2") {
  CHECK(refused(with_large_steps("mamba-2"), kSizes, 2) == "");
  CHECK(refused(with_large_steps("mamba-3-trapezoid"), kSizes, 2) == "");
  CHECK(refused(with_large_steps("kimi-delta-attention"), kSizes, 2) == "parallel");
}

TEST_CASE(
    "step sizes start between 0.001 and 0.1, by logarithm, and A between 1 and 16, as drawn by the seed") {
  const auto softplus_of = [](std::vector<double> x) {
    for (double& each : x) each = std::log1p(std::exp(each));
    return x;
  };
  const auto exp_of = [](std::vector<double> x) {
    for (double& each : x) each = std::exp(each);
    return x;
  };
  const auto check = [](std::vector<double> x, double low, double high, double middle) {
    std::ranges::sort(x);
    CHECK(x.front() >= low);
    CHECK(x.back() <= high);
    CHECK(x.front() < x.back());
    // Half of what is drawn lies below the middle; with 1,024 numbers within 5 of the standard deviations.
    const auto below = static_cast<double>(std::ranges::lower_bound(x, middle) - x.begin());
    const auto n = static_cast<double>(x.size());
    CHECK(std::abs(below - n / 2) < 2.5 * std::sqrt(n));
  };
  for (const std::string system : {"mamba-2", "mamba-3-trapezoid", "kimi-delta-attention"}) {
    CAPTURE(system);
    const std::string gate = system == "mamba-2" ? "rate" : "dt";
    const std::vector<double> bias = starts_as(system, "gates." + gate + ".bias", 3),
                              log_a = starts_as(system, "A_log", 3);
    CHECK(bias.size() == (system == "kimi-delta-attention" ? 64 : 16));
    CHECK(log_a.size() == 16);
    check(softplus_of(bias), 0.001 * (1 - 1e-9), 0.1 * (1 + 1e-9), 0.01);
    check(exp_of(log_a), 1 * (1 - 1e-9), 16 * (1 + 1e-9), 8.5);
    CHECK(bias != starts_as(system, "gates." + gate + ".bias", 4));
    CHECK(bias == starts_as(system, "gates." + gate + ".bias", 3));
  }
}

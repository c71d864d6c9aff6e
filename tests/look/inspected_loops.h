// Inner loops to inspect: of a published system, and of one matrix whose numbers have closed forms.
#pragma once

#include <algorithm>
#include <cmath>

#include "look/numbers.h"
#include "models/traced_model.h"
#include "tests/testing.h"
#include "tests/ttt/by_hand.h"

namespace nestgrad::testing {

using look::InspectedLoop;
using ttt::Policy;

inline void check_all(const std::vector<Claim>& claims) {
  CHECK_FALSE(claims.empty());
  for (const Claim& i : claims) {
    CAPTURE(i.claim);
    CAPTURE(i.error);
    CHECK(i.holds());
  }
}

// How many of the learner's parameters have the gradients of the whole model, which `gradients` holds behind its loss.
inline std::size_t check_same_gradients(const InspectedLoop& loop, const TracedModel& whole,
                                        const Arrays& gradients, const std::string& prefix) {
  const look::MetaProgram program = look::meta_program(loop);
  const Arrays own = program.function(program.inputs);
  std::size_t compared = 0;
  for (std::size_t i = 0; i < whole.params.size(); ++i) {
    const std::string& name = whole.params[i].name;
    if (!name.starts_with(prefix)) continue;
    const auto here = std::ranges::find(program.outputs, name.substr(prefix.size()));
    if (here == program.outputs.end()) continue;  // not the learner's
    CAPTURE(name);
    CHECK(relative_error(own[static_cast<std::size_t>(here - program.outputs.begin())], gradients[i + 1]) <
          1e-9);
    ++compared;
  }
  return compared;
}

inline InspectedLoop of(const std::string& system, std::int64_t time = 12, std::int64_t chunk = 4) {
  return look::inspected_learner(ttt::system_named(system),
                                 {.batch = 1, .heads = 2, .dim = 4, .time = time, .chunk = chunk}, 5);
}

// One weight W [heads, dim, dim] that starts as `start`; half squared error.
inline InspectedLoop one_matrix(const Array& k, const Array& v, const Array& q, const Array& cotangent,
                                double rate, std::int64_t chunk) {
  const std::int64_t heads = k.shape()[1], dim = k.shape()[3];
  InspectedLoop out;
  out.name = "one matrix";
  out.learner = [=](const Params& p) {
    return std::make_unique<ttt::Composed>(ttt::linear(p, {heads, dim, 0, dim}), ttt::half_squared_error());
  };
  out.policy.chunk = chunk;
  out.k = k, out.v = v, out.q = q, out.cotangent = cotangent;
  out.gates["rate"] = Array::full(DType::f64, {k.shape()[0], heads, k.shape()[2], 1}, rate);
  trace(
      [&](const Tensors&) {
        ParamTable table(*context().emit.graph, DType::f64);
        out.learner(Params(table))->init();
        for (const ParamSpec& p : table.specs()) out.params[p.name] = random(f64(p.shape), 9);
        return Tensors{};
      },
      {});
  return out;
}

// The most by which a matrix [n, n] lengthens a vector: the root of the largest eigenvalue of A' A, by squarings.
inline double largest_factor(const Array& a) {
  const std::int64_t n = a.shape()[0];
  const Function gram = trace([](Tensor x) { return matmul(transpose(x), x); }, f64({n, n})),
                 squared = trace([](Tensor x) { return matmul(x, x); }, f64({n, n}));
  Array m = gram(a);
  double log_size = 0;  // of the largest eigenvalue
  for (int s = 0; s < 30; ++s) {
    double size = 0;
    for (const double x : m.to_vector()) size = std::max(size, std::abs(x));
    log_size += std::log(size) / std::ldexp(1, s);
    for (double& x : m.as<double>()) x /= size;
    m = squared(m);
  }
  return std::exp(log_size / 2);
}

}  // namespace nestgrad::testing

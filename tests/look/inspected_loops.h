// Inner loops to inspect: of a published system, and of one matrix whose numbers have closed forms.
#pragma once

#include "look/numbers.h"
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

}  // namespace nestgrad::testing

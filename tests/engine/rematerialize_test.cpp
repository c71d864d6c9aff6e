// The promise: what a derivative reads of a scan is kept or computed again, whichever moves fewer bytes, and
// the bits are the same.
#include <algorithm>
#include <random>

#include "engine/plan/cut.h"
#include "tests/autograd/deriving.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// What all the edges from a side of the start to the other cost, at the cheapest of all sides.
std::int64_t cheapest_by_trying(int vertices, const std::vector<std::array<int, 3>>& edges) {
  std::int64_t best = MinimumCut::kNever;
  for (int side = 0; side < 1 << vertices; ++side) {
    if ((side & 1) == 0 || (side & 2) != 0) continue;  // 0 starts, 1 ends
    std::int64_t price = 0;
    for (const auto& [from, to, cost] : edges) price += (side >> from & 1) && !(side >> to & 1) ? cost : 0;
    best = std::min(best, price);
  }
  return best;
}

std::size_t arena_bytes(const Function& f, bool rematerialize) {
  return f.plan({.rematerialize = rematerialize}).stats().arena_bytes;
}

}  // namespace

TEST_CASE("A minimum cut costs what the best of all cuts costs") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    constexpr int kVertices = 8;
    std::vector<std::array<int, 3>> edges;
    MinimumCut cut(kVertices);
    for (int e = 0; e < 20; ++e) {
      edges.push_back({static_cast<int>(random() % kVertices), static_cast<int>(random() % kVertices),
                       static_cast<int>(random() % 9)});
      cut.add(edges.back()[0], edges.back()[1], edges.back()[2]);
    }
    const std::vector<char> side = cut.find(0, 1);
    REQUIRE(side[0]);
    REQUIRE_FALSE(side[1]);
    std::int64_t price = 0;
    for (const auto& [from, to, cost] : edges)
      price += side[static_cast<std::size_t>(from)] && !side[static_cast<std::size_t>(to)] ? cost : 0;
    CHECK(price == cheapest_by_trying(kVertices, edges));
  }
}

TEST_CASE("Computing again what is cheap changes no bit, at orders 1 to 3, for any schedule") {
  const auto specs = learner_specs();
  for (int order = 1; order <= 3; ++order) {
    CAPTURE(order);
    const Arrays at = random(specs, 4);
    const Function f = derivative([](const Tensors& in) { return learner(in, as_scan); }, specs, order);
    for (const bool simplify : {false, true}) {
      const Arrays kept = f.plan({.simplify = simplify, .rematerialize = false}).run(at);
      for (const int every : {0, 1, 3})
        CHECK(same_bits(f.plan({.simplify = simplify, .checkpoint_every = every}).run(at), kept));
    }
  }
}

TEST_CASE("A derivative keeps one value of a chain of cheap ops, and those of products and series") {
  constexpr std::int64_t kSteps = 50, kSize = 64;
  // Of the chain's five values the derivative reads four; x * c is an x of the scan.
  const auto bytes = [&](bool rematerialize, bool series) {
    return arena_bytes(trace(
                           [&](const Tensors& in) {
                             const ScanResult r = scan(
                                 [&](const Tensors& c, const Tensors& x) -> StepOutput {
                                   Tensor y = matmul(c[0], c[0]);
                                   Tensor z = y * x[0];
                                   z = series ? exp(z) : square(z);
                                   z = z * x[0];
                                   return {{y}, {z * square(z)}};
                                 },
                                 {in[0]}, {in[1]});
                             return grad(sum(r.ys[0]), in);
                           },
                           std::vector<Spec>{f64({kSize, kSize}), f64({kSteps, kSize, kSize})}),
                       rematerialize);
  };
  constexpr std::size_t one = kSteps * kSize * kSize * sizeof(double);
  const auto all = [&](bool series) { return static_cast<double>(bytes(false, series)) / one; };
  const auto some = [&](bool series) { return static_cast<double>(bytes(true, series)) / one; };
  CHECK(all(false) - some(false) > 2.5);
  CHECK(some(true) - some(false) > 0.5);
  CHECK(all(true) > some(true));
}

TEST_CASE("What is computed again is not simplified beside what reads it: no bit changes") {
  const std::vector<Spec> specs{f32(), f32({40, 5})};
  const Function f = trace(
      [](const Tensors& in) {
        const auto each = [](const Tensors& carry, const std::function<Tensor(Tensor)>& fn, Tensor rows) {
          return scan(
                     [&](const Tensors& c, const Tensors& x) -> StepOutput {
                       return {c, {fn(x[0])}};
                     },
                     carry, {rows})
              .ys[0];
        };
        const Tensor thirds = each(
            {in[0]}, [](Tensor x) { return x * 0.3; }, in[1]);
        return Tensors{each(
            {in[0]}, [](Tensor x) { return x * 0.7; }, thirds)};  // not x * 0.21
      },
      specs);
  const Arrays at = random(specs, 1);
  const Arrays kept = f.plan({.rematerialize = false}).run(at);
  CHECK(arena_bytes(f, true) < arena_bytes(f, false));
  CHECK(same_bits(f.plan().run(at), kept));
}

TEST_CASE("A value that others read is kept for them, and still read by the derivative") {
  const std::vector<Spec> specs{f64({3}), f64({6, 3})};
  const Function f = trace(
      [](const Tensors& in) {
        const ScanResult r = scan(
            [](const Tensors& c, const Tensors& x) -> StepOutput {
              Tensor y = c[0] * x[0];
              return {{y + 1.0}, {y, square(y) * x[0]}};
            },
            {in[0]}, {in[1]});
        Tensors out = grad(sum(r.ys[1]), in);
        out.push_back(r.ys[0]);
        return out;
      },
      specs);
  const Arrays at = random(specs, 1);
  CHECK(same_bits(f.plan({.simplify = false}).run(at),
                  f.plan({.simplify = false, .rematerialize = false}).run(at)));
}

// The promise: outside of scans, a large value that cheap ops give is computed again where a derivative reads
// it; the arena is smaller by what is no longer kept, and the bits are the same.
#include "tests/autograd/deriving.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// Functions: options made before main would ask for the default device there, and end the program where it has none.
PlanOptions recomputed() { return {.recompute_above = 0}; }
PlanOptions unchanged() { return {.recompute_above = std::size_t{1} << 40}; }

// Gated feed-forward layers, each y + (silu(y G) * (y U)) D of the normalised y. in: x, then G, U, D of each.
Tensor layers(const Tensors& in) {
  Tensor y = in[0];
  for (std::size_t i = 1; i + 2 < in.size(); i += 3) {
    const Tensor n = y / sqrt(mean(square(y), {-1}, kKeep) + 1e-5);
    y = y + matmul(silu(matmul(n, in[i])) * matmul(n, in[i + 1]), in[i + 2]);
  }
  return mean(square(y));
}

std::vector<Spec> specs_of(std::int64_t rows, std::int64_t width, std::int64_t hidden, int count) {
  std::vector<Spec> out{f64({rows, width})};
  for (int i = 0; i < count; ++i)
    for (const Spec& s : {f64({width, hidden}), f64({width, hidden}), f64({hidden, width})}) out.push_back(s);
  return out;
}

Function gradient(const Scalar& fn, const std::vector<Spec>& specs) { return derivative(fn, specs, 1); }

}  // namespace

TEST_CASE("Computing large values again changes no bit, at orders 1 to 3") {
  const std::vector<Spec> specs = specs_of(3, 4, 5, 2);
  const Arrays at = random(specs, 4);
  for (int order = 1; order <= 3; ++order) {
    CAPTURE(order);
    const Function f = derivative(layers, specs, order);
    for (const bool simplify : {false, true})
      for (const bool fuse : {false, true}) {
        Plan again = f.plan({.simplify = simplify, .fuse = fuse, .recompute_above = 0});
        Plan kept = f.plan({.simplify = simplify, .fuse = fuse, .rematerialize = false});
        CHECK(again.stats().flops > kept.stats().flops);
        CHECK(same_bits(again.run(at), kept.run(at)));
      }
  }
}

TEST_CASE("Of a layer's hidden values only those of products are kept") {
  constexpr std::int64_t kRows = 64, kWidth = 8, kHidden = 64;
  constexpr int kLayers = 6;
  const Function f = gradient(layers, specs_of(kRows, kWidth, kHidden, kLayers));
  const std::size_t hidden = sizeof(double) * kRows * kHidden;
  const std::size_t kept = f.plan(unchanged()).stats().arena_bytes,
                    again = f.plan(recomputed()).stats().arena_bytes;
  CAPTURE(kept);
  CAPTURE(again);
  // Without: both products, the silu and what it gates, of all layers. With: the products, but for the layer at hand.
  CHECK(kept > 4 * kLayers * hidden);
  CHECK(again < (2 * kLayers + 5) * hidden);
}

TEST_CASE("Small values, and what is there anyway, are not computed again") {
  const std::vector<Spec> specs = specs_of(16, 8, 32, 2);
  const Function f = gradient(layers, specs);
  const double kept = f.plan(unchanged()).stats().flops;
  CHECK(f.plan({.recompute_above = 16 * 32 * sizeof(double) + 1}).stats().flops == kept);
  CHECK(f.plan({.recompute_above = 16 * 32 * sizeof(double)}).stats().flops > kept);
  CHECK(f.plan().stats().flops == kept);
  CHECK(f.plan({.recompute_above = std::numeric_limits<std::size_t>::max()}).stats().flops == kept);

  // The caller gets the value, or a scan reads it.
  const Function given = trace(
      [](const Tensors& in) {
        const Tensor y = exp(in[0]);
        return Tensors{y, grad(sum(square(y)), {in[0]})[0]};
      },
      {f64({8, 8})});
  CHECK(given.plan(recomputed()).stats().flops == given.plan(unchanged()).stats().flops);
  const Function scanned = gradient(
      [](const Tensors& in) {
        const Tensor y = exp(in[0]);
        const StepFn step = [](const Tensors& c, const Tensors& x) -> StepOutput {
          return {{matmul(c[0], x[0])}, {}};
        };
        return sum(scan(step, {in[1]}, {y}).carries[0]);
      },
      {f64({5, 4, 4}), f64({4, 4})});
  CHECK(scanned.plan(recomputed()).stats().flops == scanned.plan(unchanged()).stats().flops);
}

TEST_CASE("Of a long chain of cheap ops some values are kept, and those between made when they are needed") {
  constexpr std::int64_t kSize = 1000;
  constexpr int kLength = 20000;
  const Function f = gradient(
      [](const Tensors& in) {
        Tensor y = in[0];
        for (int i = 0; i < kLength; ++i) y = sin(y);
        return sum(y);
      },
      {f64({kSize})});
  const Arrays at{random(f64({kSize}), 1)};
  Plan all = f.plan(recomputed()), none = f.plan(unchanged());
  CHECK(same_bits(all.run(at), none.run(at)));
  CHECK(none.stats().arena_bytes > (kLength - 2) * kSize * sizeof(double));
  CHECK(all.stats().arena_bytes < kLength * kSize * sizeof(double) / 8);
}

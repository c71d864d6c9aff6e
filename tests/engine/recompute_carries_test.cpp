// The promise: carries that derivatives read and that cheap products make again are kept every n-th step only,
// and the bits are those of a plan that keeps all.
#include "tests/autograd/deriving.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// Weights [heads, dim, dim] learn along keys [steps, heads, rows, dim] to map them to `next` of what they give;
// the loss is over what they give at each step before they learn.
using Next = std::function<Tensor(Tensor w, Tensor key, Tensor error)>;
Function trained(const Next& next, const Spec& weights, const Spec& keys, int order, Loop loop = as_scan) {
  return derivative(
      [=](const Tensors& in) {
        const ScanResult r = loop(
            [&](const Tensors& c, const Tensors& x) -> StepOutput {
              const Tensor y = matmul(x[0], c[0]);
              return {{next(c[0], x[0], tanh(y) - x[1])}, {y}};
            },
            {in[0]}, {in[1], in[2]}, {});
        return sum(square(r.ys[0]));
      },
      {weights, keys, keys}, order);
}

Tensor delta_rule(Tensor w, Tensor key, Tensor error) { return w - 0.1 * matmul(key, error, {.a = true}); }

bool recomputes(const Function& f) { return contains(f.explain(), ", recomputes"); }
std::size_t arena_bytes(const Function& f, const PlanOptions& options) {
  return f.plan(options).stats().arena_bytes;
}

}  // namespace

TEST_CASE(
    "Weights are made again with the same bits, at orders 1 to 3, for any number of steps and workers") {
  for (const std::int64_t steps : {4, 5, 16, 33, 50})
    for (int order = 1; order <= 3; ++order) {
      CAPTURE(steps);
      CAPTURE(order);
      const Spec weights = f32({3, 16, 16}), keys = f32({steps, 3, 1, 16});
      const Function f = trained(delta_rule, weights, keys, order);
      CHECK(recomputes(f));
      const Arrays at = random({weights, keys, keys}, 7);
      const Arrays kept = f.plan({.rematerialize = false}).run(at);
      for (const int workers : {1, 2, 5}) {
        Plan plan = f.plan({.workers = workers});
        CHECK(same_bits(plan.run(at), kept));
        CHECK(same_bits(plan.run(at), kept));  // what an earlier run made is not taken for this one's
      }
      CHECK(same_bits(f.plan({.reuse = false}).run(at), kept));
      CHECK(same_bits(f.plan({.checkpoint_every = 3}).run(at), kept));
    }
}

TEST_CASE("The derivative of a long loop of learning keeps a fraction of the weights") {
  const Spec weights = f32({32, 32}), keys = f32({256, 1, 32});
  const Function f = trained(delta_rule, weights, keys, 1);
  const std::size_t all = 256 * weights.bytes();
  CHECK(arena_bytes(f, {.rematerialize = false}) > all);
  CHECK(arena_bytes(f, {}) < all / 3);  // 15 of 256, 16 of a segment, and what else a step keeps
  const PlanStats stats = f.plan().stats();
  CHECK(stats.recompute_factor > 1);
  CHECK(stats.recompute_factor < 1.5);
}

TEST_CASE("The gradient through recomputed weights is the finite difference") {
  const Spec weights = f64({2, 4, 4}), keys = f64({9, 2, 1, 4});
  const Scalar loss = [&](const Tensors& in) {
    const ScanResult r = scan(
        [&](const Tensors& c, const Tensors& x) -> StepOutput {
          const Tensor y = matmul(x[0], c[0]);
          return {{delta_rule(c[0], x[0], tanh(y))}, {y}};
        },
        {in[0]}, {in[1]});
    return sum(square(r.ys[0]));
  };
  const Function f = trace(
      [&](const Tensors& in) {
        return Tensors{loss(in), grad(loss(in), in)[1]};
      },
      std::vector<Spec>{weights, keys});
  CHECK(recomputes(f));
  Arrays at = random({weights, keys}, 3);
  const Array gradient = f.plan().run(at)[1];
  Plan plan = f.plan();
  for (const std::size_t i : {std::size_t{0}, std::size_t{13}, std::size_t{71}}) {
    double& x = at[1].as<double>()[i];
    const double was = x, h = 1e-5;
    x = was + h;
    const double above = plan.run(at)[0].item();
    x = was - h;
    const double below = plan.run(at)[0].item();
    x = was;
    CHECK(gradient.at(static_cast<std::int64_t>(i)) ==
          doctest::Approx((above - below) / (2 * h)).epsilon(1e-7));
  }
}

TEST_CASE("Weights that cost much to make again, or that others read, are kept") {
  const Spec weights = f32({32, 32}), keys = f32({20, 1, 32});
  const Array turn = random(f32({32, 32}), 9);
  CHECK_FALSE(recomputes(trained(
      [&](Tensor w, Tensor key, Tensor error) {
        w = delta_rule(w, key, error);
        for (int i = 0; i < 8; ++i) w = matmul(w, constant(turn));
        return w;
      },
      weights, keys, 1)));
  const Function f = trace(
      [](const Tensors& in) {
        const ScanResult r = scan(
            [](const Tensors& c, const Tensors& x) -> StepOutput {
              return {{delta_rule(c[0], x[0], matmul(x[0], c[0]))}, {c[0], square(matmul(x[0], c[0]))}};
            },
            {in[0]}, {in[1]});
        Tensors out = grad(sum(r.ys[1]), in);
        out.push_back(r.ys[0]);
        return out;
      },
      std::vector<Spec>{weights, keys});
  CHECK_FALSE(recomputes(f));
  const Arrays at = random({weights, keys}, 2);
  CHECK(same_bits(f.plan().run(at), f.plan({.rematerialize = false}).run(at)));
}

TEST_CASE("Two carries are made again together, in a loop that runs backwards too") {
  const Spec weights = f32({2, 8, 8}), keys = f32({21, 2, 1, 8});
  for (const bool reverse : {false, true}) {
    const Function f = trace(
        [&](const Tensors& in) {
          const ScanResult r = scan(
              [](const Tensors& c, const Tensors& x) -> StepOutput {
                const Tensor y = tanh(matmul(x[0], c[0]));
                const Tensor momentum = 0.9 * c[1] + matmul(x[0], y, {.a = true});
                return {{c[0] - 0.1 * momentum, momentum}, {y * matmul(x[0], c[1])}};
              },
              {in[0], in[1]}, {in[2]}, {.reverse = reverse});
          return grad(sum(square(r.ys[0])) + sum(r.carries[0]), in);
        },
        std::vector<Spec>{weights, weights, keys});
    CHECK(recomputes(f));
    const Arrays at = random({weights, weights, keys}, 5);
    CHECK(same_bits(f.plan().run(at), f.plan({.rematerialize = false}).run(at)));
  }
}

// Carries that steps write over what they read of them: the bits of carries that have two places, whatever else reads them.
#include "autograd/scan.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kSize = 16, kSteps = 7;
const Spec kSquare = f64({kSize, kSize}), kSquares = f64({kSteps, kSize, kSize});

// Bits and gradients with memory shared and not, with and without what else a plan does to loops. Returns the bytes of the arena of
// the first of them.
std::size_t check(const TraceFn& fn, const std::vector<Spec>& specs) {
  const Arrays in = random(specs, 5);
  std::size_t arena = 0;
  for (const bool with_gradient : {false, true}) {
    const Function f = trace(
        [&](const Tensors& x) {
          Tensors out = fn(x);
          if (!with_gradient) return out;
          Tensor loss = sum(sin(out[0]));
          for (std::size_t i = 1; i < out.size(); ++i) loss = loss + sum(cos(out[i]));
          return grad(loss, x);
        },
        specs);
    for (const bool fuse : {true, false})
      for (const std::optional<int> every : {std::optional<int>{}, std::optional<int>{3}})
        for (const int workers : {1, 3}) {
          PlanOptions options{
              .fuse = fuse, .checkpoint_every = every, .device = Device::cpu(), .workers = workers};
          Plan plan = f.plan(options);
          if (arena == 0) arena = plan.stats().arena_bytes;
          options.reuse = false;
          const Arrays expected = f.plan(options).run(in);
          for (int run = 0; run < 2; ++run) CHECK(same_bits(plan.run(in), expected));
        }
  }
  return arena;
}

}  // namespace

TEST_CASE("A sum of products, and a state that is scaled and added to, are carried in one place") {
  const TraceFn summed = [](const Tensors& in) {
    return scan(
               [](const Tensors& c, const Tensors& x) {
                 return StepOutput{{c[0] + matmul(x[0], x[0], {.b = true})}, {}};
               },
               {in[0]}, {in[1]})
        .carries;
  };
  CHECK(check(summed, {kSquare, kSquares}) <= kSquare.bytes());  // a product: the sum has the place of the output
  const TraceFn scaled = [](const Tensors& in) {
    const ScanResult r = scan(
        [](const Tensors& c, const Tensors& x) {
          const Tensor next = c[0] * 0.9 + matmul(x[0], x[0]);
          return StepOutput{{next}, {sum(next)}};
        },
        {in[0]}, {in[1]});
    return Tensors{r.ys[0]};
  };
  CHECK(check(scaled, {kSquare, kSquares}) < 2 * kSquare.bytes() + 1024);  // a product, and the state
}

TEST_CASE("A carry keeps two places where a step reads it after it has made the next, or hands it out") {
  const TraceFn read_late = [](const Tensors& in) {
    const ScanResult r = scan(
        [](const Tensors& c, const Tensors& x) {
          const Tensor next = c[0] + x[0];
          return StepOutput{{next, c[1] * 0.5 + matmul(next, c[0])}, {sum(c[0] * next)}};
        },
        {in[0], in[0] * 2.0}, {in[1]});
    return Tensors{r.carries[0], r.carries[1], r.ys[0]};
  };
  check(read_late, {kSquare, kSquares});
  const TraceFn handed_out = [](const Tensors& in) {
    const ScanResult r = scan(
        [](const Tensors& c, const Tensors& x) {
          return StepOutput{{c[0] - x[0] * c[0]}, {c[0]}};
        },
        {in[0]}, {in[1]});
    return Tensors{r.carries[0], r.ys[0]};
  };
  check(handed_out, {kSquare, kSquares});
  const TraceFn exchanged = [](const Tensors& in) {
    return scan(
               [](const Tensors& c, const Tensors& x) {
                 return StepOutput{{c[1] + x[0], c[0] * x[0]}, {}};
               },
               {in[0], in[0] + 1.0}, {in[1]})
        .carries;
  };
  check(exchanged, {kSquare, kSquares});
}

TEST_CASE(
    "Carries in one place: loops in loops, backwards, of one start, beside a carry that stays as it is") {
  const TraceFn nested = [](const Tensors& in) {
    const StepFn outer = [&](const Tensors& c, const Tensors& x) {
      const StepFn inner = [&](const Tensors& d, const Tensors&) {
        return StepOutput{{d[0] + matmul(d[0], x[0]) * 0.1}, {}};
      };
      return StepOutput{{scan(inner, {c[0]}, {}, {.steps = 5}).carries[0] * 0.5 + c[0]}, {}};
    };
    return scan(outer, {in[0]}, {in[1]}, {.reverse = true}).carries;
  };
  check(nested, {kSquare, kSquares});
  const TraceFn one_start = [](const Tensors& in) {
    return scan(
               [](const Tensors& c, const Tensors& x) {
                 return StepOutput{{c[0] + x[0], c[1] - x[0] * c[2], stop_gradient(c[2])}, {}};
               },
               {in[0], in[0], in[0]}, {in[1]})
        .carries;
  };
  check(one_start, {kSquare, kSquares});
  // Slices: each has its own part of a state, and its own terms of a sum.
  const TraceFn sliced = [](const Tensors& in) {
    const ScanResult r = scan(
        [&](const Tensors& c, const Tensors& x) {
          const Tensor read = matmul(x[0], in[2]);
          return StepOutput{{c[0] + matmul(read, read, {.a = true})}, {sum(read * c[0])}};
        },
        {in[0]}, {in[1]});
    return Tensors{r.carries[0], r.ys[0]};
  };
  check(sliced, {f64({4, kSize, kSize}), f64({kSteps, 4, kSize, kSize}), kSquare});
}

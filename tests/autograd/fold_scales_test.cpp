// The promise: a step of gradient descent in a loop scales what is small, w + A (-s B) for w - s A B, with the values
// and derivatives of the unrolled loop, which is left as it was written; and only where this takes no product more.
#include <algorithm>

#include "ops/table.h"
#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kSteps = 3, kBatch = 2, kRows = 2, kIn = 5, kOut = 4;

struct Descent {
  std::string what;
  Shape rate;
  std::function<Tensor(Tensor w, Tensor rate, Tensor g)> update;
  bool folds = true;
  bool shows_gradient = false;  // as another result of each step
};

const Descent kDescents[] = {
    {"a number", {}, [](Tensor w, Tensor rate, Tensor g) { return w - rate * g; }},
    {"a number at the right", {1}, [](Tensor w, Tensor rate, Tensor g) { return w - g * rate; }},
    {"a number a matrix", {kBatch, 1, 1}, [](Tensor w, Tensor rate, Tensor g) { return w - rate * g; }},
    {"ascent", {1, 1}, [](Tensor w, Tensor rate, Tensor g) { return rate * g + w; }},
    {"a rate of each row", {kIn, 1}, [](Tensor w, Tensor rate, Tensor g) { return w - rate * g; }, false},
    {"a rate of each column", {kOut}, [](Tensor w, Tensor rate, Tensor g) { return w - rate * g; }, false},
    {"a gradient that is read",
     {},
     [](Tensor w, Tensor rate, Tensor g) { return w - rate * g; },
     false,
     true},
};

std::vector<Spec> specs_of(const Descent& d) {
  return {f64({kBatch, kIn, kOut}), f64(d.rate), f64({kSteps, kBatch, kRows, kIn}),
          f64({kSteps, kBatch, kRows, kOut})};
}

Tensor descended(const Descent& d, const Tensors& in, const Loop& loop) {
  const ScanResult r = loop(
      [&](const Tensors& w, const Tensors& x) -> StepOutput {
        const Tensor g = grad(sum(square(tanh(matmul(x[0], w[0])) - x[1])), w[0]);
        return {{d.update(w[0], in[1], g)}, d.shows_gradient ? Tensors{g} : Tensors{}};
      },
      {in[0]}, {in[2], in[3]}, {});
  const Tensor last = sum(square(r.carries[0]));
  return d.shows_gradient ? last + sum(r.ys[0] * r.ys[0]) : last;
}

// Multiplications of whole weights in the loop's step.
std::int64_t large_scalings(const Descent& d) {
  const Function f =
      trace([&](const Tensors& in) { return Tensors{descended(d, in, as_scan)}; }, specs_of(d));
  std::int64_t count = 0;
  for (const GraphNode& n : f.graph().nodes())
    if (is_scan(n))
      count += std::ranges::count_if(body_of(n).nodes, [](const GraphNode& of) {
        return of.op == &mul_op && of.spec.shape == Shape{kBatch, kIn, kOut};
      });
  return count;
}

}  // namespace

TEST_CASE(
    "the scale of an update in a loop goes to the smaller factor, where the product is read by nothing else") {
  for (const Descent& d : kDescents) {
    CAPTURE(d.what);
    CHECK(large_scalings(d) == (d.folds ? 0 : 1));
  }
}

TEST_CASE(
    "loops whose updates are scaled in a factor have the derivatives of the unrolled loop, to order 3") {
  for (const Descent& d : kDescents) {
    CAPTURE(d.what);
    const std::vector<Spec> specs = specs_of(d);
    const Arrays at = random(specs, 21, -0.7, 0.7);
    for (int order = 0; order <= 3; ++order) {
      CAPTURE(order);
      const auto by = [&](const Loop& loop) {
        return derivative([&](const Tensors& in) { return descended(d, in, loop); }, specs, order)(at);
      };
      CHECK(max_error(by(as_scan), by(unrolled)) < 1e-11);
    }
  }
}

TEST_CASE("an update with more rows than the weight has is scaled as it was written") {
  const std::vector<Spec> specs{f64({2, 2}), f64({1}), f64({3, 7, 2})};
  const Function f = trace(
      [](const Tensors& in) {
        const ScanResult r = scan(
            [&](const Tensors& w, const Tensors& x) -> StepOutput {
              return {{w[0] - in[1] * matmul(x[0], x[0], {.a = true})}, {}};
            },
            {in[0]}, {in[2]});
        return Tensors{r.carries[0]};
      },
      specs);
  int scans = 0;
  for (const GraphNode& n : f.graph().nodes()) {
    if (!is_scan(n)) continue;
    ++scans;
    CHECK(std::ranges::none_of(body_of(n).nodes,
                               [](const GraphNode& of) { return of.op == &mul_op && of.spec.size() > 4; }));
    CHECK(std::ranges::any_of(body_of(n).nodes,
                              [](const GraphNode& of) { return of.op == &mul_op && of.spec.size() == 4; }));
  }
  CHECK(scans == 1);
}

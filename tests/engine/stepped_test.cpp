// The promise: a scan reads and writes rearranged sequences where they are, if each of its steps finds its
// part in one piece, and gives the same bits as if they had been copied.
#include "tests/autograd/deriving.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kBatch = 2, kHeads = 3, kTime = 6, kRows = 4, kDim = 5;

// Sums over time of tanh(s + x), per batch and head, and what it was at every step.
Tensors running(Tensor x) {  // [time, batch, heads, ..]
  Shape state = x.shape();
  state.erase(state.begin());
  const ScanResult r = scan(
      [](const Tensors& c, const Tensors& in) -> StepOutput {
        const Tensor next = tanh(c[0] + in[0]);
        return {{next}, {next * in[0]}};
      },
      {zeros(x.dtype(), state)}, {x});
  return {r.carries[0], r.ys[0]};
}

// The plan of fn has so many copies of this name, and the bits of the ops one by one.
void check(const std::vector<Spec>& specs, const std::function<Tensors(const Tensors&)>& fn,
           std::string_view op, std::size_t copies) {
  const Arrays in = random(specs, 3);
  Graph eager(GraphMode::eager);
  Arrays expected;
  {
    const GraphScope scope(eager);
    Tensors inputs;
    for (const Array& a : in) inputs.push_back(eager.input(a));
    for (const Tensor& t : fn(inputs)) expected.push_back(eager.node(t.id()).value);
  }
  const Function f = trace(fn, specs);
  for (const bool slice : {true, false})
    for (const int every : {0, 2}) {
      CAPTURE(slice);
      CAPTURE(every);
      Plan plan = f.plan({.simplify = false, .slice = slice, .checkpoint_every = every});
      INFO(plan.str());
      CHECK(same_bits(plan.run(in), expected));
      if (slice) CHECK(count(plan.str(), op) == copies);
    }
}

}  // namespace

TEST_CASE("Sequences of heads are read where they are, in any order of the axes that leaves rows whole") {
  const auto time_first = [](const Tensors& in) { return running(permute(in[0], {2, 0, 1, 3, 4})); };
  check({f64({kBatch, kHeads, kTime, kRows, kDim})}, time_first, " permute ", 0);
  const auto heads_first = [](const Tensors& in) { return running(permute(in[0], {1, 2, 0, 3, 4})); };
  check({f64({kHeads, kTime, kBatch, kRows, kDim})}, heads_first, " permute ", 0);
  const auto second_half = [](const Tensors& in) { return running(slice(in[0], 0, kTime / 2, kTime)); };
  check({f64({kTime, kBatch, kHeads, kRows, kDim})}, second_half, " slice ", 0);
  const auto same_for_all_heads = [](const Tensors& in) {
    return running(broadcast_to(in[0], {kTime, kBatch, kHeads, kRows, kDim}));
  };
  check({f64({kTime, kBatch, 1, kRows, kDim})}, same_for_all_heads, " broadcast_to ", 1);  // the zeros
}

TEST_CASE("What would lie in pieces, or is read otherwise as well, is copied") {
  const auto transposed = [](const Tensors& in) { return running(permute(in[0], {2, 0, 1, 4, 3})); };
  check({f64({kBatch, kHeads, kTime, kDim, kRows})}, transposed, " permute ", 1);
  const auto returned = [](const Tensors& in) {
    Tensors out = running(permute(in[0], {2, 0, 1, 3, 4}));
    out.push_back(permute(in[0], {2, 0, 1, 3, 4}));
    return out;
  };
  check({f64({kBatch, kHeads, kTime, kRows, kDim})}, returned, " permute ", 1);
}

TEST_CASE("Stacks that are only read rearranged are written so") {
  const std::vector<Spec> specs{f64({kTime, kBatch, kHeads, kRows, kDim})};
  check(
      specs,
      [](const Tensors& in) {
        return Tensors{permute(running(in[0])[1], {1, 2, 0, 3, 4})};
      },
      " permute ", 0);
  check(
      specs,
      [](const Tensors& in) {
        return Tensors{exp(permute(running(in[0])[1], {1, 2, 0, 3, 4}))};
      },
      " permute ", 0);
  check(
      specs,
      [](const Tensors& in) {
        return Tensors{permute(running(in[0])[1], {1, 2, 0, 4, 3})};
      },
      " permute ", 1);
  check(
      specs,
      [](const Tensors& in) {
        const Tensor y = running(in[0])[1];
        return Tensors{permute(y, {1, 2, 0, 3, 4}), y};
      },
      " permute ", 1);
  check(
      specs, [](const Tensors& in) { return Tensors{slice(running(in[0])[1], 0, 1, 3)}; }, " slice ", 1);
}

TEST_CASE("A sequence of steps without a number may be rearranged") {
  for (const Shape& shape : {Shape{kBatch, kTime, 0}, Shape{0, kTime, kDim}, Shape{kBatch, kTime, 0, kDim}}) {
    CAPTURE(to_string(shape));
    const auto swapped = [](const Tensors& in) {
      std::vector<int> order{1, 0, 2, 3};
      order.resize(in[0].shape().size());
      return running(permute(in[0], order));
    };
    const Function f = trace(swapped, {f64(shape)});
    CHECK(f({random(f64(shape), 1)})[1].shape() == f.output_spec(1).shape);
  }
}

TEST_CASE("Derivatives of scans over rearranged sequences are those of the unrolled loop") {
  const std::vector<Spec> specs{f64({kBatch, kHeads, kTime, kRows, kDim})};
  const auto fn = [](const Loop& loop) {
    return [loop](const Tensors& in) {
      const Tensor x = permute(in[0], {2, 0, 1, 3, 4});
      const ScanResult r = loop(
          [](const Tensors& c, const Tensors& xs) -> StepOutput {
            const Tensor next = tanh(c[0] + xs[0]);
            return {{next}, {next * xs[0]}};
          },
          {zeros(x.dtype(), {kBatch, kHeads, kRows, kDim})}, {x}, {});
      return sum(square(permute(r.ys[0], {1, 2, 0, 3, 4})));
    };
  };
  const Arrays at = random(specs, 5);
  for (int order = 1; order <= 2; ++order)
    CHECK(max_error(derivative(fn(as_scan), specs, order)(at), derivative(fn(unrolled), specs, order)(at)) <
          1e-13);
}

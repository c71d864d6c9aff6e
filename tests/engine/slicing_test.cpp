// The promise: a scan whose sequences and heads are independent is run slice by slice, by any number of
// threads with the same bits, and gives what the whole scan gives; one whose slices are not independent is
// left whole.
#include <thread>

#include "engine/core/threads.h"
#include "engine/run/interpreter.h"
#include "ops/accumulate.h"
#include "tests/autograd/deriving.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kTime = 7, kBatch = 2, kHeads = 3, kDim = 4;

// Sliced as `text` says ("slices 6"), equal to the whole, and the same bits for workers and schedules.
void check_sliced(const Function& f, std::string_view text) {
  const Arrays in = random(
      [&] {
        std::vector<Spec> specs;
        for (std::size_t i = 0; i < f.inputs().size(); ++i) specs.push_back(f.input_spec(i));
        return specs;
      }(),
      5);
  Plan plan = f.plan({.workers = 1});
  INFO(plan.str());
  CHECK(contains(plan.str(), text));
  const Arrays alone = plan.run(in);
  CHECK(max_error(alone, f.plan({.slice = false}).run(in)) < 1e-13);
  for (int workers : {2, 5})
    for (int every : {0, 1, 2, 3}) {
      CAPTURE(workers);
      CAPTURE(every);
      CHECK(same_bits(f.plan({.checkpoint_every = every, .workers = workers}).run(in), alone));
    }
}

// Outputs and the gradient with respect to all inputs, up
// to the order, of the sum of squares of what fn gives.
Function with_gradients(const std::vector<Spec>& specs, const std::function<Tensors(const Tensors&)>& fn,
                        int order = 1) {
  return trace(
      [&](const Tensors& in) {
        Tensors out = fn(in);
        Tensor y;
        for (const Tensor& t : out) accumulate(y, sum(square(t)));
        for (int n = 0; n < order; ++n) {
          const Tensors g = grad(y, in, {.allow_zero = true});
          out.insert(out.end(), g.begin(), g.end());
          y = sum(square(g[0]));
          for (std::size_t i = 1; i < g.size(); ++i) y = y + sum(square(g[i]));
        }
        return out;
      },
      specs);
}

// A fast weight per sequence and head, W <- keep W - x' (x
// W - gain x), with a gain per head and a keep for all.
const std::vector<Spec> kLearner{f64({kBatch, kHeads, kDim, kDim}), f64({kTime, kBatch, kHeads, 5, kDim}),
                                 f64({kHeads, 1, kDim}), f64({})};
Tensors learner_of(const Tensors& in) {
  const ScanResult r = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        const Tensor error = matmul(x[0], c[0]) - in[2] * x[0];
        const Tensor next = in[3] * c[0] - 0.1 * matmul(x[0], error, {.a = true});
        return {{next}, {matmul(tanh(x[0]), next)}};
      },
      {in[0]}, {in[1]});
  return {r.carries[0], r.ys[0]};
}

}  // namespace

TEST_CASE("a learner per sequence and head is run slice by slice, and so are its derivatives") {
  check_sliced(trace([](const Tensors& in) { return learner_of(in); }, kLearner), "slices 6 ");
  for (int order : {1, 2}) {
    const Function f = with_gradients(kLearner, learner_of, order);
    // One of the scans makes the weights again that the derivatives read.
    CHECK(count(f.plan({}).str(), "slices 6 ") == static_cast<std::size_t>(order == 1 ? 3 : 5));
    check_sliced(f, "slices 6 ");
  }
}

TEST_CASE("slices with little to do are run in groups of heads, and so are their derivatives") {
  constexpr std::int64_t heads = 12;
  const auto learner = [](std::int64_t rows, std::int64_t dim) {
    const std::vector<Spec> specs{f64({kBatch, heads, dim, dim}), f64({kTime, kBatch, heads, rows, dim}),
                                  f64({heads, 1, dim}), f64({})};
    return with_gradients(specs, learner_of);
  };
  const Function small = learner(1, 4);                  // 24 slices: 6 heads in each of 4
  CHECK(count(small.plan({}).str(), "slices 4 ") == 3);  // with the scan that makes weights again
  check_sliced(small, "slices 4 ");
  CHECK(count(learner(64, 16).plan({}).str(), "slices 24 ") == 2);  // products of 32768 flops
  CHECK(count(learner(1, 24).plan({}).str(), "slices 8 ") == 3);    // 4,608 bytes each: not six, but three
  CHECK(count(learner(1, 60).plan({}).str(), "slices 24 ") == 3);   // 28,800 bytes each: one fills the cache
  // Heads before sequences: what six heads have of one sequence lies in pieces, so each is run by itself.
  check_sliced(trace(
                   [](const Tensors& in) {
                     const ScanResult r = scan(
                         [](const Tensors& c, const Tensors& x) -> StepOutput {
                           const Tensor next = tanh(c[0]) * x[0];
                           return {{next}, {permute(next, {1, 0, 2, 3})}};
                         },
                         {in[0]}, {in[1]});
                     return Tensors{r.carries[0], r.ys[0]};
                   },
                   std::vector<Spec>{f64({kBatch, heads, 2, 2}), f64({kTime, kBatch, heads, 2, 2})}),
               "slices 24 ");
}

TEST_CASE("what groups of slices add to together is added up in their order") {
  constexpr std::int64_t heads = 8;
  check_sliced(
      trace(
          [](const Tensors& in) {
            const ScanResult r = scan(
                [](const Tensors& c, const Tensors& x) -> StepOutput {
                  const Tensor next = c[0] * x[0];
                  return {{next, c[1] + reshape(sum(next, {0, 1}, kKeep), {2, 2})}, {}};
                },
                {in[0], in[1]}, {in[2]});
            return r.carries;
          },
          std::vector<Spec>{f64({kBatch, heads, 2, 2}), f64({2, 2}), f64({kTime, kBatch, heads, 2, 2})}),
      "slices 4 ");
}

TEST_CASE("what slices add to together is added up in their order") {
  check_sliced(trace(
                   [](const Tensors& in) {
                     const ScanResult r = scan(
                         [&](const Tensors& c, const Tensors& x) -> StepOutput {
                           const Tensor next = c[0] * x[0];
                           return {{next, c[1] + reshape(sum(next, {0}, kKeep), {kHeads, 2, 2}),
                                    c[2] + reshape(-sum(next, {0, 1}, kKeep), {2, 2})},
                                   {}};
                         },
                         {in[0], in[1], in[2]}, {in[3]});
                     return r.carries;
                   },
                   std::vector<Spec>{f64({kBatch, kHeads, 2, 2}), f64({kHeads, 2, 2}), f64({2, 2}),
                                     f64({kTime, kBatch, kHeads, 2, 2})}),
               "slices 6 ");
}

TEST_CASE("a carry that all slices share is computed by each and written by one") {
  check_sliced(trace(
                   [](const Tensors& in) {
                     const ScanResult r = scan(
                         [&](const Tensors& c, const Tensors& x) -> StepOutput {
                           const Tensor shared = tanh(c[1] + in[3]);
                           return {{c[0] * x[0] + shared, shared}, {shared, 2.0 * c[0]}};
                         },
                         {in[0], in[1]}, {in[2]});
                     return Tensors{r.carries[0], r.carries[1], r.ys[0], r.ys[1]};
                   },
                   std::vector<Spec>{f64({kBatch, kHeads, 2, 2}), f64({2, 2}),
                                     f64({kTime, kBatch, kHeads, 2, 2}), f64({2, 2})}),
               "slices 6 ");
}

TEST_CASE("constants spread over the slices are cut with them") {
  check_sliced(
      trace(
          [](const Tensors& in) {
            const ScanResult r = scan(
                [&](const Tensors& c, const Tensors& x) -> StepOutput {
                  const Tensor ones = broadcast_to(in[2], {kBatch, kHeads, 2, 2});
                  return {{c[0] * x[0] + square(ones) * (1.0 + ones)}, {}};
                },
                {in[0]}, {in[1]});
            return r.carries;
          },
          std::vector<Spec>{f64({kBatch, kHeads, 2, 2}), f64({kTime, kBatch, kHeads, 2, 2}), f64({2})}),
      "slices 6 ");
}

TEST_CASE("where only one axis is independent, only that one is cut") {
  const auto mixing = [](int axis) {
    return trace(
        [=](const Tensors& in) {
          const ScanResult r = scan(
              [&](const Tensors& c, const Tensors& x) -> StepOutput {
                return {{tanh(c[0] - mean(c[0], {axis}, kKeep)) + x[0]}, {}};
              },
              {in[0]}, {in[1]});
          return r.carries;
        },
        std::vector<Spec>{f64({kBatch, kHeads, 2, 2}), f64({kTime, kBatch, kHeads, 2, 2})});
  };
  check_sliced(mixing(1), "slices 2 ");
  // Nor where the heads meet in what is stacked alone.
  check_sliced(trace(
                   [](const Tensors& in) {
                     const ScanResult r = scan(
                         [](const Tensors& c, const Tensors& x) -> StepOutput {
                           const Tensor next = tanh(c[0]) + x[0];
                           return {{next}, {square(sum(next, {1}, kKeep))}};
                         },
                         {in[0]}, {in[1]});
                     return Tensors{r.carries[0], r.ys[0]};
                   },
                   std::vector<Spec>{f64({kBatch, kHeads, 2, 2}), f64({kTime, kBatch, kHeads, 2, 2})}),
               "slices 2 ");
  // Heads are independent, but those of one head do not lie together.
  CHECK(contains(mixing(0).plan({}).str(), "slices 1 "));
}

TEST_CASE("slices that are not independent, or not treated alike, are left whole") {
  const auto whole = [](const std::function<Tensor(Tensor c, Tensor x)>& next) {
    const Function f = trace(
        [&](const Tensors& in) {
          return scan(
                     [&](const Tensors& c, const Tensors& x) -> StepOutput {
                       return {{next(c[0], x[0])}, {}};
                     },
                     {in[0]}, {in[1]})
              .carries;
        },
        std::vector<Spec>{f64({kHeads, 2, 2}), f64({kTime, kHeads, 2, 2})});
    CHECK(contains(f.plan({}).str(), "slices 1 "));
  };
  whole([](Tensor c, Tensor x) { return c * x + sum(c, {0}, kKeep); });
  whole([](Tensor c, Tensor x) { return c * x + iota(DType::f64, {kHeads, 1, 1}, 0); });
  whole([](Tensor c, Tensor x) { return concat({slice(c, 0, 1, kHeads), slice(c, 0, 0, 1)}, 0) * x; });
}

TEST_CASE("a batch, heads or rows of none are run as any other number is") {
  for (const int axis : {0, 1, 2, 3}) {
    std::vector<Spec> specs{f64({2, 3, 4, 4}), f64({kTime, 2, 3, 5, 4})};
    if (axis == 3) specs[0].shape[2] = specs[0].shape[3] = specs[1].shape[4] = 0;
    else {
      if (axis < 2) specs[0].shape[static_cast<std::size_t>(axis)] = 0;
      specs[1].shape[static_cast<std::size_t>(axis) + 1] = 0;
    }
    INFO("axis ", axis);
    const Function f = with_gradients(
        specs,
        [](const Tensors& in) -> Tensors {
          const StepFn step = [](const Tensors& c, const Tensors& x) {
            const Tensor error = matmul(x[0], c[0]) - x[0];
            return StepOutput{{c[0] - 0.1 * matmul(x[0], error, {.a = true})}, {error}};
          };
          const ScanResult out = scan(step, {in[0]}, {in[1]});
          return {out.carries[0], out.ys[0]};
        },
        2);
    const Arrays in = random(specs, 3);
    const Arrays expected = interpret(f, in);
    for (const bool slice : {true, false})
      for (const int every : {0, 1, 3})
        CHECK(same_bits(f.plan({.slice = slice, .checkpoint_every = every}).run(in), expected));
  }
}

TEST_CASE("an axis of a batch of none is not taken for another that is as long") {
  const std::vector<Spec> specs{f64({0, 2, 3, 3}), f64({kTime, 2})};
  const Function f = trace(
      [](const Tensors& in) {
        return scan(
                   [](const Tensors& c, const Tensors& x) -> StepOutput {
                     const Tensor narrow = matmul(c[0], reshape(concat({x[0], x[0], x[0]}, 0), {3, 2}));
                     return {{reshape(narrow, {0, 2, 3, 3})}, {}};  // of [0, 2, 3, 2]
                   },
                   {in[0]}, {in[1]})
            .carries;
      },
      specs);
  CHECK(f(random(specs, 5))[0].shape() == Shape{0, 2, 3, 3});
}

TEST_CASE("a sum over the slices of one axis is not added up for each slice of another") {
  const std::vector<Spec> specs{f64({1, 1, 1}), f64({2, 1, 1, 1}), f64({kTime, 3, 1, 1})};
  const Function f = trace(
      [](const Tensors& in) {
        return scan(
                   [&](const Tensors& c, const Tensors& x) -> StepOutput {
                     return {{c[0] + sum(x[0], {0}, kKeep), c[1] * 2.0}, {}};
                   },
                   {in[0], in[1]}, {in[2]})
            .carries;
      },
      specs);
  const Arrays in = random(specs, 3);
  CHECK(max_error(f.plan({}).run(in), interpret(f, in)) < 1e-13);
}

TEST_CASE("a scan whose slices meet in a value that nobody reads in the end is left whole") {
  const std::vector<Spec> specs{f64({kBatch, kHeads, 1, 1}), f64({})};
  const Function f = trace(
      [](const Tensors& in) {
        return scan(
                   [](const Tensors& c, const Tensors&) -> StepOutput {
                     // What the inner loop makes of one slice alone is not read.
                     const Tensor one = sum(slice(c[0], 1, 1, 2));
                     const ScanResult inner = scan(
                         [&](const Tensors& i, const Tensors&) -> StepOutput {
                           return {{i[0] * one, tanh(i[1])}, {}};
                         },
                         {c[1], c[0]}, {}, {.steps = 2});
                     return {{inner.carries[1], c[1]}, {}};
                   },
                   {in[0], in[1]}, {}, {.steps = 2})
            .carries;
      },
      specs);
  const Arrays in = random(specs, 3);
  CHECK(same_bits(f.plan({}).run(in), interpret(f, in)));
}

TEST_CASE("a run knows nothing of the run before it, whichever thread has which slice") {
  const int threads = thread_count();
  set_thread_count(4);
  const Function f = with_gradients(kLearner, learner_of);
  Plan checkpointed = f.plan({.checkpoint_every = 2, .workers = 4}), stored = f.plan({.workers = 1});
  // Other threads in the way, so that now this one and now that one takes a slice.
  std::vector<std::jthread> others;
  for (int i = 0; i < 4; ++i)
    others.emplace_back([](std::stop_token stop) {
      while (!stop.stop_requested()) {
      }
    });
  int wrong = 0;
  for (std::uint64_t run = 0; run < 300; ++run) {
    const Arrays in = random(kLearner, run);
    wrong += !same_bits(checkpointed.run(in), stored.run(in));
  }
  CHECK(wrong == 0);
  set_thread_count(threads);
}

TEST_CASE("an error inside of a slice names op and line") {
  const Function f = trace(
      [](const Tensors& in) {
        return scan(
                   [&](const Tensors& c, const Tensors& x) -> StepOutput {
                     return {{c[0] * reshape(gather(in[2], x[0]), {kHeads, 1, 2})}, {}};
                   },
                   {in[0]}, {in[1]})
            .carries;
      },
      std::vector<Spec>{f64({kHeads, 2, 2}), i32({kTime, kHeads}), f64({5, 2})});
  const Arrays in{random(f64({kHeads, 2, 2}), 1), Array::full(DType::i32, {kTime, kHeads}, 7),
                  random(f64({5, 2}), 2)};
  CHECK(contains(message_of<ValueError>([&] { f(in); }), "slicing_test.cpp"));
}

TEST_CASE("a scan that is cut in as many slices as what it reads, but along another axis, reads all of it") {
  const std::vector<Spec> specs{f64({2, 5, 2, 2}), f64({kTime, 2, 5, 2, 2}), f64({2, 2, 2})};
  const Function f = trace(
      [](const Tensors& in) {
        const ScanResult first = scan(
            [](const Tensors& c, const Tensors& x) -> StepOutput {
              const Tensor next = tanh(c[0] - mean(c[0], {1}, kKeep)) + x[0];
              return {{next}, {next}};
            },
            {in[0]}, {in[1]});
        return scan(
                   [](const Tensors& c, const Tensors& x) -> StepOutput {
                     return {{tanh(c[0]) + 0.01 * sum(x[0])}, {}};
                   },
                   {in[2]}, {first.ys[0]})
            .carries;
      },
      specs);
  CHECK(count(f.plan({}).str(), "slices 2 ") == 2);
  const Arrays in = random(specs, 5);
  for (const int every : {0, 1, 3})
    CHECK(max_error(f.plan({.checkpoint_every = every}).run(in), f.plan({.slice = false}).run(in)) < 1e-13);
}

// One scan after the other, each of which reads what the one before it makes: a value that is small, spread
// over another axis, or a mean of it.
Tensors relay(const Tensors& in) {
  const auto spread = [](Tensor y, std::int64_t n) {
    return broadcast_to(reshape(y, {n, 1, 3, 4}), {n, 2, 3, 4});
  };
  const ScanResult first = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        const Tensor next = tanh(c[0] * 0.5 + mean(x[0], {0, 1}));
        return {{next}, {spread(next, 2)}};
      },
      {in[0]}, {in[1]});
  const ScanResult second = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        const Tensor next = tanh(c[0] * 0.5 + mean(mean(x[0], {0}, kKeep), {1}, kKeep));
        return {{next}, {spread(next, 2)}};
      },
      {in[2]}, {first.ys[0]});
  const ScanResult third = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        return {{tanh(c[0] * 0.5 + mean(x[0], {0, 1}))}, {}};
      },
      {reshape(tanh(second.carries[0]), {2, 3, 4})}, {second.ys[0]});
  return {third.carries[0]};
}

TEST_CASE("whatever is recomputed, sums over slices are added up in the same order") {
  const std::vector<Spec> specs{f64({2, 3, 4}), f64({kTime, 2, 2, 3, 4}), f64({2, 1, 3, 4})};
  const Function f = trace([](const Tensors& in) { return grad(sum(square(relay(in)[0])), {in[2]}); }, specs);
  const Arrays in = random(specs, 5);
  const Arrays plain = f.plan({.rematerialize = false}).run(in);
  for (const int every : {0, 1, 3}) CHECK(same_bits(f.plan({.checkpoint_every = every}).run(in), plain));
}

TEST_CASE("what is recomputed decides nothing about slices") {
  const std::vector<Spec> specs{f64({5, 3, 4}), f64({kTime, 2, 1, 3, 4}), f64({kTime, 2, 5, 3, 4})};
  const Function f = with_gradients(specs, [](const Tensors& in) {
    return scan(
               [](const Tensors& c, const Tensors& x) -> StepOutput {
                 const Tensor v = x[0] + x[1], chosen = select(greater(v, 0.2 * v * v), v, -v);
                 return {{c[0] + 0.1 * sum(chosen, {0})}, {}};
               },
               {in[0]}, {in[1], in[2]})
        .carries;
  });
  const Arrays in = random(specs, 5);
  const Arrays plain = f.plan({.rematerialize = false}).run(in);
  for (const int every : {0, 1, 3})
    for (const bool again : {false, true})
      CHECK(same_bits(f.plan({.rematerialize = again, .checkpoint_every = every}).run(in), plain));
}

TEST_CASE(
    "scans that are cut in other slices and read one another step by step give the bits of whole ones") {
  const std::vector<Spec> specs{f64({kBatch, kHeads, kDim, kDim}), f64({kTime, kBatch, kHeads, 5, kDim}),
                                f64({kHeads, 1, kDim}), f64({}), f64({kBatch, 1, 5, kDim})};
  const auto both = [](const Tensors& in) {
    const Tensors learnt = learner_of({in[0], in[1], in[2], in[3]});
    const ScanResult over_heads = scan(
        [](const Tensors& c, const Tensors& x) -> StepOutput {
          return {{tanh(c[0] + sum(x[0], {1}, kKeep))}, {}};
        },
        {in[4]}, {learnt[1]});
    return Tensors{learnt[0], over_heads.carries[0]};
  };
  const Arrays in = random(specs, 5);
  for (const Function& f : {trace(both, specs), with_gradients(specs, both)}) {
    const Arrays whole = f.plan({.slice = false}).run(in);
    for (int every : {0, 1, 2, 3}) {
      CAPTURE(every);
      CHECK(max_error(f.plan({.checkpoint_every = every, .workers = 2}).run(in), whole) < 1e-13);
    }
  }
}

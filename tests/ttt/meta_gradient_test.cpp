// Promises of the gradient through the inner loop: it is the derivative, and no schedule changes a bit of it.
#include "tests/ops/check_grads.h"
#include "tests/ttt/named_learners.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Subject subject(const NamedLearner& named, const Sizes& sizes, FormChoice form, int orders) {
  const Function f = reading(named, sizes, [&](const Reading& r) {
    return values_of(
        ttt::train_along(r.learner, r.start, r.views, {.policy = {.chunk = sizes.mini_batch}, .form = form}));
  });
  return {.what = named.name,
          .fn = [f](const Tensors& in) { return f(std::span<const Tensor>(in)); },
          .inputs = numbers_for(f),
          .active = {},
          .tolerance = 1,
          .orders = orders};
}

}  // namespace

TEST_CASE("the meta-gradient is the central difference, and Taylor remainders shrink at their rates") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4, .mini_batch = 2};
  for (const NamedLearner& named : {ttt_linear(sizes), ttt_mlp(sizes)})
    for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
      Subject s = subject(named, sizes, form, 2);
      CHECK(join(check_taylor(s)) == "");
      s.tolerance =
          1e4;  // what is left is the difference's own: fast weights behind a layer norm curve strongly
      CHECK(join(check_grads(s)) == "");
      CHECK(join(check_products(s)) == "");
    }
}

TEST_CASE(
    "negative control: a meta-gradient that misses the path through the inner gradient fails each check") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4, .mini_batch = 2};
  const NamedLearner whole = ttt_linear(sizes);
  const NamedLearner cut{
      "first order only", [whole](const Params& p) {
        const std::shared_ptr<ttt::Learner> inner = whole.make(p);
        return std::make_unique<FormulaLearner>(
            inner->init(), [inner](const Weights& w, Tensor x) { return inner->predict(w, x); },
            [inner](const Weights& w, Tensor k, Tensor v) { return inner->loss(w, stop_gradient(k), v); });
      }};
  Subject s = subject(cut, sizes, FormChoice::dual, 1);
  CHECK(join(check_taylor(s)) != "");
  s.tolerance = 1e4;
  CHECK(join(check_grads(s)) != "");
  CHECK(join(check_products(s)) != "");
}

TEST_SUITE("slow") {
  TEST_CASE("every checkpoint schedule gives the same bits of values and gradients, to order 3") {
    const Sizes sizes{
        .batch = 1, .heads = 2, .time = 13, .dim = 4, .mini_batch = 2};  // six mini-batches and a part of one
    const NamedLearner named = ttt_linear(sizes);
    for (int order = 1; order <= 3; ++order) {
      const Function f = derivatives(named, sizes, along({.policy = {.chunk = sizes.mini_batch}}), order);
      const Arrays in = numbers_for(f), stored = f(in);
      for (int every : {1, 2, 3, 4, 5, 6, 7}) {
        CAPTURE(order);
        CAPTURE(every);
        CHECK(same_bits(f.plan({.checkpoint_every = every}).run(in), stored));
        const Function asked = derivatives(
            named, sizes, along({.policy = {.chunk = sizes.mini_batch}, .checkpoint_every = every}), order);
        CHECK(same_bits(asked(in), stored));
        CHECK(same_bits(asked.plan({.checkpoint_every = 0}).run(in), stored));
      }
    }
  }
}

TEST_CASE("checkpointing a long sequence saves memory") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 256, .dim = 8, .mini_batch = 4};
  const Function f = derivatives(ttt_mlp(sizes), sizes, along({.policy = {.chunk = 4}}), 1);
  CHECK(f.plan({.checkpoint_every = 8}).stats().arena_bytes <
        f.plan({.checkpoint_every = 0}).stats().arena_bytes / 2);
}

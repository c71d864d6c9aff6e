// The promise: a gate with a weight's name behind it is for that weight alone, in every form; so numbers per input
// feature stand beside rows, which have no inputs.
#include "tests/ttt/methods.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::gate;
using Update = Policy::Update;

namespace {

Method forgetting(std::vector<GateInput> gates, bool before_gradient = false) {
  return {"forgetting", std::move(gates), [=](const Params&) {
            Hand hand;
            if (before_gradient) hand.point = [](Tensor w, const Now& now) { return now("keep") * w; };
            hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = now("keep") * w[0] - g; };
            return std::pair(InnerOptimizer().keep(gate("keep"), before_gradient), hand);
          }};
}

// Forms that do not give what the loop by hand does, to second order.
std::string wrong(const LoopCase& loop, const std::vector<FormChoice>& forms) {
  return differing(loop, numbers(loop, by_hand(), 2), 2, forms);
}

}  // namespace

TEST_CASE("gates of single weights, per feature beside a row, are those of the loop by hand, to order 2") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 6, .dim = 4};
  const NamedLearner biased = perceptron("x W + b", 2, {4, 4}, tanh);
  const Method apart = forgetting({{"keep.W1", true}, {"keep.b1"}}),
               product = forgetting({{"keep"}, {"keep.W1", true}});
  for (const Method& method : {apart, product}) {
    CHECK(wrong({biased, method, {.chunk = 1}, sizes}, {FormChoice::primal, FormChoice::dual}) == "");
    CHECK(wrong({biased, method, {.chunk = 4}, sizes}, {FormChoice::primal, FormChoice::dual}) == "");
    CHECK(wrong({biased, method, {.chunk = 4, .update = Update::per_chunk}, sizes},
                {FormChoice::primal, FormChoice::dual}) == "");
  }
}
TEST_CASE("a gate of a single weight acts where the gradient is taken, too") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4};
  const Method before = forgetting({{"keep"}, {"keep.W", true}}, true);
  CHECK(wrong({matrix_of(sizes), before, {.chunk = 1}, sizes}, {FormChoice::primal, FormChoice::wy}) == "");
}
TEST_CASE("wrong use: a gate that a weight lacks, and numbers per feature for a row") {
  const Sizes sizes{.batch = 1, .heads = 1, .time = 4, .dim = 4};
  const NamedLearner biased = perceptron("x W + b", 1, {4, 4}, tanh);
  const auto traced = [&](std::vector<GateInput> gates) {
    trace_case({biased, forgetting(std::move(gates)), {.chunk = 2}, sizes}, in_form(FormChoice::automatic));
  };
  CHECK(contains(message_of<ConfigError>([&] {
                   traced({{"keep.W1", true}});
                 }),
                 "needs the gate 'keep', which the views do not have for 'b1'"));
  CHECK(contains(message_of<ShapeError>([&] {
                   traced({{"keep", true}});
                 }),
                 "'b1' is a row that has no inputs; give 'keep.W' for each matrix"));
  CHECK(contains(message_of<ShapeError>([&] {
                   traced({{"keep"}, {"keep.b1", true}});
                 }),
                 "the gate 'keep.b1' is f64[1,1,4,4]"));
}

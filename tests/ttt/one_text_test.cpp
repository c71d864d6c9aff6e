// The promise: a learner computes for a token what it computes for it among any others. A text that makes something of how many
// tokens, chunks or sequences there are, wherever it does so, and a rule of its own in which tokens meet, is refused in every form.
#include <numeric>

#include "autograd/custom.h"
#include "autograd/scan.h"
#include "tests/ttt/by_hand.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using Update = Policy::Update;
using Factor = std::function<Tensor(Tensor k)>;

namespace {

const Sizes kSizes{.batch = 2, .heads = 3, .time = 8, .dim = 4};

Method plain() {
  return {"plain", {}, [](const Params&) { return std::pair(InnerOptimizer(), Hand()); }};
}

// x W, learning to answer with v, times a factor that is made of k.
LoopCase with_factor(const Factor& factor, const Policy& policy, const Sizes& sizes = kSizes) {
  return {matrix_of(sizes, [=](const Weights& w, Tensor k,
                               Tensor v) { return -sum(matmul(k, w["W"]) * v, {-1}, kKeep) * factor(k); }),
          plain(), policy, sizes};
}

// 1/2 |g(x W) - v|^2 with a function g that has this rule.
LoopCase with_rule(const RuleFn& rule, const Policy& policy) {
  return {matrix_of(kSizes,
                    [=](const Weights& w, Tensor k, Tensor v) {
                      const Tensor p = custom_vjp([](const Tensors& in) { return tanh(in[0]); }, rule,
                                                  {matmul(k, w["W"])});
                      return 0.5 * sum(square(p - v), {-1}, kKeep);
                    }),
          plain(), policy, kSizes};
}

double tokens_of(Tensor k) { return static_cast<double>(k.dim(-2)); }
Tensor number(Tensor like, double x) { return full(like.dtype(), {1, 1}, x); }
Tensor ones(Tensor like, const Shape& shape) { return full(like.dtype(), shape, 1); }
// x times a number in each of so many steps.
Tensor times(Tensor x, double by, std::int64_t steps) {
  const StepFn step = [by](const Tensors& carry, const Tensors&) -> StepOutput {
    return {{carry[0] * by}, {}};
  };
  return scan(step, {x}, {}, {.steps = steps}).carries[0];
}

constexpr const char* kRefused = "A learner computes the same for any number of tokens";

}  // namespace

TEST_CASE("a number of the rows' count is refused, wherever in the text it is and however it is made") {
  const std::vector<std::pair<std::string, Factor>> factors{
      {"a number", [](Tensor k) { return number(k, 1 / tokens_of(k)); }},
      {"ones added up",
       [](Tensor k) {
         return sum(ones(k, {k.dim(-2), 1}), {-2}, kKeep);
       }},
      {"all of them", [](Tensor k) { return sum(ones(k, k.shape())); }},
      {"those of the first axis",
       [](Tensor k) {
         return sum(ones(k, {k.dim(0), 1}), {0}, kKeep);
       }},
      {"those of the second axis",
       [](Tensor k) {
         return sum(ones(k, {k.dim(1), 1}), {0}, kKeep);
       }},
      {"the largest place",
       [](Tensor k) {
         return 1.0 + max(iota(k.dtype(), {k.dim(-2), 1}, 0), {-2}, kKeep);
       }},
      {"a product",
       [](Tensor k) {
         return matmul(ones(k, {1, k.dim(-2)}), ones(k, {k.dim(-2), 1}));
       }},
      {"logsumexp",
       [](Tensor k) {
         return logsumexp(0.0 * ones(k, {1, k.dim(-2)}), -1, kKeep);
       }},
      {"a number in a loop", [](Tensor k) { return times(number(k, 1), 1 / tokens_of(k), 1); }},
      {"the steps of a loop", [](Tensor k) { return times(number(k, 1), 0.7, k.dim(-2)); }},
      {"a number in a function",
       [](Tensor k) {
         return custom_vjp([n = tokens_of(k)](const Tensors& in) { return in[0] / n; },
                           [n = tokens_of(k)](const Tensors&, Tensor, Tensor ct) { return Tensors{ct / n}; },
                           {sigmoid(sum(k, {-1}, kKeep))});
       }},
      {"a slice",
       [](Tensor k) {
         const Tensor places = iota(k.dtype(), {k.dim(-2), 1}, 0);
         return slice(places, 0, k.dim(-2) - 1, k.dim(-2));
       }},
      {"an op for more than one", [](Tensor k) {
         const Tensor first = slice(k, -1, 0, 1);
         return k.dim(-2) > 1 ? tanh(first) : first;
       }}};
  for (const auto& [what, factor] : factors)
    for (const Update update : {Update::per_token, Update::per_chunk})
      for (const std::int64_t chunk : {1, 2, 4}) {
        CAPTURE_BOUND(what);
        CAPTURE(chunk);
        const LoopCase loop = with_factor(factor, {.chunk = chunk, .update = update});
        for (const FormChoice form : {FormChoice::primal, FormChoice::dual, FormChoice::automatic}) {
          const std::string why = refusal(loop, form);
          CHECK_MESSAGE(contains(why, kRefused), why);
        }
      }
}

TEST_CASE(
    "a text in which sequences meet by an axis counted from the front is refused in the primal form, asked for by name") {
  const LoopCase loop =
      with_factor([](Tensor k) { return sigmoid(sum(sum(k, {-1}, kKeep), {0}, kKeep)); }, {.chunk = 4});
  CHECK(contains(refusal(loop, FormChoice::automatic), "sequences and heads are not independent"));
  CHECK(contains(refusal(loop, FormChoice::primal), kRefused));
}

TEST_CASE("a number of the rows' count in the rule of a function is refused") {
  const RuleFn rule = [](const Tensors& in, Tensor, Tensor ct) { return Tensors{ct / tokens_of(in[0])}; };
  for (const Update update : {Update::per_token, Update::per_chunk})
    for (const std::int64_t chunk : {1, 4})
      for (const FormChoice form : {FormChoice::primal, FormChoice::automatic})
        CHECK(contains(refusal(with_rule(rule, {.chunk = chunk, .update = update}), form), kRefused));
}

TEST_CASE("what is made of features, and numbers that stay the same, is accepted for any number of tokens") {
  const std::vector<std::pair<std::string, Factor>> factors{
      {"the features' number", [](Tensor k) { return number(k, 1 / static_cast<double>(k.dim(-1))); }},
      {"features added up",
       [](Tensor k) {
         return sum(ones(k, {1, k.dim(-1)}), {-1}, kKeep);
       }},
      {"ones for each token",
       [](Tensor k) {
         return ones(k, {k.dim(-2), 1});
       }},
      {"pairs of features",
       [](Tensor k) {
         Shape pairs = k.shape();
         pairs.back() /= 2;
         pairs.push_back(2);
         return sum(max(reshape(tanh(k), pairs), {-1}), {-1}, kKeep);
       }},
      {"a loop of three steps", [](Tensor k) { return times(sigmoid(sum(k, {-1}, kKeep)), 0.7, 3); }},
      {"halves of the features", [](Tensor k) {
         return sigmoid(
             sum(slice(k, -1, 0, k.dim(-1) / 2) - slice(k, -1, k.dim(-1) / 2, k.dim(-1)), {-1}, kKeep));
       }}};
  for (const auto& [what, factor] : factors)
    for (const Update update : {Update::per_token, Update::per_chunk})
      for (const std::int64_t chunk : {1, 2, 4}) {
        CAPTURE_BOUND(what);
        const LoopCase loop = with_factor(factor, {.chunk = chunk, .update = update});
        CHECK(differing(loop, numbers(loop, in_form(FormChoice::primal), 1), 1,
                        {FormChoice::automatic, FormChoice::dual, FormChoice::parallel}) == "");
      }
}

TEST_CASE("a rule in which tokens, sequences or heads meet is refused as such a function is") {
  const auto rule = [](const std::function<Tensor(Tensor y, Tensor ct)>& back) {
    return RuleFn([=](const Tensors&, Tensor y, Tensor ct) { return Tensors{back(y, ct)}; });
  };
  const auto refused = [](const RuleFn& own, const std::string& noun) {
    for (const FormChoice form : {FormChoice::dual, FormChoice::automatic}) {
      const std::string why = refusal(with_rule(own, {.chunk = 4}), form);
      CHECK_MESSAGE(contains(why, noun + " are not independent"), why);
      CHECK_MESSAGE(contains(why, "inside the function's rule: "), why);
    }
  };
  refused(rule([](Tensor, Tensor ct) { return ct - mean(ct, {-2}, kKeep); }), "tokens");
  refused(rule([](Tensor, Tensor ct) { return ct / (0.1 + norm(ct, {-2, -1}, kKeep)); }), "tokens");
  refused(rule([](Tensor y, Tensor ct) { return ct * cumsum(square(y), -2); }), "tokens");
  refused(rule([](Tensor, Tensor ct) { return broadcast_to(sum(ct, {-2}, kKeep), ct.shape()); }), "tokens");
  refused(rule([](Tensor y, Tensor ct) {
            return ct * (1.0 + iota(y.dtype(), {y.dim(-2), 1}, 0));
          }),
          "tokens");
  refused(rule([](Tensor y, Tensor ct) {
            return ct * mean(square(y), {-4, -3}, kKeep);
          }),
          "sequences and heads");
}

TEST_CASE("a rule that takes each token by itself runs in all forms, what it gives a parameter added up") {
  const std::vector<RuleFn> rules{
      [](const Tensors&, Tensor y, Tensor ct) { return Tensors{ct * (1.0 - square(y))}; },
      [](const Tensors&, Tensor, Tensor ct) { return Tensors{ct / (0.1 + norm(ct, {-1}, kKeep))}; }};
  for (const RuleFn& rule : rules)
    for (const Policy& policy : {Policy{.chunk = 4}, Policy{.chunk = 2, .update = Update::per_chunk}}) {
      LoopCase loop = with_rule(rule, policy);
      loop.rates = {};
      CHECK(differing(loop, numbers(loop, in_form(FormChoice::primal), 1), 1,
                      {FormChoice::automatic, FormChoice::dual}) == "");
    }
  const ForwardFn product = [](const Tensors& in) { return in[0] * in[1]; };
  const RuleFn of_both = [](const Tensors& in, Tensor, Tensor ct) {
    std::vector<int> rows(static_cast<std::size_t>(ct.rank()) - 1);
    std::iota(rows.begin(), rows.end(), 0);
    return Tensors{ct * in[1], sum(ct * in[0], rows)};
  };
  const NamedLearner with_gain{"x W times a gain", [=](const Params& p) {
                                 const Tensor gain = p("gain", {kSizes.dim});
                                 return std::make_unique<FormulaLearner>(
                                     Weights{matrix("W", p("W", {kSizes.heads, kSizes.dim, kSizes.dim}))},
                                     [=](const Weights& w, Tensor x) {
                                       return custom_vjp(product, of_both, {matmul(x, w["W"]), gain});
                                     });
                               }};
  const LoopCase loop{with_gain, plain(), {.chunk = 4}, kSizes};
  CHECK(differing(loop, numbers(loop, in_form(FormChoice::primal), 1), 1,
                  {FormChoice::automatic, FormChoice::dual}) == "");
}

namespace {

// x W, which makes its rate itself.
struct OwnRate : ttt::Learner {
  using Rate = std::function<Tensor(Tensor k)>;
  Tensor W;
  Rate rate;
  OwnRate(Tensor weight, Rate own) : W(weight), rate(std::move(own)) {}
  Weights init() const override { return {matrix("W", W)}; }
  Tensor predict(const Weights& w, Tensor x) const override { return matmul(x, w["W"]); }
  std::vector<std::string> own_gates() const override { return {"rate"}; }
  ttt::Gates gates(const Weights&, Tensor k, Tensor, Tensor) const override { return {{"rate", rate(k)}}; }
};

std::string own_rate_refused(const OwnRate::Rate& rate, std::int64_t chunk) {
  const Spec rows = f64({kSizes.batch, kSizes.heads, kSizes.time, kSizes.dim});
  try {
    trace(
        [&](const Tensors& in) {
          const OwnRate learner(in[3], rate);
          return Tensors{ttt::train_along(learner, ttt::for_batch(learner.init(), kSizes.batch),
                                          Views{in[0], in[1], in[2], {}, {}}, {.policy = {.chunk = chunk}})
                             .output};
        },
        {rows, rows, rows, f64({kSizes.heads, kSizes.dim, kSizes.dim})});
    return {};
  } catch (const FormError& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("a gate of a learner's own that is made of how many tokens there are is refused") {
  const std::vector<OwnRate::Rate> rates{
      [](Tensor k) { return full(k.dtype(), {}, 1 / tokens_of(k)); },
      [](Tensor k) {
        return sigmoid(sum(k, {-1}, kKeep)) / sum(ones(k, {k.dim(-2), 1}), {-2}, kKeep);
      },
      [](Tensor k) { return k.dim(-2) > 1 ? sigmoid(sum(k, {-1}, kKeep)) : sum(k, {-1}, kKeep); }};
  for (const std::int64_t chunk : {1, 4}) {
    for (const OwnRate::Rate& rate : rates) {
      const std::string why = own_rate_refused(rate, chunk);
      CHECK_MESSAGE(contains(why, kRefused), why);
      CHECK_MESSAGE(contains(why, "[gates] "), why);
    }
    CHECK(own_rate_refused([](Tensor k) { return 0.1 * sigmoid(sum(k, {-1}, kKeep)); }, chunk) == "");
  }
}

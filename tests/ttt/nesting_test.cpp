// The promise: learning nests. A learner's loss may hold weights constant, or run a learner of its own, or be
// inside a loop that learns what the learner starts from; the outer gradient goes through all of it.
#include "autograd/grad.h"
#include "autograd/scan.h"
#include "tests/ops/check_grads.h"
#include "tests/ttt/methods.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using Read = Policy::Read;
using Update = Policy::Update;
using Meta = Policy::Meta;

namespace {

// Central differences of fn's outputs along random directions, to `orders`.
std::string off(const std::string& what, const Function& f, int orders, double tolerance = 100) {
  Subject s{.what = what,
            .fn = [f](const Tensors& in) { return f(std::span<const Tensor>(in)); },
            .inputs = inputs_of(f),
            .active = {},
            .tolerance = tolerance,
            .orders = orders};
  std::string out = join(check_grads(s));
  s.tolerance = 1;
  return out + join(check_taylor(s));
}

}  // namespace

// ---- held weights ----

namespace {

enum class Held : std::uint8_t { held, cut, not_held };

// W learns v M, at a rate that r makes of k; M and r learn too, by other terms. Rate and target are constants
// of the inner gradient. `cut`: of the outer one too; `not_held`: of neither.
NamedLearner target_maker(std::int64_t heads, Held how = Held::held) {
  return formula(
      "makes its own target",
      [=](const Params& p) {
        return Weights{matrix("W", p("W", {heads, 4, 4})), matrix("M", p("M", {heads, 4, 4})),
                       row("r", p("r", {heads, 1, 4}))};
      },
      [](const Weights& w, Tensor x) { return tanh(matmul(x, w["W"])) + x * w["r"]; },
      [how](const Weights& w, Tensor k, Tensor v) {
        const auto seen = [&](const char* name) { return how == Held::held ? w.held(name) : w[name]; };
        Tensor rate = sigmoid(sum(k * seen("r"), {-1}, kKeep)), target = matmul(v, seen("M"));
        if (how == Held::cut) rate = stop_gradient(rate), target = stop_gradient(target);
        const auto squares = [](Tensor e) { return 0.5 * sum(square(e), {-1}, kKeep); };
        return rate * squares(matmul(k, w["W"]) - target) + squares(tanh(matmul(k, w["M"])) - v) +
               squares(k * w["r"] - v);
      });
}
Method titans_method() { return linear_methods({})[7]; }

}  // namespace

TEST_CASE(
    "held weights: constants of the inner gradient and not of the outer one, in every form, to order 2") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
  for (const Policy& policy :
       {Policy{.chunk = 4}, Policy{.chunk = 1, .read = Read::before_write},
        Policy{.chunk = 4, .update = Update::per_chunk}, Policy{.chunk = 2, .meta = Meta::first_order},
        Policy{.chunk = 2, .meta = Meta::truncated}}) {
    CAPTURE(policy.str());
    const LoopCase loop{target_maker(2), titans_method(), policy, sizes};
    const Arrays expected = numbers(loop, by_hand(), 2);
    CHECK(differing(loop, expected, 2, {FormChoice::primal, FormChoice::dual}) == "");
    LoopCase named = loop;  // all weights learn, by name
    named.policy.trained = {"W", "M", "r"};
    CHECK(differing(named, expected, 2, {FormChoice::primal, FormChoice::dual}) == "");
    // The controls: cutting both gradients has the same values and another outer gradient; holding nothing
    // has other values.
    const LoopCase cut{target_maker(2, Held::cut), titans_method(), policy, sizes},
        none{target_maker(2, Held::not_held), titans_method(), policy, sizes};
    CHECK(differing(cut, numbers(loop, by_hand(), 0), 0, {FormChoice::primal, FormChoice::dual}) == "");
    if (policy.meta != Meta::first_order)
      CHECK(error_of(numbers(cut, in_form(FormChoice::dual), 1), numbers(loop, by_hand(), 1)) > 0.01);
    CHECK(error_of(numbers(none, in_form(FormChoice::dual), 0), numbers(loop, by_hand(), 0)) > 0.01);
  }
}
TEST_CASE("held weights: the outer gradient is the central difference") {
  const Sizes sizes{.batch = 1, .heads = 1, .time = 5, .dim = 4};
  for (const FormChoice form : {FormChoice::primal, FormChoice::dual})
    for (const Policy& policy :
         {Policy{.chunk = 2}, Policy{.chunk = 2, .update = Update::per_chunk, .steps = 2}}) {
      const LoopCase loop{target_maker(1), sgd(), policy, sizes};
      CHECK(off("held", trace_case(loop, in_form(form)), 2) == "");
    }
}
TEST_CASE(
    "held weights: those that do not learn, and a weight "
    "of which only the held use is left, which is refused") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
  for (const std::vector<std::string>& trained : std::vector<std::vector<std::string>>{{"W"}, {"M", "r"}}) {
    const LoopCase loop{target_maker(2), titans_method(), {.chunk = 4, .trained = trained}, sizes};
    CHECK(differing(loop, numbers(loop, by_hand(), 1), 1, {FormChoice::primal, FormChoice::dual}) == "");
  }
  const NamedLearner idle = formula(
      "held only",
      [](const Params& p) {
        return Weights{matrix("W", p("W", {2, 4, 4})), matrix("M", p("M", {2, 4, 4}))};
      },
      [](const Weights& w, Tensor x) { return matmul(x, w["W"]); },
      [](const Weights& w, Tensor k, Tensor v) {
        return 0.5 * sum(square(matmul(k, w["W"]) - matmul(v, w.held("M"))), {-1}, kKeep);
      });
  for (const FormChoice form : {FormChoice::primal, FormChoice::dual, FormChoice::automatic})
    CHECK(contains(refusal({idle, sgd(), {.chunk = 4}, sizes}, form),
                   "fast weight 'M' does not reach the inner loss"));
  // If M does not learn it is a constant, held or not.
  const LoopCase loop{idle, sgd(), {.chunk = 1, .trained = {"W"}}, sizes};
  CHECK(differing(loop, numbers(loop, by_hand(), 2), 2,
                  {FormChoice::primal, FormChoice::dual, FormChoice::wy}) == "");
}

// ---- a learner inside a learner ----

namespace {

// f(x; W) is what a learner that starts from W says of x after it has read x: one level more than `inner`,
// with the same weights.
class Nested : public ttt::Learner {
 public:
  Nested(std::shared_ptr<ttt::Learner> inner, Policy policy, Tensor rate)
      : inner_(std::move(inner)), policy_(std::move(policy)), rate_(rate) {}
  Weights init() const override { return inner_->init(); }
  Tensor predict(const Weights& w, Tensor x) const override {
    const Tensor shifted = concat({slice(x, -2, 1, x.dim(-2)), slice(x, -2, 0, 1)}, -2);
    Shape one = x.shape();
    one.back() = 1;
    Tensors start;  // row weights come spread over tokens
    for (std::size_t i = 0; i < w.size(); ++i)
      start.push_back(w.at(i).kind == ttt::WeightKind::row ? slice(w.at(i).value, -2, 0, 1) : w.at(i).value);
    return ttt::train_along(*inner_, w.with(start), {x, x, shifted, {{"rate", broadcast_to(rate_, one)}}, {}},
                            {.policy = policy_})
        .output;
  }

 private:
  std::shared_ptr<ttt::Learner> inner_;
  Policy policy_;
  Tensor rate_;
};

// The level above `named`, whose inner steps have the rate of a parameter of their own.
NamedLearner above(const NamedLearner& named, const Policy& policy, const std::string& rate) {
  return {"above " + named.name, [=](const Params& p) -> std::unique_ptr<ttt::Learner> {
            const Tensor step =
                0.3 * sigmoid(p(rate, {}));  // the first parameter, whichever operand is made first
            return std::make_unique<Nested>(named.make(p), policy, step);
          }};
}

}  // namespace

TEST_CASE("two levels: an inner learner with momentum and forgetting, and one with Muon and a weight norm") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 6, .dim = 3};
  const std::vector<InnerOptimizer> inside{
      InnerOptimizer().momentum(0.5).keep(0.9), InnerOptimizer().keep(0.9, true),
      InnerOptimizer().momentum(0.5).scale(0.1).muon(ttt::muon_published(1), 0.1).weight_norm()};
  for (const InnerOptimizer& optimizer : inside)
    for (const std::int64_t chunk : {1, 2}) {
      const NamedLearner equipped{
          "equipped", [&](const Params& p) -> std::unique_ptr<ttt::Learner> {
            return std::make_unique<Equipped>(perceptron("x W + b", 2, {3, 3}, tanh).make(p), optimizer);
          }};
      const std::vector<GateInput> small{{"rate", false, [](Tensor raw) { return 0.1 * sigmoid(raw); }}};
      const LoopCase loop{above(equipped, {.chunk = chunk}, "inner rate"),
                          sgd(),
                          {.chunk = 3, .update = Update::per_chunk},
                          sizes,
                          small};
      CAPTURE(optimizer.str());
      CAPTURE(chunk);
      CHECK(off("two levels", trace_case(loop, in_form(FormChoice::automatic)), 1, 1e3) == "");
      CHECK(error_of(numbers(loop, in_form(FormChoice::automatic), 1),
                     numbers(loop, in_form(FormChoice::primal), 1)) < 1e-12);
    }
}
TEST_CASE("two levels by hand: the inner learner's steps and the outer learner's, written out") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
  const LoopCase loop{above(matrix_of(sizes), {.chunk = 2}, "inner rate"),
                      sgd(),
                      {.chunk = 3, .update = Update::per_chunk, .read = Read::before_write},
                      sizes};
  const Arrays expected = numbers(
      loop,
      [](const TracedCase& c) {
        const Tensor inner_rate = 0.3 * sigmoid(c.inputs[4]);
        // f(x; W): chunks of two, each token's step on 1/2 |x_t
        // W - x_(t+1)|^2, the weights of the chunk's beginning.
        const auto f = [&](Tensor w, Tensor x) {
          const std::int64_t n = x.dim(2);
          Tensors out;
          Tensor first = w, now = w;
          for (std::int64_t t = 0; t < n; ++t) {
            if (t % 2 == 0) first = now;
            const Tensor k = row_at(x, t), v = row_at(x, (t + 1) % n);
            now = now - inner_rate * matmul(k, matmul(k, first) - v, {.a = true});
            out.push_back(matmul(k, now));
          }
          return concat(out, 2);
        };
        Tensor w = c.start.at(0).value;
        Tensors outputs;
        for (std::int64_t begin = 0; begin < 6; begin += 3) {
          const auto cut = [&](Tensor x) { return slice(x, 2, begin, begin + 3); };
          outputs.push_back(f(w, cut(c.views.q)));
          const Tensor named = probe(w);
          w = w - grad(sum(0.5 * cut(c.views.gates.at("rate")) *
                           square(f(named, cut(c.views.k)) - cut(c.views.v))),
                       {named})[0];
        }
        return Tensors{concat(outputs, 2), w};
      },
      2);
  CHECK(error_of(numbers(loop, in_form(FormChoice::primal), 2), expected) < 1e-11);
}

TEST_SUITE("slow") {
  TEST_CASE(
      "two levels: a learner that learns where a learner starts "
      "from; the outer gradient is the central difference") {
    const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 3};
    const std::vector<GateInput> small{{"rate", false, [](Tensor raw) { return 0.1 * sigmoid(raw); }}};
    const Policy tokens{.chunk = 2}, online{.chunk = 1},
        chunks{.chunk = 3, .update = Update::per_chunk, .read = Read::before_write};
    for (const Policy& inside : {tokens, online, chunks})
      for (const NamedLearner& named : {matrix_of(sizes), perceptron("tanh", 2, {3, 3}, tanh),
                                        perceptron("two layers", 2, {3, 4, 3}, tanh)}) {
        const LoopCase loop{above(named, inside, "inner rate"),
                            linear_methods(sizes)[3],
                            {.chunk = 3, .update = Update::per_chunk, .steps = 2},
                            sizes,
                            small};
        CHECK(off("two levels", trace_case(loop, in_form(FormChoice::automatic)), 2, 1e3) == "");
        CHECK(widest_form(loop) == FormChoice::primal);
      }
  }
  TEST_CASE(
      "three levels: a learner inside a learner inside a "
      "learner; the outer gradient is the central difference") {
    const Sizes sizes{.batch = 1, .heads = 1, .time = 4, .dim = 2};
    const NamedLearner two = above(matrix_of(sizes), {.chunk = 1}, "rate 1");
    const NamedLearner three =
        above(two, {.chunk = 2, .update = Update::per_chunk, .read = Read::before_write}, "rate 2");
    const LoopCase loop{three, sgd(), {.chunk = 4, .update = Update::per_chunk}, sizes};
    CHECK(off("three levels", trace_case(loop, in_form(FormChoice::automatic)), 2, 1e3) == "");
  }
}

TEST_CASE(
    "a loop by scan around the inner loop: descent on where "
    "the learner starts from, and the gradient through it") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 3};
  for (const FormChoice form : {FormChoice::primal, FormChoice::dual, FormChoice::wy}) {
    const Policy policy{.chunk = form == FormChoice::wy ? 1 : 2};
    const LoopCase loop{matrix_of(sizes), linear_methods(sizes)[6], policy, sizes};
    const auto epochs = [&](bool by_scan) {
      return trace_case(loop, [&](const TracedCase& c) -> Tensors {
        const auto outer = [&](Tensor w, Tensor weight) {
          const Tensor out = ttt::train_along(c.learner, c.start.with({w}), c.views,
                                              {.policy = policy, .form = form, .block = 4})
                                 .output;
          return sum(weight * square(out - c.views.v));
        };
        const auto descended = [&](Tensor w, Tensor weight) {
          const Tensor named = probe(w);
          return w - 0.1 * grad(outer(named, weight), named);
        };
        const Tensor weights = sigmoid(slice(c.views.k, 3, 0, 1));               // [1, 2, 6, 1]
        const Tensor schedule = permute(slice(weights, 2, 0, 3), {2, 0, 1, 3});  // [3, 1, 2, 1], one an epoch
        Tensor w = c.start.at(0).value;
        if (by_scan) {
          w = scan(
                  [&](const Tensors& carry, const Tensors& x) -> StepOutput {
                    return {{descended(carry[0], reshape(x[0], {1, 2, 1, 1}))}, {}};
                  },
                  {w}, {schedule})
                  .carries[0];
        } else {
          for (std::int64_t i = 0; i < 3; ++i)
            w = descended(w, reshape(slice(schedule, 0, i, i + 1), {1, 2, 1, 1}));
        }
        return {outer(w, reshape(slice(schedule, 0, 0, 1), {1, 2, 1, 1}))};
      });
    };
    const Function with_scan = epochs(true), unrolled = epochs(false);
    const auto gradients = [](const Function& f) {
      const Function g = trace(
          [&](const Tensors& in) {
            return grad(f(std::span<const Tensor>(in))[0], in, {.allow_zero = true});
          },
          [&] {
            std::vector<Spec> specs;
            for (std::size_t i = 0; i < f.inputs().size(); ++i) specs.push_back(f.input_spec(i));
            return specs;
          }());
      return g(inputs_of(g));
    };
    CHECK(error_of(gradients(with_scan), gradients(unrolled)) < 1e-11);
    CHECK(off("epochs", with_scan, 2, 1e3) == "");
  }
}

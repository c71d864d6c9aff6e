// The promise: a learner whose text does not allow a form is refused, with the node, the weight and the line
// that are to blame; and automatic choice falls back to the primal form only where the numbers stay those of
// the text.
#include "tests/ttt/named_learners.h"
#include "ttt/compose.h"

// __LINE__ must stand on the line of the op that is to blame.
// clang-format off

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// The line that a refusal must name; a formula sets it on that very line.
int blame = 0;
std::string blamed() { return fmt::format("(refusals_test.cpp:{})", blame); }

Tensor half_squares(Tensor error) { return 0.5 * sum(square(error), {-1}, kKeep); }

// A square learner f(x) = x W with this loss.
NamedLearner with_loss(FormulaLearner::Loss loss) {
  return formula("x W", [](const Params& p) { return Weights{matrix("W", p("W", {3, 4, 4}))}; },
                 [](const Weights& w, Tensor x) { return matmul(x, w["W"]); }, std::move(loss));
}
// A square learner with the default loss and this prediction.
NamedLearner with_predict(FormulaLearner::Predict predict) {
  return formula("f(x)", [](const Params& p) { return Weights{matrix("W", p("W", {3, 4, 4}))}; }, std::move(predict));
}

Function trained(const NamedLearner& named, FormChoice form, const Sizes& sizes = {}) {
  return derivatives(named, sizes, along({.policy = {.chunk = sizes.mini_batch}, .form = form}), 1);
}

std::string obstacle(const NamedLearner& named) {
  std::string out;
  reading(named, {.time = 4}, [&](const Reading& r) {
    const ttt::Policy policy{.chunk = 4};
    const ttt::DerivedLearner found(r.learner, policy, ttt::State::start(r.learner, r.start), r.views);
    using enum ttt::Property;
    out = found.why_not({separate_members, separate_tokens, factored_uses});
    return Tensors{r.views.k};
  });
  return out;
}

// The dual form is refused in these words, alone and inside the scan over mini-batches; the primal form runs
// instead and gives what is computed by hand.
void only_dual_is_refused(const NamedLearner& named, const std::string& node, const std::string& weight) {
  const std::string why = obstacle(named);
  CAPTURE(why);
  CHECK(contains(why, "fast weight '" + weight + "' is used in %"));
  CHECK(contains(why, " = " + node + " "));
  CHECK(contains(why, blamed()));
  CHECK(contains(why, "Use the primal form"));
  for (const Sizes& sizes : {Sizes{}, Sizes{.time = 4}, Sizes{.time = 3}}) {
    const std::string message = message_of<FormError>([&] { trained(named, FormChoice::dual, sizes); });
    CHECK(contains(message, "fast weight '" + weight + "'"));
    CHECK(contains(message, blamed()));
    const Function automatic = trained(named, FormChoice::automatic, sizes), by_hand_ = derivatives(named, sizes, by_hand(4), 1);
    CHECK(worst_error(automatic(numbers_for(automatic)), by_hand_(numbers_for(by_hand_))) < 1e-12);
  }
}

// Refused in these words, whichever form is chosen for it.
void always_refused(const NamedLearner& named, const std::string& what, const std::string& node) {
  const std::string why = obstacle(named);
  CAPTURE(why);
  CHECK(contains(why, what));
  CHECK(contains(why, node));
  CHECK(contains(why, blamed()));
  std::vector<FormChoice> forms{FormChoice::dual, FormChoice::automatic};
  if (!contains(why, "sequences and heads")) forms.push_back(FormChoice::primal);  // which learns from heads that meet
  for (const FormChoice form : forms)
    for (const Sizes& sizes : {Sizes{}, Sizes{.time = 4}}) {
      const std::string message = message_of<FormError>([&] { trained(named, form, sizes); });
      CHECK(contains(message, what));
      CHECK(contains(message, blamed()));
    }
}

}  // namespace

TEST_CASE("a weight times itself has no factored gradient") {
  only_dual_is_refused(with_predict([](const Weights& w, Tensor x) {
    return blame = __LINE__, matmul(x, w["W"] * w["W"]);
  }), "mul", "W");
}

TEST_CASE("a softmax of a weight has no factored gradient") {
  only_dual_is_refused(with_predict([](const Weights& w, Tensor x) {
    return blame = __LINE__, matmul(x, softmax(w["W"], -1));
  }), "max_over", "W");
}

TEST_CASE("a penalty on a weight is no loss of a token's") {
  only_dual_is_refused(with_loss([](const Weights& w, Tensor k, Tensor v) {
    const Tensor penalty = sum(square(w["W"]), {-2, -1}, kKeep); blame = __LINE__;
    return half_squares(matmul(k, w["W"]) - v) + penalty;
  }), "square", "W");
}

TEST_CASE("a weight on the left has no factored gradient") {
  only_dual_is_refused(with_predict([](const Weights& w, Tensor x) {
    const Tensor turned = transpose(x);
    return blame = __LINE__, transpose(matmul(w["W"], turned));
  }), "matmul", "W");
}

TEST_CASE("a product of two weights has no factored gradient, and the weight is named") {
  const NamedLearner named = formula("x A B", [](const Params& p) {
    return Weights{matrix("A", p("A", {3, 4, 5})), matrix("B", p("B", {3, 5, 4}))};
  }, [](const Weights& w, Tensor x) { return blame = __LINE__, matmul(x, matmul(w["A"], w["B"])); });
  only_dual_is_refused(named, "matmul", "A");
}

TEST_CASE("a weight used well in the loss and badly in the prediction is refused in the prediction") {
  const NamedLearner named = formula("", [](const Params& p) { return Weights{matrix("W", p("W", {3, 4, 4}))}; },
                              [](const Weights& w, Tensor x) { return blame = __LINE__, matmul(x, exp(w["W"])); },
                              [](const Weights& w, Tensor k, Tensor v) { return half_squares(matmul(k, w["W"]) - v); });
  only_dual_is_refused(named, "exp", "W");
  CHECK(contains(obstacle(named), "[predict]"));
}

TEST_CASE("tokens may not be normalised together") {
  always_refused(with_loss([](const Weights& w, Tensor k, Tensor v) {
    const Tensor centred = k - sum(k, {-2}, kKeep); blame = __LINE__;
    return half_squares(matmul(centred, w["W"]) - v);
  }), "tokens are not independent", "= sum ");
}

TEST_CASE("tokens may not attend to each other") {
  always_refused(with_predict([](const Weights& w, Tensor x) {
    const Tensor scores = matmul(x, x, {.b = true}); blame = __LINE__;
    return matmul(matmul(softmax(scores, -1), x), w["W"]);
  }), "pairs every slice", "= matmul ");
}

TEST_CASE("a cumulative sum over tokens mixes them") {
  always_refused(with_predict([](const Weights& w, Tensor x) {
    return blame = __LINE__, matmul(cumsum(x, -2), w["W"]);
  }), "tokens are not independent", "= cumsum");
}

TEST_CASE("a loss averaged over tokens is refused, kept or spread again") {
  const auto mean_loss = [](const Weights& w, Tensor k, Tensor v) { return mean(half_squares(matmul(k, w["W"]) - v), {-2}, kKeep); };
  CHECK(contains(message_of<FormError>([&] { trained(with_loss(mean_loss), FormChoice::automatic); }),
                 "the inner loss must be per token, [2,3,4,1]; it is f64[2,3,1,1]"));
  always_refused(with_loss([](const Weights& w, Tensor k, Tensor v) {
    const Tensor each = half_squares(matmul(k, w["W"]) - v);
    return blame = __LINE__, each * 0.0 + sum(each, {-2}, kKeep) * 0.25;
  }), "tokens are not independent", "= sum ");
}

TEST_CASE("a constant that depends on the token's position is refused, one for all tokens is not") {
  const auto weighted = [](Array weight) {
    return with_loss([weight](const Weights& w, Tensor k, Tensor v) {
      const Tensor each = half_squares(matmul(k, w["W"]) - v);
      return blame = __LINE__, each * constant(weight);
    });
  };
  always_refused(weighted(Array::of({1, 2, 3, 4}, {4, 1})), "is a constant that differs from slice to slice", "= mul ");
  CHECK(obstacle(weighted(Array::of({2}, {1, 1}))) == "");
  CHECK(obstacle(with_loss([](const Weights& w, Tensor k, Tensor v) {
          return half_squares(matmul(k, w["W"]) - v) * broadcast_to(constant(Array::scalar(2)), {4, 1});
        })) == "");
}

TEST_CASE("a constant of each head's own is no mixing of heads") {
  const NamedLearner named = with_loss([](const Weights& w, Tensor k, Tensor v) {
    return half_squares(matmul(k, w["W"]) - v) * constant(Array::of({1, 2, 3}, {3, 1, 1}));
  });
  CHECK(obstacle(named) == "");
  const Function dual = trained(named, FormChoice::dual), primal = trained(named, FormChoice::primal);
  CHECK(worst_error(dual(numbers_for(dual)), primal(numbers_for(primal))) < 1e-12);
}

TEST_CASE("heads and sequences may not be normalised together") {
  always_refused(with_predict([](const Weights& w, Tensor x) {
    const Tensor y = matmul(x, w["W"]);
    return blame = __LINE__, softmax(y, -3);
  }), "sequences and heads are not independent", "= max_over ");
  always_refused(with_predict([](const Weights& w, Tensor x) {
    const Tensor y = matmul(x, w["W"]);
    return blame = __LINE__, y - sum(y, {0}, kKeep);
  }), "sequences and heads are not independent", "= sum ");
}

TEST_CASE("a weight that does not reach the loss is refused by every form, by name") {
  const NamedLearner named = formula("", [](const Params& p) { return Weights{matrix("W", p("W", {3, 4, 4})), row("idle", p("idle", {3, 1, 4}))}; },
                              [](const Weights& w, Tensor x) { return matmul(x, w["W"]) + w["idle"]; },
                              [](const Weights& w, Tensor k, Tensor v) { return half_squares(matmul(k, w["W"]) - v); });
  for (const FormChoice form : {FormChoice::primal, FormChoice::dual, FormChoice::automatic})
    CHECK(contains(message_of<FormError>([&] { trained(named, form); }), "fast weight 'idle' does not reach the inner loss"));
}

TEST_CASE("a loss of the wrong shape is refused by every form, with both shapes and the line") {
  const auto refuse = [](const FormulaLearner::Loss& loss, const std::string& shape) {
    const std::string dual = message_of<FormError>([&] { trained(with_loss(loss), FormChoice::dual); });
    CHECK(contains(dual, "must be per token, [2,3,4,1]; it is f64" + shape));
    CHECK(contains(dual, blamed()));
    const std::string primal = message_of<FormError>([&] { trained(with_loss(loss), FormChoice::primal); });
    CHECK(contains(primal, "the inner loss must be per token"));
    CHECK(contains(primal, blamed()));
  };
  refuse([](const Weights& w, Tensor k, Tensor v) { return blame = __LINE__, square(matmul(k, w["W"]) - v); }, "[2,3,4,4]");
  refuse([](const Weights& w, Tensor k, Tensor v) { return blame = __LINE__, sum(square(matmul(k, w["W"]) - v), {-1}); }, "[2,3,4]");
  refuse([](const Weights& w, Tensor k, Tensor v) { return blame = __LINE__, sum(square(matmul(k, w["W"]) - v)); }, "[]");
}

TEST_CASE("a gate that nothing reads is named, with those that are read") {
  const auto refused = [](const std::string& name, const ttt::InnerOptimizer& optimizer) {
    const ttt::System& linear = ttt::system_named("naive-ttt");
    return message_of<ConfigError>([&] {
      ttt::trace_system(linear, {.dim = 4, .time = 4}, DType::f64, [&](const ttt::SystemProgram& p) {
        const auto of_optimizer = std::make_unique<ttt::Composed>(
            ttt::Model{"x W", p.learner->init(), [](const Weights& w, Tensor x) { return matmul(x, w["W"]); }},
            ttt::half_squared_error(), optimizer);
        ttt::Views views = p.views;
        views.gates = {{name, slice(p.views.k, 3, 0, 1)}};
        return Tensors{ttt::train_along(*of_optimizer, p.start, views, {.policy = {.chunk = 4}}).output};
      });
    });
  };
  for (const char* name : {"rates", "Rate", "rate.V", "forget", "forget.W"}) {
    CAPTURE(name);
    CHECK(contains(refused(name, {}), fmt::format("nothing reads the gate '{}'", name)));
  }
  CHECK(contains(refused("rates", {}), "did you mean 'rate'"));
}

TEST_CASE("a target of another width than the prediction is refused by every loss that compares them") {
  const NamedLearner narrow = formula("", [](const Params& p) { return Weights{matrix("W", p("W", {3, 4, 1}))}; },
                              [](const Weights& w, Tensor x) { return matmul(x, w["W"]); });
  CHECK(contains(message_of<ShapeError>([&] { trained(narrow, FormChoice::automatic); }), "predicts 1 features of a token and v has 4"));
  using namespace nestgrad::ttt;
  Graph graph;
  const GraphScope scope(graph);
  const Tensor wide = constant(Array::zeros(DType::f64, {2, 4})), thin = constant(Array::zeros(DType::f64, {2, 1}));
  for (const InnerLoss& loss : {half_squared_error(), squared_error(), mean_squared_error(), inner_product(), huber(1), lp(3), cosine(1e-6), cross_entropy_with()}) {
    CAPTURE(loss.text);
    CHECK(contains(message_of<ShapeError>([&] { loss.f(wide, thin); }), "predicts 4 features of a token and v has 1"));
    CHECK(contains(message_of<ShapeError>([&] { loss.f(thin, wide); }), "predicts 1 features of a token and v has 4"));
  }
}

TEST_CASE("a misshapen weight, an unknown weight and a mini-batch of nothing are named") {
  const auto fails = [](const NamedLearner& named) {
    const std::string primal = message_of<ShapeError>([&] { trained(named, FormChoice::primal); });
    const std::string dual = message_of<ShapeError>([&] { trained(named, FormChoice::dual); });
    CHECK(primal.substr(primal.find(']')) == dual.substr(dual.find(']')));
    return dual;
  };
  const auto weights = [](ttt::WeightKind kind, Shape shape) {
    return formula("", [=](const Params& p) { return Weights{{"W", kind, p("W", shape)}}; }, [](const Weights& w, Tensor x) { return x * w["W"]; });
  };
  CHECK(contains(fails(weights(ttt::WeightKind::matrix, {1, 4, 4})), "fast weight 'W' is f64[2,1,4,4]; rows are f64[2,3,4,4]"));
  CHECK(contains(fails(weights(ttt::WeightKind::matrix, {4, 4})), "so it must be [same leading axes.., in, out]"));
  CHECK(contains(fails(weights(ttt::WeightKind::row, {3, 4, 4})), "so it must be [same leading axes.., 1, dim]"));
  CHECK(contains(message_of<FormError>([] { trained(with_predict([](const Weights& w, Tensor x) { return matmul(x, w["V"]); }), FormChoice::dual); }),
                 "there is no fast weight 'V'"));
  const Run empty = along({.policy = {.chunk = -1}});
  CHECK(contains(message_of<ConfigError>([&] { derivatives(with_loss({}), {}, empty, 0); }), "the chunk must have at least 1 token (0: the whole sequence), it has -1"));
  const Run longer = along({.policy = {.chunk = 8}});
  CHECK(contains(message_of<ShapeError>([&] { derivatives(with_loss({}), {}, longer, 0); }), "they must be [8], one for each place of a chunk"));
}

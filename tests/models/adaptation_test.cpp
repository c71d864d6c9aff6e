// The promise: each segment is scored before it is learnt from, by exactly the step that is documented, and no score
// depends on what comes after it.
#include "models/adaptation.h"

#include <cmath>
#include <ranges>

#include "tests/models/model_testing.h"
#include "ttt/claim.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kSegment = 6;
constexpr std::array kThatLearn{Adapted::sgd, Adapted::norms, Adapted::lora};

StateDict params_of(const LanguageModelConfig& config) {
  return random_parameters(logits_model(config, DType::f32, i32({1, 3})), DType::f32);
}

std::vector<std::int32_t> text(std::int64_t tokens, std::int64_t vocab) {
  const Array all = random_tokens(1, tokens, vocab);
  const auto ids = all.as<std::int32_t>();
  return {ids.begin(), ids.end()};
}

// Losses of a segment and the gradient of their mean, by name, of a program of the test's own, in f64.
struct ByHand {
  std::vector<double> losses;
  std::map<std::string, Array> gradients;
};
ByHand by_hand(const LanguageModelConfig& config, const StateDict& params,
               std::span<const std::int32_t> tokens) {
  const TracedModel model =
      trace_model(DType::f64, {i32({1, std::ssize(tokens)})}, [&](ParamTable& table, const Tensors& in) {
        ttt::Stream stream;
        const Tensor losses = next_token_loss(config, Params(table), in[0], stream);
        Tensors out{losses};
        for (const Tensor& g : grad(mean(losses), table.tensors())) out.push_back(g);
        return out;
      });
  StateDict wide;
  for (const auto& [name, value] : params) wide.emplace(name, value.cast(DType::f64));
  Array ids(DType::i32, {1, std::ssize(tokens)});
  std::ranges::copy(tokens, ids.as<std::int32_t>().begin());
  const Arrays out = model.function(model.bind({ids}, {&wide}));
  ByHand result{out[0].to_vector(), {}};
  for (std::size_t i = 0; i < model.params.size(); ++i)
    result.gradients.emplace(model.params[i].name, out[i + 1]);
  return result;
}

double error_between(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = worse(worst, std::abs(a[i] - b[i]));
  return worst;
}

double norm_of(const std::map<std::string, Array>& gradients,
               const std::function<bool(const std::string&)>& counts) {
  double squares = 0;
  for (const auto& [name, g] : gradients)
    if (counts(name))
      for (const double x : g.to_vector()) squares += x * x;
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE(
    "adaptation: a step is gradient descent on the segment that has been scored, clipped, of what was asked for") {
  for (const char* layer : {"linear", "lact", "attention"})
    for (const double clip : {1e9, 0.5}) {
      CAPTURE(layer);
      CAPTURE(clip);
      const LanguageModelConfig config = small_model(layer);
      const StateDict params = params_of(config);
      const std::vector<std::int32_t> tokens = text(2 * kSegment + 1, config.vocab_size);
      const std::span first = std::span(tokens).first(kSegment + 1),
                      second = std::span(tokens).subspan(kSegment);
      const ByHand before = by_hand(config, params, first);
      for (const Adapted what : {Adapted::sgd, Adapted::norms}) {
        const auto learns = [&](const std::string& name) {
          return what == Adapted::sgd || name.find("norm") != std::string::npos;
        };
        const double norm = norm_of(before.gradients, learns), rate = 0.3 * std::min(1.0, clip / norm);
        CHECK((norm > 0.5) == (rate < 0.3 || clip > 1));  // one of the two is clipped
        StateDict stepped;
        std::int64_t count = 0;
        for (const auto& [name, value] : params) {
          Array now = value.clone();
          const std::vector<double> g = before.gradients.at(name).to_vector();
          if (learns(name)) {
            count += value.size();
            for (std::size_t i = 0; i < g.size(); ++i)
              now.as<float>()[i] = static_cast<float>(static_cast<double>(now.as<float>()[i]) - rate * g[i]);
          }
          stepped.emplace(name, now);
        }
        AdaptingScorer scorer(config, params, {.what = what, .rate = 0.3, .clip = clip});
        CHECK(scorer.learning_parameters() == count);
        CHECK(error_between(scorer.score(first), before.losses) < 1e-4);
        const std::vector<double> then = scorer.score(second);
        CHECK(error_between(then, by_hand(config, stepped, second).losses) < 5e-4);
        CHECK(error_between(then, by_hand(config, params, second).losses) > 1e-2);
        CHECK(scorer.steps() == 2);
      }
    }
}

TEST_CASE("adaptation: lora starts as the model itself, and then descends along both factors") {
  const LanguageModelConfig config = small_model("linear");
  const StateDict params = params_of(config);
  const std::vector<std::int32_t> tokens = text(3 * kSegment + 1, config.vocab_size);
  const AdaptationOptions options{.what = Adapted::lora, .rate = 0.2, .clip = 1e9, .rank = 2, .seed = 4};
  AdaptingScorer scorer(config, params, options), frozen(config, params, {.what = Adapted::nothing});
  const std::span first = std::span(tokens).first(kSegment + 1),
                  second = std::span(tokens).subspan(kSegment, kSegment + 1);
  CHECK(scorer.score(first) == frozen.score(first));
  CHECK(frozen.steps() == 0);
  // By hand: dL/dB = dL/dW A', and dL/dA = B' dL/dW is zero while B is.
  const ByHand before = by_hand(config, params, first);
  StateDict stepped = params;
  std::int64_t count = 0;
  for (auto& [name, value] : stepped) {
    if (value.shape().size() != 2 || name.find("embed") != std::string::npos ||
        name.find("norm") != std::string::npos || name.find("bias") != std::string::npos)
      continue;
    const std::int64_t rows = value.shape()[0], columns = value.shape()[1];
    count += 2 * (rows + columns);
    const Array a = initial_value(
        {name + ".lora_A", {2, columns}, Init::normal(1 / std::sqrt(static_cast<double>(columns)))},
        DType::f32, 4);
    const Function moved = trace(
        [](Tensor w, Tensor g, Tensor factor) {
          return w - 0.2 * matmul(matmul(g, factor, {.b = true}), factor);
        },
        Spec{DType::f64, {rows, columns}}, Spec{DType::f64, {rows, columns}}, Spec{DType::f64, {2, columns}});
    value = moved(value.cast(DType::f64), before.gradients.at(name), a.cast(DType::f64)).cast(DType::f32);
  }
  CHECK(scorer.learning_parameters() == count);
  CHECK(error_between(scorer.score(second), by_hand(config, stepped, second).losses) < 1e-4);
}

TEST_CASE("adaptation: no score looks ahead, whatever learns; a model that does is found" *
          doctest::test_suite("slow")) {
  for (const std::string& learner : layer_names()) {
    CAPTURE(learner);
    const LanguageModelConfig config = small_model(layer_type(learner));
    const TracedModel model =
        trace_model(DType::f32, {i32({1, 4})}, [&](ParamTable& table, const Tensors& in) {
          ttt::Stream stream;
          return Tensors{next_token_loss(config, Params(table), in[0], stream)};
        });
    const StateDict params = random_parameters(model, DType::f32);
    const std::vector<std::int32_t> tokens = text(3 * kSegment - 1, config.vocab_size);
    for (const Adapted what : kThatLearn) {
      AdaptingScorer scorer(config, params, {.what = what});
      if (what == Adapted::sgd || learner == "ttt-linear" || learner == kEndToEnd)
        check_no_look_ahead(scorer, tokens, kSegment);
    }
  }
  const LogitsFn ahead = [](const Params& p, Tensor tokens, ttt::Stream&) {
    const Tensor h = gather(p("table.weight", {13, 13}), tokens);
    return h + mean(h, {1}, kKeep);
  };
  const StateDict table{{"table.weight", random({DType::f32, {13, 13}}, 1)}};
  AdaptingScorer scorer(ahead, table, {.what = Adapted::sgd});
  CHECK(contains(message_of<ConfigError>([&] { check_no_look_ahead(scorer, text(20, 13), kSegment); }),
                 "a score looks ahead: that of token "));
  // One that names the token which it is given next.
  const LogitsFn reads_own = [](const Params& p, Tensor tokens, ttt::Stream&) {
    const std::int64_t time = tokens.dim(1);
    const Tensor next = time == 1 ? tokens : concat({slice(tokens, 1, 1, time), slice(tokens, 1, 0, 1)}, 1);
    return 5.0 * one_hot(next, 13, DType::f32) + gather(p("table.weight", {13, 13}), tokens);
  };
  AdaptingScorer own(reads_own, table, {.what = Adapted::sgd});
  CHECK(contains(message_of<ConfigError>([&] { check_no_look_ahead(own, text(20, 13), kSegment); }),
                 "a score looks at its own token: that of token "));
  const std::vector<std::int32_t> alike(20, 3);
  CHECK(contains(message_of<ConfigError>([&] { check_no_look_ahead(scorer, alike, kSegment); }),
                 "all tokens are alike"));
}

TEST_CASE("adaptation: a text that repeats itself is learnt, and reset forgets it") {
  const LanguageModelConfig config = small_model("linear");
  const StateDict params = params_of(config);
  const std::vector<std::int32_t> phrase = text(kSegment, config.vocab_size);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 40; ++i) tokens.insert(tokens.end(), phrase.begin(), phrase.end());
  AdaptingScorer frozen(config, params, {.what = Adapted::nothing});
  const std::vector<double> before = score_text(frozen, tokens, kSegment);
  for (const Adapted what : kThatLearn) {
    CAPTURE(name(what));
    AdaptingScorer scorer(config, params, {.what = what, .rate = 0.5});
    double last = 0;
    const std::vector<double> scores = score_text(scorer, tokens, kSegment, [&](double done) {
      CHECK(done > last);
      last = done;
    });
    CHECK(last == 1.0);
    CHECK(scores.size() == tokens.size() - 1);
    CHECK(scorer.steps() == 40);  // the last one is a token short
    const auto late = [](const std::vector<double>& all) {
      double sum = 0;
      for (std::size_t i = all.size() - 12; i < all.size(); ++i) sum += all[i] / 12;
      return sum;
    };
    CHECK(late(scores) < 0.7 * late(before));
    CHECK(score_text(scorer, tokens, kSegment) == scores);  // reset, to the bit
    CHECK(scorer.score(std::span(tokens).first(4), false) == scorer.score(std::span(tokens).first(4), false));
  }
}

TEST_CASE(
    "adaptation: of TTT-E2E the last normalisation learns too, and a product beside each matrix of each block") {
  const LanguageModelConfig config = small_model(kEndToEnd);
  const TracedModel model = trace_model(DType::f32, {i32({1, 4})}, [&](ParamTable& table, const Tensors& in) {
    ttt::Stream stream;
    return Tensors{next_token_loss(config, Params(table), in[0], stream)};
  });
  const StateDict params = random_parameters(model, DType::f32);
  const auto learning = [&](Adapted what) {
    return AdaptingScorer(config, params, {.what = what, .rank = 2}).learning_parameters();
  };
  std::int64_t norms = 0, products = 0;
  for (const auto& [name, value] : params) {
    const Shape& shape = value.shape();
    if (contains(name, "norm") || contains(name, "ln_f")) norms += numel(shape);
    if (shape.size() == 3) products += shape[0] * 2 * (shape[1] + shape[2]);
  }
  CHECK(params.contains("language_model.model.ln_f.weight"));
  CHECK(learning(Adapted::norms) == norms);
  CHECK(learning(Adapted::lora) == products);
}

TEST_CASE("adaptation: what makes no sense is refused, and a step that is not finite teaches nothing") {
  const LanguageModelConfig config = small_model("linear");
  const StateDict params = params_of(config);
  const auto why = [&](const AdaptationOptions& options) {
    return message_of<ConfigError>([&] { AdaptingScorer(config, params, options); });
  };
  CHECK(contains(why({.rate = -1}), "rate must be positive"));
  CHECK(contains(why({.clip = 0}), "clip must be positive"));
  CHECK(contains(why({.rate = 1e-50}), "rate is 1e-50; steps are made in f32, which does not hold it"));
  CHECK(contains(why({.rate = 1e39}), "rate is 1e+39; steps are made in f32"));
  CHECK(contains(why({.clip = 1e-50}), "clip is 1e-50; steps are made in f32"));
  CHECK(contains(why({.what = Adapted::lora, .rank = 0}), "rank must be 1 to"));
  CHECK(contains(message_of<ConfigError>([] { adapted_named("all"); }),
                 "'all' is none of nothing, sgd, norms, lora"));
  CHECK(contains(message_of<ConfigError>([&] { AdaptingScorer(small_model("mlp"), params, {}); }),
                 "what is to be adapted does not fit"));
  const LogitsFn bare = [](const Params& p, Tensor tokens, ttt::Stream&) {
    return gather(p("t", {13, 13}), tokens);
  };
  const StateDict table{{"t", random({DType::f32, {13, 13}}, 1)}};
  CHECK(contains(message_of<ConfigError>([&] { AdaptingScorer(bare, table, {.what = Adapted::norms}); }),
                 "no parameter named norm"));

  AdaptingScorer scorer(config, params, {.what = Adapted::sgd, .rate = 1e30, .clip = 1e30});
  const std::vector<std::int32_t> tokens = text(2 * kSegment + 1, config.vocab_size);
  CHECK(contains(message_of<ShapeError>([&] { scorer.score(std::span(tokens).first(1)); }), "it needs two"));
  CHECK_THROWS_AS(scorer.score(std::vector<std::int32_t>{1, 99}), ValueError);
  const std::vector<double> first = scorer.score(std::span(tokens).first(kSegment + 1));
  CHECK(contains(message_of<ValueError>([&] { scorer.score(std::span(tokens).subspan(kSegment)); }),
                 "after 1 steps the "));
  CHECK(scorer.steps() == 1);
  scorer.reset();
  CHECK(scorer.score(std::span(tokens).first(kSegment + 1)) == first);

  // A model that has no finite loss to begin with: no rate is to blame, whatever learns.
  StateDict broken = params;
  for (auto& [name, value] : broken) value = Array::full(value.dtype(), value.shape(), std::nan(""));
  for (const Adapted what : {Adapted::nothing, Adapted::sgd, Adapted::norms, Adapted::lora}) {
    AdaptingScorer of_broken(config, broken, {.what = what});
    CHECK(contains(message_of<ValueError>([&] { of_broken.score(std::span(tokens).first(kSegment + 1)); }),
                   "the loss of a text is not finite before anything was learnt"));
  }
  // A finite loss whose gradient is not.
  const LogitsFn rooted = [](const Params& p, Tensor read, ttt::Stream&) {
    return gather(p("t", {13, 13}), read) * (1.0 + sqrt(p("s", {1})));
  };
  const StateDict at_zero{{"s", Array::zeros(DType::f32, {1})}, {"t", table.at("t")}};
  AdaptingScorer steep(rooted, at_zero, {.what = Adapted::sgd});
  CHECK(contains(message_of<ValueError>([&] { steep.score(std::span(tokens).first(kSegment + 1)); }),
                 "the gradient of a text is not finite before anything was learnt"));
  CHECK(steep.steps() == 0);
}

TEST_CASE("adaptation: a copy has learnt what the other one has, and each learns on by itself") {
  const LanguageModelConfig config = small_model("linear");
  const StateDict params = params_of(config);
  const std::vector<std::int32_t> tokens = text(4 * kSegment + 1, config.vocab_size);
  const auto segment = [&](std::size_t i) { return std::span(tokens).subspan(i * kSegment, kSegment + 1); };
  for (const Adapted what : kThatLearn) {
    AdaptingScorer first(config, params, {.what = what}), other(config, params, {.what = what});
    for (AdaptingScorer* each : {&first, &other})
      for (const std::size_t i : {0, 1}) each->score(segment(i));
    AdaptingScorer copy = first, assigned(config, params, {.what = what});
    assigned = first;
    const std::vector<double> before = copy.score(segment(2), false);
    CHECK(before == other.score(segment(2), false));
    for (int i = 0; i < 3; ++i) first.score(segment(3));
    CHECK(copy.score(segment(2), false) == before);
    CHECK(assigned.score(segment(2), false) == before);
    CHECK(copy.steps() == 2);
    for (int i = 0; i < 3; ++i) copy.score(segment(2)), other.score(segment(2));
    CHECK(copy.score(segment(3), false) == other.score(segment(3), false));
    CHECK(assigned.score(segment(2), false) == before);
    copy.reset();
    CHECK(copy.score(segment(0), false) ==
          AdaptingScorer(config, params, {.what = what}).score(segment(0), false));
  }
}

TEST_CASE("adaptation: what the caller writes into its arrays afterwards changes no score") {
  const LanguageModelConfig config = small_model("linear");
  const std::vector<std::int32_t> tokens = text(kSegment + 1, config.vocab_size);
  for (const Adapted what : {Adapted::nothing, Adapted::sgd, Adapted::norms, Adapted::lora}) {
    const StateDict params = params_of(config);
    AdaptingScorer scorer(config, params, {.what = what});
    const std::vector<double> expected = scorer.score(tokens, false);
    for (const auto& [name, value] : params) {
      Array same = value;
      std::ranges::fill(same.as<float>(), 0.25F);
    }
    CHECK(scorer.score(tokens, false) == expected);
    scorer.reset();
    CHECK(scorer.score(tokens, false) == expected);
  }
}

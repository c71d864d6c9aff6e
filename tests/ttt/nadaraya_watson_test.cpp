// The promise: the Nadaraya-Watson estimator is attention that learns, and asks for what it needs.
#include "tests/ttt/attention_by_loops.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("Nadaraya-Watson, trained and asked token by token, is causal attention, with its gradients") {
  const LoopSizes s{.time = 9};
  const Arrays qkv = random(s.specs(), 21, -1.5, 1.5);
  for (const double scale : {0.5, 1.0, 2.5}) {
    CAPTURE(scale);
    const Arrays expected = derivatives(with({.scale = scale}), qkv);
    for (const bool late : {false, true}) {  // asked at once, or of the sets as they were, at the end
      const Attend learnt = [&](Tensor q, Tensor k, Tensor v) {
        const auto at = [](Tensor x, std::int64_t t) { return slice(x, 2, t, t + 1); };
        ttt::NadarayaWatson learner(scale);
        std::vector<ttt::NadarayaWatson> snapshots;
        Tensors answers;
        for (std::int64_t t = 0; t < s.time; ++t) {
          learner.train(at(k, t), at(v, t));
          REQUIRE(learner.examples() == t + 1);
          if (late) snapshots.push_back(learner);
          else answers.push_back(learner.predict(at(q, t)));
        }
        for (std::size_t t = 0; t < snapshots.size(); ++t)
          answers.push_back(snapshots[t].predict(at(q, static_cast<std::int64_t>(t))));
        return concat(answers, 2);
      };
      CHECK(max_error(derivatives(learnt, qkv), expected) < 1e-13);
    }
    // The tokens of a mini-batch are trained on first and asked after: not causal inside of it.
    const Attend by_chunks = [&](Tensor q, Tensor k, Tensor v) {
      ttt::NadarayaWatson learner(scale);
      Tensors answers;
      for (std::int64_t t = 0; t < s.time; t += 3) {
        learner.train(slice(k, 2, t, t + 3), slice(v, 2, t, t + 3));
        answers.push_back(learner.predict(slice(q, 2, t, t + 3)));
      }
      return concat(answers, 2);
    };
    const Arrays chunked = derivatives(by_chunks, qkv);
    const Array by_hand = by_loops(
        qkv, [](std::int64_t t) { return everything(t / 3 * 3 + 3)(t); }, scale);
    CHECK(relative_error(chunked[0], by_hand) < 1e-14);
    CHECK(max_error(chunked, expected) > 1e-3);
  }
}

TEST_CASE("Nadaraya-Watson: the kernel may overflow where its estimate does not") {
  // exp(+-1000): the nearest example wins; equal ones share.
  const Array k = Array::of({1000, -1000, 1000}, {1, 1, 3, 1}), v = Array::of({1, 2, 4}, {1, 1, 3, 1}),
              q = Array::of({1, -1}, {1, 1, 2, 1});
  const Function f = trace(
      [](const Tensors& in) {
        ttt::NadarayaWatson learner;
        learner.train(in[1], in[2]);
        const Tensor y = learner.predict(in[0]);
        Tensors out{y};
        for (const Tensor& g : grad(sum(square(y)), in)) out.push_back(g);
        return out;
      },
      {q.spec(), k.spec(), v.spec()});
  const Arrays out = f({q, k, v});
  CHECK(out[0].to_vector() == std::vector<double>{2.5, 2});
  for (const Array& a : out)
    for (const double value : a.to_vector()) CHECK(std::isfinite(value));
}

TEST_CASE("Nadaraya-Watson refuses what it cannot learn from or answer") {
  Graph graph;
  const auto x = [&](Shape shape) { return graph.input(f64(std::move(shape))); };
  const Tensor k = x({2, 3, 5, 4}), v = x({2, 3, 5, 6});
  CHECK(contains(message_of<ConfigError>([] { ttt::NadarayaWatson(0.0); }), "scale 0 makes every example"));
  CHECK(contains(message_of<ConfigError>([] { ttt::NadarayaWatson(-1.0); }), "scale must be positive"));
  ttt::NadarayaWatson learner;
  CHECK(learner.examples() == 0);
  CHECK(contains(message_of<ShapeError>([&] { learner.predict(k); }),
                 "no example to predict from; train() first"));
  CHECK(contains(message_of<ShapeError>([&] {
                   learner.train(k, x({2, 3, 4, 6}));
                 }),
                 "need k.time == v.time, one value a key: k is f64[2,3,5,4], v is f64[2,3,4,6] (at "
                 "nadaraya_watson_test.cpp:"));
  learner.train(k, v);
  CHECK(contains(
      message_of<ShapeError>([&] { learner.train(k, k); }),
      "differ from those before in more than their number: k is f64[2,3,5,4] and was f64[2,3,5,4], v "
      "is f64[2,3,5,4] and was f64[2,3,5,6]"));
  CHECK(learner.examples() == 5);
  CHECK(contains(message_of<ShapeError>([&] { learner.predict(x({2, 3, 1, 5})); }), "need q.dim == k.dim"));
}

// The promise: reading token by token, with weights and the gradients of the current mini-batch carried as
// states, is reading the whole sequence.
#include "models/traced_model.h"
#include "tests/ttt/named_learners.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// One token of a learner. Inputs: k, v, q, logit of the token rate, logits of the position rates, slot;
// outputs: the answer, then the states in the order of `names`.
struct Stepper {
  TracedModel model;
  std::vector<std::string> names;
};

Stepper step_of(const NamedLearner& named, const Sizes& s, FormChoice form, ttt::Stream::Mode mode) {
  Stepper out;
  const Spec row = f64({s.batch, s.heads, 1, s.dim});
  const std::vector<Spec> given{row, row, row, f64({s.batch, s.heads, 1, 1}), f64({s.mini_batch}), f64({1})};
  out.model = trace_model(DType::f64, given, [&](ParamTable& table, const Tensors& in) {
    const std::unique_ptr<ttt::Learner> learner = named.make(Params(table));
    ttt::Stream stream(mode);
    Tensors results{ttt::train_step(*learner, ttt::for_batch(learner->init(), s.batch),
                                    {in[2], in[0], in[1], {{"rate", sigmoid(in[3])}}, exp(in[4])}, in[5],
                                    {.policy = {.chunk = s.mini_batch}, .form = form}, stream, "layer")};
    for (const ttt::Stream::State& state : stream.states()) {
      out.names.push_back(state.name);
      results.push_back(mode == ttt::Stream::Mode::step ? state.next : state.value);
    }
    return results;
  });
  return out;
}

// Token t of x [batch, heads, time, dim].
Array token(const Array& x, std::int64_t t) {
  return trace([&](Tensor all) { return slice(all, 2, t, t + 1); }, x.spec())(x);
}

// The answers of every token, then the weights after the last one.
Arrays token_by_token(const NamedLearner& named, const Sizes& s, FormChoice form, const Function& whole,
                      const Arrays& in) {
  const Stepper start = step_of(named, s, form, ttt::Stream::Mode::initial),
                step = step_of(named, s, form, ttt::Stream::Mode::step);
  REQUIRE(start.names == step.names);
  StateDict params, state;
  for (std::size_t i = 5; i < in.size(); ++i)
    params.emplace(input_name(whole.graph().node(whole.inputs()[i])), in[i]);
  const auto given = [&](std::int64_t t) {
    return Arrays{token(in[0], t), token(in[1], t),
                  token(in[2], t), token(in[3], t),
                  in[4],           Array::full(DType::f64, {1}, static_cast<double>(t % s.mini_batch))};
  };
  const auto take = [&](const Arrays& out) {
    for (std::size_t i = 0; i < step.names.size(); ++i) state[step.names[i]] = out[i + 1];
  };
  take(start.model.function(start.model.bind(given(0), {&params})));
  Arrays answers;
  for (std::int64_t t = 0; t < s.time; ++t) {
    const Arrays out = step.model.function(step.model.bind(given(t), {&params, &state}));
    answers.push_back(out[0]);
    take(out);
  }
  for (std::size_t i = 0; i + 1 < whole.outputs().size(); ++i)
    answers.push_back(state[step.names[i]]);  // weights come first
  return answers;
}

}  // namespace

TEST_SUITE("slow") {
  TEST_CASE("reading token by token is reading the whole sequence, for every size of mini-batch") {
    for (const std::int64_t mini_batch : {1, 3, 4, 6, 8})  // one that leaves a rest, time, time + 2 too
      for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
        const Sizes sizes{.time = 6, .mini_batch = mini_batch};
        for (const NamedLearner& named : named_learners(sizes)) {
          CAPTURE(named.name);
          CAPTURE(mini_batch);
          const Function whole =
              derivatives(named, sizes, along({.policy = {.chunk = mini_batch}, .form = form}), 0);
          const Arrays in = numbers_for(whole), expected = whole(in);
          const Arrays found = token_by_token(named, sizes, form, whole, in);
          for (std::int64_t t = 0; t < sizes.time; ++t)
            CHECK(relative_error(found[static_cast<std::size_t>(t)], token(expected[0], t)) < 1e-12);
          if (sizes.time % mini_batch) continue;  // weights are carried on when the mini-batch is full
          for (std::size_t w = 1; w < expected.size(); ++w)
            CHECK(relative_error(found[static_cast<std::size_t>(sizes.time) + w - 1], expected[w]) < 1e-12);
        }
      }
  }
}

TEST_CASE("a stream without a state, or with one of another shape, says so") {
  Graph graph;
  const Tensor x = graph.input(f64({1, 1, 2}));
  ttt::Stream whole, step(ttt::Stream::Mode::step);
  CHECK(contains(message_of<GraphError>([&] { whole.state("s", x); }), "exists only while decoding"));
  CHECK(contains(message_of<GraphError>([&] { step.carry("s", x); }), "there is no state 's'"));
  step.state("s", x);
  CHECK(contains(message_of<GraphError>([&] { step.state("s", x); }), "asked for twice"));
  CHECK(contains(message_of<ShapeError>([&] { step.carry("s", graph.input(f64({2}))); }),
                 "state 's' is f64[1,1,2] and would become f64[2]"));
  step.carry("s", x);
  CHECK(contains(message_of<GraphError>([&] { step.carry("s", x); }), "carried on twice"));
}

TEST_CASE("a chunk that nobody ends is refused where tokens come one by one") {
  Graph graph;
  const Tensor w = graph.input(f64({2})), next = graph.input(f64({2}));
  ttt::Stream step(ttt::Stream::Mode::step), outside(ttt::Stream::Mode::step);
  step.state("w", w);
  CHECK(contains(message_of<ConfigError>([&] { step.carry_chunk("w", next, 4, {}); }),
                 "which token is the last"));
  outside.learn_outside();
  outside.state("w", w);
  outside.carry_chunk("w", next, 4, {});
  CHECK(outside.states().at(0).next.id() == outside.states().at(0).value.id());
}

TEST_CASE("a step of one token refuses what belongs to a whole sequence") {
  const NamedLearner named = named_learners()[0];
  trace(
      [&](Tensor x) {
        ParamTable table(*context().emit.graph, DType::f64);
        const std::unique_ptr<ttt::Learner> learner = named.make(Params(table));
        const Weights start = ttt::for_batch(learner->init(), 1);
        const auto refused = [&](const InnerLoopOptions& options, bool starts, const char* why) {
          Views views{x, x, x, {{"rate", slice(x, 3, 0, 1)}}, {}};
          if (starts) views.starts = constant(Array::zeros(DType::f64, {1, 1, 1, 1}));
          ttt::Stream stream(ttt::Stream::Mode::step);
          const Tensor slot = constant(Array::zeros(DType::f64, {1}));
          CHECK(contains(message_of<ConfigError>(
                             [&] { ttt::train_step(*learner, start, views, slot, options, stream, "l"); }),
                         why));
        };
        const ttt::Policy policy{.chunk = 2};
        refused({.policy = policy}, true, "begin a new stream");
        refused({.policy = policy, .track_loss = true}, false, "are for whole sequences");
        refused({.policy = policy, .gradient_offset = {x}}, false, "are for whole sequences");
        refused({.policy = policy, .state_offset = {x}}, false, "are for whole sequences");
        refused({.policy = policy, .keep_points = true}, false, "are for whole sequences");
        refused({.policy = policy, .chunks_before = slice(reshape(x, {-1}), 0, 0, 1)}, false,
                "are for whole sequences");
        return x;
      },
      f64({1, 3, 1, 4}));
}

// The promise: numbers, sizes and functions that make no sense are refused where they are given, before they make a
// model that trains or decodes to something else.
#include <limits>
#include <type_traits>

#include "look/inspection.h"
#include "models/adaptation.h"
#include "models/data.h"
#include "models/decoder.h"
#include "models/documents.h"
#include "models/end_to_end.h"
#include "models/images/labelled_images.h"
#include "models/sample.h"
#include "models/streams.h"
#include "models/trainer.h"
#include "models/validation.h"
#include "models/vision/noise_schedule.h"
#include "models/vision/patches.h"
#include "models/vision/vision_transformer.h"
#include "tests/models/model_testing.h"
#include "ttt/attention.h"
#include "ttt/layer.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Training::Objective with_gradient(ParamTable& table, const std::function<Tensor(Tensor w)>& gradient) {
  const Tensor w = table.get("w", {2}, Init::ones());
  return {.loss = sum(square(w)), .gradients = {gradient(w)}};
}

std::string why_refused(const std::function<Tensor(Tensor w)>& gradient) {
  Training training({});
  return message_of<ShapeError>([&] {
    training.add({Spec{DType::f32, {1}}}, [&](ParamTable& table, const std::vector<Tensor>&) {
      return with_gradient(table, gradient);
    });
  });
}

// Logits of the token and of a state that begins with `first` and goes on as it is.
LogitsFn with_state(const std::function<Tensor(Tensor embedded)>& first) {
  return [first](const Params& params, Tensor tokens, ttt::Stream& stream) {
    const Tensor table = params("table", {8, 4}, Init::normal(1));
    const Tensor e = gather(table, tokens);  // [batch, 1, 4]
    if (!stream.stepping()) return matmul(e + first(e), table, {false, true});
    const Tensor held = stream.state("first", first(e));
    stream.carry("first", held);
    return matmul(e + held, table, {false, true});
  };
}

constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();

// Of 8 tokens, of which an op of the model knows the first 4 alone. Every two tokens something is learnt.
Tensor knows_few(const Params& params, Tensor tokens, ttt::Stream& stream) {
  const Tensor table = params("table", {8, 4}, Init::normal(1));
  Tensor h = gather(params("few", {4, 4}, Init::normal(1)), tokens);
  if (stream.stepping()) {
    const Tensor held = stream.state("held", zeros(h.dtype(), {tokens.dim(0), 1, 4}));
    stream.carry_chunk("held", held + 1.0, 2, {});
    h = h + held;
  }
  return matmul(h, table, {false, true});
}
StateDict params_of_few() { return {{"table", random(f64({8, 4}), 1)}, {"few", random(f64({4, 4}), 2)}}; }
Array one_token(int id) { return Array::of({static_cast<double>(id)}, {1}, DType::i32); }

Training small_training_of(TrainingSetup setup) {
  Training out(std::move(setup));
  out.add({Spec{DType::f32, {2}}}, [](ParamTable& table, const std::vector<Tensor>& in) {
    return Training::Objective{.loss = sum(square(table.get("w", {2}, Init::ones()) - in[0]))};
  });
  return out;
}

ByteCorpus small_corpus() {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 400; ++i) text.push_back(static_cast<std::uint8_t>("abcde fgh."[(i * i / 7 + i) % 10]));
  return {text, text};
}
TrainingOptions small_options() {
  TrainingOptions o;
  o.model = small_model("linear");
  o.model.vocab_size = 256;
  o.steps = 4, o.batch = 2, o.context = 8, o.warmup = 1;
  return o;
}

}  // namespace

TEST_CASE("whatever was moved from says so, whatever it is asked, and is whole when it is assigned to") {
  const auto refused = [](const char* what, const auto& call) {
    CAPTURE(what);
    CHECK(contains(message_of<ConfigError>(call), fmt::format("this {} was moved from", what)));
  };
  {
    Decoder from(knows_few, params_of_few(), DType::f64, 1);
    Decoder to = std::move(from);
    const auto ask = [&](const auto& call) { refused("decoder", call); };
    ask([&] { from.step(one_token(1)); });
    ask([&] { from.reset(); });
    ask([&] { static_cast<void>(from.position()); });
    ask([&] { static_cast<void>(from.vocab_size()); });
    ask([&] { static_cast<void>(from.batch()); });
    ask([&] { static_cast<void>(from.carried()); });
    ask([&] { static_cast<void>(from.state()); });
    ask([&] { from.restore({}, 0); });
    const Array logits = to.step(one_token(1));
    from = std::move(to);
    from.reset();
    CHECK(from.step(one_token(1)).same_bits(logits));
  }
  for (const std::int64_t grains : {1, 2}) {
    CAPTURE(grains);
    Training from = small_training_of({.average_decay = 0.5, .grains = grains});
    Training to = std::move(from);
    const auto ask = [&](const auto& call) { refused("training", call); };
    const std::vector<Array> batch{Array::zeros(DType::f32, {2})};
    const Training::ObjectiveFn objective = [](ParamTable&, const std::vector<Tensor>& in) {
      return Training::Objective{.loss = sum(in[0])};
    };
    ask([&] { from.add({Spec{DType::f32, {2}}}, objective); });
    ask([&] { from.step(0, batch, 0.1); });
    ask([&] {
      from.step_grains(
          0, [&](std::int64_t) { return batch; }, 0.1);
    });
    ask([&] {
      from.step_parts(
          0, [&](std::int64_t, std::int64_t) { return batch; }, 0.1);
    });
    ask([&] {
      from.read_slices(
          {}, [](ParamTable&, const std::vector<Tensor>&, const ProcessGroup&) { return Tensor(); }, 1,
          [&](std::int64_t, std::int64_t) { return batch; });
    });
    ask([&] { static_cast<void>(from.why_not_finite()); });
    ask([&] { static_cast<void>(from.steps_done()); });
    ask([&] { from.start_from({}); });
    ask([&] { from.save("nowhere", {}); });
    ask([&] { from.load("nowhere", {}); });
    ask([&] { static_cast<void>(from.parameters()); });
    ask([&] { static_cast<void>(from.averages()); });
    ask([&] { static_cast<void>(from.specs()); });
    ask([&] { static_cast<void>(from.unused()); });
    ask([&] { static_cast<void>(from.frozen()); });
    ask([&] { static_cast<void>(from.parameter_count()); });
    ask([&] { static_cast<void>(from.arena_bytes()); });
    ask([&] { static_cast<void>(from.processes()); });
    ask([&] { static_cast<void>(from.is_first()); });
    from = std::move(to);
    CHECK(from.step_grains(
                  0, [&](std::int64_t) { return batch; }, 0.1)
              .loss == 2);
  }
  {
    Trainer from(small_options(), small_corpus());
    Trainer to = std::move(from);
    const Array windows = to.validation_windows(2);
    const auto ask = [&](const auto& call) { refused("training", call); };
    ask([&] { from.step(); });
    ask([&] { static_cast<void>(from.why_not_finite()); });
    ask([&] { static_cast<void>(from.validate(windows)); });
    ask([&] { from.save("nowhere"); });
    ask([&] { from.load("nowhere"); });
    ask([&] { static_cast<void>(from.parameters()); });
    CHECK(to.step().step == 1);
  }
  {
    LanguageModelConfig config = small_model("linear");
    const StateDict params = random_parameters(logits_model(config, DType::f32, i32({1, 3})), DType::f32);
    AdaptingScorer from(config, params, {.what = Adapted::norms});
    AdaptingScorer to = std::move(from);
    const std::vector<std::int32_t> tokens{1, 2, 3};
    const auto ask = [&](const auto& call) { refused("scorer", call); };
    ask([&] { from.score(tokens); });
    ask([&] { from.reset(); });
    ask([&] { static_cast<void>(from.steps()); });
    ask([&] { static_cast<void>(from.learning_parameters()); });
    CHECK(to.score(tokens).size() == 2);
  }
  trace(
      [&](Tensor x) {
        ParamTable table(*context().emit.graph, DType::f64);
        ttt::TTTLayer from(Params(table), {.width = 8, .heads = 2},
                           std::make_unique<ttt::ProjectedViews>(Params(table), 8),
                           ttt::system_named("delta-net"), "layer");
        const ttt::TTTLayer to = std::move(from);
        ttt::Stream stream;
        refused("layer", [&] { from(x, stream); });
        refused("layer", [&] { static_cast<void>(from.learner()); });
        return to(x, stream);
      },
      f64({1, 4, 8}));
  // These are not moved at all.
  static_assert(!std::is_move_constructible_v<StateProgram>);
  static_assert(!std::is_move_constructible_v<ShardedAdamW>);
  static_assert(!std::is_move_constructible_v<EndToEndModel>);
}

TEST_CASE("texts, schedules and the pieces of a learner are what they were when they were moved from") {
  ByteCorpus text = small_corpus();
  const std::uint64_t fingerprint = text.fingerprint();
  const ByteCorpus other_text = std::move(text);
  CHECK(text.fingerprint() == fingerprint);
  CHECK(text.batch(Split::training, 0, 2, 4, 1).same_bits(other_text.batch(Split::training, 0, 2, 4, 1)));
  vision::NoiseSchedule schedule = vision::NoiseSchedule::linear(40);
  const vision::NoiseSchedule other_schedule = std::move(schedule);
  CHECK(schedule.levels() == other_schedule.levels());
  ttt::InnerOptimizer optimizer = ttt::InnerOptimizer().momentum(0.9).keep(0.5);
  const std::string says = optimizer.str();
  const ttt::InnerOptimizer other = std::move(optimizer);
  CHECK(optimizer.str() == says);
  CHECK(other.str() == says);
  trace(
      [&](Tensor x) {
        ParamTable table(*context().emit.graph, DType::f64);
        ttt::Composed learner(ttt::linear(Params(table), {.heads = 1, .in = 2, .out = 2}),
                              ttt::half_squared_error());
        const ttt::Composed same = std::move(learner);
        CHECK(same.predict(same.init(), x).shape() == learner.predict(learner.init(), x).shape());
        // A model is a value of its parts: one that was moved from has no function any more.
        ttt::Model model = ttt::linear(Params(table), {.heads = 1, .in = 2, .out = 2});
        const ttt::Model taken = std::move(model);
        CHECK(contains(message_of<ConfigError>([&] { ttt::Composed(model, ttt::half_squared_error()); }),
                       "Model::f, is an empty function"));
        return x;
      },
      f64({1, 3, 2}));
}

TEST_CASE("a trainer that was moved after a step that failed still says where it went wrong") {
  TrainingOptions options = small_options();
  options.grains = 2;
  const LogitsFn spoilt = [](const Params& params, Tensor tokens, ttt::Stream&) {
    const Tensor table = params("table", {256, 256}, Init::normal(0.02));
    return log(gather(table, tokens) - 100.0);
  };
  auto first = std::make_unique<Trainer>(options, small_corpus(), spoilt);
  CHECK_THROWS_AS(first->step(), ValueError);
  Trainer second = std::move(*first);
  first.reset();
  const std::optional<NonFinite> found = second.why_not_finite();
  REQUIRE(found);
  CHECK(contains(found->str(), "log"));
}

TEST_CASE("streams of which some have read a token and some have not give out nothing any more") {
  Streams streams(knows_few, params_of_few(), DType::f64);
  const Streams::Id a = streams.join(), b = streams.join();
  streams.step({1, 2});
  const Stopped before = streams.look(a);
  CHECK_THROWS_AS(streams.step({1, 6}), ValueError);  // 6 is a token, which an op of the model does not know
  const auto refused = [](const auto& call) {
    CHECK(contains(message_of<ConfigError>(call), "an earlier step failed part way"));
  };
  refused([&] { streams.leave(a); });
  refused([&] { streams.leave(b); });
  refused([&] { static_cast<void>(streams.look(a)); });
  refused([&] { streams.join(); });
  refused([&] { streams.join(before); });
  refused([&] { static_cast<void>(streams.position(a)); });
  refused([&] { streams.step({1, 2}); });
  CHECK(streams.ids() == std::vector<Streams::Id>{a, b});
  Streams again(knows_few, params_of_few(), DType::f64);
  CHECK(again.position(again.join(before)) == 1);
}

TEST_CASE("a decoder whose step failed stands where it was, or says that it stands nowhere") {
  Decoder decoder(knows_few, params_of_few(), DType::f64, 1),
      other(knows_few, params_of_few(), DType::f64, 1);
  const StateDict start = decoder.state();
  decoder.step(one_token(1)), other.step(one_token(1));
  CHECK_THROWS_AS(decoder.step(one_token(6)), ValueError);  // nothing is learnt behind the first token
  CHECK(decoder.position() == 1);
  CHECK(decoder.step(one_token(2)).same_bits(other.step(one_token(2))));
  CHECK_THROWS_AS(decoder.step(one_token(6)), ValueError);  // behind the second something was learnt
  const auto refused = [&](const auto& call) {
    CHECK(contains(message_of<ConfigError>(call), "an earlier step failed after the state had changed"));
  };
  refused([&] { decoder.step(one_token(1)); });
  refused([&] { static_cast<void>(decoder.state()); });
  decoder.restore(other.state(), 2);
  CHECK(decoder.step(one_token(3)).same_bits(other.step(one_token(3))));
  decoder.step(one_token(1));
  CHECK_THROWS_AS(decoder.step(one_token(6)), ValueError);
  decoder.reset();
  CHECK(decoder.state().at("held").same_bits(start.at("held")));
}

TEST_CASE("a decoder whose model puts a row where there is none stands where it was") {
  const LogitsFn puts = [](const Params& params, Tensor tokens, ttt::Stream& stream) {
    const Tensor table = params("table", {8, 4}, Init::normal(1));
    Tensor h = gather(table, tokens);
    if (stream.stepping()) {
      const Tensor held = stream.state("held", zeros(h.dtype(), {tokens.dim(0), 4, 4})),
                   count = stream.state("count", zeros(h.dtype(), {1}));
      const Tensor place = cast(slice(tokens, 0, 0, 1), h.dtype());  // of 4 rows
      stream.carry("count", count + 1.0);
      stream.carry_row(
          "held", select(equal(reshape(iota(h.dtype(), {4}, 0), {4, 1}), reshape(place, {1, 1})), h, held), h,
          reshape(place, {1}));
      h = h + sum(held, {-2}, kKeep) + count;
    }
    return matmul(h, table, {false, true});
  };
  const StateDict params{{"table", random(f64({8, 4}), 1)}};
  Decoder decoder(puts, params, DType::f64, 1), other(puts, params, DType::f64, 1);
  decoder.step(one_token(1)), other.step(one_token(1));
  CHECK(contains(message_of<ValueError>([&] { decoder.step(one_token(7)); }),
                 "a row is to be put at place 7 of 4"));
  CHECK(decoder.position() == 1);
  for (const auto& [name, state] : decoder.state()) CHECK(state.same_bits(other.state().at(name)));
  CHECK(decoder.step(one_token(2)).same_bits(other.step(one_token(2))));
}

TEST_CASE("windows, losses and batches of a validation fit each other, or are refused") {
  const TokenLossFn losses = [](const Params&, Tensor tokens, Tensor, ttt::Stream&) {
    return cast(slice(tokens, 1, 1, tokens.dim(1)), DType::f32);
  };
  OneProcess alone;
  const Array windows = Array::full(DType::i32, {3, 5}, 1);
  CHECK(validation_of(losses, {}, windows, 3, alone).loss == 1);
  CHECK(contains(message_of<ShapeError>([&] { validation_of(losses, {}, Array(), 1, alone); }),
                 "windows are nothing"));
  for (const std::int64_t batch : {0, 4})
    CHECK(contains(message_of<ConfigError>([&] { validation_of(losses, {}, windows, batch, alone); }),
                   "give 1 to 3"));
  const PackedWindows packed = packed_validation(small_corpus(), 4, 1, 2);
  CHECK(validation_of_losses({{1, 2, 3, 4}, {1, 2, 3, 4}}, packed).packed);
  CHECK_FALSE(validation_of(losses, {}, windows, 3, alone).packed);
  CHECK(contains(message_of<ShapeError>([&] {
                   validation_of_losses({{1, 2, 3, 4}}, packed);
                 }),
                 "losses are of 1 windows"));
  CHECK(contains(message_of<ShapeError>([&] {
                   validation_of_losses({{1, 2, 3, 4}, {1}}, packed);
                 }),
                 "4 numbers each"));
  CHECK(contains(message_of<ShapeError>([] { lora_factors({"b", {3}, Init::zeros()}, 2); }), "'b' is [3]"));
}

TEST_CASE("an empty function is refused by every part of a model and of training that takes one") {
  const auto refused = [](const char* who, const auto& call) {
    CAPTURE(who);
    const std::string text = message_of<ConfigError>(call);
    CHECK(contains(text, fmt::format("[{}]", who)));
    CHECK(contains(text, "is an empty function; give one"));
  };
  const Spec batch{DType::f32, {2}};
  Training training = small_training_of({}), grains = small_training_of({.grains = 2});
  refused("train", [&] { training.add({batch}, Training::ObjectiveFn()); });
  refused("train", [&] { training.add({batch}, Training::SliceObjectiveFn()); });
  refused("train", [&] { grains.step_grains(0, {}, 0.1); });
  refused("train", [&] { grains.step_parts(0, {}, 0.1); });
  const Training::PartFn parts = [](std::int64_t, std::int64_t) { return std::vector<Array>(); };
  const Training::SliceOutputFn output = [](ParamTable&, const std::vector<Tensor>& in, const ProcessGroup&) {
    return in[0];
  };
  refused("train", [&] { training.read_slices({batch}, {}, 1, parts); });
  refused("train", [&] { training.read_slices({batch}, output, 1, {}); });
  CHECK(contains(message_of<ConfigError>([&] { training.read_slices({batch}, output, 1, parts); }),
                 "cut into slices"));
  refused("model", [] { trace_model(DType::f32, {}, {}); });
  refused("model", [] { Decoder(LogitsFn(), {}, DType::f32, 1); });
  refused("model", [] { Streams(LogitsFn(), {}, DType::f32); });
  refused("model", [] { AdaptingScorer(LogitsFn(), {}, {}); });
  refused("model", [] { check_decoding(LogitsFn()); });
  refused("model", [] { Trainer(small_options(), small_corpus(), LogitsFn()); });
  refused("model", [] { sample_text(LogitsFn(), {}, "a", 1, 0, 1); });
  OneProcess alone;
  refused("validation", [&] {
    validation_of(TokenLossFn(), {}, Array::zeros(DType::i32, {1, 3}), 1, alone);
  });
  refused("validation",
          [&] { validation_of(DocumentLossFn(), {}, packed_validation(small_corpus(), 4, 1, 1), alone); });
  refused("sampling", [] {
    vision::sample_ddim({}, vision::NoiseSchedule::linear(40), Array::zeros(DType::f32, {1, 2}),
                        Array::zeros(DType::i32, {1}));
  });
  refused("gate", [] { ttt::gate("rate", "2 rate", {}); });
  refused("optimiser", [] { ttt::InnerOptimizer().piece("mine", {}); });
  refused("ttt", [] { ttt::trace_system(ttt::system_named("delta-net"), {}, DType::f64, {}); });
  trace(
      [&](Tensor x) {
        ParamTable table(*context().emit.graph, DType::f64);
        const Params params(table);
        const auto make = [](const Params& p) { return ttt::linear(p, {.heads = 1, .in = 2, .out = 2}); };
        const ttt::Model model = make(params);
        refused("params", [&] { params.through({}); });
        refused("composed", [&] { ttt::Composed(model, ttt::InnerLoss{}); });
        refused("composed", [&] { ttt::Composed(ttt::Model{}, ttt::half_squared_error()); });
        refused("side_by_side", [&] { ttt::side_by_side({model, {}}, {2, 2}); });
        refused("starting_from", [&] { ttt::starting_from({x}, {}); });
        CHECK(contains(message_of<ConfigError>([&] { ttt::starting_from({}, make); }),
                       "no weights to start from"));
        CHECK(
            contains(message_of<GraphError>([&] { ttt::starting_from({Tensor()}, make); }), "names nothing"));
        return x;
      },
      f64({1, 2, 2}));
  look::InspectedLoop loop = look::inspected_learner(ttt::system_named("delta-net"), {.chunk = 5}, 1);
  loop.learner = {};
  refused("inspect", [&] { inspect(loop); });
  loop.learner = [](const Params&) { return std::unique_ptr<ttt::Learner>(); };
  CHECK(contains(message_of<ConfigError>([&] { inspect(loop); }), "InspectedLoop::learner makes is null"));
  ttt::System nothing = ttt::system_named("delta-net");
  nothing.policy = {};
  CHECK(contains(message_of<ConfigError>([&] { look::inspected_learner(nothing, {}, 1); }), "has no policy"));
}

TEST_CASE("sizes near the largest number that there is are refused, and no arithmetic ends with them") {
  LanguageModelConfig attention = small_model("attention");
  attention.vocab_size = 256;
  const StateDict params = random_parameters(logits_model(attention, DType::f32, i32({1, 3})), DType::f32);
  const auto too_large = [](const auto& call) {
    CHECK(contains(message_of<ConfigError>(call), "counts to 8388608 of them at most"));
  };
  for (const std::int64_t capacity : {kEndless, kEndless / 2 + 1, ttt::Stream::kForever}) {
    too_large([&] { Decoder(attention, params, DType::f32, 1, capacity); });
    too_large([&] { Streams(attention, params, DType::f32, capacity); });
  }
  CHECK(contains(message_of<ConfigError>([&] { sample_text(attention, params, "a", kEndless, 0, 1); }),
                 "bytes cannot be written"));
  Decoder decoder(knows_few, params_of_few(), DType::f64, 1);
  Streams streams(knows_few, params_of_few(), DType::f64);
  for (const std::int64_t position : {kEndless, std::int64_t{-1}}) {
    CHECK(contains(message_of<ConfigError>([&] { decoder.restore(decoder.state(), position); }),
                   "is outside of what can be read"));
    CHECK(contains(message_of<ConfigError>([&] {
                     streams.join({decoder.state(), position});
                   }),
                   "is outside of what can be read"));
  }
  const ByteCorpus text = small_corpus();
  const auto refused = [](const char* why, const auto& call) {
    CHECK(contains(message_of<ConfigError>(call), why));
  };
  refused("needs one more than that", [&] { text.batch(Split::training, 0, 1, kEndless, 0); });
  refused("needs one more than that", [&] { text.validation_windows(kEndless, 1); });
  refused("it must be from 1 to", [&] { packed_batch(text, Split::training, 0, 1, kEndless, 1, 0); });
  refused("it must be from 1 to", [&] { packed_validation(text, kEndless, kEndless, 1); });
  // As many windows as there are, however many are allowed.
  CHECK(packed_validation(text, 4, 1, kEndless).tokens.same_bits(packed_validation(text, 4, 1, 500).tokens));
  trace(
      [](Tensor x) {
        CHECK(contains(message_of<ShapeError>([&] { ttt::attention(x, x, x, {.window = kEndless}); }),
                       "the window must be positive, up to"));
        for (const std::int64_t side : {kEndless, std::int64_t{1} << 62})
          CHECK(
              contains(message_of<ShapeError>([&] { ttt::neighbourhood_attention_2d(x, x, x, side, 4, 1); }),
                       "does not have 4 tokens"));
        CHECK(contains(message_of<ShapeError>([&] {
                         vision::images_of(reshape(x, {1, 4, 2}), std::int64_t{1} << 40,
                                           std::int64_t{1} << 40, std::int64_t{1} << 40);
                       }),
                       "are not those of an image"));
        return x;
      },
      f64({1, 1, 4, 2}));
  for (const auto field : {&vision::VisionConfig::height, &vision::VisionConfig::image_width,
                           &vision::VisionConfig::channels, &vision::VisionConfig::classes}) {
    vision::VisionConfig config{.height = 8, .image_width = 8, .patch = 1, .width = 8, .classes = 2};
    config.check();
    config.*field = kEndless;
    refused("must be at most", [&] { config.check(); });
  }
}

TEST_CASE("gradients that an objective gives have the parameters' shapes, or are refused by name") {
  for (const auto& wrong : {std::function<Tensor(Tensor)>([](Tensor w) { return sum(w); }),
                            std::function<Tensor(Tensor)>([](Tensor w) { return reshape(sum(w), {1}); }),
                            std::function<Tensor(Tensor)>([](Tensor w) { return cast(w, DType::f64); })}) {
    const std::string text = why_refused(wrong);
    CHECK(contains(text, "the gradient of 'w' that the objective gives is"));
    CHECK(contains(text, "the parameter is f32[2]"));
  }
  Training training({});
  CHECK(contains(message_of<ConfigError>([&] {
                   training.add({Spec{DType::f32, {1}}}, [](ParamTable& table, const std::vector<Tensor>&) {
                     const Tensor w = table.get("w", {2}, Init::ones()),
                                  u = table.get("u", {2}, Init::ones());
                     return Training::Objective{.loss = sum(square(w) + u), .gradients = {w}};
                   });
                 }),
                 "gives 1 gradients for 2 parameters"));
  CHECK(contains(message_of<DTypeError>([&] {
                   training.add({Spec{DType::f32, {1}}}, [](ParamTable& table, const std::vector<Tensor>&) {
                     return Training::Objective{.loss =
                                                    sum(cast(table.get("w", {2}, Init::ones()), DType::f64))};
                   });
                 }),
                 "is to be f32, it is f64"));
}

TEST_CASE("training does not start from numbers that are not finite") {
  Training training({});
  training.add({Spec{DType::f32, {1}}}, [](ParamTable& table, const std::vector<Tensor>&) {
    return Training::Objective{.loss = sum(square(table.get("w", {2}, Init::ones())))};
  });
  for (const double wrong : {std::nan(""), double{INFINITY}, -double{INFINITY}})
    CHECK(contains(message_of<ValueError>([&] {
                     training.start_from({{"w", Array::of({1, wrong}, {2}, DType::f32)}});
                   }),
                   "'w' has"));
}

TEST_CASE("a state of a stream begins with nothing of the token that is read") {
  const LogitsFn of_parameters = with_state([](Tensor e) { return zeros(e.dtype(), e.shape()); });
  const LogitsFn of_token = with_state([](Tensor e) { return e; });
  const StateDict params{{"table", Array::full(DType::f64, {8, 4}, 0.5)}};
  CHECK(Decoder(of_parameters, params, DType::f64, 1).vocab_size() == 8);
  for (const auto& make : {std::function<void()>([&] { Decoder(of_token, params, DType::f64, 1); }),
                           std::function<void()>([&] { Streams(of_token, params, DType::f64); })})
    CHECK(contains(message_of<ConfigError>(make), "the state 'first' begins with what is made of the token"));
}

TEST_CASE("periods and chunks of a stream are at least one token") {
  const StateDict params{{"table", Array::full(DType::f64, {8, 4}, 0.5)}};
  for (const std::int64_t wrong : {0, -3}) {
    CAPTURE(wrong);
    const LogitsFn counting = [&](const Params& p, Tensor tokens, ttt::Stream& stream) {
      const Tensor e = gather(p("table", {8, 4}, Init::normal(1)), tokens);
      if (stream.stepping()) static_cast<void>(stream.counter("n", wrong, e.dtype()));
      return e;
    };
    CHECK(contains(message_of<ConfigError>([&] { Decoder(counting, params, DType::f64, 1); }),
                   "is to count in a period of"));
    const LogitsFn in_chunks = [&](const Params& p, Tensor tokens, ttt::Stream& stream) {
      const Tensor e = gather(p("table", {8, 4}, Init::normal(1)), tokens);
      if (stream.stepping()) {
        const Tensor held = stream.state("held", zeros(e.dtype(), e.shape()));
        stream.carry_chunk("held", held + 1.0, wrong, {});
      }
      return e;
    };
    CHECK(contains(message_of<ConfigError>([&] { Decoder(in_chunks, params, DType::f64, 1); }),
                   "a chunk has at least 1"));
  }
}

TEST_CASE(
    "a part of a context, a schedule of noise and what a bigram model is scored on are what they can be") {
  Validation validation;
  validation.context = 4;
  validation.loss_by_position = {1, 2, 3, 4};
  CHECK(validation.mean_between(0.5, 1) == 3.5);
  for (const auto& part :
       {std::pair{1.0, 0.0}, {-1.0, 0.5}, {0.0, 1.5}, {std::nan(""), 1.0}, {0.0, std::nan("")}})
    CHECK(contains(
        message_of<ValueError>([&] { static_cast<void>(validation.mean_between(part.first, part.second)); }),
        "is no part of a context"));
  CHECK(contains(message_of<ConfigError>([] { vision::NoiseSchedule::linear(std::int64_t{1} << 40); }),
                 "at most"));
  const std::vector<std::uint8_t> text{1, 2, 3, 1, 2, 3};
  const Array windows = Array::zeros(DType::i32, {1, 3});
  CHECK(contains(message_of<ValueError>([&] {
                   bigram_loss(text, windows, Array::zeros(DType::f32, {1, 2}));
                 }),
                 "names no token"));
}

TEST_CASE("more images than any memory holds are refused before they are drawn") {
  const LabelledImages one{Array::zeros(DType::f32, {1, 1, 1, 1}), Array::zeros(DType::i32, {1}), {"a"}};
  CHECK(drawn(one, 3, 1, 0).labels.size() == 3);
  CHECK(contains(message_of<ShapeError>([&] { drawn(one, std::int64_t{1} << 50, 1, 0); }),
                 "larger than any memory"));
}

TEST_CASE("what a parameter is drawn between are two positive numbers, the smaller first") {
  for (const auto& [low, high] : {std::pair{-1.0, 2.0}, {0.0, 1.0}, {2.0, 1.0}, {1.0, double{INFINITY}}})
    for (const Init& init :
         {Init::log_of_uniform(low, high), Init::inverse_softplus_of_log_uniform(low, high)})
      CHECK(contains(message_of<ConfigError>([&] {
                       initial_value({"a", {3}, init}, DType::f32, 1);
                     }),
                     "'a' is to be drawn between"));
}

TEST_CASE("an inner optimiser takes each of its parts once, and numbers that it can use") {
  using namespace ttt;
  const auto refused = [](const char* why, const auto& call) {
    CHECK(contains(message_of<ConfigError>(call), why));
  };
  CHECK(contains(message_of<GraphError>([] { InnerOptimizer().keep(Tensor()); }), "names nothing"));
  refused("keep() was called before", [] { InnerOptimizer().keep(0.9).keep(0.5); });
  refused("anchor() was called before", [] { InnerOptimizer().anchor(0.1).anchor(0.2); });
  refused("weights have one norm", [] { InnerOptimizer().weight_norm().prenorm(); });
  refused("weights have one norm", [] { InnerOptimizer().prenorm().weight_norm(); });
  refused("positive, finite norm", [] { InnerOptimizer().clip(Per::all, INFINITY); });
  refused("eps of Adam", [] { InnerOptimizer().adam(0.9, 0.99, -1); });
  refused("eps of Muon", [] { InnerOptimizer().muon(muon_tuned(), -1); });
  refused("eps of normalize", [] { InnerOptimizer().normalize(Per::matrix, std::nan("")); });
  refused("eps of weight_norm", [] { InnerOptimizer().weight_norm(-1); });
  refused("a number of steps, not -1", [] { muon_published(-1); });
}

TEST_CASE("a perceptron without widths or an activation, and parameters that are null, are refused") {
  trace(
      [](Tensor x) {
        ParamTable table(*context().emit.graph, DType::f64);
        const auto perceptron = [&](const std::vector<std::int64_t>& widths,
                                    const std::function<Tensor(Tensor)>& activation) {
          return message_of<ConfigError>(
              [&] { ttt::mlp(Params(table), 2, widths, activation, "gelu", false, false); });
        };
        const std::function<Tensor(Tensor)> any = [](Tensor t) { return gelu(t); };
        CHECK(contains(perceptron({}, any), "0 widths are given"));
        CHECK(contains(perceptron({3}, any), "1 widths are given"));
        CHECK(contains(perceptron({3, 4, 3}, {}), "the activation is an empty function"));
        return x;
      },
      f64({1}));
  const TracedModel model =
      trace_model(DType::f32, {{DType::f32, {2}}}, [](ParamTable& table, const std::vector<Tensor>& in) {
        return std::vector<Tensor>{in[0] * table.get("w", {2}, Init::ones())};
      });
  CHECK(contains(message_of<ConfigError>([&] { model.bind({Array::zeros(DType::f32, {2})}, {nullptr}); }),
                 "is null"));
}

TEST_CASE("a layer without a task or a learner is refused") {
  using namespace ttt;
  const auto make = [](std::unique_ptr<Task> task, System system, double base_lr = 1) {
    trace(
        [&](Tensor x) {
          ParamTable table(*context().emit.graph, DType::f64);
          const Params params(table);
          const TTTLayer layer(params, {.width = 8, .heads = 2, .base_lr = base_lr}, std::move(task),
                               std::move(system), "layer");
          return x;
        },
        f64({1, 4, 8}));
  };
  const auto task = [] {
    std::unique_ptr<Task> out;
    trace(
        [&](Tensor x) {
          ParamTable table(*context().emit.graph, DType::f64);
          out = std::make_unique<ProjectedViews>(Params(table), 8);
          return x;
        },
        f64({1}));
    return out;
  };
  CHECK(contains(message_of<ConfigError>([&] { make(nullptr, system_named("delta-net")); }), "needs a task"));
  System nothing = system_named("delta-net");
  nothing.learner = [](const Params&, const SystemSizes&) { return std::unique_ptr<Learner>(); };
  CHECK(contains(message_of<ConfigError>([&] { make(task(), nothing); }), "is null"));
  CHECK(contains(message_of<ConfigError>([&] { make(task(), system_named("ttt-linear"), INFINITY); }),
                 "base_lr is inf"));
}

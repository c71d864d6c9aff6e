// The promise: numbers, sizes and functions that make no sense are refused where they are given, before they make a
// model that trains or decodes to something else.
#include "models/data.h"
#include "models/decoder.h"
#include "models/images/labelled_images.h"
#include "models/streams.h"
#include "models/training.h"
#include "models/validation.h"
#include "models/vision/noise_schedule.h"
#include "tests/testing.h"
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

}  // namespace

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

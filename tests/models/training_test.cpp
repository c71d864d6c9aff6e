// The promises: training is AdamW's, in groups with rates and decays of their own; a step that fails changes nothing, a run
// that was stopped goes on bit for bit, and what is taken from another model is told by name.
#include "models/training.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/core/error.h"
#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "models/partial_load.h"
#include "models/validation.h"
#include "ops/ops.h"
#include "tests/temporary_folder.h"
#include "tests/testing.h"
#include "ttt/claim.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// A point that two kinds of batches pull towards their own numbers.
Training::ObjectiveFn towards(double scale) {
  return [scale](ParamTable& table, const std::vector<Tensor>& in) {
    return Training::Objective{scale * sum(square(table.get("w", {2}, Init::zeros()) - in[0]))};
  };
}
Array numbers(double a, double b) { return Array::of({a, b}, {2}, DType::f32); }

}  // namespace

TEST_CASE(
    "training: the first step of AdamW moves every parameter by the rate, kinds of batches share them") {
  const Spec batch{DType::f32, {2}};
  Training training({.seed = 0, .adamw = {.weight_decay = 0, .clip = 1e9}});
  const std::size_t one = training.add({batch}, towards(1)), two = training.add({batch}, towards(2));
  CHECK(training.step(one, {numbers(3, -4)}, 0.1).loss == 25);
  const std::vector<double> moved = training.parameters().at("w").to_vector();
  CHECK(moved[0] == doctest::Approx(0.1).epsilon(1e-5));
  CHECK(moved[1] == doctest::Approx(-0.1).epsilon(1e-5));
  CHECK(training.step(two, {numbers(3, -4)}, 0.1).loss ==
        doctest::Approx(2 * (2.9 * 2.9 + 3.9 * 3.9)).epsilon(1e-5));
  for (int i = 0; i < 300; ++i) training.step(i % 2 ? one : two, {numbers(1, 2)}, 0.05);
  CHECK(training.parameters().at("w").at(0) == doctest::Approx(1).epsilon(0.01));
  CHECK(training.parameters().at("w").at(1) == doctest::Approx(2).epsilon(0.01));
  CHECK(training.steps_done() == 302);
}

TEST_CASE("training: a gradient of one's own counts in the place of the loss's") {
  Training training({.seed = 0, .adamw = {.weight_decay = 0}});
  training.add({{DType::f32, {2}}}, [](ParamTable& table, const std::vector<Tensor>& in) {
    const Tensor w = table.get("w", {2}, Init::zeros());
    return Training::Objective{sum(square(w - in[0])), {in[0]}};
  });
  training.step(0, {numbers(3, -4)}, 0.1);
  CHECK(training.parameters().at("w").at(0) == doctest::Approx(-0.1).epsilon(1e-4));
}

TEST_CASE("training: a step that is not finite changes nothing; other parameters and batches are refused") {
  Training training({.seed = 0, .adamw = {.weight_decay = 0}});
  training.add({{DType::f32, {2}}}, towards(1));
  training.step(0, {numbers(1, 1)}, 0.1);
  const Array before = training.parameters().at("w");
  CHECK(contains(message_of<ValueError>([&] { training.step(0, {numbers(std::nan(""), 1)}, 0.1); }),
                 "step 2: the loss is not finite"));
  CHECK(training.parameters().at("w").same_bits(before));
  CHECK(training.steps_done() == 1);
  CHECK(contains(message_of<ConfigError>([&] { training.step(0, {}, 0.1); }), "a batch of 0 arrays"));
  CHECK(contains(message_of<ConfigError>([&] {
                   training.add({{DType::f32, {2}}}, [](ParamTable& table, const std::vector<Tensor>& in) {
                     return Training::Objective{sum(table.get("other", {2}, Init::zeros()) * in[0])};
                   });
                 }),
                 "different parameters"));
  Training two({.seed = 1});
  const auto in_order = [&](const std::vector<std::string>& names) {
    two.add({{DType::f32, {2}}}, [&](ParamTable& table, const std::vector<Tensor>& in) {
      Tensor x = in[0];
      for (const std::string& name : names) x = x * table.get(name, {2}, Init::zeros());
      return Training::Objective{sum(x)};
    });
  };
  in_order({"a", "b"});
  CHECK(contains(message_of<ConfigError>([&] {
                   in_order({"b", "a"});
                 }),
                 "the same parameters in another order"));
}

namespace {

// y = b.gain * (x a.w) + b.shift, towards targets; c is read by nothing.
Training::Objective fit(ParamTable& table, const std::vector<Tensor>& in) {
  const Params p(table);
  const Tensor w = p("a.w", {3, 2}, Init::normal(1)), gain = p("b.gain", {2}, Init::ones()),
               shift = p("b.shift", {2}, Init::zeros());
  p("c", {2});
  return {mean(square(matmul(in[0], w) * gain + shift - in[1]))};
}
const std::vector<Spec> kPairs{{DType::f32, {5, 3}}, {DType::f32, {5, 2}}};
std::vector<Array> pairs(std::uint64_t i) { return {random(kPairs[0], 2 * i), random(kPairs[1], 2 * i + 1)}; }
double max_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = worse(most, std::abs(a[i] - b[i]));
  return most;
}
Training of(TrainingSetup setup, int steps, double rate = 0.1) {
  Training out(std::move(setup));
  out.add(kPairs, fit);
  for (int i = 0; i < steps; ++i) out.step(0, pairs(static_cast<std::uint64_t>(i)), rate);
  return out;
}
constexpr AdamWOptions kPlain{.weight_decay = 0, .clip = 1e9};

}  // namespace

TEST_CASE(
    "training: a group's rate multiplies the step's, rate 0 freezes, and the first group that matches counts") {
  const StateDict start = of({.adamw = kPlain}, 0).parameters();
  const auto moved = [&](const Training& training, const char* name) {
    const StateDict now = training.parameters();
    std::vector<double> out = now.at(name).to_vector();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] -= start.at(name).to_vector()[i];
    return out;
  };
  const Training plain = of({.adamw = kPlain}, 1);
  const Training grouped =
      of({.adamw = kPlain,
          .groups = {{.names = "a.?", .rate = 20}, {.names = "b.g*", .rate = 0}, {.names = "*"}}},
         1);
  CHECK(max_difference(moved(grouped, "a.w"), std::vector<double>(6)) == doctest::Approx(2).epsilon(1e-4));
  for (std::size_t i = 0; i < 6; ++i)
    CHECK(moved(grouped, "a.w")[i] == doctest::Approx(20 * moved(plain, "a.w")[i]).epsilon(1e-5));
  CHECK(moved(grouped, "b.gain") == std::vector<double>(2));
  CHECK(moved(grouped, "b.shift") == moved(plain, "b.shift"));
  CHECK(grouped.frozen() == std::vector<std::string>{"b.gain"});
  CHECK(grouped.unused() == std::vector<std::string>{"c"});
  CHECK(plain.frozen().empty());

  // The first step of a group with decay: also a gain's.
  const Training decayed =
      of({.adamw = kPlain, .groups = {{.names = "b.gain", .rate = 2, .weight_decay = 0.5}}}, 1);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(moved(decayed, "b.gain")[i] ==
          doctest::Approx(2 * moved(plain, "b.gain")[i] - 2 * 0.1 * 0.5).epsilon(1e-4));
  CHECK(moved(decayed, "a.w") == moved(plain, "a.w"));
}

TEST_CASE(
    "training: a rate that is none, a kind that there is not, and a loss of several numbers are refused") {
  Training training({.seed = 0, .adamw = {.weight_decay = 0}});
  CHECK(contains(message_of<ConfigError>([&] { training.step(0, {numbers(1, 1)}, 0.1); }),
                 "there is no kind 0 of batches, there are 0"));
  training.add({{DType::f32, {2}}}, towards(1));
  const Array before = training.parameters().at("w");
  for (const double rate : {std::nan(""), -1.0, static_cast<double>(INFINITY)})
    CHECK(contains(message_of<ConfigError>([&] { training.step(0, {numbers(1, 1)}, rate); }),
                   "it must be finite, and 0 or positive"));
  CHECK(training.parameters().at("w").same_bits(before));
  message_of<ConfigError>([&] { training.step(1, {numbers(1, 1)}, 0.1); });
  const std::string text = message_of<ShapeError>([] {
    Training({}).add({{DType::f32, {2}}}, [](ParamTable& table, const std::vector<Tensor>& in) {
      return Training::Objective{square(table.get("w", {2}, Init::zeros()) - in[0])};
    });
  });
  CHECK_MESSAGE(contains(text, "the loss of an objective is one number, it is f32[2]"), text);
  CHECK(contains(text, "training_test.cpp"));
}

TEST_CASE(
    "training: what is not said of a run is nothing, what is no JSON is refused, and another setup is told") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  const TrainingSetup setup{.seed = 3, .groups = {{.names = "a.w", .rate = 2, .weight_decay = 0.5}}};
  of(setup, 2).save(path, {});
  Training again = of(setup, 0);
  again.load(path, {});
  CHECK(again.steps_done() == 2);
  const auto refused = [&](const TrainingSetup& other) {
    return message_of<ConfigError>([&] { of(other, 0).load(path, {}); });
  };
  TrainingSetup other = setup;
  other.adamw.beta1 = 0.5;
  CHECK(contains(refused(other), "was written with beta1 = 0.9, this run has 0.5"));
  other = setup;
  other.groups[0].rate = 0;
  CHECK(contains(refused(other), "was written with groups = "));
  other = setup;
  other.average_decay = 0.5;
  CHECK(contains(refused(other), "average_decay = 0"));
  other = setup;
  other.seed = 4;  // of a start that is in the file
  of(other, 0).load(path, {});
  for (const char* text : {"not json", "[1]"}) {
    CHECK(contains(message_of<ConfigError>([&] { again.save(folder / "no", {.training = text}); }),
                   "RunIdentity::training is '"));
    message_of<ConfigError>([&] { again.load(path, {.config = text}); });
  }
}

TEST_CASE("training: `steps` may differ in the settings of a run that goes on, and not in its model") {
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors";
  Training training = of({}, 1);
  training.save(path, {.config = R"({"steps":3})", .training = R"({"steps":3})"});
  training.load(path, {.config = R"({"steps":3})", .training = R"({"steps":9})"});
  CHECK(
      contains(message_of<ConfigError>([&] { training.load(path, {.config = R"({"steps":5})"}); }), "steps"));
}

TEST_CASE("training: groups that match nothing, or leave nothing to learn, are refused") {
  const auto message = [](std::vector<ParameterGroup> groups) {
    return message_of<ConfigError>([&] { of({.groups = std::move(groups)}, 0); });
  };
  CHECK(contains(message({{.names = "b.*"}, {.names = "d.*"}}), "no parameter is called 'd.*'"));
  CHECK(contains(message({{.names = "*", .rate = 0}}), "the groups freeze all others"));
  CHECK(contains(message({{.names = "*", .rate = -1}}), "must be 0 or positive"));
  CHECK(contains(message({{.names = "*"}, {.names = "a.w", .rate = 0}}), "the group 'a.w' changes nothing"));
  CHECK(contains(message({{.names = "*", .weight_decay = std::nan("")}}), "must be 0 or positive"));
  CHECK(contains(message_of<ConfigError>([] { of({.average_decay = 1}, 0); }), "average_decay"));
}

TEST_CASE("training: numbers are judged in f32, and what is not finite is never saved") {
  const auto message = [](TrainingSetup setup, double rate = 0.1) {
    return message_of<ConfigError>([&] { of(std::move(setup), 1, rate); });
  };
  CHECK(contains(message({.adamw = {.eps = 1e-50}}), "adamw.eps is 1e-50, which is 0 in f32"));
  CHECK(contains(message({.adamw = {.clip = 1e-50}}), "make it larger"));
  CHECK(contains(message({.adamw = {.weight_decay = 1e300}}),
                 "adamw.weight_decay is 1e+300, which is inf in f32"));
  CHECK(contains(message({.groups = {{.names = "a.w", .rate = 1e300}}}), "rate of the group 'a.w'"));
  CHECK(contains(message({.groups = {{.names = "a.w", .weight_decay = 1e300}}}),
                 "weight_decay of the group 'a.w'"));
  CHECK(contains(message({}, 1e39), "the rate of step 1"));
  CHECK(contains(message({.groups = {{.names = "*", .rate = 1e-30}}}, 1e39), "the rate of step 1 is 1e+39"));
  CHECK(contains(message({.groups = {{.names = "a.w", .rate = 1e20}}}, 1e20), "times that of a group"));
  CHECK(contains(message({.adamw = {.weight_decay = 1e20}}, 1e20), "times a weight decay"));
  // A rate that f32 holds, whose second step ends in infinity while the loss is finite.
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors";
  Training training(TrainingSetup{});
  training.add({{DType::f32, {2}}}, [](ParamTable& table, const std::vector<Tensor>& in) {
    return Training::Objective{sum(table.get("w", {2}, Init::zeros()) * in[0])};
  });
  training.step(0, {numbers(1e-3, 1e-3)}, 3e38);
  training.save(path, {});
  const std::string before = read_file(path);
  training.step(0, {numbers(1e-3, 1e-3)}, 3e38);
  CHECK(contains(message_of<ValueError>([&] { training.save(path, {}); }),
                 "is not finite: nothing is written"));
  CHECK(read_file(path) == before);
}

TEST_CASE("training: before add() there is nothing to save, to load or to start from") {
  Training training(TrainingSetup{});
  const TemporaryFolder folder;
  const auto early = [](const std::function<void()>& fn) {
    return contains(message_of<ConfigError>(fn), "call add() first");
  };
  CHECK(early([&] { training.save(folder / "checkpoint.safetensors", {}); }));
  CHECK(early([&] { training.load(folder / "checkpoint.safetensors", {}); }));
  CHECK(early([&] { training.start_from({}); }));
  CHECK_FALSE(training.why_not_finite());
  training.add(kPairs, fit);
  CHECK_FALSE(training.why_not_finite());
  CHECK(contains(message_of<ConfigError>([&] { training.step_grains(0, {}, 0.1); }), "is an empty function"));
}

TEST_CASE(
    "training: a checkpoint whose numbers no step leaves behind is refused by name, and changes nothing") {
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors", spoilt = folder / "spoilt.safetensors";
  const auto begun = [] {
    Training out(TrainingSetup{.average_decay = 0.5});
    out.add({{DType::f32, {2}}}, towards(1));
    out.step(0, {numbers(3, -4)}, 0.1);
    return out;
  };
  Training training = begun();
  training.save(path, {});
  const StateDict before = training.parameters();
  training.load(path, {});
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  struct Damage {
    const char* name;
    double number;
  };
  for (const Damage& d :
       {Damage{"w", std::nan("")}, Damage{"adamw.m.w", kInfinite}, Damage{"adamw.m.w", std::nan("")},
        Damage{"adamw.v.w", kInfinite}, Damage{"adamw.v.w", -1e-9}, Damage{"average.w", -kInfinite}}) {
    CAPTURE(d.name);
    CAPTURE(d.number);
    SafeTensors file = read_safetensors(path);
    file.tensors.at(d.name).as<float>()[1] = static_cast<float>(d.number);
    write_safetensors(spoilt, file);
    const std::string text = message_of<ValueError>([&] { training.load(spoilt, {}); });
    CHECK(contains(text, fmt::format("'{}' has ", d.name)));
    CHECK(contains(text, "at 1, which no step leaves behind"));
    CHECK(training.parameters().at("w").same_bits(before.at("w")));
    CHECK(training.steps_done() == 1);
  }
  SafeTensors file = read_safetensors(path);
  file.tensors.at("adamw.m.w").as<float>()[0] = -3;  // a mean of gradients may be
  write_safetensors(spoilt, file);
  training.load(spoilt, {});
}

TEST_CASE("training: the running average is the one written by hand, and changes nothing else") {
  constexpr double kDecay = 0.75;
  const Training plain = of({}, 4);
  const Training averaged = of({.average_decay = kDecay}, 4);
  std::vector<double> wanted = of({}, 0).parameters().at("a.w").to_vector();
  for (int steps = 1; steps <= 4; ++steps) {
    const std::vector<double> now = of({}, steps).parameters().at("a.w").to_vector();
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = kDecay * wanted[i] + (1 - kDecay) * now[i];
  }
  CHECK(max_difference(averaged.averages().at("a.w").to_vector(), wanted) < 1e-6);
  for (const auto& [name, value] : plain.parameters()) {
    CHECK(averaged.parameters().at(name).same_bits(value));
    CHECK(plain.averages().at(name).same_bits(value));
  }
}

TEST_CASE(
    "training: the average goes after every parameter at each step, also of those that this batch does not move") {
  constexpr double kDecay = 0.5;
  Training training({.seed = 1, .groups = {{.names = "frozen", .rate = 0}}, .average_decay = kDecay});
  const auto kind = [&](bool uses_b) {
    training.add({{DType::f32, {2}}}, [=](ParamTable& table, const std::vector<Tensor>& in) {
      const Tensor w = table.get("w", {2}, Init::normal(1)), b = table.get("b", {2}, Init::normal(1));
      table.get("unused", {2}, Init::normal(1));
      table.get("frozen", {2}, Init::normal(1));
      return Training::Objective{sum(square(uses_b ? w + b - in[0] : w - in[0]))};
    });
  };
  kind(true), kind(false);
  const StateDict start = training.parameters();
  std::map<std::string, std::vector<double>> wanted;
  for (const auto& [name, value] : start) wanted[name] = value.to_vector();
  for (const std::size_t k : {0, 1, 1, 0, 1}) {
    training.step(k, {numbers(3, -4)}, 0.1);
    const StateDict now = training.parameters(), averages = training.averages();
    for (auto& [name, average] : wanted) {
      CAPTURE_BOUND(name);
      const std::vector<double> value = now.at(name).to_vector();
      for (std::size_t i = 0; i < average.size(); ++i)
        average[i] = kDecay * average[i] + (1 - kDecay) * value[i];
      CHECK(max_difference(averages.at(name).to_vector(), average) < 1e-6);
    }
    for (const char* name : {"unused", "frozen"}) CHECK(averages.at(name).same_bits(start.at(name)));
  }
  CHECK(max_difference(wanted.at("b"), training.parameters().at("b").to_vector()) >
        1e-3);  // it had not arrived
}

TEST_CASE(
    "training: stopped and gone on with, in groups and with an average, bit for bit; other runs are refused") {
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors";
  const TrainingSetup setup{.seed = 3, .groups = {{.names = "a.*", .rate = 3}}, .average_decay = 0.9};
  const RunIdentity identity{.config = R"({"width": 3})",
                             .training = R"({"steps": 9, "lr": 0.1})",
                             .data = "d",
                             .data_is = "images"};
  const Training whole = of(setup, 7);
  of(setup, 3).save(path, identity);
  Training rest = of(setup, 1);
  rest.load(path, identity);
  CHECK(rest.steps_done() == 3);
  for (std::uint64_t i = 3; i < 7; ++i) rest.step(0, pairs(i), 0.1);
  for (const auto& [name, value] : whole.parameters()) {
    CHECK(rest.parameters().at(name).same_bits(value));
    CHECK(rest.averages().at(name).same_bits(whole.averages().at(name)));
  }
  const StateDict before = rest.parameters();
  const auto refused = [&](const RunIdentity& other) {
    return message_of<ConfigError>([&] { rest.load(path, other); });
  };
  RunIdentity other = identity;
  other.config = R"({"width": 4})";
  CHECK(contains(refused(other), "width = 3, this run has 4"));
  other = identity, other.training = R"({"steps": 20, "lr": 0.2})";
  CHECK(contains(refused(other), "lr = 0.1, this run has 0.2"));
  other = identity, other.data = "e";
  CHECK(contains(refused(other), "was trained on other images"));
  // Without an average it would write the next checkpoint without: what was kept would be lost.
  Training without = of({.seed = 3, .groups = setup.groups}, 0);
  CHECK(contains(message_of<ConfigError>([&] { without.load(path, identity); }),
                 "average_decay = 0.9, this run has 0.0"));
  of({.seed = 3, .groups = setup.groups}, 2).save(path, identity);
  CHECK(contains(refused(identity), "average_decay = 0.0, this run has 0.9"));
  for (const auto& [name, value] : before) CHECK(rest.parameters().at(name).same_bits(value));
}

TEST_CASE("a part of a model is taken by name from another, and what was taken, left and new is said") {
  StateDict params{{"a", Array::zeros(DType::f32, {2})}, {"b", Array::zeros(DType::f32, {3})}};
  const StateDict source{{"a", Array::of({1, 2}, {2})}, {"other", Array::of({5}, {1})}};
  const PartialLoad load = load_by_name(params, source, "vit.safetensors");
  CHECK(load.str() == "1 parameters loaded; 1 left: 'other'; 1 new: 'b'");
  CHECK(params.at("a").same_bits(Array::of({1, 2}, {2}, DType::f32)));
  CHECK(params.at("b").same_bits(Array::zeros(DType::f32, {3})));
  // Copies, of the model's type or not: neither sees what becomes of the other.
  StateDict file{{"w", Array::of({1, 2}, {2}, DType::f32)}}, mine{{"w", Array::zeros(DType::f32, {2})}};
  load_by_name(mine, file, "a file");
  file.at("w").as<float>()[0] = 5;
  CHECK(mine.at("w").to_vector() == std::vector<double>{1, 2});
  mine.at("w").as<float>()[1] = 7;
  CHECK(file.at("w").to_vector() == std::vector<double>{5, 2});

  StateDict kept{{"a", Array::zeros(DType::f32, {2})}};
  const PartialLoad none = load_by_name(kept, {{"a", Array::of({1, 2}, {2})}, {"b", Array::of({1}, {1})}},
                                        "x", [](const std::string& name) { return name != "b"; });
  CHECK(none.left == std::vector<std::string>{"b"});
  const auto refused = [&](const StateDict& from,
                           const std::function<bool(const std::string&)>& wanted = {}) {
    return message_of<ConfigError>([&] { load_by_name(params, from, "vit.safetensors", wanted); });
  };
  CHECK(contains(refused({{"a", Array::of({1, 2, 3}, {3})}}), "'a' is [3], the model wants [2]"));
  CHECK(contains(refused({{"bb", Array::of({1}, {1})}}), "has no parameter of the model by name"));
  CHECK(
      contains(refused(source, [](const std::string&) { return false; }),
               "`wanted` takes none of the 1 parameters that vit.safetensors and the model both have: 'a'"));
  StateDict both{{"a", Array::zeros(DType::f32, {2})}, {"b", Array::zeros(DType::f32, {1})}};
  CHECK(load_by_name(both, {{"a", Array::of({1, 2}, {2})}, {"b", Array::of({1}, {1})}}, "x",
                     [](const std::string& name) { return name != "b"; })
            .str() == "1 parameters loaded; 1 passed over: 'b'");
}

TEST_CASE("a parameter of another type is converted where it keeps its numbers") {
  StateDict params{{"w", Array::zeros(DType::f32, {2})}};
  const auto load = [&](Array value) { load_by_name(params, {{"w", std::move(value)}}, "file"); };
  load(Array::of({1.5, std::numeric_limits<double>::infinity()}, {2}, DType::f64));
  CHECK(params.at("w").at(0) == 1.5);
  CHECK(contains(message_of<ConfigError>([&] {
                   load(Array::of({1, 1e300}, {2}, DType::f64));
                 }),
                 "'w' holds 1e+300"));
  CHECK(contains(message_of<ConfigError>([&] {
                   load(Array::of({1, 2}, {2}, DType::i32));
                 }),
                 "'w' is i32[2]"));
  CHECK(params.at("w").at(0) == 1.5);
}

TEST_CASE("a quarter of the context in which no token stands has no loss, which is not a loss of 0") {
  Validation v;
  v.loss_by_position = {1, 2, 3};
  v.context = 3;
  CHECK(!v.mean_between(0, 0.25));
  CHECK(v.mean_between(0.75, 1) == 3.0);
  CHECK(v.mean_between(0, 1) == 2.0);
  v.context = 32;  // of packed documents, none of which is longer than three tokens
  CHECK(v.mean_between(0, 0.25) == 2.0);
  CHECK(!v.mean_between(0.75, 1));
}

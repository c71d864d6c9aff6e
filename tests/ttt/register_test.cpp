// The promise: a system that a program registers is known by its name like a published one, and no name stands for
// two systems.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/language_model.h"
#include "tests/models/model_testing.h"
#include "ttt/learners/catalogue.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

ttt::System named(const std::string& name) {
  ttt::System out = ttt::delta_net();
  out.name = name;
  return out;
}

std::string complaint(ttt::System system) {
  return message_of<ConfigError>([&] { ttt::register_system(std::move(system)); });
}

}  // namespace

TEST_CASE("a registered system is known by its name, and its name is taken") {
  const std::size_t before = ttt::systems().size();
  const ttt::System& published = ttt::system_named("ttt-linear");
  ttt::register_system(named("delta-net-of-a-test"));
  CHECK(ttt::systems().size() == before + 1);
  CHECK(&ttt::system_named("ttt-linear") == &published);
  CHECK(std::ranges::count(layer_names(), "delta-net-of-a-test") == 1);

  // As a layer of a language model it is the system that it is a copy of.
  const Array tokens = random_tokens(1, 8, 13);
  Arrays logits;
  for (const char* layer : {"delta-net", "delta-net-of-a-test"}) {
    const TracedModel model = logits_model(small_model(layer), DType::f64, tokens.spec());
    const StateDict params = random_parameters(model, DType::f64);
    logits.push_back(model.function(model.bind({tokens}, {&params}))[0]);
  }
  CHECK(same_bits({logits[0]}, {logits[1]}));

  const std::string twice = complaint(named("delta-net-of-a-test"));
  CHECK(contains(twice, "is taken by the one that was registered at register_test.cpp:"));
  CHECK(count(twice, "register_test.cpp:") == 2);
}
TEST_CASE("wrong use: names that a system cannot have, and systems that lack a part") {
  for (const char* taken : {"delta-net", "linear", "mlp", "attention", "nadaraya-watson", "ttt-e2e"})
    CHECK(contains(complaint(named(taken)), "is taken by"));
  for (const char* bad : {"", "two words", "a/b", "a.b", "\n"})
    CHECK(contains(complaint(named(bad)), "is no name"));
  ttt::System without = named("without-a-learner");
  without.learner = {};
  CHECK(contains(complaint(without), "has no learner"));
  for (const char* taken : {"rate", "k"}) {
    ttt::System twice = named("two-of-a-name");
    twice.gates = {{.name = "rate"}, {.name = taken}};
    CHECK(contains(complaint(twice),
                   fmt::format("has a gate '{}', the name of another gate or of a view", taken)));
  }
  CHECK(contains(message_of<ConfigError>([] { ttt::system_named("without-a-learner"); }),
                 "there is no learner"));
}

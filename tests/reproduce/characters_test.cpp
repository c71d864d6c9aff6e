// The promise: a few-shot task shows each of its characters as often, in the order that its labels have; none of a test is trained
// on; and what is called right is right.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "engine/io/file.h"
#include "engine/io/png.h"
#include "reproduce/experiments/few_shot_characters.h"
#include "tests/temporary_folder.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;
using namespace nestgrad::testing;

namespace {

// Characters that are one grey each, a little lighter from image to image: white on black when they are read.
Settings greys(const TemporaryFolder& folder, int characters, int images) {
  for (int c = 0; c < characters; ++c) {
    const std::string path = folder / ("alphabet/character" + std::to_string(100 + c));
    std::filesystem::create_directories(path);
    for (int i = 0; i < images; ++i)
      write_file_atomically(path + "/" + std::to_string(10 + i) + ".png",
                            format_png(Array::full(DType::f32, {15, 15, 1}, (6 * c + i) / 255.0)));
  }
  Settings s;
  s.data = folder / "alphabet";
  return s;
}

}  // namespace

TEST_CASE("characters: a task has five characters in six different hands each, class after class") {
  const TemporaryFolder folder;
  const Settings settings = greys(folder, 40, 6);
  const Alphabet& alphabet = Alphabet::of(settings);
  CHECK_FALSE(alphabet.fingerprint().empty());
  std::set<int> trained, tested;
  for (const auto purpose : {Alphabet::Purpose::training, Alphabet::Purpose::testing}) {
    const Array tasks = alphabet.tasks(30, purpose, 2, 1);
    CHECK(tasks.spec() == character_spec(30));
    CHECK(alphabet.tasks(30, purpose, 2, 1).same_bits(tasks));
    CHECK_FALSE(alphabet.tasks(30, purpose, 3, 1).same_bits(tasks));
    CHECK_FALSE(alphabet.tasks(30, purpose, 2, 2).same_bits(tasks));
    const std::span<const float> pixels = tasks.as<float>();
    for (std::size_t t = 0; t < 30; ++t) {
      std::set<int> values, classes;
      for (std::size_t i = 0; i < 30; ++i) {
        const int value = static_cast<int>((1 - pixels[(t * 30 + i) * 196]) * 255 + 0.5F);
        values.insert(value);
        if (i < 5) classes.insert(value / 6);
        else CHECK(value / 6 == static_cast<int>((1 - pixels[(t * 30 + i - 5) * 196]) * 255 + 0.5F) / 6);
        (purpose == Alphabet::Purpose::training ? trained : tested).insert(value / 6);
      }
      CHECK(classes.size() == 5);
      CHECK(values.size() == 30);
    }
  }
  for (const int c : tested) CHECK_FALSE(trained.contains(c));
  CHECK(tested.size() == 8);
}

TEST_CASE("characters: folders with too little are refused in a line") {
  const TemporaryFolder few, thin;
  CHECK(contains(message_of<ConfigError>([&] { Alphabet::of(greys(few, 6, 6)); }), "needs 25 at least"));
  CHECK(contains(message_of<ConfigError>([&] { Alphabet::of(greys(thin, 30, 3)); }), "has 3 images"));
}

TEST_CASE("characters: learning from one image of each makes more answers right, and chance is a fifth" *
          doctest::test_suite("slow")) {
  const Alphabet& alphabet = Alphabet::of({});
  CHECK(alphabet.fingerprint().empty());
  Training training({.seed = 0, .adamw = {.weight_decay = 0}});
  training.add({character_spec(8)}, maml(character_problem(), 1, false));
  const StateDict start = training.parameters();
  const FewShotQuality before = quality_by_step(start, alphabet, 2, 0);
  CHECK(before.right[0] == doctest::Approx(20).epsilon(0.1));
  CHECK(before.right[2] > before.right[0]);
  for (std::uint64_t i = 0; i < 60; ++i)
    training.step(0, {alphabet.tasks(8, Alphabet::Purpose::training, i, 0)}, 3e-3);
  const FewShotQuality after = quality_by_step(training.parameters(), alphabet, 2, 0);
  CHECK(after.right[2] > before.right[2]);
  CHECK(after.loss[2] < before.loss[2]);
}

// The promises: runs of a seed see the same images, held-out ones are the same for all seeds, what a shift of keys shows is
// exact, and an image that is learnt from and forgotten leaves nothing behind.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <thread>

#include "engine/io/file.h"
#include "engine/io/png.h"
#include "models/images/turned.h"
#include "reproduce/experiments/few_shot_characters.h"
#include "reproduce/experiments/rotation_characters.h"
#include "reproduce/experiments/shift_model.h"
#include "reproduce/experiments/t5_shift.h"
#include "reproduce/experiments/view_scenes.h"
#include "reproduce/image_runs.h"
#include "tests/image_files.h"
#include "tests/temporary_folder.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;
using namespace nestgrad::testing;

TEST_CASE("images: batches depend on step and seed, and what is held out on neither") {
  const CharacterImages& data = CharacterImages::of({});
  const LabelledImages a = data.training(3, 4, 1), first = data.held_out(0, 2), second = data.held_out(1, 1);
  CHECK(a.images.shape() == Shape{4, 40, 40, 1});
  CHECK(data.training(3, 4, 1).images.same_bits(a.images));
  CHECK_FALSE(data.training(3, 4, 2).images.same_bits(a.images));
  CHECK_FALSE(data.training(4, 4, 1).images.same_bits(a.images));
  for (std::size_t i = 0; i < 1600; ++i)
    CHECK(first.images.as<float>()[1600 + i] == second.images.as<float>()[i]);
  CHECK(CharacterImages::of({}, Look::plain).held_out(0, 1).images.shape() == Shape{1, 28, 28, 1});
  CHECK(data.fingerprint().empty());
  Settings missing;
  missing.data = "/nowhere";
  CHECK(contains(message_of<ConfigError>([&] { CharacterImages::of(missing); }), "images-idx3-ubyte"));
}

TEST_CASE(
    "images: what a seed begins with is made once, by whoever asks first, and an error reaches all that ask") {
  SharedStarts starts;
  std::atomic<int> made{0};
  const auto make = [&](std::uint64_t seed) {
    ++made;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (seed == 9) throw ValueError("no such start");
    return StateDict{{"w", Array::scalar(static_cast<double>(seed), DType::f32)}};
  };
  std::vector<std::thread> threads;
  std::vector<double> found(8);
  for (std::size_t i = 0; i < found.size(); ++i)
    threads.emplace_back([&, i] { found[i] = starts.get("a", i % 2, {0, 1, 2}, make)->at("w").item(); });
  for (std::thread& t : threads) t.join();
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == static_cast<double>(i % 2));
  CHECK(made >= 2);
  CHECK(made <= 3);  // the third by one that waited
  CHECK_THROWS_AS(starts.get("a", 9, {9}, make), ValueError);
  CHECK_THROWS_AS(starts.get("a", 9, {9}, make), ValueError);
  CHECK(starts.get("b", 0, {0}, make)->at("w").item() == 0);
}

TEST_CASE(
    "t5: a shift of all keys is nothing to softmax and to instance norm, and second order foretells the others'") {
  Measured out;
  shift_keys({.row = "", .seed = 5}, out);
  const auto number = [&](const std::string& name) { return out.numbers.at(name); };
  CHECK(number("change, softmax attention") < 1e-14);
  CHECK(number("change, TTT, instance norm of keys") < 1e-12);
  for (const std::string kind : {"TTT, no norm of keys", "TTT, layer norm of keys"}) {
    CHECK(number("change, " + kind) > 1e-2);
    const double none = number("change, less 0 derivatives, " + kind),
                 one = number("change, less 1 derivative, " + kind),
                 two = number("change, less 2 derivatives, " + kind);
    CHECK(one < 0.3 * none);
    CHECK(two < 0.3 * one);
  }
  const std::vector<double>& softmax = out.curves.at("operations by tokens, softmax attention");
  const std::vector<double>& ttt = out.curves.at("operations by tokens, TTT, instance norm of keys");
  CHECK(softmax[3] / softmax[2] > 8);  // four times the tokens
  CHECK(ttt[3] / ttt[2] < 4.5);
}

namespace {

ShiftProblem problem_of(ShiftProblem::Self self) {
  const auto plain = [](const Settings& settings) -> const CharacterImages& {
    return CharacterImages::of(settings, Look::plain);
  };
  return {.self = self,
          .rate = 0.1,
          .training = [=](const Settings& s, std::int64_t step, std::int64_t batch,
                          std::uint64_t seed) { return plain(s).training(step, batch, seed); },
          .held_out = [=](const Settings& s, std::int64_t first,
                          std::int64_t count) { return plain(s).held_out(first, count); }};
}

StateDict untrained(const ShiftProblem& problem, ShiftTraining kind) {
  return train_for_shift(problem, kind, 1, {.row = "", .seed = 0}, 1);
}

// Image `index`, as a batch of one.
Array image_batch_of(const Array& images, std::int64_t index) {
  return image_of(images, index).reshaped({1, 28, 28, 1});
}

constexpr ShiftProblem::Self kBoth[] = {ShiftProblem::Self::patches, ShiftProblem::Self::rotation};

}  // namespace

TEST_CASE(
    "shift: with reset no image leaves a bit to the next, online it does, and every way of learning changes answers") {
  const LabelledImages images = CharacterImages::of({}, Look::plain).held_out(0, 3);
  LabelledImages alone{
      {},
      Array::of({static_cast<double>(images.labels.as<std::int32_t>()[2])}, {1}).cast(DType::i32),
      images.classes};
  alone.images = Array(DType::f32, {1, 28, 28, 1});
  std::ranges::copy(images.images.as<float>().subspan(2 * 784, 784), alone.images.as<float>().begin());
  for (const ShiftProblem::Self self : kBoth) {
    CAPTURE(static_cast<int>(self));
    const ShiftProblem problem = problem_of(self);
    const StateDict params = untrained(problem, ShiftTraining::joint);
    const double still = answers_of(problem, params, {}, images, 0)[2].loss;
    for (const Learning what : {Learning::all, Learning::norms, Learning::lora, Learning::block}) {
      CAPTURE(static_cast<int>(what));
      const TestTime how{.what = what, .steps = 2};
      const double after = answers_of(problem, params, how, images, 0)[2].loss;
      CHECK(after != still);
      CHECK(answers_of(problem, params, how, alone, 2)[0].loss == after);
    }
    const TestTime online{.what = Learning::all, .steps = 1, .keep = true};
    CHECK(answers_of(problem, params, online, images, 0)[2].loss !=
          answers_of(problem, params, online, alone, 2)[0].loss);
    const double cosine = cosine_of_gradients(problem, params, images);
    CHECK(std::abs(cosine) <= 1);
    CHECK(cosine != 0);
  }
}

TEST_CASE(
    "shift: an image without a label is turned as its question says, and half of its patches are hidden") {
  const Array images = CharacterImages::of({}, Look::plain).held_out(0, 8).images;
  const ShiftProblem rotation = problem_of(ShiftProblem::Self::rotation);
  const Asked all = asked_without_labels(rotation, images, 1, 0, true),
              some = asked_without_labels(rotation, images, 1, 0, false);
  CHECK(all.question.to_vector() == std::vector<double>{0, 1, 2, 3, 0, 1, 2, 3});
  CHECK(all.images.same_bits(turned(images, all.question)));
  CHECK_FALSE(all.images.same_bits(images));
  CHECK(some.images.same_bits(turned(images, some.question)));
  CHECK_FALSE(some.question.same_bits(all.question));
  CHECK(asked_without_labels(rotation, image_batch_of(images, 3), 1, 3, false).question.at(0) ==
        some.question.at(3));
  const Asked hidden = asked_without_labels(problem_of(ShiftProblem::Self::patches), images, 1, 0, true);
  CHECK(hidden.images.same_bits(images));
  const std::vector<double> masks = hidden.question.to_vector();
  CHECK(std::accumulate(masks.begin(), masks.end(), 0.0) == 8 * 24);
}

TEST_CASE("shift: the three ways of training begin alike, and differ after a step" *
          doctest::test_suite("slow")) {
  for (const ShiftProblem::Self self : kBoth) {
    CAPTURE(static_cast<int>(self));
    const ShiftProblem problem = problem_of(self);
    const StateDict classes = untrained(problem, ShiftTraining::classes),
                    joint = untrained(problem, ShiftTraining::joint),
                    meta = untrained(problem, ShiftTraining::meta);
    CHECK(classes.size() == joint.size());
    bool apart = false, further = false;
    for (const auto& [name, value] : joint) {
      apart = apart || !value.same_bits(classes.at(name));
      further = further || !value.same_bits(meta.at(name));
    }
    CHECK(apart);
    CHECK(further);
  }
}

TEST_CASE(
    "rotation: invented characters are written in hands of their own, and those held out in none of training") {
  const TurnableCharacters& data = TurnableCharacters::of({});
  const LabelledImages a = data.training(3, 40, 1), first = data.held_out(0, 42);
  CHECK(a.images.shape() == Shape{40, 28, 28, 1});
  CHECK(data.training(3, 40, 1).images.same_bits(a.images));
  CHECK_FALSE(data.training(3, 40, 2).images.same_bits(a.images));
  CHECK(first.labels.at(1) == 1);
  CHECK(first.labels.at(41) == 1);
  CHECK_FALSE(image_of(first.images, 1).same_bits(image_of(first.images, 21)));
  CHECK(image_of(data.held_out(21, 1).images, 0).same_bits(image_of(first.images, 21)));
  for (std::int64_t i = 0; i < 40; ++i) CHECK(a.labels.at(i) < TurnableCharacters::kClasses);
}

TEST_CASE("images: folders of colours, of too few digits and of digits of other sizes are refused") {
  const TemporaryFolder folder;
  for (int c = 0; c < 25; ++c)
    for (int i = 0; i < 6; ++i) {
      const std::string name = fmt::format("colour/c{:02}", c);
      std::filesystem::create_directories(folder / name);
      write_file_atomically(folder / (name + fmt::format("/{}.png", i)),
                            format_png(Array::full(DType::f32, {4, 4, 3}, 1)));
    }
  Settings settings;
  settings.data = folder / "colour";
  CHECK(contains(message_of<ConfigError>([&] { TurnableCharacters::of(settings); }), "wants grey ones"));
  CHECK(contains(message_of<ConfigError>([&] { Alphabet::of(settings); }), "wants grey ones"));
  const auto mnist = [&](const std::string& name, std::uint32_t count, std::uint32_t size) {
    std::filesystem::create_directories(folder / name);
    write_file_atomically(folder / (name + "/t10k-images-idx3-ubyte"),
                          idx_with(8, {count, size, size}, std::string(count * size * size, '\0')));
    write_file_atomically(folder / (name + "/t10k-labels-idx1-ubyte"),
                          idx_with(8, {count}, std::string(count, '\0')));
    Settings of;
    of.data = folder / name;
    return message_of<ConfigError>([&] { CharacterImages::of(of); });
  };
  CHECK(contains(mnist("few", 4, 28), "this experiment wants 50 at least, of 28 x 28"));
  CHECK(contains(mnist("small", 60, 2), "this experiment wants 50 at least, of 28 x 28"));
}

TEST_CASE(
    "rotation: characters of a folder are white on black, a fifth of each is held out, and too few are refused") {
  const TemporaryFolder folder;
  const auto write = [&](int classes, int images) {
    for (int c = 0; c < classes; ++c)
      for (int i = 0; i < images; ++i) {
        const std::string name = fmt::format("character{:02}", c);
        std::filesystem::create_directories(folder / name);
        Array image = Array::full(DType::f32, {28, 28, 1}, 1);  // white, one black pixel: which image it is
        image.as<float>()[static_cast<std::size_t>(28 * c + i)] = 0;
        write_file_atomically(folder / (name + fmt::format("/{}.png", i)), format_png(image));
      }
  };
  const auto refused = [&] {
    Settings settings;
    settings.data = folder.path;
    return message_of<ConfigError>([&] { TurnableCharacters::of(settings); });
  };
  write(19, 4);
  CHECK(contains(refused(), "has 19 characters; this experiment wants 20 at least"));
  write(20, 4);
  CHECK(contains(refused(), "has 4 images of 'character"));
  write(20, 10);
  Settings settings;
  settings.data = folder.path;
  const TurnableCharacters& data = TurnableCharacters::of(settings);
  const auto pixel = [](const LabelledImages& all, std::int64_t i) {  // the white one; -1: not one alone
    std::int64_t at = -1;
    double sum = 0;
    for (std::int64_t p = 0; p < 784; ++p)
      if (const double x = all.images.at(784 * i + p); x > 0) sum += x, at = p;
    return sum == 1 ? at : -1;
  };
  const LabelledImages held_out = data.held_out(0, 60), training = data.training(0, 200, 1);
  std::set<std::int64_t> tested, trained;
  for (std::int64_t i = 0; i < 60; ++i) tested.insert(pixel(held_out, i));
  for (std::int64_t i = 0; i < 200; ++i) trained.insert(pixel(training, i));
  CHECK(tested.size() == 40);
  CHECK_FALSE(tested.contains(-1));
  for (const std::int64_t p : trained) CHECK_FALSE(tested.contains(p));
  CHECK(pixel(held_out, 40) == pixel(held_out, 0));  // again from the first
}

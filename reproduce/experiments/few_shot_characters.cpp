#include "reproduce/experiments/few_shot_characters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>

#include "engine/core/random.h"
#include "engine/io/file.h"
#include "models/images/invented.h"
#include "models/images/labelled_images.h"
#include "models/images/resized.h"
#include "models/training_checkpoint.h"
#include "ops/ops.h"
#include "reproduce/image_runs.h"

namespace nestgrad::reproduce {

namespace {

constexpr DType kType = DType::f32;
constexpr std::int64_t kPixels = kCharacterSide * kCharacterSide, kWidth = 64;
constexpr std::uint64_t kStream = 0x63686172, kOrder = 0x6f726465;
constexpr std::uint64_t kHands = 20;  // of an invented character, as Omniglot's have
constexpr std::uint64_t kInventedTraining = 1000, kInventedTesting = 250;  // characters
constexpr std::uint64_t kAlphabetSeed = 0x616c7068;

Weights start_weights(ParamTable& table) {
  const auto layer = [&](const char* weight, const char* bias, std::int64_t in, std::int64_t out) {
    return Weights{table.get(weight, {in, out}, Init::normal(std::sqrt(2.0 / static_cast<double>(in)))),
                   table.get(bias, {1, out}, Init::zeros())};
  };
  Weights out;
  for (const Weights& part : {layer("W1", "b1", kPixels, kWidth), layer("W2", "b2", kWidth, kWidth),
                              layer("W3", "b3", kWidth, kWays)})
    out.insert(out.end(), part.begin(), part.end());
  return out;
}

// x [tasks, images, pixels] -> [tasks, images, kWays].
Tensor logits(const Weights& w, Tensor x) {
  const Tensor first = relu(matmul(x, w[0]) + w[1]);
  return matmul(relu(matmul(first, w[2]) + w[3]), w[4]) + w[5];
}

// Images come with one of each class after the other.
Tensor labels_of(Tensor images) {
  const std::int64_t tasks = images.dim(0), each = images.dim(1) / kWays;
  return reshape(iota(DType::i32, {tasks, each, kWays}, 2), {tasks, each * kWays});
}

Tensor losses(const Weights& w, Tensor images) { return cross_entropy(logits(w, images), labels_of(images)); }

}  // namespace

Alphabet::Alphabet(const std::string& path) {
  if (path.empty()) {
    const auto invent = [](std::uint64_t first, std::uint64_t count) {
      std::vector<std::vector<Array>> out(count);
      for (std::uint64_t c = 0; c < count; ++c)
        for (std::uint64_t hand = 0; hand < kHands; ++hand)
          out[c].push_back(
              resized(invented(kAlphabetSeed, first + c, hand, 28), kCharacterSide, kCharacterSide));
      return out;
    };
    training_ = invent(0, kInventedTraining), testing_ = invent(kInventedTraining, kInventedTesting);
    return;
  }
  const LabelledImages all = grey_folder(path);
  if (all.classes.size() < 25)
    throw ConfigError(fmt::format("[reproduce] {} has {} characters; few-shot learning needs 25 at least",
                                  printable(path), all.classes.size()));
  fingerprint_ = fingerprint_of({{"images", all.images}, {"labels", all.labels}});
  const Array small = resized(all.images, kCharacterSide, kCharacterSide);
  std::vector<std::vector<Array>> characters(all.classes.size());
  for (std::int64_t i = 0; i < all.labels.size(); ++i) {
    Array image = image_of(small, i);
    for (float& pixel : image.as<float>()) pixel = 1 - pixel;  // black on white becomes white on black
    const std::int32_t label = all.labels.as<std::int32_t>()[static_cast<std::size_t>(i)];
    characters[static_cast<std::size_t>(label)].push_back(std::move(image));
  }
  for (std::size_t c = 0; c < characters.size(); ++c)
    if (characters[c].size() <= static_cast<std::size_t>(kAskedOfClass))
      throw ConfigError(
          fmt::format("[reproduce] {}: '{}' has {} images; few-shot learning needs {} of each character",
                      printable(path), printable(all.classes[c]), characters[c].size(), kAskedOfClass + 1));
  // Every fifth, in random order, is for testing.
  std::vector<std::size_t> order(characters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i], order[random_below(static_cast<std::uint32_t>(i + 1), kAlphabetSeed, kOrder, i)]);
  for (std::size_t i = 0; i < order.size(); ++i)
    (i % 5 == 4 ? testing_ : training_).push_back(std::move(characters[order[i]]));
}

const Alphabet& Alphabet::of(const Settings& settings) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Alphabet>> known;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const Alphabet>& out = known[settings.data];
  if (!out) out.reset(new Alphabet(settings.data));
  return *out;
}

Array Alphabet::tasks(std::int64_t count, Purpose purpose, std::uint64_t batch, std::uint64_t seed) const {
  Array out(character_spec(count));
  const std::vector<std::vector<Array>>& known = purpose == Purpose::training ? training_ : testing_;
  const std::uint64_t stream = (kStream << 32) + (static_cast<std::uint64_t>(purpose) << 28) + batch;
  // As many different ones as asked for, of `n`: those that come first in an order of which only the beginning is made.
  const auto different = [&](std::uint64_t n, std::uint64_t wanted, std::uint64_t& draw) {
    std::vector<std::uint64_t> chosen;
    while (chosen.size() < wanted) {
      const std::uint64_t one = random_below(static_cast<std::uint32_t>(n), seed, stream, draw++);
      if (std::ranges::find(chosen, one) == chosen.end()) chosen.push_back(one);
    }
    return chosen;
  };
  for (std::int64_t t = 0; t < count; ++t) {
    std::uint64_t draw = static_cast<std::uint64_t>(t) << 20;
    const std::vector<std::uint64_t> classes = different(known.size(), kWays, draw);
    for (std::int64_t c = 0; c < kWays; ++c) {
      const std::vector<Array>& images = known[classes[static_cast<std::size_t>(c)]];
      const std::vector<std::uint64_t> drawn = different(images.size(), 1 + kAskedOfClass, draw);
      for (std::int64_t i = 0; i < 1 + kAskedOfClass; ++i)
        std::ranges::copy(images[drawn[static_cast<std::size_t>(i)]].as<float>(),
                          out.as<float>().begin() + ((t * (1 + kAskedOfClass) + i) * kWays + c) * kPixels);
    }
  }
  return out;
}

Spec character_spec(std::int64_t tasks) { return {kType, {tasks, kWays * (1 + kAskedOfClass), kPixels}}; }

FewShotProblem character_problem() {
  return {
      .start = start_weights,
      .learnt =
          [](const std::vector<Tensor>& batch) { return std::vector<Tensor>{slice(batch[0], 1, 0, kWays)}; },
      .judged =
          [](const std::vector<Tensor>& batch) {
            return std::vector<Tensor>{slice(batch[0], 1, kWays, kWays * (1 + kAskedOfClass))};
          },
      .loss = [](const Weights& w,
                 const std::vector<Tensor>& examples) { return mean(losses(w, examples[0]), {1}); },
      .rate = 0.1};
}

FewShotQuality quality_by_step(const StateDict& params, const Alphabet& alphabet, int steps,
                               std::uint64_t seed) {
  constexpr std::int64_t tasks = 50;
  constexpr std::uint64_t batches = 8;
  const FewShotProblem problem = character_problem();
  const TracedModel model =
      trace_model(kType, {character_spec(tasks)}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        const std::vector<Tensor> learnt = problem.learnt(in), judged = problem.judged(in);
        Weights w = of_tasks(problem.start(table), tasks);
        std::vector<Tensor> out;
        for (int i = 0; i <= steps; ++i) {
          if (i > 0) w = step(problem, w, learnt, [&](std::size_t, Tensor g) { return problem.rate * g; });
          const Tensor all = logits(w, judged[0]);
          // Right: no other class has as large a number.
          const Tensor own = sum(all * one_hot(labels_of(judged[0]), kWays, kType), {-1}, kKeep);
          out.push_back(mean(equal(sum(greater_equal(all, own), {-1}), 1.0)));
          out.push_back(mean(losses(w, judged[0])));
        }
        return out;
      });
  Plan plan = model.function.plan();
  FewShotQuality out{std::vector<double>(static_cast<std::size_t>(steps) + 1), {}};
  out.loss = out.right;
  for (std::uint64_t b = 0; b < batches; ++b) {
    const std::vector<Array> found =
        plan.run(model.bind({alphabet.tasks(tasks, Alphabet::Purpose::testing, b, seed)}, {&params}));
    for (std::size_t i = 0; i < out.right.size(); ++i) {
      out.right[i] += 100 * found[2 * i].item() / static_cast<double>(batches);
      out.loss[i] += found[2 * i + 1].item() / static_cast<double>(batches);
    }
  }
  return out;
}

}  // namespace nestgrad::reproduce

#include "reproduce/image_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/core/random.h"
#include "engine/io/file.h"
#include "models/images/glyphs.h"
#include "models/partial_load.h"
#include "models/training_checkpoint.h"
#include "ops/ops.h"
#include "reproduce/language_runs.h"

namespace nestgrad::reproduce {

namespace {

constexpr std::int64_t kAsked = 100;  // images that are asked at a time
constexpr std::uint64_t kPlainStream = 0x706c6169;
const GlyphOptions kCluttered{.size = 40, .classes = CharacterImages::kClasses};
const GlyphOptions kPlain{.size = 28,
                          .classes = CharacterImages::kClasses,
                          .distractors = 0,
                          .smallest = 0.66,
                          .largest = 0.8,
                          .rotation = 0.2,
                          .thinnest = 0.06,
                          .thickest = 0.12};

// Images with these numbers.
LabelledImages chosen(const LabelledImages& all, std::int64_t count,
                      const std::function<std::int64_t(std::int64_t i)>& number) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(number(i));
  return picked(all, numbers);
}

std::vector<Spec> batch_specs(const vision::VisionConfig& model, std::int64_t batch) {
  return {{DType::f32, {batch, model.height, model.image_width, model.channels}}, {DType::i32, {batch}}};
}

}  // namespace

LabelledImages grey_folder(const std::string& path) {
  LabelledImages all = read_image_folder(path);
  if (all.images.shape()[3] != 1)
    throw ConfigError(
        fmt::format("[reproduce] {}: images are {}; this experiment wants grey ones, of one channel",
                    printable(path), to_string(all.images.spec())));
  return all;
}

std::string fingerprint_of_folder(const std::string& path) {
  const LabelledImages all = grey_folder(path);
  return fingerprint_of({{"images", all.images}, {"labels", all.labels}});
}

CharacterImages::CharacterImages(const std::string& path, Look look) : look_(look) {
  if (path.empty()) return;
  const auto files = mnist_files(path);
  if (!files)
    throw ConfigError(fmt::format(
        "[reproduce] {} has no two files whose names end in images-idx3-ubyte and labels-idx1-ubyte, or in these and .gz; "
        "give a folder with MNIST's test files, or leave --data out for drawn characters",
        printable(path)));
  const LabelledImages all = read_mnist(files->first, files->second);
  const std::int64_t count = all.labels.size(), training = count / 5 * 4;
  constexpr std::int64_t kLeast = 50, kSide = 28;
  if (count < kLeast || all.images.shape() != Shape{count, kSide, kSide, 1})
    throw ConfigError(
        fmt::format("[reproduce] {}: images are {}; this experiment wants {} at least, of {} x {} pixels",
                    printable(path), to_string(all.images.spec()), kLeast, kSide, kSide));
  fingerprint_ = fingerprint_of({{"images", all.images}, {"labels", all.labels}});
  const auto part = [&](std::int64_t first, std::int64_t n) {
    return chosen(all, n, [=](std::int64_t i) { return first + i; });
  };
  training_ = part(0, training);
  held_out_ = part(training, count - training);
}

const CharacterImages& CharacterImages::of(const Settings& settings, Look look) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, Look>, std::unique_ptr<const CharacterImages>> known;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const CharacterImages>& out = known[{settings.data, look}];
  if (!out) out.reset(new CharacterImages(settings.data, look));
  return *out;
}

LabelledImages CharacterImages::training(std::int64_t step, std::int64_t batch, std::uint64_t seed) const {
  const auto first = static_cast<std::uint64_t>(step * batch);
  if (!training_) return glyphs(look_ == Look::plain ? kPlain : kCluttered, seed, first, batch);
  if (look_ == Look::cluttered) return placed(*training_, kCluttered, seed, first, batch);
  const auto n = static_cast<std::uint32_t>(training_->labels.size());
  return chosen(*training_, batch, [&](std::int64_t i) {
    return random_below(n, seed, kPlainStream, first + static_cast<std::uint64_t>(i));
  });
}

LabelledImages CharacterImages::held_out(std::int64_t first, std::int64_t count) const {
  const auto from = static_cast<std::uint64_t>(first);
  if (!held_out_) return glyphs(look_ == Look::plain ? kPlain : kCluttered, kHeldOutSeed, from, count);
  if (look_ == Look::cluttered) return placed(*held_out_, kCluttered, kHeldOutSeed, from, count);
  return chosen(*held_out_, count, [&](std::int64_t i) { return (first + i) % held_out_->labels.size(); });
}

vision::VisionConfig classifier(const std::string& mixer) {
  return {.height = 40,
          .image_width = 40,
          .channels = 1,
          .patch = 5,
          .width = 48,
          .depth = 2,
          .heads = 2,
          .classes = CharacterImages::kClasses,
          .mlp_ratio = 2,
          .mixer = vision::mixer_named(mixer),
          .init_std = 0};
}

StateDict train(const ImageRun& run, const Task& task, Measured& out, double share) {
  const CharacterImages& data = CharacterImages::of(task.settings);
  Training training({.seed = task.seed, .adamw = {.weight_decay = 0.05}, .groups = run.groups});
  training.add(batch_specs(run.model, run.batch), [&](ParamTable& table, const std::vector<Tensor>& in) {
    return Training::Objective{mean(cross_entropy(class_logits(in[0], Params(table), run.model), in[1]))};
  });
  if (run.start) {
    StateDict start = initial_parameters(training.specs(), DType::f32, task.seed);
    load_by_name(start, *run.start, "the model that was trained before", [&](const std::string& name) {
      return run.start->at(name).shape() == start.at(name).shape();
    });
    training.start_from(std::move(start));
  }
  const std::int64_t steps = run.images / run.batch;
  std::vector<double> losses;
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < steps; ++i) {
    const LabelledImages batch = data.training(i, run.batch, task.seed);
    losses.push_back(
        training.step(0, {batch.images, batch.labels}, cosine_rate(i, steps, steps / 10, run.lr)).loss);
    if (task.progress) task.progress(share * static_cast<double>(i) / static_cast<double>(steps));
  }
  out.clock["images/s"] = static_cast<double>(steps * run.batch) /
                          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  out.curves["training loss"] = binned(losses, 32);
  return training.parameters();
}

void measure(const vision::VisionConfig& model, const StateDict& params, const Task& task, Measured& out,
             std::int64_t images) {
  const CharacterImages& data = CharacterImages::of(task.settings);
  const TracedModel traced = trace_model(
      DType::f32, batch_specs(model, kAsked), [&](ParamTable& table, const std::vector<Tensor>& in) {
        const Tensor logits = class_logits(in[0], Params(table), model);
        return std::vector<Tensor>{logits, mean(cross_entropy(logits, in[1]))};
      });
  Plan plan = traced.function.plan();
  double loss = 0;
  std::int64_t right = 0;
  for (std::int64_t at = 0; at < images; at += kAsked) {
    const LabelledImages batch = data.held_out(at, kAsked);
    const std::vector<Array> found = plan.run(traced.bind({batch.images, batch.labels}, {&params}));
    right += right_answers(found[0], batch.labels);
    loss += found[1].item() * static_cast<double>(kAsked);
  }
  out.numbers["loss"] = loss / static_cast<double>(images);
  out.numbers["top-1"] = 100 * static_cast<double>(right) / static_cast<double>(images);
}

Array image_of(const Array& images, std::int64_t index) {
  const Shape& all = images.shape();
  Array out(DType::f32, {all.end()[-3], all.end()[-2], all.end()[-1]});
  std::ranges::copy(images.as<float>().subspan(static_cast<std::size_t>(index * out.size()),
                                               static_cast<std::size_t>(out.size())),
                    out.as<float>().begin());
  return out;
}

std::vector<double> pixels_of(const Array& images, std::int64_t count, double low) {
  std::vector<double> out;
  const std::int64_t size = image_of(images, 0).size();
  for (const float v : images.as<float>().first(static_cast<std::size_t>(count * size))) {
    const double share = std::clamp((static_cast<double>(v) - low) / (1 - low), 0.0, 1.0);
    out.push_back(std::floor(share * 255 + 0.5));
  }
  return out;
}

Array image_of_pixels(const std::vector<double>& pixels, std::int64_t index, const Shape& shape) {
  Array out(DType::f32, shape);
  if (std::ssize(pixels) < (index + 1) * out.size())
    throw IoError(fmt::format(
        "[reproduce] a run's pixels are {}, image {} of {} is shown: they were changed, or made by "
        "another version; make the run again",
        pixels.size(), index, to_string(shape)));
  for (std::int64_t i = 0; i < out.size(); ++i)
    out.as<float>()[static_cast<std::size_t>(i)] =
        static_cast<float>(pixels[static_cast<std::size_t>(index * out.size() + i)] / 255);
  return out;
}

bool SharedStarts::begin(const std::string& key, std::uint64_t seed, const Make& make) {
  std::promise<std::shared_ptr<const StateDict>> promise;
  {
    const std::lock_guard lock(mutex_);
    if (!made_.try_emplace({key, seed}, promise.get_future().share()).second) return false;
  }
  try {
    promise.set_value(std::make_shared<const StateDict>(make(seed)));
  } catch (...) {
    promise.set_exception(std::current_exception());
  }
  return true;
}

std::shared_ptr<const StateDict> SharedStarts::get(const std::string& key, std::uint64_t seed,
                                                   const std::vector<std::uint64_t>& seeds,
                                                   const Make& make) {
  if (!begin(key, seed, make))
    for (const std::uint64_t other : seeds) {
      {
        const std::lock_guard lock(mutex_);
        if (made_.at({key, seed}).wait_for(std::chrono::seconds(0)) == std::future_status::ready) break;
      }
      if (begin(key, other, make)) break;
    }
  Future future;
  {
    const std::lock_guard lock(mutex_);
    future = made_.at({key, seed});
  }
  return future.get();
}

}  // namespace nestgrad::reproduce

#include "programs/inspect_images.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "engine/core/random.h"
#include "models/checkpoint.h"
#include "models/images/glyphs.h"
#include "models/images/resized.h"
#include "models/images/scenes.h"
#include "programs/given_model.h"

namespace nestgrad::programs {

void check_layer(std::int64_t layer, std::int64_t layers) {
  if (layer >= layers)
    throw CLI::ValidationError("--layer", fmt::format("the model has {}, counted from 0", layers));
}

namespace {

constexpr std::uint64_t kUnseen = 0x756e7365656e;  // seed of drawn characters and scenes

// What an image model looks at.
struct ChosenImage {
  Array pixels;  // [height, width, channels], in the model's size
  std::int32_t label;
  std::string what;  // a fact of the page
};

// Sizes of a model of one image.
struct ImageSizes {
  std::int64_t height, width, channels, classes;
};
template <class Config>
ImageSizes sizes_of(const Config& c) {
  return {c.height, c.image_width, c.channels, c.classes};
}

ChosenImage chosen_image(const ImageQuestion& asked, const ImageSizes& model) {
  const std::int64_t number = asked.image.value_or(0);
  LabelledImages images;
  std::int64_t at = 0;
  std::string what = fmt::format("a drawn character, number {}", number);
  if (asked.data.empty()) {
    if (model.channels != 1 || model.height != model.width)
      throw ConfigError(fmt::format(
          "[inspect] the model sees {} x {} pixels of {} channels, drawn characters are square and of one; "
          "give --data",
          model.height, model.width, model.channels));
    images = glyphs({.size = model.height,
                     .classes = static_cast<int>(std::min<std::int64_t>(model.classes, 10)),
                     .distractors = 0},
                    kUnseen, static_cast<std::uint64_t>(number), 1);
  } else {
    images = read_labelled_images(asked.data);
    if (std::ssize(images.classes) != model.classes)
      throw ConfigError(fmt::format(
          "[inspect] {} has {} class{}, the model {}: give the images that it was trained on", asked.data,
          images.classes.size(), images.classes.size() == 1 ? "" : "es", model.classes));
    at = number;
    if (at >= images.labels.size())
      throw CLI::ValidationError(
          "--image", fmt::format("{} holds {}, counted from 0", asked.data, images.labels.size()));
    const auto label = static_cast<std::size_t>(images.labels.at(at));
    what = fmt::format("number {} of {}, class {}", number, asked.data, images.classes.at(label));
  }
  const Shape one{images.images.shape()[1], images.images.shape()[2], images.images.shape()[3]};
  Array pixels(DType::f32, one);
  std::ranges::copy(images.images.as<float>().subspan(static_cast<std::size_t>(at * pixels.size()),
                                                      static_cast<std::size_t>(pixels.size())),
                    pixels.as<float>().begin());
  if (one[0] != model.height || one[1] != model.width) {
    what += fmt::format(", {} x {} pixels brought to the model's size", one[0], one[1]);
    pixels = resized(pixels, model.height, model.width);
  }
  return {pixels, static_cast<std::int32_t>(images.labels.at(at)), what};
}

// Maps of an inspection have a number for each two tokens.
void check_tokens(std::int64_t tokens) {
  constexpr std::int64_t kMostTokens = 2048;
  if (tokens > kMostTokens)
    throw ConfigError(fmt::format(
        "[inspect] the model sees {} tokens at once, a page shows maps of {} at most", tokens, kMostTokens));
}

void refuse_level(const ImageQuestion& asked, const char* model) {
  if (asked.level)
    throw CLI::ValidationError(
        "--level", fmt::format("is of the noise that a diffusion transformer takes away; this is {}", model));
}

template <class Config>
vision::ModelCheckpoint<Config> opened_model(const ImageQuestion& asked) {
  auto model = vision::read_checkpoint<Config>(asked.checkpoint);
  check_finite(model.params, asked.checkpoint);
  say_rounded(asked.checkpoint, model.rounded);
  check_layer(asked.layer, model.config.depth);
  return model;
}

OpenedImages opened_classifier(const ImageQuestion& asked) {
  refuse_level(asked, "a vision transformer");
  const auto model = opened_model<vision::VisionConfig>(asked);
  check_tokens(model.config.rows() * model.config.columns());
  const ChosenImage image = chosen_image(asked, sizes_of(model.config));
  return {inspected_block(model, image.pixels, image.label, asked.layer),
          [=] { return model_precision(model, image.pixels, image.label); },
          {{"image", image.what}}};
}

OpenedImages opened_diffusion(const ImageQuestion& asked) {
  const auto model = opened_model<vision::DiffusionConfig>(asked);
  check_tokens(model.config.rows() * model.config.columns());
  const ChosenImage image = chosen_image(asked, sizes_of(model.config));
  const std::int64_t levels = model.config.levels, level = asked.level.value_or(levels / 2);
  if (level >= levels)
    throw CLI::ValidationError("--level", fmt::format("the model has {}, counted from 0", levels));
  const auto schedule = vision::NoiseSchedule::linear(levels);
  Array around_zero(DType::f32, image.pixels.shape());  // as diffusion models are trained: in [-1, 1]
  for (std::int64_t i = 0; i < around_zero.size(); ++i)
    around_zero.as<float>()[static_cast<std::size_t>(i)] =
        2 * image.pixels.as<float>()[static_cast<std::size_t>(i)] - 1;
  const NoisyImage noisy{around_zero, random_normal(around_zero.spec(), 0, 1, kUnseen, 0),
                         static_cast<std::int32_t>(level), image.label};
  return {inspected_block(model, schedule, noisy, asked.layer),
          [=] { return model_precision(model, schedule, noisy); },
          {{"image", image.what}, {"noise", fmt::format("level {} of {}", level, levels)}}};
}

OpenedImages opened_views(const ImageQuestion& asked) {
  refuse_level(asked, "a model of views");
  if (!asked.data.empty())
    throw CLI::ValidationError("--data", "is for images and text; a model of views looks at drawn scenes");
  constexpr std::int64_t kGiven = 4, kAskedFor = 2;
  const auto model = opened_model<vision::ViewSynthesisConfig>(asked);
  if (model.config.height != model.config.image_width)
    throw ConfigError(
        fmt::format("[inspect] the model sees {} x {} pixels, views of drawn scenes are square; use "
                    "inspected_block of look/inspection.h with views of your own",
                    model.config.height, model.config.image_width));
  if (!model.config.learner.update)
    throw ConfigError(
        "[inspect] without an update there is no inner loop; look into a model whose learner is not 'off'");
  check_tokens((kGiven + kAskedFor) * model.config.rows() * model.config.columns());
  const std::int64_t number = asked.image.value_or(0), size = model.config.height;
  const SceneViews drawn =
      scene_views(kUnseen, static_cast<std::uint64_t>(number), 1, kGiven + kAskedFor, size);
  const ViewedScene scene{drawn.images.reshaped({kGiven + kAskedFor, size, size, 3}),
                          drawn.rays.reshaped({kGiven + kAskedFor, size, size, 6}), kGiven};
  return {inspected_block(model, scene, asked.layer),
          [=] { return model_precision(model, scene); },
          {{"scene", fmt::format("a drawn one, number {}: {} views are given, {} asked for", number, kGiven,
                                 kAskedFor)}}};
}

}  // namespace

OpenedImages opened_images(vision::ImageModel kind, const ImageQuestion& asked) {
  OpenedImages out = kind == vision::ImageModel::view_synthesis          ? opened_views(asked)
                     : kind == vision::ImageModel::diffusion_transformer ? opened_diffusion(asked)
                                                                         : opened_classifier(asked);
  out.facts.insert(out.facts.begin(), {"checkpoint", asked.checkpoint});
  return out;
}

}  // namespace nestgrad::programs

// The inner loop of a block of a model of images.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/index.h"
#include "look/inspection.h"
#include "look/model_numbers.h"
#include "models/vision/patches.h"

namespace nestgrad {

namespace {

using Tensors = std::vector<Tensor>;
using look::check_layer, look::take_numbers;

// f32 [height, width, channels] of the sizes of a model as a batch of one.
template <class Config>
Array image_batch(const Config& c, const Array& image, const char* what = "image") {
  if (image.spec() != Spec{DType::f32, {c.height, c.image_width, c.channels}})
    throw ShapeError(fmt::format("[inspect] the {} is {}, the model sees f32[{},{},{}]", what,
                                 to_string(image.spec()), c.height, c.image_width, c.channels));
  return image.reshaped({1, c.height, c.image_width, c.channels});
}

Array one_number(std::int64_t x) { return Array::of({static_cast<double>(x)}, {1}, DType::i32); }

// What an image model's loop is called, how it is made, and the patches that it lies on.
template <class Config>
void describe(look::InspectedLoop& out, const Config& c, std::string_view mixer, const char* model,
              std::int64_t layer, const ttt::VisionLoop& loop) {
  out.name = fmt::format("block {} of a {} with {}", layer, model, mixer);
  out.learner = loop.learner;
  out.policy = loop.policy;
  out.patches = {.images = {}, .rows = c.rows(), .columns = c.columns()};
}

template <class Config>
std::string_view mixer_of(const Config& c) {
  return c.mixer.name.empty() ? "a mixer of its own" : std::string_view(c.mixer.name);
}

// An image and its label, as a batch of one.
std::vector<Array> batch_of(const vision::VisionConfig& c, const Array& image, std::int32_t label) {
  const Array batch = image_batch(c, image);
  if (label < 0 || label >= c.classes)
    throw ConfigError(fmt::format("[inspect] the image is of class {}; the model has {}, counted from 0",
                                  label, c.classes));
  return {batch, one_number(label)};
}

// Images are f32, and a program in f64 takes them as they are.
Tensor pixels(Tensor images, const Params& params) { return cast(images, params.dtype()); }

// "class 3, the model says 5 (61 %)"
std::string what_it_says(const vision::VisionCheckpoint& checkpoint, const std::vector<Array>& batch) {
  const TracedModel model =
      trace_model(DType::f32, {batch[0].spec()}, [&](ParamTable& table, const Tensors& in) {
        return Tensors{softmax(class_logits(in[0], Params(table), checkpoint.config), -1)};
      });
  const std::vector<double> p = model.function(model.bind({batch[0]}, {&checkpoint.params}))[0].to_vector();
  const auto best = std::ranges::max_element(p);
  if (!std::isfinite(*best))
    return fmt::format("class {}, what the model says is not finite", batch[1].at(0));
  return fmt::format("class {}, the model says {} ({:.0f} %)", batch[1].at(0), best - p.begin(), 100 * *best);
}

}  // namespace

look::InspectedLoop inspected_block(const vision::VisionCheckpoint& checkpoint, const Array& image,
                                    std::int32_t label, std::int64_t layer) {
  const vision::VisionConfig& config = checkpoint.config;
  const std::vector<Array> batch = batch_of(config, image, label);
  check_layer(layer, config.depth);
  look::InspectedLoop out;
  out.outer_unit = "nats per image";
  ttt::VisionLoop loop;
  take_numbers(out, batch, checkpoint.params, fmt::format("blocks.{}.attn.", layer),
               [&](const Params& params, const Tensors& in) {
                 const Tensor logits = class_logits(pixels(in[0], params), params, config, layer, loop);
                 return look::LoopInModel{cross_entropy(logits, in[1]), loop.answers, loop.views};
               });
  describe(out, config, mixer_of(config), "vision transformer", layer, loop);
  out.patches->images = {{image, what_it_says(checkpoint, batch)}};
  return out;
}

namespace {

std::vector<Array> batch_of(const vision::DiffusionConfig& c, const NoisyImage& noisy) {
  return {image_batch(c, noisy.image), image_batch(c, noisy.noise, "noise"), one_number(noisy.level),
          one_number(noisy.label)};
}

}  // namespace

look::InspectedLoop inspected_block(const vision::DiffusionCheckpoint& checkpoint,
                                    const vision::NoiseSchedule& schedule, const NoisyImage& noisy,
                                    std::int64_t layer) {
  const vision::DiffusionConfig& config = checkpoint.config;
  const std::vector<Array> batch = batch_of(config, noisy);
  check_layer(layer, config.depth);
  vision::check_levels(schedule, config);
  look::InspectedLoop out;
  out.outer_unit = "squared error of the noise";
  ttt::VisionLoop loop;
  take_numbers(out, batch, checkpoint.params, fmt::format("blocks.{}.attn.", layer),
               [&](const Params& own, const Tensors& in) {
                 const Tensor noise = pixels(in[1], own),
                              given = schedule.noisy(pixels(in[0], own), noise, in[2]);
                 const Tensor found = predicted_noise(given, in[2], in[3], own, config, layer, loop);
                 return look::LoopInModel{mean(square(vision::patches_of(found - noise, config.patch)), {2}),
                                          loop.answers, loop.views};
               });
  const Array shown =
      trace([&](const Tensors& in) { return Tensors{(schedule.noisy(in[0], in[1], in[2]) + 1.0) * 0.5}; },
            {batch[0].spec(), batch[1].spec(), batch[2].spec()})({batch[0], batch[1], batch[2]})[0];
  describe(out, config, mixer_of(config), "diffusion transformer", layer, loop);
  out.patches->images = {{shown.reshaped(noisy.image.shape()),
                          fmt::format("class {} at noise level {} of {}, -1 black and 1 white", noisy.label,
                                      noisy.level, config.levels)}};
  return out;
}

namespace {

// Images and rays as a batch of one.
std::vector<Array> batch_of(const vision::ViewSynthesisConfig& c, const ViewedScene& scene) {
  const std::int64_t views = scene.images.shape().empty() ? 0 : scene.images.shape()[0];
  const Spec images{DType::f32, {views, c.height, c.image_width, 3}},
      rays{DType::f32, {views, c.height, c.image_width, 6}};
  if (scene.images.spec() != images || scene.rays.spec() != rays)
    throw ShapeError(fmt::format(
        "[inspect] images are {} and rays {}, the model sees f32[views,{},{},3] and f32[views,{},{},6]",
        to_string(scene.images.spec()), to_string(scene.rays.spec()), c.height, c.image_width, c.height,
        c.image_width));
  if (scene.inputs < 1 || scene.inputs >= views)
    throw ConfigError(fmt::format(
        "[inspect] {} of {} views are given; there must be one that is, and one that is asked for",
        scene.inputs, views));
  const auto one = [](const Array& x) {
    Shape shape = x.shape();
    shape.insert(shape.begin(), 1);
    return x.reshaped(shape);
  };
  return {one(scene.images), one(scene.rays)};
}

// The asked views, as they are.
Tensor truth(Tensor images, const ViewedScene& scene) {
  return slice(images, 1, scene.inputs, images.dim(1));
}
Tensor given(Tensor images, const ViewedScene& scene) { return slice(images, 1, 0, scene.inputs); }

// View `index` of [1, views, height, width, 3] or of [views, height, width, 3].
Array view_of(const Array& views, std::int64_t index) {
  const Shape& all = views.shape();
  Array out(DType::f32, {all[all.size() - 3], all[all.size() - 2], 3});
  std::ranges::copy(views.as<float>().subspan(uz(index * out.size()), uz(out.size())),
                    out.as<float>().begin());
  return out;
}

// What the model is given, what it is asked for, and what it makes of that.
void show_views(look::InspectedLoop::Patches& out, const vision::ViewSynthesisCheckpoint& checkpoint,
                const ViewedScene& scene, const std::vector<Array>& batch) {
  const TracedModel model =
      trace_model(DType::f32, look::specs_of(batch), [&](ParamTable& table, const Tensors& in) {
        const Tensor views =
            synthesized_views(given(in[0], scene), in[1], scene.inputs, Params(table), checkpoint.config);
        return Tensors{views, mean(square(views - truth(in[0], scene)), {0, 2, 3, 4})};
      });
  const std::vector<Array> made = model.function(model.bind(batch, {&checkpoint.params}));
  const std::int64_t asked = made[1].size(), views = scene.inputs + asked;
  for (std::int64_t i = 0; i < views; ++i)
    out.images.push_back(
        {view_of(scene.images, i), fmt::format("view {}, {}", i, i < scene.inputs ? "given" : "asked for")});
  for (std::int64_t i = 0; i < asked; ++i)
    out.made.push_back({view_of(made[0], i), fmt::format("view {} as made, PSNR {:.1f} dB", scene.inputs + i,
                                                         -10 * std::log10(made[1].at(i)))});
}

}  // namespace

look::InspectedLoop inspected_block(const vision::ViewSynthesisCheckpoint& checkpoint,
                                    const ViewedScene& scene, std::int64_t layer) {
  const vision::ViewSynthesisConfig& config = checkpoint.config;
  const std::vector<Array> batch = batch_of(config, scene);
  check_layer(layer, config.depth);
  look::InspectedLoop out;
  out.outer_unit = "squared error";
  ttt::VisionLoop loop;
  take_numbers(out, batch, checkpoint.params, fmt::format("blocks.{}.module_list.1.f.", layer),
               [&](const Params& params, const Tensors& in) {
                 const Tensor images = pixels(in[0], params), rays = pixels(in[1], params);
                 const Tensor views =
                     synthesized_views(given(images, scene), rays, scene.inputs, params, config, layer, loop);
                 return look::LoopInModel{mean(square(views - truth(images, scene)), {1, 2, 3, 4}),
                                          loop.answers, loop.views};
               });
  const std::string_view learner = name_of(config.learner);
  describe(out, config, learner.empty() ? "fast weights of its own" : learner, "model of views", layer, loop);
  show_views(*out.patches, checkpoint, scene, batch);
  return out;
}

look::PrecisionProbe model_precision(const vision::VisionCheckpoint& checkpoint, const Array& image,
                                     std::int32_t label) {
  return look::precision_of(batch_of(checkpoint.config, image, label), checkpoint.params,
                            [&](const Params& params, const Tensors& in) {
                              return cross_entropy(
                                  class_logits(pixels(in[0], params), params, checkpoint.config), in[1]);
                            });
}

look::PrecisionProbe model_precision(const vision::DiffusionCheckpoint& checkpoint,
                                     const vision::NoiseSchedule& schedule, const NoisyImage& noisy) {
  return look::precision_of(batch_of(checkpoint.config, noisy), checkpoint.params,
                            [&](const Params& params, const Tensors& in) {
                              return denoising_loss(pixels(in[0], params), pixels(in[1], params), in[2],
                                                    in[3], params, checkpoint.config, schedule);
                            });
}

look::PrecisionProbe model_precision(const vision::ViewSynthesisCheckpoint& checkpoint,
                                     const ViewedScene& scene) {
  return look::precision_of(batch_of(checkpoint.config, scene), checkpoint.params,
                            [&](const Params& params, const Tensors& in) {
                              const Tensor images = pixels(in[0], params);
                              return square(synthesized_views(given(images, scene), pixels(in[1], params),
                                                              scene.inputs, params, checkpoint.config) -
                                            truth(images, scene));
                            });
}

}  // namespace nestgrad

// The inner loop of a layer of a trained model, of language or of images.
#include <fmt/format.h>

#include <algorithm>

#include "autograd/grad.h"
#include "look/inspection.h"
#include "models/language_model.h"
#include "models/vision/patches.h"

namespace nestgrad {

namespace {

using Tensors = std::vector<Tensor>;

// Numbers of a checkpoint as f64 or f32, by name.
StateDict cast_to(const StateDict& params, DType dtype) {
  StateDict out;
  for (const auto& [name, value] : params) out.emplace(name, value.cast(dtype));
  return out;
}

std::vector<Spec> specs_of(const std::vector<Array>& arrays) {
  std::vector<Spec> out;
  for (const Array& a : arrays) out.push_back(a.spec());
  return out;
}

// An inner loop in the program of its model.
struct Seen {
  Tensor losses, answers;
  ttt::Views views;
};

// Fills in numbers: what the loop that `see` finds is given, and what the model wants of it. prefix: of the layer's
// parameters.
void take_numbers(look::InspectedLoop& out, const std::vector<Array>& inputs, const StateDict& checkpoint,
                  const std::string& prefix,
                  const std::function<Seen(const Params& params, const Tensors& in)>& see) {
  std::vector<std::string> gates;
  bool position = false;
  const TracedModel model =
      trace_model(DType::f64, specs_of(inputs), [&](ParamTable& table, const Tensors& in) {
        const Seen seen = see(Params(table), in);
        Tensors r{seen.losses, grad(mean(seen.losses), seen.answers), seen.views.q, seen.views.k,
                  seen.views.v};
        for (const auto& [name, rows] : seen.views.gates) gates.push_back(name), r.push_back(rows);
        if (seen.views.position.defined()) position = true, r.push_back(seen.views.position);
        return r;
      });
  check_fits(model.params, checkpoint, "the checkpoint");
  const StateDict params = cast_to(checkpoint, DType::f64);
  const std::vector<Array> r = model.function(model.bind(inputs, {&params}));
  out.outer_loss = r[0].to_vector();
  out.cotangent = r[1], out.q = r[2], out.k = r[3], out.v = r[4];
  for (std::size_t i = 0; i < gates.size(); ++i) out.gates[gates[i]] = r[5 + i];
  if (position) out.position = r.back();
  for (const auto& [key, value] : params)
    if (key.starts_with(prefix)) out.params[key.substr(prefix.size())] = value;
}

// Of a mean of losses by every parameter.
look::PrecisionProbe precision_of(
    const std::vector<Array>& inputs, const StateDict& checkpoint,
    const std::function<Tensor(const Params& params, const Tensors& in)>& losses) {
  std::vector<std::string> names;
  const auto gradients = [&](DType dtype) {
    const TracedModel model = trace_model(dtype, specs_of(inputs), [&](ParamTable& table, const Tensors& in) {
      return grad(mean(losses(Params(table), in)), table.tensors(), {.allow_zero = true});
    });
    names.clear();
    for (const ParamSpec& p : model.params) names.push_back(p.name);
    const StateDict params = cast_to(checkpoint, dtype);
    return model.function(model.bind(inputs, {&params}));
  };
  const std::vector<Array> low = gradients(DType::f32), high = gradients(DType::f64);
  return look::compare_precision(names, low, high);
}

// f32 [height, width, channels] of the sizes of a model as a batch of one.
template <class Config>
Array image_batch(const Config& c, const Array& image) {
  if (image.spec() != Spec{DType::f32, {c.height, c.image_width, c.channels}})
    throw ShapeError(fmt::format("[inspect] the image is {}, the model sees f32[{},{},{}]",
                                 to_string(image.spec()), c.height, c.image_width, c.channels));
  return image.reshaped({1, c.height, c.image_width, c.channels});
}

Array one_number(std::int64_t x) { return Array::of({static_cast<double>(x)}, {1}, DType::i32); }

void check_layer(std::int64_t layer, std::int64_t layers) {
  if (layer < 0 || layer >= layers)
    throw ConfigError(
        fmt::format("[inspect] there is no layer {}; the model has {}, counted from 0", layer, layers));
}

// What an image model's loop is called, how it is made, and what it lies on.
template <class Config>
void describe(look::InspectedLoop& out, const Config& c, const char* model, std::int64_t layer,
              const ttt::VisionLoop& loop, const Array& image, std::string caption) {
  out.name = fmt::format("block {} of a {} with {}", layer, model,
                         c.mixer.name.empty() ? "a mixer of its own" : c.mixer.name);
  out.learner = loop.learner;
  out.policy = loop.policy;
  out.patches = {.image = image, .rows = c.rows(), .columns = c.columns(), .caption = std::move(caption)};
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
  return fmt::format("class {}, the model says {} ({:.0f} %)", batch[1].at(0), best - p.begin(), 100 * *best);
}

}  // namespace

look::InspectedLoop inspected_layer(const Checkpoint& checkpoint, const Array& tokens, std::int64_t layer) {
  const LanguageModelConfig& config = checkpoint.config;
  check_layer(layer, config.num_hidden_layers);
  if (config.ttt_layer_type == kEndToEnd)
    throw ConfigError(
        "[inspect] ttt-e2e has no layers with an inner loop of their own: the whole model learns; "
        "inspect_end_to_end looks at it");
  if (config.ttt_layer_type == "attention")
    throw ConfigError(
        fmt::format("[inspect] the model's layers are '{}', which have no inner loop of their "
                    "own; inspect a model with a learner",
                    config.ttt_layer_type));
  const ttt::System& system = learner_system(config.ttt_layer_type);
  const std::string name = fmt::format("layers.{}.seq_modeling_block", layer);
  const ttt::SystemSizes sizes{config.num_attention_heads, config.hidden_size / config.num_attention_heads,
                               config.mini_batch_size};

  look::InspectedLoop out;
  out.name = fmt::format("layer {} of a {} language model", layer, system.name);
  out.learner = [&system, sizes](const Params& p) { return system.learner(p, sizes); };
  out.policy = system.policy(sizes);
  out.outer_unit = "nats per token";
  take_numbers(out, {tokens}, checkpoint.params, "model." + name + ".",
               [&](const Params& params, const Tensors& in) {
                 ttt::Stream stream;
                 stream.tap_inner_loops = true;
                 const Tensor losses = next_token_loss(config, params, in[0], stream);
                 const auto& taps = stream.taps();
                 const auto tap = [&](const std::string& of) { return taps.at(name + of); };
                 Seen seen{losses, tap(".answers"), {}};
                 seen.views.q = tap(".q"), seen.views.k = tap(".k"), seen.views.v = tap(".v");
                 const std::string prefix = name + ".gates.";
                 for (const auto& [key, value] : taps)
                   if (key.starts_with(prefix)) seen.views.gates.emplace(key.substr(prefix.size()), value);
                 if (taps.contains(name + ".position")) seen.views.position = tap(".position");
                 return seen;
               });
  return out;
}

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
                 return Seen{cross_entropy(logits, in[1]), loop.answers, loop.views};
               });
  describe(out, config, "vision transformer", layer, loop, image, what_it_says(checkpoint, batch));
  return out;
}

look::InspectedLoop inspected_block(const vision::DiffusionConfig& config, const StateDict& params,
                                    const vision::NoiseSchedule& schedule, const NoisyImage& noisy,
                                    std::int64_t layer) {
  const std::vector<Array> batch{image_batch(config, noisy.image), image_batch(config, noisy.noise),
                                 one_number(noisy.level), one_number(noisy.label)};
  check_layer(layer, config.depth);
  look::InspectedLoop out;
  out.outer_unit = "squared error of the noise";
  ttt::VisionLoop loop;
  take_numbers(
      out, batch, params, fmt::format("blocks.{}.attn.", layer), [&](const Params& own, const Tensors& in) {
        const Tensor noise = pixels(in[1], own), given = schedule.noisy(pixels(in[0], own), noise, in[2]);
        const Tensor found = predicted_noise(given, in[2], in[3], own, config, layer, loop);
        return Seen{mean(square(vision::patches_of(found - noise, config.patch)), {2}), loop.answers,
                    loop.views};
      });
  const Array shown =
      trace([&](const Tensors& in) { return Tensors{schedule.noisy(in[0], in[1], in[2])}; },
            {batch[0].spec(), batch[1].spec(), batch[2].spec()})({batch[0], batch[1], batch[2]})[0];
  describe(out, config, "diffusion transformer", layer, loop, shown.reshaped(noisy.image.shape()),
           fmt::format("class {} at noise level {} of {}", noisy.label, noisy.level, config.levels));
  return out;
}

look::PrecisionProbe model_precision(const Checkpoint& checkpoint, const Array& tokens) {
  return precision_of({tokens}, checkpoint.params, [&](const Params& params, const Tensors& in) {
    ttt::Stream stream;
    return next_token_loss(checkpoint.config, params, in[0], stream);
  });
}

look::PrecisionProbe model_precision(const vision::VisionCheckpoint& checkpoint, const Array& image,
                                     std::int32_t label) {
  return precision_of(batch_of(checkpoint.config, image, label), checkpoint.params,
                      [&](const Params& params, const Tensors& in) {
                        return cross_entropy(class_logits(pixels(in[0], params), params, checkpoint.config),
                                             in[1]);
                      });
}

}  // namespace nestgrad

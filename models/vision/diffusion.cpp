#include "models/vision/diffusion.h"

#include <fmt/format.h>

#include <cmath>

#include "models/traced_model.h"
#include "models/vision/layers.h"
#include "models/vision/patches.h"
#include "ops/numerics/functions.h"
#include "ops/ops.h"

namespace nestgrad::vision {

namespace {

using Config = DiffusionConfig;

constexpr std::int64_t kLevelFeatures = 256;

// Xavier's, as DiT starts its linear maps.
Init xavier(std::int64_t in, std::int64_t out) {
  return Init::normal(std::sqrt(2.0 / static_cast<double>(in + out)));
}

Tensor mapped(Tensor x, const Params& params, std::int64_t out) {
  return affine(x, params, out, xavier(x.dim(-1), out));
}

// 1/10000^(i / n), i = 0 .. n - 1.
double frequency(std::int64_t i, std::int64_t n) {
  return m::exp(-m::log(10000.0) * (static_cast<double>(i) / static_cast<double>(n)));
}

// c of silu(c) [batch, width] mapped to `parts` rows for all tokens, [batch, 1, width] each; from zero.
std::vector<Tensor> modulation(Tensor active, const Params& params, std::int64_t parts) {
  const std::int64_t batch = active.dim(0), width = active.dim(1);
  const Tensor all = affine(active, params.at("adaLN_modulation").at("1"), parts * width, Init::zeros());
  std::vector<Tensor> out;
  for (std::int64_t i = 0; i < parts; ++i)
    out.push_back(reshape(slice(all, 1, i * width, (i + 1) * width), {batch, 1, width}));
  return out;
}

Tensor modulated(Tensor x, Tensor shift, Tensor scale) { return plain_layer_norm(x) * (1.0 + scale) + shift; }

std::int64_t hidden_of(const Config& c) {
  return static_cast<std::int64_t>(static_cast<double>(c.width) * c.mlp_ratio);
}

// active: silu of the condition. loop: becomes the mixer's, unless it is null.
Tensor run_block(Tensor x, Tensor active, const Params& params, const Config& c, ttt::VisionLoop* loop) {
  if (c.mixer.position_convolution) x = x + depthwise_conv_of(x, params.at("cpe"), c.rows(), c.columns());
  const std::vector<Tensor> m = modulation(active, params, 6);
  const MixerSizes sizes{.width = c.width, .heads = c.heads, .height = c.rows(), .image_width = c.columns()};
  x = x + m[2] * mix(modulated(x, m[0], m[1]), params.at("attn"), c.mixer, sizes, loop);
  const Params mlp = params.at("mlp");
  const Tensor hidden = gelu_tanh(mapped(modulated(x, m[3], m[4]), mlp.at("fc1"), hidden_of(c)));
  return x + m[5] * mapped(hidden, mlp.at("fc2"), c.width);
}

// Of each image's level and label, [batch, width].
Tensor condition(Tensor levels, Tensor labels, const Params& params, const Config& c) {
  const Scope scope("condition");
  const Array table = level_table(c.levels, kLevelFeatures).cast(params.dtype());
  const Params mlp = params.at("t_embedder").at("mlp");
  const Init init = Init::normal(0.02);
  const Tensor hidden = silu(affine(gather(constant(table), levels), mlp.at("0"), c.width, init));
  const Tensor level = affine(hidden, mlp.at("2"), c.width, init);
  return level + gather(params("y_embedder.embedding_table.weight", {c.classes + 1, c.width}, init), labels);
}

void check_given(Tensor x, Tensor levels, Tensor labels, const Config& c) {
  const std::int64_t batch = x.rank() == 4 ? x.dim(0) : 0;
  const Spec each{DType::i32, {batch}};
  if (x.rank() != 4 || x.shape() != Shape{batch, c.height, c.image_width, c.channels} ||
      levels.spec() != each || labels.spec() != each)
    throw ShapeError(
        fmt::format("[diffusion] images are {}, levels {}, labels {}; they must be [batch, {}, {}, {}], and "
                    "i32 [batch] both",
                    to_string(x.spec()), to_string(levels.spec()), to_string(labels.spec()), c.height,
                    c.image_width, c.channels));
}

}  // namespace

Array position_table(std::int64_t rows, std::int64_t columns, std::int64_t width) {
  if (rows < 1 || columns < 1 || width < 4 || width % 4)
    throw ConfigError(
        fmt::format("[diffusion] places of {} x {} tokens in {} features; the width must be a multiple of 4",
                    rows, columns, width));
  const std::int64_t each = width / 4;
  std::vector<double> out;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      for (const std::int64_t place : {column, row})
        for (double (*wave)(double) :
             {+[](double x) { return m::sin(x); }, +[](double x) { return m::cos(x); }})
          for (std::int64_t i = 0; i < each; ++i)
            out.push_back(wave(static_cast<double>(place) * frequency(i, each)));
  return Array::of(out, {1, rows * columns, width});
}

Array level_table(std::int64_t levels, std::int64_t features) {
  if (levels < 1 || features < 2 || features % 2)
    throw ConfigError(
        fmt::format("[diffusion] {} levels in {} features; there must be a level, and features be even",
                    levels, features));
  const std::int64_t half = features / 2;
  std::vector<double> out;
  for (std::int64_t level = 0; level < levels; ++level)
    for (double (*wave)(double) : {+[](double x) { return m::cos(x); }, +[](double x) { return m::sin(x); }})
      for (std::int64_t i = 0; i < half; ++i)
        out.push_back(wave(static_cast<double>(level) * frequency(i, half)));
  return Array::of(out, {levels, 2 * half});
}

void DiffusionConfig::check() const {
  check_sizes("diffusion", {height, image_width, channels, patch, width, heads, mlp_ratio});
  check_positive("diffusion", "classes", classes);
  check_positive("diffusion", "levels", levels);
  if (depth < 0) throw ConfigError(fmt::format("[diffusion] depth must not be negative, it is {}", depth));
  if (width % 4) throw ConfigError(fmt::format("[diffusion] width must be a multiple of 4, it is {}", width));
}

namespace {

// loop: becomes that of block `block`, unless it is null.
Tensor predicted_noise(Tensor images, Tensor levels, Tensor labels, const Params& params,
                       const DiffusionConfig& c, std::int64_t block, ttt::VisionLoop* loop) {
  c.check();
  check_given(images, levels, labels, c);
  Tensor x = patch_embedding(images, params.at("x_embedder.proj"), c.patch, c.width,
                             xavier(c.patch * c.patch * c.channels, c.width));
  x = x + constant(position_table(c.rows(), c.columns(), c.width).cast(params.dtype()));
  const Tensor active = silu(condition(levels, labels, params, c));
  for (std::int64_t i = 0; i < c.depth; ++i) {
    const Scope scope(fmt::format("blocks.{}", i));
    x = run_block(x, active, params.at("blocks").at(std::to_string(i)), c, i == block ? loop : nullptr);
  }
  const Scope scope("final_layer");
  const Params last = params.at("final_layer");
  const std::vector<Tensor> m = modulation(active, last, 2);
  const Tensor pixels =
      affine(modulated(x, m[0], m[1]), last.at("linear"), c.patch * c.patch * c.channels, Init::zeros());
  return images_of(pixels, c.height, c.image_width, c.patch);
}

}  // namespace

Tensor predicted_noise(Tensor images, Tensor levels, Tensor labels, const Params& params,
                       const DiffusionConfig& c) {
  return predicted_noise(images, levels, labels, params, c, 0, nullptr);
}

Tensor predicted_noise(Tensor images, Tensor levels, Tensor labels, const Params& params,
                       const DiffusionConfig& c, std::int64_t block, ttt::VisionLoop& loop) {
  if (block < 0 || block >= c.depth)
    throw ConfigError(fmt::format("[diffusion] there is no block {}, there are {}", block, c.depth));
  return predicted_noise(images, levels, labels, params, c, block, &loop);
}

void check_levels(const NoiseSchedule& schedule, const DiffusionConfig& config) {
  if (schedule.levels() != config.levels)
    throw ConfigError(fmt::format("[diffusion] the schedule has {} levels, the model {}", schedule.levels(),
                                  config.levels));
}

Tensor denoising_loss(Tensor images, Tensor noise, Tensor levels, Tensor labels, const Params& params,
                      const DiffusionConfig& config, const NoiseSchedule& schedule) {
  check_levels(schedule, config);
  const Tensor eps = predicted_noise(schedule.noisy(images, noise, levels), levels, labels, params, config);
  return mean(square(eps - noise), {1, 2, 3});
}

std::vector<ParamSpec> parameters_of(const DiffusionConfig& c) {
  const Spec images{DType::f32, {1, c.height, c.image_width, c.channels}}, each{DType::i32, {1}};
  return trace_model(DType::f32, {images, each, each},
                     [&](ParamTable& table, const std::vector<Tensor>& in) {
                       return std::vector<Tensor>{predicted_noise(in[0], in[1], in[2], Params(table), c)};
                     })
      .params;
}

}  // namespace nestgrad::vision

#include "models/vision/vision_transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/traced_model.h"
#include "models/vision/layers.h"
#include "models/vision/patches.h"

namespace nestgrad::vision {

namespace {

Init start_of(const VisionConfig& c, std::int64_t in) {
  return Init::normal(c.init_std > 0 ? c.init_std : 1.0 / std::sqrt(static_cast<double>(in)));
}

MixerSizes sizes_of(const VisionConfig& c) {
  return {.width = c.width,
          .heads = c.heads,
          .height = c.rows(),
          .image_width = c.columns(),
          .init_std = c.init_std};
}

std::int64_t hidden_of(const VisionConfig& c) {
  return static_cast<std::int64_t>(static_cast<double>(c.width) * c.mlp_ratio);
}

// Tokens with their places, [batch, tokens (+ 1), width].
Tensor embedded(Tensor images, const Params& params, const VisionConfig& c, Tensor mask) {
  const Shape wanted{images.rank() == 4 ? images.dim(0) : 0, c.height, c.image_width, c.channels};
  if (images.rank() != 4 || images.shape() != wanted)
    throw ShapeError(fmt::format("[vision] images are {}, they must be [batch, {}, {}, {}]",
                                 to_string(images.spec()), c.height, c.image_width, c.channels));
  const Init patch_start = start_of(c, c.patch * c.patch * c.channels);
  Tensor x = patch_embedding(images, params.at("patch_embed.proj"), c.patch, c.width, patch_start);
  if (mask.defined()) {
    if (mask.shape() != Shape{x.dim(0), x.dim(1), 1})
      throw ShapeError(fmt::format("[vision] the mask is {}, it must be [{}, {}, 1], a number a patch",
                                   to_string(mask.spec()), x.dim(0), x.dim(1)));
    x = select(mask, params("mask_token", {1, 1, c.width}), x);
  }
  if (c.class_token) {
    const Tensor token = params("cls_token", {1, 1, c.width});
    x = concat({broadcast_to(token, {x.dim(0), 1, c.width}), x}, 1);
  }
  return c.position_embedding ? x + params("pos_embed", {1, x.dim(1), c.width}) : x;
}

Params block_of(const Params& params, std::int64_t i) { return params.at("blocks").at(std::to_string(i)); }

// What the mixer of a block is given, and what it is added to.
struct Before {
  Tensor x, normed;
};

Before before_mixer(Tensor x, const Params& params, const VisionConfig& c) {
  if (c.mixer.position_convolution) x = x + depthwise_conv_of(x, params.at("cpe"), c.rows(), c.columns());
  return {x, layer_norm_of(x, params.at("norm1"))};
}

// loop: becomes the mixer's, unless it is null.
Tensor run_block(Tensor given, const Params& params, const VisionConfig& c, ttt::VisionLoop* loop) {
  const auto [x, normed] = before_mixer(given, params, c);
  const Tensor mixed = x + mix(normed, params.at("attn"), c.mixer, sizes_of(c), loop);
  const Params mlp = params.at("mlp");
  const std::int64_t hidden = hidden_of(c);
  const Tensor y =
      gelu(affine(layer_norm_of(mixed, params.at("norm2")), mlp.at("fc1"), hidden, start_of(c, c.width)));
  return mixed + affine(y, mlp.at("fc2"), c.width, start_of(c, hidden));
}

// The first `end` blocks. loop: becomes that of block `opened`, unless it is null.
Tensor run_blocks(Tensor x, const Params& params, const VisionConfig& c, std::int64_t end,
                  std::int64_t opened = 0, ttt::VisionLoop* loop = nullptr) {
  for (std::int64_t i = 0; i < end; ++i) {
    const Scope scope(fmt::format("blocks.{}", i));
    x = run_block(x, block_of(params, i), c, i == opened ? loop : nullptr);
  }
  return x;
}

}  // namespace

void VisionConfig::check() const {
  const auto refuse = [](const std::string& why) { throw ConfigError("[vision] " + why); };
  check_sizes("vision", {height, image_width, channels, patch, width, heads, mlp_ratio});
  check_positive("vision", "classes", classes);
  if (depth < 0) refuse(fmt::format("depth must not be negative, it is {}", depth));
  if (!std::isfinite(init_std) || init_std < 0)
    refuse(fmt::format("init_std must be 0 or positive, it is {}", init_std));
  if (class_token && reads_places(mixer))
    refuse(
        "a class token has no place in the image, which the mixer looks at; leave it out or choose another mixer");
}

namespace {

Tensor token_features(Tensor images, const Params& params, const VisionConfig& config, Tensor mask,
                      std::int64_t opened, ttt::VisionLoop* loop) {
  config.check();
  const Tensor x =
      run_blocks(embedded(images, params, config, mask), params, config, config.depth, opened, loop);
  const Scope scope("head");
  return layer_norm_of(x, params.at("norm"));
}

// Of whole images, from the features of their tokens.
Tensor image_features(Tensor x, const VisionConfig& config) {
  if (!config.class_token) return mean(x, {1});
  return reshape(slice(x, 1, 0, 1), {x.dim(0), config.width});
}

Tensor class_logits(Tensor images, const Params& params, const VisionConfig& config, std::int64_t opened,
                    ttt::VisionLoop* loop) {
  const Tensor x = image_features(token_features(images, params, config, {}, opened, loop), config);
  const Scope scope("head");
  return affine(x, params.at("head"), config.classes, start_of(config, config.width));
}

void check_block(const VisionConfig& config, std::int64_t block) {
  config.check();
  if (block < 0 || block >= config.depth)
    throw ConfigError(fmt::format("[vision] there is no block {}, there are {}", block, config.depth));
}

}  // namespace

Tensor token_features(Tensor images, const Params& params, const VisionConfig& config, Tensor mask) {
  return token_features(images, params, config, mask, 0, nullptr);
}

Tensor features(Tensor images, const Params& params, const VisionConfig& config) {
  return image_features(token_features(images, params, config), config);
}

Tensor class_logits(Tensor images, const Params& params, const VisionConfig& config) {
  return class_logits(images, params, config, 0, nullptr);
}

Tensor class_logits(Tensor images, const Params& params, const VisionConfig& config, std::int64_t block,
                    ttt::VisionLoop& loop) {
  check_block(config, block);
  return class_logits(images, params, config, block, &loop);
}

namespace {

// What block `block` does with what its mixer is given.
Tensor looked_at(Tensor images, const Params& params, const VisionConfig& config, std::int64_t block,
                 Tensor (*look)(Tensor, const Params&, const Mixer&, const MixerSizes&)) {
  check_block(config, block);
  const Tensor x = run_blocks(embedded(images, params, config, {}), params, config, block);
  const Params own = block_of(params, block);
  return look(before_mixer(x, own, config).normed, own.at("attn"), config.mixer, sizes_of(config));
}

}  // namespace

Tensor block_attention(Tensor images, const Params& params, const VisionConfig& config, std::int64_t block) {
  return looked_at(images, params, config, block, attention_map);
}

Tensor block_keys(Tensor images, const Params& params, const VisionConfig& config, std::int64_t block) {
  return looked_at(images, params, config, block, projected_keys);
}

std::vector<ParamSpec> parameters_of(const VisionConfig& c) {
  const Spec images{DType::f32, {1, c.height, c.image_width, c.channels}};
  return trace_model(DType::f32, {images},
                     [&](ParamTable& table, const std::vector<Tensor>& in) {
                       return std::vector<Tensor>{class_logits(in[0], Params(table), c)};
                     })
      .params;
}

std::vector<std::string> inherited_parameters(const VisionConfig& config) {
  VisionConfig softmax = config;
  softmax.mixer = {};
  const std::vector<ParamSpec> theirs = parameters_of(softmax);
  std::vector<std::string> out;
  for (const ParamSpec& p : parameters_of(config))
    if (std::ranges::any_of(theirs,
                            [&](const ParamSpec& q) { return q.name == p.name && q.shape == p.shape; }))
      out.push_back(p.name);
  return out;
}

}  // namespace nestgrad::vision

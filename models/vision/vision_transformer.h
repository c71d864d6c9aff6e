// The vision transformer (Dosovitskiy et al. 2021), with any mixer in place of attention: patches, embeddings
// of places, blocks x + mixer(norm1(x)), x + mlp(norm2(x)), a last norm, the mean over the tokens or a class
// token, a linear head. Names and layouts are those of timm's and DeiT's state dicts.
//
//   VisionConfig config{.height = 40, .image_width = 40, .channels = 1, .patch = 5, .width = 48, .depth = 2,
//                       .heads = 2, .classes = 10, .mixer = mixer_named("t5-dwc-qk")};
//   TracedModel model = trace_model(DType::f32, {images}, [&](ParamTable& table, const std::vector<Tensor>& in) {
//     return std::vector<Tensor>{class_logits(in[0], Params(table), config)};
//   });
#pragma once

#include "models/vision/mixers.h"

namespace nestgrad::vision {

struct VisionConfig {
  std::int64_t height = 0, image_width = 0, channels = 1;  // of images, in pixels
  std::int64_t patch = 0;                                  // edge of a token, in pixels
  std::int64_t width = 0, depth = 0, heads = 1;
  std::int64_t classes = 0;
  double mlp_ratio = 4;  // hidden width of the MLP over width
  Mixer mixer;
  bool class_token =
      false;  // features are those of a token of its own; false: the mean over all (T^5, ViT^3)
  bool position_embedding = true;  // pos_embed; the published ViT^3 has none, but position_convolution
  // Standard deviation of linear maps at the start, 0.02 in DeiT (192 wide or more); 0: 1/sqrt(in).
  double init_std = 0.02;

  std::int64_t rows() const { return height / patch; }  // of the grid of tokens
  std::int64_t columns() const { return image_width / patch; }
  std::int64_t tokens() const { return rows() * columns(); }  // without a class token
  void check() const;  // ConfigError, saying which field does not make sense and why
};

// images f32 or f64 [batch, height, image_width, channels]. ShapeError for others than the configuration's.
//
// Parameters: cls_token [1, 1, width]; pos_embed [1, tokens (+ 1), width]; patch_embed.proj.weight [width,
// channels, patch, patch], .bias; of block N, blocks.N.norm1.weight, .bias; blocks.N.attn.* of the mixer,
// mostly qkv.weight [3 width, width], qkv.bias, proj.weight [width, width], proj.bias; blocks.N.norm2.*;
// blocks.N.mlp.fc1.* [mlp_ratio width, width] and fc2.*; norm.weight, .bias; head.weight [classes, width],
// .bias.
//
// After the last norm, [batch, tokens, width], the class token first. mask: of masked patches, [batch,
// tokens, 1], 1 where a patch is hidden: there the learned mask_token [1, 1, width] stands for it
// (models/vision/heads.h). Undefined: nothing is hidden.
Tensor token_features(Tensor images, const Params& params, const VisionConfig& config, Tensor mask = {});
// Of the image, [batch, width]: the class token's or the mean over the tokens.
Tensor features(Tensor images, const Params& params, const VisionConfig& config);
// [batch, classes].
Tensor class_logits(Tensor images, const Params& params, const VisionConfig& config);
// The same, and `loop` becomes the inner loop of block `block`. ConfigError for a block that there is not, and for
// mixers without one.
Tensor class_logits(Tensor images, const Params& params, const VisionConfig& config, std::int64_t block,
                    ttt::VisionLoop& loop);

// Attention of block `block` as a map, [batch, heads, tokens, tokens], the class token first: attention_map of
// models/vision/mixers.h of what that block is given.
Tensor block_attention(Tensor images, const Params& params, const VisionConfig& config, std::int64_t block);

// Keys of block `block` as projected, [batch, tokens, width], the class token first.
Tensor block_keys(Tensor images, const Params& params, const VisionConfig& config, std::int64_t block);

// Names, shapes and starts of all that class_logits asks for, in that order.
std::vector<ParamSpec> parameters_of(const VisionConfig& config);

// Names of the parameters that the softmax ViT of the same sizes has too, in the same shapes: what a
// conversion inherits (T^5). All others are new, and trained alone ("freeze") or faster ("multiplier").
std::vector<std::string> inherited_parameters(const VisionConfig& config);

}  // namespace nestgrad::vision

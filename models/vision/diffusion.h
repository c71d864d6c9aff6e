// The diffusion transformer (DiT, Peebles and Xie 2023) with any mixer in place of attention; T^5 section 5.2
// converts one. It predicts the noise of noisy images, given the level of noise and a label. A block, of
// width w, is told of them by adaLN-zero: with shift, scale and gate [w] from one linear map of silu(c), c =
// embedding of the level + embedding of the label,
//   x + gate1 mixer(ln(x) (1 + scale1) + shift1),   x + gate2 mlp(ln(x) (1 + scale2) + shift2)
// whose gates start at zero, so that each block starts as the identity; and the last map starts at zero.
#pragma once

#include "models/vision/mixers.h"
#include "models/vision/noise_schedule.h"

namespace nestgrad::vision {

struct DiffusionConfig {
  std::int64_t height = 0, image_width = 0, channels = 1;  // of images, in pixels
  std::int64_t patch = 0;
  std::int64_t width = 0, depth = 0, heads = 1;  // width: a multiple of 4, for the embedding of places
  std::int64_t classes = 0;
  std::int64_t levels = 200;  // of noise
  double mlp_ratio = 4;
  Mixer mixer;

  std::int32_t no_label() const { return static_cast<std::int32_t>(classes); }  // stands for no label
  std::int64_t rows() const { return height / patch; }                          // of the grid of tokens
  std::int64_t columns() const { return image_width / patch; }
  void check() const;  // ConfigError, saying which field does not make sense and why
};

// eps [batch, height, image_width, channels], predicted of x like it, at levels i32 [batch], of labels i32
// [batch] (classes: no label). ShapeError for what does not fit; ValueError at run time for a label or level
// that there is not.
//
// Parameters: x_embedder.proj.weight [width, channels, patch, patch], .bias; t_embedder.mlp.0.weight [width,
// 256], .bias, t_embedder.mlp.2.weight [width, width], .bias; y_embedder.embedding_table.weight [classes + 1,
// width]; of block N, blocks.N.adaLN_modulation.1.weight [6 width, width], .bias, blocks.N.attn.* of the
// mixer, blocks.N.mlp.fc1.*, fc2.* and (position_convolution) blocks.N.cpe.*;
// final_layer.adaLN_modulation.1.weight [2 width, width], .bias; final_layer.linear.weight [patch * patch *
// channels, width], .bias. The published pos_embed is fixed, and no parameter here: position_table.
Tensor predicted_noise(Tensor x, Tensor levels, Tensor labels, const Params& params,
                       const DiffusionConfig& config);
// The same, and `loop` becomes the inner loop of block `block`. ConfigError for a block that there is not, and for
// mixers without one.
Tensor predicted_noise(Tensor x, Tensor levels, Tensor labels, const Params& params,
                       const DiffusionConfig& config, std::int64_t block, ttt::VisionLoop& loop);

// Mean squared error of the predicted noise of each image, [batch]. images and noise [batch, height,
// image_width, channels], levels and labels as above: to train without labels too, a part of them is given as
// no_label().
Tensor denoising_loss(Tensor images, Tensor noise, Tensor levels, Tensor labels, const Params& params,
                      const DiffusionConfig& config, const NoiseSchedule& schedule);

// ConfigError unless the schedule has as many levels as the model knows.
void check_levels(const NoiseSchedule& schedule, const DiffusionConfig& config);

// Names, shapes and starts of all that predicted_noise asks for, in that order.
std::vector<ParamSpec> parameters_of(const DiffusionConfig& config);

// Sines and cosines of a token's column, then of its row, [1, rows * columns, width] f64, as DiT fixes them.
// ConfigError for a width that is no multiple of 4.
Array position_table(std::int64_t rows, std::int64_t columns, std::int64_t width);
// Cosines and sines of a level, [levels, features] f64. ConfigError for an odd number of features.
Array level_table(std::int64_t levels, std::int64_t features);

}  // namespace nestgrad::vision

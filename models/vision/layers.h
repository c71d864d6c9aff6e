// What the image models share: linear maps, norms and the depthwise convolution, under the names of published state dicts.
#pragma once

#include "ttt/params.h"

namespace nestgrad::vision {

// x [.., in] -> [.., out]. Parameters: weight [out, in], bias [out] from 0.
Tensor affine(Tensor x, const Params& params, std::int64_t out, Init init);
// Over the last axis, eps 1e-6. Parameters: weight and bias [width].
Tensor layer_norm_of(Tensor x, const Params& params);
// The same without gain and shift.
Tensor plain_layer_norm(Tensor x);
// x [batch, height * image_width, width], an image in rows of tokens: its 3x3 depthwise convolution.
// Parameters: weight [width, 1, 3, 3], bias [width].
Tensor depthwise_conv_of(Tensor x, const Params& params, std::int64_t height, std::int64_t image_width);

// Sizes that every model of images has; pixels, features and counts.
struct ImageModelSizes {
  std::int64_t height, image_width, channels, patch, width, heads;
  double mlp_ratio;
};
// ConfigError in the name of `who`, saying which of them does not make sense and why.
void check_sizes(const char* who, const ImageModelSizes& sizes);
// ConfigError unless value is positive, and at most 2^30.
void check_positive(const char* who, const char* field, std::int64_t value);

}  // namespace nestgrad::vision

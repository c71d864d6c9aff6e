// Images as tokens: squares of pixels, row after row.
#pragma once

#include "ttt/params.h"

namespace nestgrad::vision {

// images [batch, height, width, channels] -> [batch, tokens, patch * patch * channels]. Tokens are the
// squares of the image, row after row; in a token stand its rows of pixels, in a row its pixels, in a pixel
// its channels. ShapeError unless `patch` divides height and width.
Tensor patches_of(Tensor images, std::int64_t patch);

// The inverse: tokens [batch, tokens, patch * patch * channels] -> [batch, height, width, channels].
// ShapeError unless they are those of such an image.
Tensor images_of(Tensor tokens, std::int64_t height, std::int64_t width, std::int64_t patch);

// The linear map of patches, [batch, tokens, width]. Parameters, in the layout of a convolution of step
// `patch` (timm, DeiT, DiT): weight [width, channels, patch, patch], bias [width].
Tensor patch_embedding(Tensor images, const Params& params, std::int64_t patch, std::int64_t width,
                       Init init);

}  // namespace nestgrad::vision

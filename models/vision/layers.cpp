#include "models/vision/layers.h"

#include <cmath>

#include "ops/ops.h"
#include "ttt/layer.h"

namespace nestgrad::vision {

Tensor affine(Tensor x, const Params& params, std::int64_t out, Init init) {
  const Tensor weight = params("weight", {out, x.dim(-1)}, init);
  return ttt::linear(x, weight) + params("bias", {out}, Init::zeros());
}

Tensor layer_norm_of(Tensor x, const Params& params) {
  const std::int64_t width = x.dim(-1);
  const Tensor gain = params("weight", {width}, Init::ones());
  return layer_norm(x, gain, params("bias", {width}, Init::zeros()));
}

Tensor plain_layer_norm(Tensor x) { return layer_norm(x, 1.0, 0.0); }

Tensor depthwise_conv_of(Tensor x, const Params& params, std::int64_t height, std::int64_t image_width) {
  const std::int64_t width = x.dim(-1);
  const Tensor image = reshape(x, {x.dim(0), height, image_width, width});
  const Tensor weight = params("weight", {width, 1, 3, 3}, Init::normal(1.0 / std::sqrt(27.0)));
  return reshape(depthwise_conv3x3(image, weight, params("bias", {width}, Init::zeros())), x.shape());
}

}  // namespace nestgrad::vision

#include "models/vision/heads.h"

#include <cmath>

#include "models/vision/layers.h"
#include "models/vision/patches.h"
#include "ops/ops.h"

namespace nestgrad::vision {

namespace {

Tensor head(Tensor x, const Params& params, std::int64_t out, const VisionConfig& c) {
  const double stddev = c.init_std > 0 ? c.init_std : 1.0 / std::sqrt(static_cast<double>(c.width));
  return affine(x, params, out, Init::normal(stddev));
}

}  // namespace

Tensor rotation_logits(Tensor images, const Params& params, const VisionConfig& config) {
  const Tensor x = features(images, params, config);
  const Scope scope("rotation_head");
  return head(x, params.at("rotation_head"), 4, config);
}

Tensor predicted_patches(Tensor images, Tensor mask, const Params& params, const VisionConfig& config) {
  Tensor x = token_features(images, params, config, mask);
  const Scope scope("decoder_pred");
  if (config.class_token) x = slice(x, 1, 1, x.dim(1));
  return head(x, params.at("decoder_pred"), config.patch * config.patch * config.channels, config);
}

Tensor masked_patch_loss(Tensor images, Tensor mask, const Params& params, const VisionConfig& config) {
  const Tensor error = predicted_patches(images, mask, params, config) - patches_of(images, config.patch);
  const Scope scope("masked patches");
  const Tensor of_patch = mean(square(error), {-1}, kKeep);
  return sum(of_patch * mask, {1, 2}) / max(sum(mask, {1, 2}), 1.0);
}

}  // namespace nestgrad::vision

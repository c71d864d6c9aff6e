#include "models/vision/layers.h"

#include <fmt/format.h>

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
  const Tensor weight = params("weight", {width, 1, 3, 3}, Init::of_taps(9));
  return reshape(depthwise_conv3x3(image, weight, params("bias", {width}, Init::zeros())), x.shape());
}

namespace {

void check_at_most(const char* who, const char* field, std::int64_t value, std::int64_t most) {
  if (value > most)
    throw ConfigError(fmt::format("[{}] {} must be at most {}, it is {}", who, field, most, value));
}

}  // namespace

void check_positive(const char* who, const char* field, std::int64_t value) {
  if (value < 1) throw ConfigError(fmt::format("[{}] {} must be positive, it is {}", who, field, value));
  check_at_most(who, field, value, std::int64_t{1} << 30);
}

void check_sizes(const char* who, const ImageModelSizes& s) {
  const auto positive = [&](const char* field, std::int64_t value) { check_positive(who, field, value); };
  positive("height", s.height);
  positive("image_width", s.image_width);
  positive("channels", s.channels);
  positive("patch", s.patch);
  positive("width", s.width);
  positive("heads", s.heads);
  constexpr std::int64_t kMostPixels =
      1 << 20;  // of a side; a patch then has no more numbers than 64 bits count
  check_at_most(who, "height", s.height, kMostPixels);
  check_at_most(who, "image_width", s.image_width, kMostPixels);
  check_at_most(who, "channels", s.channels, kMostPixels);
  if (s.height % s.patch || s.image_width % s.patch)
    throw ConfigError(fmt::format("[{}] patches of {} x {} do not divide images of {} x {}", who, s.patch,
                                  s.patch, s.height, s.image_width));
  if (s.width % s.heads)
    throw ConfigError(fmt::format("[{}] width {} is not a multiple of {} heads", who, s.width, s.heads));
  constexpr double kWidest = 1 << 30;  // features
  const double hidden = static_cast<double>(s.width) * s.mlp_ratio;
  if (!(hidden >= 1 && hidden <= kWidest))
    throw ConfigError(fmt::format("[{}] mlp_ratio {} gives the MLP {} hidden features, of 1 to {}", who,
                                  s.mlp_ratio, hidden, kWidest));
}

}  // namespace nestgrad::vision

#include "models/vision/patches.h"

#include <fmt/format.h>

#include "engine/core/index.h"
#include "ops/ops.h"
#include "ttt/layer.h"

namespace nestgrad::vision {

Tensor patches_of(Tensor images, std::int64_t patch) {
  if (images.rank() != 4)
    throw ShapeError(fmt::format("[patches] images are {}, they must be [batch, height, width, channels]",
                                 to_string(images.spec())));
  const std::int64_t height = images.dim(1), width = images.dim(2), channels = images.dim(3);
  if (patch < 1 || height % patch || width % patch)
    throw ShapeError(
        fmt::format("[patches] patches of {} x {} do not divide images {}; need a patch that divides "
                    "height and width",
                    patch, patch, to_string(images.spec())));
  const std::int64_t rows = height / patch, columns = width / patch;
  const Tensor squares = reshape(images, {images.dim(0), rows, patch, columns, patch, channels});
  return reshape(permute(squares, {0, 1, 3, 2, 4, 5}),
                 {images.dim(0), rows * columns, patch * patch * channels});
}

Tensor images_of(Tensor tokens, std::int64_t height, std::int64_t width, std::int64_t patch) {
  constexpr std::int64_t kMostPatch = 1 << 20;
  const bool divides = patch > 0 && patch <= kMostPatch && height > 0 && width > 0 && height % patch == 0 &&
                       width % patch == 0;
  const std::int64_t rows = divides ? height / patch : 0, columns = divides ? width / patch : 0;
  if (!divides || tokens.rank() != 3 || !is_grid(tokens.dim(1), rows, columns) ||
      tokens.dim(2) % (patch * patch))
    throw ShapeError(
        fmt::format("[patches] tokens {} are not those of an image of {} x {} in patches of {} x {}",
                    to_string(tokens.spec()), height, width, patch, patch));
  const std::int64_t batch = tokens.dim(0), channels = tokens.dim(2) / (patch * patch);
  const Tensor squares = reshape(tokens, {batch, rows, columns, patch, patch, channels});
  return reshape(permute(squares, {0, 1, 3, 2, 4, 5}), {batch, height, width, channels});
}

Tensor patch_embedding(Tensor images, const Params& params, std::int64_t patch, std::int64_t width,
                       Init init) {
  const Tensor patches = patches_of(images, patch);
  const Tensor weight = params("weight", {width, images.dim(3), patch, patch}, init);
  const Tensor rows = reshape(permute(weight, {0, 2, 3, 1}), {width, patches.dim(2)});
  return ttt::linear(patches, rows) + params("bias", {width}, Init::zeros());
}

}  // namespace nestgrad::vision

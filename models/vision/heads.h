// Self-supervised tasks for test-time training on images (Sun et al. 2020; Gandelsman et al. 2022): heads on
// the features of a vision transformer, whose parameters are asked for by the same names as for classes, so
// that a step on one of these losses moves the encoder that class_logits reads.
#pragma once

#include "models/vision/vision_transformer.h"

namespace nestgrad::vision {

// By how many quarter turns images were turned, as logits [batch, 4] (Gidaris et al. 2018). Parameters
// besides the encoder's: rotation_head.weight [4, width], .bias.
Tensor rotation_logits(Tensor images, const Params& params, const VisionConfig& config);

// Pixels of hidden patches from those that are seen (masked autoencoding, He et al. 2022, with the encoder
// given all tokens and the hidden ones replaced, Xie et al. 2022). mask [batch, tokens, 1] of the images'
// type, 1 where a patch is hidden.
//
// What is predicted for each patch, [batch, tokens, patch * patch * channels] (models/vision/patches.h).
// Parameters besides the encoder's: mask_token [1, 1, width], decoder_pred.weight [patch * patch * channels,
// width], .bias.
Tensor predicted_patches(Tensor images, Tensor mask, const Params& params, const VisionConfig& config);
// Mean squared error of an image's hidden patches, [batch]; 0 where nothing is hidden. What the images show
// in hidden patches is compared with and never seen.
Tensor masked_patch_loss(Tensor images, Tensor mask, const Params& params, const VisionConfig& config);

}  // namespace nestgrad::vision

// The promise: self-supervised heads share the encoder's parameters, hidden patches are never seen, and only they are
// scored.

#include "models/vision/heads.h"
#include "models/vision/patches.h"
#include "tests/models/vision_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using vision::VisionConfig;

namespace {

VisionConfig small(bool class_token = false) {
  return {.height = 4,
          .image_width = 6,
          .channels = 2,
          .patch = 2,
          .width = 8,
          .depth = 1,
          .heads = 2,
          .classes = 3,
          .mlp_ratio = 1.5,
          .mixer = vision::mixer_named(class_token ? "softmax" : "t5-dwc-qk"),
          .class_token = class_token};
}

Array images() { return random(f64({2, 4, 6, 2}), 3); }
Array mask() { return Array::of({1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}, {2, 6, 1}); }

ImageModel masked_loss(const VisionConfig& c) {
  return [c](const Params& p, const Tensors& in) { return Tensors{masked_patch_loss(in[0], in[1], p, c)}; };
}
ImageModel rotation(const VisionConfig& c) {
  return [c](const Params& p, const Tensors& in) { return Tensors{rotation_logits(in[0], p, c)}; };
}

// Names besides those of the features.
std::vector<std::string> besides_encoder(const ImageModel& model, const Arrays& given,
                                         const VisionConfig& c) {
  std::vector<std::string> out = parameter_names(model, given);
  const std::vector<std::string> encoder = parameter_names(
      [&](const Params& p, const Tensors& in) { return Tensors{features(in[0], p, c)}; }, {images()});
  for (const std::string& name : encoder) CHECK(std::erase(out, name) == 1);
  return out;
}

}  // namespace

TEST_CASE("self-supervised heads: parameters are the encoder's and a head's") {
  for (const bool token : {false, true}) {
    const VisionConfig c = small(token);
    using Names = std::vector<std::string>;
    CHECK(besides_encoder(rotation(c), {images()}, c) ==
          Names{"rotation_head.weight[4,8]", "rotation_head.bias[4]"});
    CHECK(besides_encoder(masked_loss(c), {images(), mask()}, c) ==
          Names{"mask_token[1,1,8]", "decoder_pred.weight[8,8]", "decoder_pred.bias[8]"});
  }
}

TEST_CASE("self-supervised heads: gradients are central differences") {
  for (const bool token : {false, true}) {
    const VisionConfig c = small(token);
    CHECK(wrong_gradients("rotation", rotation(c), {images()}) == "");
    const ImageModel with_mask = [&](const Params& p, const Tensors& in) {
      return Tensors{masked_patch_loss(in[0], constant(mask()), p, c)};
    };
    CHECK(wrong_gradients("masked patches", with_mask, {images()}) == "");
  }
}

TEST_CASE(
    "masked patches: pixels of hidden patches change no prediction, the error is that of hidden patches alone") {
  const VisionConfig c = small();
  const ImageModel both = [&](const Params& p, const Tensors& in) {
    return Tensors{predicted_patches(in[0], in[1], p, c), masked_patch_loss(in[0], in[1], p, c),
                   vision::patches_of(in[0], 2)};
  };
  const Arrays out = outputs(both, {images(), mask()});
  Array moved = images();
  for (std::int64_t i = 0; i < 4; ++i)  // image 0, patch 0: rows 0 and 1, columns 0 and 1
    moved.as<double>()[static_cast<std::size_t>(((i / 2) * 6 + i % 2) * 2)] += 1;
  const Arrays changed = outputs(both, {moved, mask()});
  CHECK(changed[0].same_bits(out[0]));
  CHECK(changed[1].at(0) != out[1].at(0));
  CHECK(changed[1].at(1) == out[1].at(1));
  double by_hand = 0;
  for (const std::int64_t patch : {0, 3})
    for (std::int64_t i = 0; i < 8; ++i) {
      const double error = out[0].at(patch * 8 + i) - out[2].at(patch * 8 + i);
      by_hand += error * error / 16;
    }
  CHECK(std::abs(out[1].at(0) - by_hand) < 1e-13);
  const Array nothing = Array::zeros(DType::f64, {2, 6, 1});
  CHECK(outputs(masked_loss(c), {images(), nothing})[0].to_vector() == std::vector<double>{0, 0});
}

TEST_CASE("masked patches: a mask of another shape is refused") {
  CHECK(contains(message_of<ShapeError>([] {
                   traced(masked_loss(small()), {images(), Array::zeros(DType::f64, {2, 6})});
                 }),
                 "the mask is f64[2,6], it must be [2, 6, 1]"));
}

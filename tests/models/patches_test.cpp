// The promise: patches are the squares of an image, and the embedding of one is the published convolution.
#include "models/vision/patches.h"

#include "tests/models/vision_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("patches: an image in tokens and back is the same image, bit for bit") {
  const Array images = random(f64({2, 4, 6, 3}), 1);
  const Function there = trace([](Tensor x) { return vision::patches_of(x, 2); }, images.spec());
  const Array tokens = there(images);
  CHECK(tokens.shape() == Shape{2, 6, 12});
  // Image 1, row 3, column 4, channel 2: token row 1, column 2; in it pixel row 1, column 0.
  CHECK(tokens.at((1 * 6 + 5) * 12 + (1 * 2 + 0) * 3 + 2) == images.at(((1 * 4 + 3) * 6 + 4) * 3 + 2));
  const Function back = trace([](Tensor x) { return vision::images_of(x, 4, 6, 2); }, tokens.spec());
  CHECK(back(tokens).same_bits(images));
}

TEST_CASE("patches: the embedding is a convolution with the published layout of its weight") {
  const Array images = random(f64({2, 4, 6, 3}), 1);
  const ImageModel model = [](const Params& p, const Tensors& in) {
    return Tensors{vision::patch_embedding(in[0], p, 2, 5, Init::normal(0.02))};
  };
  CHECK(parameter_names(model, {images}) == std::vector<std::string>{"weight[5,3,2,2]", "bias[5]"});
  const StateDict params{{"weight", random(f64({5, 3, 2, 2}), 2)}, {"bias", random(f64({5}), 3)}};
  const Array embedded = outputs(model, {images}, params)[0];
  Array written_out(DType::f64, {2, 6, 5});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t t = 0; t < 6; ++t)
      for (std::int64_t o = 0; o < 5; ++o) {
        double y = params.at("bias").at(o);
        for (std::int64_t c = 0; c < 3; ++c)
          for (std::int64_t i = 0; i < 2; ++i)
            for (std::int64_t j = 0; j < 2; ++j)
              y += params.at("weight").at(((o * 3 + c) * 2 + i) * 2 + j) *
                   images.at(((b * 4 + t / 3 * 2 + i) * 6 + t % 3 * 2 + j) * 3 + c);
        written_out.as<double>()[static_cast<std::size_t>((b * 6 + t) * 5 + o)] = y;
      }
  CHECK(relative_error(embedded, written_out) < 1e-14);
}

TEST_CASE("patches: what does not fit is refused") {
  const auto traced_with = [](const Spec& spec, const std::function<Tensor(Tensor)>& fn) {
    trace([&](Tensor x) { return fn(x); }, spec);
  };
  CHECK(contains(message_of<ShapeError>([&] {
                   traced_with(f64({1, 4, 6, 3}), [](Tensor x) { return vision::patches_of(x, 3); });
                 }),
                 "patches of 3 x 3 do not divide images f64[1,4,6,3]"));
  CHECK(contains(message_of<ShapeError>([&] {
                   traced_with(f64({4, 6, 3}), [](Tensor x) { return vision::patches_of(x, 2); });
                 }),
                 "[batch, height, width, channels]"));
  CHECK(contains(message_of<ShapeError>([&] {
                   traced_with(f64({1, 5, 12}), [](Tensor x) { return vision::images_of(x, 4, 6, 2); });
                 }),
                 "are not those of an image of 4 x 6 in patches of 2 x 2"));
}

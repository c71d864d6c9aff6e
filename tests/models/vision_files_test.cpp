// The promise: a file of a published ViT or DiT loads by its own names, whole or in part, and what does not fit is said.
#include <map>

#include "engine/io/safetensors.h"
#include "models/partial_load.h"
#include "models/vision/diffusion.h"
#include "models/vision/vision_transformer.h"
#include "tests/models/vision_testing.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

using Names = std::map<std::string, Shape>;

// timm's state dict of a ViT with a class token: width 8, one block, patches of 2 on 4 x 4 pixels of 3 colours, 5 classes.
const Names kVit{{"cls_token", {1, 1, 8}},
                 {"pos_embed", {1, 5, 8}},
                 {"patch_embed.proj.weight", {8, 3, 2, 2}},
                 {"patch_embed.proj.bias", {8}},
                 {"blocks.0.norm1.weight", {8}},
                 {"blocks.0.norm1.bias", {8}},
                 {"blocks.0.attn.qkv.weight", {24, 8}},
                 {"blocks.0.attn.qkv.bias", {24}},
                 {"blocks.0.attn.proj.weight", {8, 8}},
                 {"blocks.0.attn.proj.bias", {8}},
                 {"blocks.0.norm2.weight", {8}},
                 {"blocks.0.norm2.bias", {8}},
                 {"blocks.0.mlp.fc1.weight", {32, 8}},
                 {"blocks.0.mlp.fc1.bias", {32}},
                 {"blocks.0.mlp.fc2.weight", {8, 32}},
                 {"blocks.0.mlp.fc2.bias", {8}},
                 {"norm.weight", {8}},
                 {"norm.bias", {8}},
                 {"head.weight", {5, 8}},
                 {"head.bias", {5}}};

// DiT's, but for pos_embed, which is fixed: width 8, one block, patches of 2 on one channel, 5 classes.
const Names kDit{{"x_embedder.proj.weight", {8, 1, 2, 2}},
                 {"x_embedder.proj.bias", {8}},
                 {"t_embedder.mlp.0.weight", {8, 256}},
                 {"t_embedder.mlp.0.bias", {8}},
                 {"t_embedder.mlp.2.weight", {8, 8}},
                 {"t_embedder.mlp.2.bias", {8}},
                 {"y_embedder.embedding_table.weight", {6, 8}},
                 {"blocks.0.attn.qkv.weight", {24, 8}},
                 {"blocks.0.attn.qkv.bias", {24}},
                 {"blocks.0.attn.proj.weight", {8, 8}},
                 {"blocks.0.attn.proj.bias", {8}},
                 {"blocks.0.mlp.fc1.weight", {32, 8}},
                 {"blocks.0.mlp.fc1.bias", {32}},
                 {"blocks.0.mlp.fc2.weight", {8, 32}},
                 {"blocks.0.mlp.fc2.bias", {8}},
                 {"blocks.0.adaLN_modulation.1.weight", {48, 8}},
                 {"blocks.0.adaLN_modulation.1.bias", {48}},
                 {"final_layer.linear.weight", {4, 8}},
                 {"final_layer.linear.bias", {4}},
                 {"final_layer.adaLN_modulation.1.weight", {16, 8}},
                 {"final_layer.adaLN_modulation.1.bias", {16}}};

SafeTensors file_of(const Names& names) {
  SafeTensors out;
  std::uint64_t seed = 0;
  for (const auto& [name, shape] : names) out.tensors.emplace(name, random({DType::f32, shape}, ++seed));
  return out;
}

vision::VisionConfig vit(const std::string& mixer = "softmax") {
  return {.height = 4,
          .image_width = 4,
          .channels = 3,
          .patch = 2,
          .width = 8,
          .depth = 1,
          .heads = 2,
          .classes = 5,
          .mixer = vision::mixer_named(mixer),
          .class_token = mixer == "softmax"};
}

StateDict start_of(const vision::VisionConfig& config) {
  return initial_parameters(parameters_of(config), DType::f32, 0);
}

}  // namespace

TEST_CASE("a file of a published ViT loads whole by its names, and a T^5 takes from it what both have") {
  const TemporaryFolder folder;
  const std::string path = folder / "vit.safetensors";
  write_safetensors(path, file_of(kVit));
  const StateDict file = read_safetensors(path).tensors;
  StateDict params = start_of(vit());
  const PartialLoad whole = load_by_name(params, file, path);
  CHECK(whole.loaded.size() == kVit.size());
  CHECK(whole.left.empty());
  CHECK(whole.fresh.empty());
  for (const auto& [name, value] : params) CHECK(value.same_bits(file.at(name)));

  StateDict converted = start_of(vit("t5-swiglu"));
  const auto wanted = [&](const std::string& name) { return name != "pos_embed"; };  // it has no class token
  const PartialLoad part = load_by_name(converted, file, path, wanted);
  CHECK(part.left == std::vector<std::string>{"cls_token"});
  CHECK(part.passed_over == std::vector<std::string>{"pos_embed"});
  CHECK(part.loaded.size() == kVit.size() - 2);
  CHECK(part.fresh == std::vector<std::string>{"blocks.0.attn.w1", "blocks.0.attn.w2", "blocks.0.attn.w3"});
  CHECK(contains(message_of<ConfigError>([&] { load_by_name(converted, file, path); }),
                 "'pos_embed' is [1,5,8], the model wants [1,4,8]"));
}

TEST_CASE("a file of a published DiT loads whole by its names") {
  const vision::DiffusionConfig config{.height = 4,
                                       .image_width = 4,
                                       .channels = 1,
                                       .patch = 2,
                                       .width = 8,
                                       .depth = 1,
                                       .heads = 2,
                                       .classes = 5};
  const Spec images{DType::f32, {1, 4, 4, 1}}, number{DType::i32, {1}};
  const TracedModel model =
      trace_model(DType::f32, {images, number, number}, [&](ParamTable& table, const Tensors& in) {
        return Tensors{predicted_noise(in[0], in[1], in[2], Params(table), config)};
      });
  StateDict params = initial_parameters(model.params, DType::f32, 0);
  const StateDict file = file_of(kDit).tensors;
  const PartialLoad whole = load_by_name(params, file, "dit");
  CHECK(whole.loaded.size() == kDit.size());
  CHECK(whole.left.empty());
  CHECK(whole.fresh.empty());
  const Array out = model.function(model.bind(
      {random(images, 1), Array::zeros(DType::i32, {1}), Array::zeros(DType::i32, {1})}, {&params}))[0];
  CHECK(out.shape() == images.shape);
  CHECK(out.at(0) != 0);  // unlike a DiT at its start
}

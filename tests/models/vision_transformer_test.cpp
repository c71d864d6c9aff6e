// The promise: a vision transformer has the published parameters, whatever mixes its tokens; its mixers are what the
// papers' tables say, and its derivatives are derivatives.
#include "models/vision/vision_transformer.h"

#include <cmath>

#include "tests/models/vision_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using vision::Mixer;
using vision::mixer_named;
using vision::VisionConfig;

namespace {

VisionConfig small(const std::string& mixer, std::int64_t depth = 1) {
  return {.height = 6,
          .image_width = 6,
          .channels = 2,
          .patch = 2,
          .width = 8,
          .depth = depth,
          .heads = 2,
          .classes = 3,
          .mlp_ratio = 1.5,
          .mixer = mixer_named(mixer)};
}
// A neighbourhood of 5 needs as many tokens a side.
VisionConfig fitting(const std::string& mixer, std::int64_t depth = 1) {
  VisionConfig out = small(mixer, depth);
  if (mixer == "t5-nat5" || mixer == "t5-diffusion") out.height = out.image_width = 10;
  return out;
}

Array images_for(const VisionConfig& c, std::uint64_t seed = 7) {
  return random(f64({2, c.height, c.image_width, c.channels}), seed);
}

ImageModel logits_of(const VisionConfig& config) {
  return [config](const Params& p, const Tensors& in) { return Tensors{class_logits(in[0], p, config)}; };
}

// One mixer on x [batch, 9 tokens, 8].
ImageModel mixing(const Mixer& mixer) {
  return [mixer](const Params& p, const Tensors& in) {
    return Tensors{vision::mix(in[0], p, mixer, {.width = 8, .heads = 2, .height = 3, .image_width = 3})};
  };
}
Array tokens() { return random(f64({2, 9, 8}), 9); }

// How much the layer's answers change, relative to their size, when the same vector is added to all keys.
double change_by_key_shift(const Mixer& mixer) {
  const TracedModel model = traced(mixing(mixer), {tokens()});
  StateDict params = random_parameters(model, DType::f64);
  const Array before = model.function(model.bind({tokens()}, {&params}))[0];
  Array& bias = params.at("qkv.bias");
  for (std::size_t i = 8; i < 16; ++i) bias.as<double>()[i] += 0.3 + 0.1 * static_cast<double>(i);
  return relative_error(model.function(model.bind({tokens()}, {&params}))[0], before);
}

template <class Layer>
Mixer with_form(Mixer mixer, ttt::FormChoice form) {
  std::get<Layer>(mixer.layer).form = form;
  return mixer;
}

}  // namespace

TEST_CASE("vision transformer: the parameters are those of DeiT's state dict") {
  VisionConfig config = small("softmax");
  const std::vector<std::string> block{
      "blocks.0.norm1.weight[8]",   "blocks.0.norm1.bias[8]",         "blocks.0.attn.qkv.weight[24,8]",
      "blocks.0.attn.qkv.bias[24]", "blocks.0.attn.proj.weight[8,8]", "blocks.0.attn.proj.bias[8]",
      "blocks.0.norm2.weight[8]",   "blocks.0.norm2.bias[8]",         "blocks.0.mlp.fc1.weight[12,8]",
      "blocks.0.mlp.fc1.bias[12]",  "blocks.0.mlp.fc2.weight[8,12]",  "blocks.0.mlp.fc2.bias[8]"};
  std::vector<std::string> wanted{"patch_embed.proj.weight[8,2,2,2]", "patch_embed.proj.bias[8]",
                                  "pos_embed[1,9,8]"};
  wanted.insert(wanted.end(), block.begin(), block.end());
  const std::vector<std::string> end{"norm.weight[8]", "norm.bias[8]", "head.weight[3,8]", "head.bias[3]"};
  wanted.insert(wanted.end(), end.begin(), end.end());
  CHECK(parameter_names(logits_of(config), {images_for(config)}) == wanted);
  config.class_token = true;
  std::vector<std::string> with_token{"patch_embed.proj.weight[8,2,2,2]", "patch_embed.proj.bias[8]",
                                      "cls_token[1,1,8]", "pos_embed[1,10,8]"};
  with_token.insert(with_token.end(), wanted.begin() + 3, wanted.end());
  CHECK(parameter_names(logits_of(config), {images_for(config)}) == with_token);
}

TEST_CASE("vision transformer: a block written out by hand, with and without a class token") {
  for (const bool token : {false, true}) {
    VisionConfig config = small("softmax");
    config.class_token = token;
    const std::int64_t n = token ? 10 : 9;
    const ImageModel by_hand = [&](const Params& p, const Tensors& in) {
      const auto w = [&](const std::string& name, Shape shape) { return p(name, shape); };
      const auto lin = [&](Tensor x, const std::string& name, std::int64_t out) {
        return matmul(x, w(name + ".weight", {out, x.dim(-1)}), {.b = true}) + w(name + ".bias", {out});
      };
      const auto norm = [&](Tensor x, const std::string& name) {
        return layer_norm(x, w(name + ".weight", {8}), w(name + ".bias", {8}), 1e-6);
      };
      const Tensor squares = reshape(permute(reshape(in[0], {2, 3, 2, 3, 2, 2}), {0, 1, 3, 5, 2, 4}),
                                     {2, 9, 8});  // channels first
      Tensor x = matmul(squares, reshape(w("patch_embed.proj.weight", {8, 2, 2, 2}), {8, 8}), {.b = true}) +
                 w("patch_embed.proj.bias", {8});
      if (token) x = concat({broadcast_to(w("cls_token", {1, 1, 8}), {2, 1, 8}), x}, 1);
      x = x + w("pos_embed", {1, n, 8});
      const Tensor qkv = reshape(lin(norm(x, "blocks.0.norm1"), "blocks.0.attn.qkv", 24), {2, n, 3, 2, 4});
      const auto part = [&](std::int64_t i) {
        return permute(reshape(slice(qkv, 2, i, i + 1), {2, n, 2, 4}), {0, 2, 1, 3});
      };
      const Tensor weights = softmax(matmul(part(0), part(1), {.b = true}) * 0.5, -1);
      const Tensor mixed = reshape(permute(matmul(weights, part(2)), {0, 2, 1, 3}), {2, n, 8});
      x = x + lin(mixed, "blocks.0.attn.proj", 8);
      x = x + lin(gelu(lin(norm(x, "blocks.0.norm2"), "blocks.0.mlp.fc1", 12)), "blocks.0.mlp.fc2", 8);
      x = norm(x, "norm");
      const Tensor seen = token ? reshape(slice(x, 1, 0, 1), {2, 8}) : mean(x, {1});
      return Tensors{lin(seen, "head", 3)};
    };
    const Array images = images_for(config);
    const TracedModel model = traced(logits_of(config), {images});
    const StateDict params = random_parameters(model, DType::f64);
    CHECK(relative_error(outputs(logits_of(config), {images}, params)[0],
                         outputs(by_hand, {images}, params)[0]) < 1e-13);
  }
}

TEST_CASE("vision transformer: gradients with every mixer are central differences") {
  for (const std::string& mixer : vision::mixer_names()) {
    const VisionConfig config = fitting(mixer);
    CHECK(wrong_gradients(mixer, logits_of(config), {images_for(config)}) == "");
  }
}

TEST_CASE("vision transformer: second derivatives of a T^5 block are central differences") {
  CHECK(wrong_gradients("t5", mixing(mixer_named("t5-dwc-qk")), {tokens()}, 2) == "");
}

TEST_CASE("vision transformer: the form that is chosen gives the numbers of the primal form") {
  for (const std::string& name : vision::mixer_names()) {
    if (name == "t5-nat5" || name == "t5-diffusion") continue;  // they differ from others beside the learner
    CAPTURE(name);
    const Mixer mixer = mixer_named(name);
    const auto same = [&](const Mixer& primal) {
      return max_error(outputs(mixing(mixer), {tokens()}), outputs(mixing(primal), {tokens()})) < 1e-13;
    };
    if (std::holds_alternative<ttt::Vittt>(mixer.layer))
      CHECK(same(with_form<ttt::Vittt>(mixer, ttt::FormChoice::primal)));
    if (std::holds_alternative<ttt::T5Attention>(mixer.layer))
      CHECK(same(with_form<ttt::T5Attention>(mixer, ttt::FormChoice::primal)));
  }
}

TEST_CASE("a shift of all keys changes nothing in softmax, nor in T^5 if keys are centred over the tokens") {
  CHECK(change_by_key_shift(mixer_named("softmax")) < 1e-14);
  for (const char* centred : {"t5-swiglu", "t5-dwc-qk", "t5-no-std", "t5-three-layers"})
    CHECK(change_by_key_shift(mixer_named(centred)) < 1e-12);
  for (const char* other :
       {"t5-norm-none", "t5-norm-rms", "t5-norm-layer", "t5-no-mean", "linear", "vittt-no-conv"})
    CHECK(change_by_key_shift(mixer_named(other)) > 1e-4);
}

TEST_CASE("Q := K: queries have no part in the answers, and keys answer in their place") {
  for (const char* name : {"softmax", "vittt"}) {
    CAPTURE(name);
    const std::string shared = std::string(name) + "-shared-qk";
    const TracedModel model = traced(mixing(mixer_named(shared)), {tokens()});
    StateDict params = random_parameters(model, DType::f64);
    const auto run = [&](const std::string& mixer) {
      return outputs(mixing(mixer_named(mixer)), {tokens()}, params);
    };
    const Arrays before = run(shared);
    // Rows of q, and with a convolution of its q, become those of k.
    Array &weight = params.at("qkv.weight"), &bias = params.at("qkv.bias");
    const auto copy_rows = [&](std::int64_t to, std::int64_t from, std::int64_t rows) {
      for (std::int64_t i = 0; i < rows * 8; ++i)
        weight.as<double>()[static_cast<std::size_t>(to * 8 + i)] = weight.at(from * 8 + i);
      for (std::int64_t i = 0; i < rows; ++i)
        bias.as<double>()[static_cast<std::size_t>(to + i)] = bias.at(from + i);
    };
    CHECK(max_error(run(name), before) > 1e-3);
    copy_rows(0, 8, 8);
    if (weight.shape()[0] > 24) copy_rows(24, 28, 4);
    CHECK(same_bits(run(shared), before));
    CHECK(same_bits(run(name), before));
  }
}

TEST_CASE("linear attention: written out, with elu + 1, with and without projections of its own") {
  for (const bool project : {false, true}) {
    const ImageModel by_hand = [=](const Params& p, const Tensors& in) {
      const Tensor qkv = matmul(in[0], p("qkv.weight", {24, 8}), {.b = true}) + p("qkv.bias", {24});
      const auto part = [&](std::int64_t i) { return slice(qkv, 2, 8 * i, 8 * i + 8); };
      const auto more = [&](Tensor x, const char* name) {
        return project ? x + matmul(x, p(name, {8, 8}), {.b = true}) : x;
      };
      const auto phi = [](Tensor x) { return ttt::split_heads(select(greater(x, 0.0), x + 1.0, exp(x)), 2); };
      const Tensor q = phi(more(part(0), "q_proj.weight")), k = phi(more(part(1), "k_proj.weight"));
      const Tensor weights = matmul(q, k, {.b = true});
      const Tensor y =
          ttt::join_heads(matmul(weights / sum(weights, {-1}, kKeep), ttt::split_heads(part(2), 2)));
      return Tensors{ttt::linear(y, p("proj.weight", {8, 8})) + p("proj.bias", {8})};
    };
    const Mixer linear = mixer_named(project ? "linear-proj-qk" : "linear");
    const StateDict params = random_parameters(traced(mixing(linear), {tokens()}), DType::f64);
    CHECK(max_error(outputs(mixing(linear), {tokens()}, params), outputs(by_hand, {tokens()}, params)) <
          1e-14);
  }
}

TEST_CASE("linear attention is softmax attention with another kernel, and a test-time-trained linear layer") {
  // Written as its map times the values.
  for (const char* name : {"linear", "linear-proj-qk", "softmax"}) {
    CAPTURE(name);
    const Mixer mixer = mixer_named(name);
    const ImageModel through_map = [&](const Params& p, const Tensors& in) {
      const vision::MixerSizes sizes{.width = 8, .heads = 2};
      const Tensor map = attention_map(in[0], p, mixer, sizes);
      const Tensor v =
          slice(matmul(in[0], p("qkv.weight", {24, 8}), {.b = true}) + p("qkv.bias", {24}), 2, 16, 24);
      const Tensor out = ttt::join_heads(matmul(map, ttt::split_heads(v, 2)));
      return Tensors{ttt::linear(out, p("proj.weight", {8, 8})) + p("proj.bias", {8}), sum(map, {-1})};
    };
    const TracedModel model = traced(mixing(mixer), {tokens()});
    const StateDict params = random_parameters(model, DType::f64);
    const Arrays mapped = outputs(through_map, {tokens()}, params);
    CHECK(relative_error(mapped[0], outputs(mixing(mixer), {tokens()}, params)[0]) < 1e-13);
    CHECK(relative_error(mapped[1], Array::full(DType::f64, {2, 2, 9}, 1)) < 1e-13);  // rows add up to one
  }
  // V6 of ViT^3 without its convolution, from weights of zero: q (k' v) times scale over tokens.
  Mixer v6 = mixer_named("vittt-v6"), plain;
  std::get<ttt::Vittt>(v6.layer).convolution = false;
  std::get<ttt::Vittt>(v6.layer).scale = 0.5;
  plain.layer = vision::LinearMixer{.feature = vision::FeatureMap::identity};
  const TracedModel model = traced(mixing(v6), {tokens()});
  StateDict params = random_parameters(model, DType::f64);
  params.at("w1") = Array::zeros(DType::f64, {1, 2, 4, 4});
  CHECK(max_error(outputs(mixing(v6), {tokens()}, params), outputs(mixing(plain), {tokens()}, params)) <
        1e-14);
}

TEST_CASE("ViT^3: on each rung only what is said to learn learns") {
  const Array x = tokens();
  const TracedModel model = traced(mixing(mixer_named("vittt-no-conv")), {x});
  const StateDict params = random_parameters(model, DType::f64);
  // f(q) with w1 one step further and w2 as it was.
  const ImageModel last_layer_by_hand = [](const Params& p, const Tensors& in) {
    const Tensor qkv = matmul(in[0], p("qkv.weight", {24, 8}), {.b = true}) + p("qkv.bias", {24});
    const auto part = [&](std::int64_t i) { return ttt::split_heads(slice(qkv, 2, 8 * i, 8 * i + 8), 2); };
    const auto w = [&](const char* name) { return p(name, {1, 2, 4, 4}); };
    const Tensor g = matmul(part(1), part(2) * silu(matmul(part(1), w("w2"))), {.a = true}) * (-1.0 / 3 / 9);
    const Tensor w1 = w("w1") - g / (norm(g, {-2}, kKeep) + 1.0);
    const Tensor y = ttt::join_heads(matmul(part(0), w1) * silu(matmul(part(0), w("w2"))));
    return Tensors{ttt::linear(y, p("proj.weight", {8, 8})) + p("proj.bias", {8})};
  };
  Mixer v1 = mixer_named("vittt-v1");
  std::get<ttt::Vittt>(v1.layer).convolution = false;
  CHECK(max_error(outputs(mixing(v1), {x}, params), outputs(last_layer_by_hand, {x}, params)) < 1e-14);
  CHECK(max_error(outputs(mixing(mixer_named("vittt-no-conv")), {x}, params),
                  outputs(last_layer_by_hand, {x}, params)) > 1e-4);
  const std::vector<std::string> names = parameter_names(mixing(mixer_named("vittt-v3")), {x});
  CHECK(names == std::vector<std::string>{"qkv.weight[36,8]", "qkv.bias[36]", "w1[1,2,4,4]", "w3[4,1,3,3]",
                                          "proj.weight[8,12]", "proj.bias[8]"});
}

TEST_CASE("T^5: what a conversion inherits has the names of the softmax ViT, and the rest is new") {
  const auto fresh = [](const std::string& mixer) {
    const VisionConfig config = fitting(mixer);
    std::vector<std::string> out;
    const std::vector<std::string> inherited = inherited_parameters(config);
    for (const ParamSpec& p : traced(logits_of(config), {images_for(config)}).params)
      if (std::ranges::find(inherited, p.name) == inherited.end()) out.push_back(p.name.substr(9));
    return out;
  };
  using Names = std::vector<std::string>;
  CHECK(fresh("softmax") == Names{});
  CHECK(fresh("linear-proj-qk") == Names{"attn.q_proj.weight", "attn.k_proj.weight"});
  CHECK(fresh("t5-swiglu") == Names{"attn.w1", "attn.w2", "attn.w3"});
  CHECK(fresh("t5-cpe") == Names{"cpe.weight", "cpe.bias", "attn.w1", "attn.w2", "attn.w3"});
  CHECK(fresh("t5-diffusion") == Names{"attn.qk_scale_ttt", "attn.qk_offset_ttt", "attn.q_conv2d.weight",
                                       "attn.q_conv2d.bias", "attn.k_conv2d.weight", "attn.k_conv2d.bias",
                                       "attn.w1", "attn.w2"});
  CHECK(fresh("vittt") ==
        Names{"attn.qkv.weight", "attn.qkv.bias", "attn.w1", "attn.w2", "attn.w3", "attn.proj.weight"});
}

TEST_CASE(
    "attention of a block: what its first weights answer and the map's part of the values are the layer") {
  for (const bool squared : {false, true}) {
    const ttt::T5Attention options{.width = 8, .heads = 2, .squared_error = squared};
    const ImageModel both = [&](const Params& p, const Tensors& in) {
      const Tensor qkv = matmul(in[0], p("qkv.weight", {24, 8}), {.b = true}) + p("qkv.bias", {24});
      const auto part = [&](std::int64_t i) { return ttt::split_heads(slice(qkv, 2, 8 * i, 8 * i + 8), 2); };
      const Tensor w1 = p("w1", {1, 2, 4, 4}), w2 = p("w2", {1, 2, 4, 4}), k = ttt::instance_norm(part(1));
      const Tensor f = matmul(silu(matmul(k, w1)), w2);
      // The first layer one step further.
      const Tensor e = squared ? (f - part(2)) * (0.5 / 9) : part(2) * (-0.5 / 9);
      const Tensor z = matmul(k, w1);
      const Tensor back = matmul(e, w2, {.b = true}) * (sigmoid(z) * (1.0 + z * (1.0 - sigmoid(z))));
      const Tensor learnt = w1 - matmul(k, back, {.a = true});
      const Tensor map = t5_attention_map(in[0], p, options);
      const Tensor values = squared ? part(2) - f : part(2);
      const Tensor y = matmul(silu(matmul(part(0), learnt)), w2) + matmul(map, values);
      const Tensor out = ttt::linear(ttt::join_heads(y), p("proj.weight", {8, 8})) + p("proj.bias", {8});
      return Tensors{out, t5_attention(in[0], p, options).output};
    };
    const Arrays out = outputs(both, {tokens()});
    CHECK(relative_error(out[0], out[1]) < 1e-13);
  }
}

TEST_CASE("attention of a block: a map for each block of a model, refused where there is none") {
  for (const char* name : {"softmax", "linear", "t5-swiglu", "t5-dwc-qk", "t5-three-layers", "vittt-v6"}) {
    const VisionConfig config = small(name, 2);
    const Array map = outputs(
        [&](const Params& p, const Tensors& in) { return Tensors{block_attention(in[0], p, config, 1)}; },
        {images_for(config)})[0];
    CHECK(map.shape() == Shape{2, 2, 9, 9});
    CHECK(first_not_finite(map) < 0);
  }
  const auto refused = [](const char* name) {
    const VisionConfig config = small(name);
    return message_of<FormError>([&] {
      traced(
          [&](const Params& p, const Tensors& in) { return Tensors{block_attention(in[0], p, config, 0)}; },
          {images_for(config)});
    });
  };
  CHECK(contains(refused("vittt"), "the last layer is not linear and bias-free"));
  CHECK(contains(refused("t5-gated"), "the last layer is not linear and bias-free"));
  CHECK(contains(refused("vittt-v3"), "[update]"));
}

TEST_CASE("vision transformer: what makes no sense is refused by name") {
  const auto refused = [](const VisionConfig& c) { return message_of<ConfigError>([&] { c.check(); }); };
  VisionConfig c = small("softmax");
  c.patch = 4;
  CHECK(contains(refused(c), "patches of 4 x 4 do not divide images of 6 x 6"));
  c = small("softmax");
  c.heads = 3;
  CHECK(contains(refused(c), "width 8 is not a multiple of 3 heads"));
  c = small("t5-cpe");
  c.class_token = true;
  CHECK(contains(refused(c), "a class token has no place in the image"));
  c = small("softmax");
  c.classes = 0;
  CHECK(contains(refused(c), "classes must be positive, it is 0"));
  c = small("softmax");
  CHECK(contains(message_of<ShapeError>([&] {
                   traced(logits_of(c), {random(f64({2, 6, 5, 2}), 1)});
                 }),
                 "images are f64[2,6,5,2], they must be [batch, 6, 6, 2]"));
  CHECK(contains(message_of<ConfigError>([] { mixer_named("softmaks"); }),
                 "there is no mixer 'softmaks'; there are softmax, "));
}

// The layers in which tokens of an image meet: softmax attention, linear attention, and the test-time-trained
// layers of ttt/vision.h, with the variants of the papers' tables. All are asked for by the names of a
// softmax ViT, qkv.* and proj.*, so that weights of one are a partial start of any other; what a mixer has
// besides is said with it.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ttt/vision.h"

namespace nestgrad::vision {

// softmax(q k' / sqrt(dim)) v.
struct SoftmaxMixer {
  bool query_is_key = false;  // Q := K
  bool operator==(const SoftmaxMixer&) const = default;
};

// Linear attention (Katharopoulos et al. 2020).
enum class FeatureMap : std::uint8_t {
  elu_plus_one,  // phi(q) (phi(k)' v) / (phi(q) sum of phi(k)), phi(x) = elu(x) + 1
  identity,      // q (k' v) / (tokens sqrt(dim)), without a normaliser
};
struct LinearMixer {
  FeatureMap feature = FeatureMap::elu_plus_one;
  // "Linear + proj QK" of T^5's first table: q + q P and k + k P', further linear maps of the joined heads, so
  // that inherited queries and keys need not serve another attention as they are. New: q_proj.weight,
  // k_proj.weight [width, width].
  bool project_qk = false;
  bool operator==(const LinearMixer&) const = default;
};

struct Mixer {
  // The model sets width, heads, height, image_width and projection_std of the two last ones. New in
  // ttt::Vittt: w1, w2, and with its convolution w3 and more rows of qkv and columns of proj; in
  // ttt::T5Attention: w1, w2, w3, q_conv2d, k_conv2d, v_conv2d, qk_scale_ttt, qk_offset_ttt.
  std::variant<SoftmaxMixer, LinearMixer, ttt::Vittt, ttt::T5Attention> layer;
  // Conditional position encoding (CPE; Chu et al. 2021; every block of the published ViT^3): x + a 3x3
  // depthwise convolution of x, before the block's norm. New: `cpe` beside the block's norms, weight [width,
  // 1, 3, 3] and bias.
  bool position_convolution = false;
  std::string name = {};  // by which mixer_named() knows it; empty: it is one of its own
  bool operator==(const Mixer&) const = default;
};

// By the name of a row of the papers' tables. ConfigError for an unknown one; lists them.
//
//   softmax, softmax-shared-qk     softmax attention; Q := K
//   linear, linear-proj-qk         linear attention; with projections of its own
//   vittt, vittt-no-conv           ViT^3; without its convolution branch
//   vittt-v1, vittt-v3, vittt-v6   .. only w1 learns; a linear unit; and no division of gradients by their norm
//   vittt-shared-qk                .. Q := K
//   t5-gated, t5-two-layers,       T^5 with each fast model, keys normalised over the tokens
//   t5-three-layers, t5-swiglu
//   t5-cpe, t5-dwc-v, t5-dwc-qk,   .. t5-swiglu with each kind of locality
//   t5-nat3, t5-nat5
//   t5-norm-none, t5-norm-rms,     .. t5-dwc-qk with another norm of the keys
//   t5-norm-layer, t5-no-std,
//   t5-no-mean
//   t5-diffusion                   .. that of diffusion: two layers, squared error, halved with a neighbourhood
//   t5-diffusion-no-nat            of 5; without it
Mixer mixer_named(std::string_view name);
std::vector<std::string> mixer_names();

// What a mixer has to know of its model.
struct MixerSizes {
  std::int64_t width = 0, heads = 1;
  std::int64_t height = 0, image_width = 0;  // the grid of tokens
  double init_std = 0;                       // of qkv.weight and proj.weight; 0: 1/sqrt(in)
};
// Does it look at the place of tokens in the image? It then takes no class token.
bool reads_places(const Mixer& mixer);

// x [batch, tokens, width] -> [batch, tokens, width]. loop: unless it is null, becomes the mixer's inner loop; ConfigError
// for softmax and linear attention, which have none.
Tensor mix(Tensor x, const Params& params, const Mixer& mixer, const MixerSizes& sizes,
           ttt::VisionLoop* loop = nullptr);

// Keys as projected, before norms and convolutions: [batch, tokens, width].
Tensor projected_keys(Tensor x, const Params& params, const Mixer& mixer, const MixerSizes& sizes);

// What each token takes of the others' values, [batch, heads, tokens, tokens], of the layer without its
// projection and without branches beside it: softmax's and linear attention's weights; of test-time-trained
// ones the map of ttt/vision.h, FormError where there is none.
Tensor attention_map(Tensor x, const Params& params, const Mixer& mixer, const MixerSizes& sizes);

}  // namespace nestgrad::vision

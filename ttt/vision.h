// Test-time-trained layers for images and sets of tokens. They are not causal: all tokens are learnt from in
// one step, then all are read (batch gradient descent). x [batch, tokens, width] -> [batch, tokens, width].
//
// Images are rows of tokens, one row after the other: tokens = height * image_width. Errors: ConfigError for
// options that do not go together, ShapeError for an x that does not fit them.
#pragma once

#include <functional>
#include <memory>

#include "ttt/compose.h"
#include "ttt/inner_loop.h"
#include "ttt/learners/t5.h"

namespace nestgrad::ttt {

// The inner loop of such a layer, as it was run: for who looks inside (look/inspection.h).
struct VisionLoop {
  // The learner once more, of the layer's own parameters or of others in their shapes.
  std::function<std::unique_ptr<Learner>(const Params& params)> learner;
  Policy policy;
  Views views;     // q, k, v [batch, heads, tokens, dim], as the learner was given them
  Tensor answers;  // [batch, heads, tokens, dim]: the learner's alone, without branches beside it
};

struct VisionResult {
  Tensor output;
  FormPlan plan;    // of the learner that reads all heads
  VisionLoop loop;  // of the same learner
};

// What learns in the heads of ViT^3, and what is left of it on the ladder of "Test-time training with KV
// binding is secretly linear attention" (Table 2, ViTTT).
enum class VitttUnit : std::uint8_t {
  gated,  // (x w1) * silu(x w2): ViT^3
  last_layer,  // the same, of which w1 alone learns: V1. V2 takes away weight normalisation, of which ViT^3 has none
  linear,  // x w1: V3. V4 and V5 take away rates of tokens and momentum, of which ViT^3 has none
};

// ViT^3 (Han et al. 2025): two learners side by side, a gated linear unit per head, (x w1) * silu(x w2), and
// a 3x3 depthwise convolution over an extra head, w3. Inner loss -scale <f(k), v>, averaged over the tokens;
// every gradient is divided by (its norm + 1), per column and per kernel.
struct Vittt {
  std::int64_t width = 0, heads = 1;
  std::int64_t height = 0, image_width = 0;  // of the image; only the convolution reads them
  double rate = 1, scale = 1.0 / 3;          // 9^-1/2: a kernel has nine inputs
  // Of the unit; a convolution mixes tokens, so has the primal form only.
  FormChoice form = FormChoice::automatic;
  VitttUnit unit = VitttUnit::gated;
  bool normalize = true;    // divide gradients; false with a linear unit: V6, which is linear attention
  bool convolution = true;  // false: the unit alone, with the parameters of softmax attention beside its own
  bool query_is_key = false;  // Q := K: both learners are asked for the keys
  double projection_std = 0;  // of qkv.weight and proj.weight at the start; 0: 1/sqrt(in)
  bool operator==(const Vittt&) const = default;
};
// Parameters: qkv.weight [3 width + 3 dim, width], qkv.bias, w1 and w2 [1, heads, dim, dim], w3 [dim, 1, 3,
// 3], proj.weight [width, width + dim], proj.bias; dim = width / heads. Without the convolution no w3,
// qkv.weight [3 width, width] and proj.weight [width, width]; a linear unit has no w2.
VisionResult vittt_block(Tensor x, const Params& params, const Vittt& options);

// How T^5 normalises the keys of its learner (its table of norms); dim: of a head.
enum class KeyNorm : std::uint8_t {
  none,
  rms,          // k / rms, per token over the dim
  layer,        // (k - mean) / deviation, per token over the dim
  instance,     // (k - mean) / deviation, per feature over the tokens: a shift of all keys changes nothing
  centred,      // k - mean, over the tokens ("no std")
  not_centred,  // k / deviation, over the tokens ("no mean")
};

// T^5: attention whose keys are normalised over the tokens, per feature, and whose learner is one of
// FastModel; swiglu calls its weights w1, w3, w2. Inner loss -dim^-1/2 <f(k), v>, averaged over the tokens.
struct T5Attention {
  std::int64_t width = 0, heads = 1;
  FastModel model = FastModel::two_layers;
  std::int64_t hidden = 0;        // of the learner; 0: as a head
  double rate = 1, norm_eps = 1;  // norm_eps: of norms over the tokens; those per token have 1e-6
  FormChoice form = FormChoice::automatic;
  KeyNorm key_norm = KeyNorm::instance;
  bool squared_error = false;  // the loss is dim^-1/2 1/2 |f(k) - v|^2 instead (diffusion, section 5.2)
  bool rescale_qk = false;     // a gain and a shift per feature on the learner's q and k (diffusion)
  double projection_std = 0;   // of qkv.weight and proj.weight at the start; 0: 1/sqrt(in)
  // For images only:
  std::int64_t height = 0, image_width = 0;
  // x + a 3x3 depthwise convolution of it: of the learner's q and (after their norm) k; of its v.
  bool convolutions = false, value_convolution = false;
  // > 0: softmax attention in windows of this size, of q, k and v as projected, added to what the learner
  // says, or (half_neighbourhood) averaged with it.
  std::int64_t neighbourhood = 0;
  bool half_neighbourhood = false;
  bool operator==(const T5Attention&) const = default;
};
// Parameters, as in the published state dict: qkv.weight [3 width, width], qkv.bias, proj.weight [width,
// width] and proj.bias, those of softmax attention; and new ones: w1, .. [1, heads, in, out]; with
// convolutions q_conv2d.weight and k_conv2d.weight [width, 1, 3, 3], q_conv2d.bias, k_conv2d.bias;
// v_conv2d.*; with rescale_qk qk_scale_ttt and qk_offset_ttt [1, 1, width, 2].
VisionResult t5_attention(Tensor x, const Params& params, const T5Attention& options);

// What each token takes of each token's value, A [batch, heads, tokens, tokens], where the layer's learner ends
// in a linear layer: it answers q_t' W + sum_s A[t, s] v_s, where q' is what that layer is given of the query
// and W where it starts (ttt/effective_attention.h). The layers before it are held as they have become. With
// squared_error f(k_s) stands besides: sum_s A[t, s] (v_s - f(k_s)). Branches beside the learner are left out.
// FormError, naming the node, for a gated model or unit and for gradients that are divided by their norm: these
// have no such map.
Tensor vittt_attention_map(Tensor x, const Params& params, const Vittt& options);
Tensor t5_attention_map(Tensor x, const Params& params, const T5Attention& options);

}  // namespace nestgrad::ttt

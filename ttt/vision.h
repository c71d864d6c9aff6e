// Test-time-trained layers for images and sets of tokens. They are not causal: all tokens are learnt from in
// one step, then all are read (batch gradient descent). x [batch, tokens, width] -> [batch, tokens, width].
#pragma once

#include "ttt/compose.h"
#include "ttt/inner_loop.h"
#include "ttt/learners/t5.h"

namespace nestgrad::ttt {

struct VisionResult {
  Tensor output;
  FormPlan plan;  // of the learner that reads all heads
};

// ViT^3 (Han et al. 2025): two learners side by side, a gated linear unit per head, (x w1) * silu(x w2), and
// a 3x3 depthwise convolution over an extra head, w3. Inner loss -scale <f(k), v>, averaged over the tokens;
// every gradient is divided by (its norm + 1), per column and per kernel.
struct Vittt {
  std::int64_t width = 0, heads = 1;
  std::int64_t height = 0, image_width = 0;  // the tokens are the rows of an image, one after the other
  double rate = 1, scale = 1.0 / 3;          // 9^-1/2: a kernel has nine inputs
  // Of the gated unit; a convolution mixes tokens, so has the primal form only.
  FormChoice form = FormChoice::automatic;
};
// Parameters: qkv.weight [3 width + 3 dim, width], qkv.bias, w1 and w2 [1, heads, dim, dim], w3 [dim, 1, 3,
// 3], proj.weight [width, width + dim], proj.bias; dim = width / heads.
VisionResult vittt_block(Tensor x, const Params& params, const Vittt& options);

// T^5: attention whose keys are normalised over the tokens, per feature, and whose learner is one of
// FastModel; swiglu calls its weights w1, w3, w2.
struct T5Attention {
  std::int64_t width = 0, heads = 1;
  FastModel model = FastModel::two_layers;
  std::int64_t hidden = 0;  // of the learner; 0: as a head
  double rate = 1, norm_eps = 1;
  FormChoice form = FormChoice::automatic;
  // For images only (tokens = height * image_width):
  std::int64_t height = 0, image_width = 0;
  bool convolutions = false;  // 3x3 depthwise convolutions on q and k
  // > 0: softmax attention in windows of this size, added to what the learner says.
  std::int64_t neighbourhood = 0;
};
// Parameters: qkv.weight [3 width, width], qkv.bias, w1, .. [1, heads, in, out], proj.weight [width, width],
// proj.bias; with convolutions conv_q.weight and conv_k.weight [width, 1, 3, 3], conv_q.bias, conv_k.bias.
VisionResult t5_attention(Tensor x, const Params& params, const T5Attention& options);

}  // namespace nestgrad::ttt

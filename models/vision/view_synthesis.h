// Novel view synthesis with large-chunk test-time training (LaCT, Zhang et al. 2025, section 5.1 and
// lact_nvs/ of its repository): some views of a scene are learnt, the others are asked for by their rays
// alone.
//
// Tokens are patches of (ray origin o, ray direction d, o x d, 2 image - 1), the image of an asked view being
// zeros. A block is
//   x + attention within each view (ln x),   x + fast weights (ln x),   x + mlp (ln x).
// The fast weights, f(x) = (silu(x w0) * (x w2)) w1 per head, make a step on all tokens of the input views at
// once, with loss -<f(k), v>, and then answer for all tokens. Nothing else carries anything from one view to
// another.
//
// Parameters have the published names: input_linear.weight [width, patch * patch * 12],
// input_layernorm.weight; of block N, blocks.N.module_list.M.ln.weight and blocks.N.module_list.M.f.*, where
// M is
//   0  to_qkv.weight [3 width, width], q_norm.weight, k_norm.weight [dim], c_proj.weight [width, width]
//   1  to_qkv.weight, lr_fc.weight [3 heads, width], lr_fc.bias, w0 and w2 [heads, dim, hidden],
//      w1 [heads, hidden, dim], o_norm.weight [dim], c_proj.weight; dim = width / heads
//   2  c_fc.weight [mlp_ratio width, width], c_proj.weight
// image_token_decoder.0.weight [width] and image_token_decoder.1.weight [patch * patch * 3, width].
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ttt/inner_loop.h"
#include "ttt/params.h"
#include "ttt/vision.h"

namespace nestgrad::vision {

// What the fast weights do, and the rungs of the ladder of "Test-time training with KV binding is secretly
// linear attention" (Table 2, LaCT-NVS): each takes one part more away.
struct ViewLearner {
  bool update = true;         // false: the first weights answer; no view knows of another
  bool only_last = false;     // V1: w1 alone learns
  bool weight_norm = true;    // V2: without
  bool single_layer = false;  // V3: f(x) = x w1, w1 [heads, dim, dim]; there is no w0 and no w2
  bool token_rates = true;    // V4: base_rate for all tokens; there is no lr_fc. V5, no momentum, is the same
  int muon_steps = 5;         // 0: the gradient is divided by its norm
  bool muon = true;           // V6: without, the gradient itself: linear attention
  bool query_is_key = false;  // Q := K
  bool ascent = false;        // climb the inner loss
  int steps = 1;              // inner steps, each on all input tokens
  double step_scale = 1;  // what a step is multiplied with, behind Muon: 1/steps goes as far in `steps` steps
  double base_rate = 0.01;  // rates of tokens start here: softplus(lr_fc x + c) with softplus(c) = this
  bool operator==(const ViewLearner&) const = default;
};
// By name: baseline, off, v1, v2, v3, v4, v5, v6, shared-qk, ascent. ConfigError for an unknown one; lists
// them.
ViewLearner view_learner_named(std::string_view name);
std::vector<std::string> view_learner_names();
// The name by which view_learner_named knows it; "" for one of its own.
std::string_view name_of(const ViewLearner& learner);

struct ViewSynthesisConfig {
  std::int64_t height = 0, image_width = 0, patch = 0;  // in pixels
  std::int64_t width = 0, depth = 0, heads = 1;         // heads of attention and of the fast weights
  std::int64_t hidden_ratio = 2;  // hidden width of the fast weights over that of a head
  double mlp_ratio = 4;
  ViewLearner learner;
  ttt::FormChoice form = ttt::FormChoice::automatic;

  std::int64_t rows() const { return height / patch; }  // of the grid of a view's tokens
  std::int64_t columns() const { return image_width / patch; }
  void check() const;  // ConfigError, saying which field does not make sense and why
};

// images [batch, views, height, image_width, 3] in [0, 1], rays [batch, views', height, image_width, 6],
// origin and direction (of length 1) of the ray through each pixel's middle. The first `inputs` views are
// learnt, the views' - inputs others answered for: [batch, views' - inputs, height, image_width, 3] in (0,
// 1). Of images only the input views are read, there may be no others. ShapeError for what does not fit.
Tensor synthesized_views(Tensor images, Tensor rays, std::int64_t inputs, const Params& params,
                         const ViewSynthesisConfig& config);
// The same, and `loop` becomes the inner loop of the fast weights of block `block`. Its tokens are those of all views, of
// which the asked ones have rates of zero: they are asked and not learnt. ConfigError for a block that there is not, and
// without an update.
Tensor synthesized_views(Tensor images, Tensor rays, std::int64_t inputs, const Params& params,
                         const ViewSynthesisConfig& config, std::int64_t block, ttt::VisionLoop& loop);

// Names, shapes and starts of all that synthesized_views asks for, in that order.
std::vector<ParamSpec> parameters_of(const ViewSynthesisConfig& config);

}  // namespace nestgrad::vision

#include "models/vision/mixers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "models/vision/layers.h"
#include "ttt/attention.h"
#include "ttt/layer.h"

namespace nestgrad::vision {

namespace {

using ttt::FastModel;
using ttt::KeyNorm;
using ttt::T5Attention;
using ttt::Vittt;
using ttt::VitttUnit;

T5Attention t5_swiglu() { return {.model = FastModel::swiglu}; }
T5Attention t5_convolved() {
  T5Attention out = t5_swiglu();
  out.convolutions = true;
  return out;
}
T5Attention t5_with_norm(KeyNorm norm) {
  T5Attention out = t5_convolved();
  out.key_norm = norm;
  return out;
}
T5Attention t5_with_neighbourhood(std::int64_t size) {
  T5Attention out = t5_swiglu();
  out.neighbourhood = size;
  return out;
}
T5Attention t5_diffusion(bool neighbourhood) {
  T5Attention out{.model = FastModel::two_layers};
  out.squared_error = out.convolutions = true;
  if (neighbourhood) {
    out.neighbourhood = 5;
    out.half_neighbourhood = out.rescale_qk = true;
  }
  return out;
}

struct Row {
  std::string_view name;
  Mixer (*make)();
};

constexpr Row kMixers[] = {
    {"softmax", [] { return Mixer{SoftmaxMixer{}}; }},
    {"softmax-shared-qk", [] { return Mixer{SoftmaxMixer{.query_is_key = true}}; }},
    {"linear", [] { return Mixer{LinearMixer{}}; }},
    {"linear-proj-qk", [] { return Mixer{LinearMixer{.project_qk = true}}; }},
    {"vittt", [] { return Mixer{Vittt{}}; }},
    {"vittt-no-conv", [] { return Mixer{Vittt{.convolution = false}}; }},
    {"vittt-v1", [] { return Mixer{Vittt{.unit = VitttUnit::last_layer}}; }},
    {"vittt-v3", [] { return Mixer{Vittt{.unit = VitttUnit::linear}}; }},
    {"vittt-v6", [] { return Mixer{Vittt{.unit = VitttUnit::linear, .normalize = false}}; }},
    {"vittt-shared-qk", [] { return Mixer{Vittt{.query_is_key = true}}; }},
    {"t5-gated", [] { return Mixer{T5Attention{.model = FastModel::gated}}; }},
    {"t5-two-layers", [] { return Mixer{T5Attention{.model = FastModel::two_layers}}; }},
    {"t5-three-layers", [] { return Mixer{T5Attention{.model = FastModel::three_layers}}; }},
    {"t5-swiglu", [] { return Mixer{t5_swiglu()}; }},
    {"t5-cpe",
     [] {
       return Mixer{t5_swiglu(), true};
     }},
    {"t5-dwc-v", [] { return Mixer{T5Attention{.model = FastModel::swiglu, .value_convolution = true}}; }},
    {"t5-dwc-qk", [] { return Mixer{t5_convolved()}; }},
    {"t5-nat3", [] { return Mixer{t5_with_neighbourhood(3)}; }},
    {"t5-nat5", [] { return Mixer{t5_with_neighbourhood(5)}; }},
    {"t5-norm-none", [] { return Mixer{t5_with_norm(KeyNorm::none)}; }},
    {"t5-norm-rms", [] { return Mixer{t5_with_norm(KeyNorm::rms)}; }},
    {"t5-norm-layer", [] { return Mixer{t5_with_norm(KeyNorm::layer)}; }},
    {"t5-no-std", [] { return Mixer{t5_with_norm(KeyNorm::centred)}; }},
    {"t5-no-mean", [] { return Mixer{t5_with_norm(KeyNorm::not_centred)}; }},
    {"t5-diffusion", [] { return Mixer{t5_diffusion(true)}; }},
    {"t5-diffusion-no-nat", [] { return Mixer{t5_diffusion(false)}; }},
};

// What the layers here are made of, heads apart.
struct Heads {
  Tensor q, k, v;
};

Init projection(const MixerSizes& s) {
  return Init::normal(s.init_std > 0 ? s.init_std : 1.0 / std::sqrt(static_cast<double>(s.width)));
}

// q, k, v as projected, heads joined.
Heads projected(Tensor x, const Params& params, const MixerSizes& s) {
  const Tensor all = affine(x, params.at("qkv"), 3 * s.width, projection(s));
  const auto part = [&](std::int64_t i) { return slice(all, -1, i * s.width, (i + 1) * s.width); };
  return {part(0), part(1), part(2)};
}

Heads apart(const Heads& joined, std::int64_t heads) {
  return {ttt::split_heads(joined.q, heads), ttt::split_heads(joined.k, heads),
          ttt::split_heads(joined.v, heads)};
}

Heads views_of(const SoftmaxMixer& mixer, Tensor x, const Params& params, const MixerSizes& s) {
  Heads out = apart(projected(x, params, s), s.heads);
  if (mixer.query_is_key) out.q = out.k;
  return out;
}

// elu(x) + 1, whose derivative at 0 is 1.
Tensor elu_plus_one(Tensor x) { return relu(x) + exp(min(x, 0.0)); }

Heads views_of(const LinearMixer& mixer, Tensor x, const Params& params, const MixerSizes& s) {
  Heads joined = projected(x, params, s);
  if (mixer.project_qk) {
    const auto more = [&](Tensor y, const char* name) {
      return y + ttt::linear(y, params(name, {s.width, s.width}, projection(s)));
    };
    joined.q = more(joined.q, "q_proj.weight");
    joined.k = more(joined.k, "k_proj.weight");
  }
  Heads out = apart(joined, s.heads);
  if (mixer.feature == FeatureMap::elu_plus_one) {
    out.q = elu_plus_one(out.q);
    out.k = elu_plus_one(out.k);
  } else {
    const auto tokens = static_cast<double>(x.dim(1)), dim = static_cast<double>(s.width / s.heads);
    out.q = out.q * (1.0 / (tokens * std::sqrt(dim)));
  }
  return out;
}

// phi(q) sum of phi(k), [.., tokens, 1]; positive.
Tensor normaliser(const Heads& views) { return matmul(views.q, sum(views.k, {-2}, kKeep), {.b = true}); }

template <class Layer>
Layer sized(Layer layer, const MixerSizes& s) {
  layer.width = s.width;
  layer.heads = s.heads;
  layer.height = s.height;
  layer.image_width = s.image_width;
  layer.projection_std = s.init_std;
  return layer;
}

// The layer before its projection, heads apart.
Tensor answers(const SoftmaxMixer& mixer, Tensor x, const Params& params, const MixerSizes& s) {
  const Heads views = views_of(mixer, x, params, s);
  return ttt::attention(views.q, views.k, views.v, {.window = 0, .causal = false});
}
Tensor answers(const LinearMixer& mixer, Tensor x, const Params& params, const MixerSizes& s) {
  const Heads views = views_of(mixer, x, params, s);
  const Tensor out = matmul(views.q, matmul(views.k, views.v, {.a = true}));
  return mixer.feature == FeatureMap::elu_plus_one ? out / normaliser(views) : out;
}

// loop: becomes the layer's, unless it is null, as it is for attention.
template <class Attention>
Tensor run(const Attention& mixer, Tensor x, const Params& params, const MixerSizes& s, ttt::VisionLoop*) {
  const Tensor joined = ttt::join_heads(answers(mixer, x, params, s));
  return affine(joined, params.at("proj"), s.width, projection(s));
}
Tensor output_of(ttt::VisionResult result, ttt::VisionLoop* loop) {
  if (loop) *loop = std::move(result.loop);
  return result.output;
}
Tensor run(const Vittt& layer, Tensor x, const Params& params, const MixerSizes& s, ttt::VisionLoop* loop) {
  return output_of(ttt::vittt_block(x, params, sized(layer, s)), loop);
}
Tensor run(const T5Attention& layer, Tensor x, const Params& params, const MixerSizes& s,
           ttt::VisionLoop* loop) {
  return output_of(ttt::t5_attention(x, params, sized(layer, s)), loop);
}

Tensor map_of(const SoftmaxMixer& mixer, Tensor x, const Params& params, const MixerSizes& s) {
  const Heads views = views_of(mixer, x, params, s);
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.width / s.heads));
  return softmax(matmul(views.q * scale, views.k, {.b = true}), -1);
}
Tensor map_of(const LinearMixer& mixer, Tensor x, const Params& params, const MixerSizes& s) {
  const Heads views = views_of(mixer, x, params, s);
  const Tensor scores = matmul(views.q, views.k, {.b = true});
  return mixer.feature == FeatureMap::elu_plus_one ? scores / normaliser(views) : scores;
}
Tensor map_of(const Vittt& layer, Tensor x, const Params& params, const MixerSizes& s) {
  return ttt::vittt_attention_map(x, params, sized(layer, s));
}
Tensor map_of(const T5Attention& layer, Tensor x, const Params& params, const MixerSizes& s) {
  return ttt::t5_attention_map(x, params, sized(layer, s));
}

}  // namespace

Mixer mixer_named(std::string_view name) {
  for (const Row& row : kMixers)
    if (row.name == name) {
      Mixer out = row.make();
      out.name = name;
      return out;
    }
  throw ConfigError(
      fmt::format("[mixer] there is no mixer '{}'; there are {}", name, fmt::join(mixer_names(), ", ")));
}

std::vector<std::string> mixer_names() {
  std::vector<std::string> out;
  for (const Row& row : kMixers) out.emplace_back(row.name);
  return out;
}

bool reads_places(const Mixer& mixer) {
  if (mixer.position_convolution) return true;
  if (const auto* vittt = std::get_if<Vittt>(&mixer.layer)) return vittt->convolution;
  const auto* t5 = std::get_if<T5Attention>(&mixer.layer);
  return t5 && (t5->convolutions || t5->value_convolution || t5->neighbourhood > 0);
}

Tensor mix(Tensor x, const Params& params, const Mixer& mixer, const MixerSizes& sizes,
           ttt::VisionLoop* loop) {
  if (loop && !std::holds_alternative<Vittt>(mixer.layer) &&
      !std::holds_alternative<T5Attention>(mixer.layer))
    throw ConfigError(
        fmt::format("[mixer] '{}' has no inner loop; look into a model whose mixer is vittt or t5-..",
                    mixer.name.empty() ? "this attention" : mixer.name));
  return std::visit([&](const auto& layer) { return run(layer, x, params, sizes, loop); }, mixer.layer);
}

Tensor projected_keys(Tensor x, const Params& params, const Mixer& mixer, const MixerSizes& s) {
  const auto* vittt = std::get_if<Vittt>(&mixer.layer);
  const std::int64_t more =
      vittt && vittt->convolution ? 3 * s.width / s.heads : 0;  // rows of the branch beside it
  return slice(affine(x, params.at("qkv"), 3 * s.width + more, projection(s)), -1, s.width, 2 * s.width);
}

Tensor attention_map(Tensor x, const Params& params, const Mixer& mixer, const MixerSizes& sizes) {
  return std::visit([&](const auto& layer) { return map_of(layer, x, params, sizes); }, mixer.layer);
}

}  // namespace nestgrad::vision

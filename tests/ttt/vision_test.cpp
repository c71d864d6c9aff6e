// The promise: the layers for images say what their learners have learnt from all tokens at once, in every
// form and with every fast model; what does not fit is refused. (That they are the published layers is shown
// by their golden files.)
#include "ttt/vision.h"

#include <cmath>

#include "models/traced_model.h"
#include "tests/ttt/ttt_testing.h"
#include "ttt/attention.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::FastModel;
using ttt::T5Attention;
using ttt::Vittt;

namespace {

constexpr double kTolerance = 1e-12;
constexpr std::int64_t kBatch = 2, kHeight = 3, kWidth = 4, kTokens = kHeight * kWidth, kDim = 8, kHeads = 2;

using Layer = std::function<Tensor(Tensor x, const Params& params)>;

// The layer's output on x, and gradients of something that all
// of it has a part in, with respect to x and the parameters.
struct Result {
  Arrays values;
  std::vector<ParamSpec> params;
};
Result run(const Layer& layer, const Array& x, bool gradients = true) {
  const TracedModel model =
      trace_model(DType::f64, {x.spec()}, [&](ParamTable& table, const std::vector<Tensor>& given) {
        Tensors out{layer(given[0], Params(table))};
        if (!gradients) return out;
        Tensors inputs{given[0]};
        inputs.insert(inputs.end(), table.tensors().begin(), table.tensors().end());
        const Tensors g = grad(outer_loss(out), inputs);
        out.insert(out.end(), g.begin(), g.end());
        return out;
      });
  StateDict params = initial_parameters(model.params, DType::f64, 3);
  for (auto& [name, value] : params)
    if (name.ends_with("bias")) value = random(value.spec(), 11);
  return {model.function(model.bind({x}, {&params})), model.params};
}

Array image() { return random(f64({kBatch, kTokens, kDim}), 5); }

Layer t5(const T5Attention& options) {
  return [=](Tensor x, const Params& params) { return t5_attention(x, params, options).output; };
}
Layer vittt(const Vittt& options) {
  return [=](Tensor x, const Params& params) { return vittt_block(x, params, options).output; };
}

const Vittt kVittt{.width = kDim, .heads = kHeads, .height = kHeight, .image_width = kWidth};

std::vector<std::string> names(const Result& r) {
  std::vector<std::string> out;
  for (const ParamSpec& p : r.params)
    out.push_back(fmt::format("{}{}", p.name, to_string(Spec{DType::f64, p.shape}).substr(3)));
  return out;
}

}  // namespace

TEST_CASE("T^5: with every fast model and every branch, the dual form gives the numbers of the primal form") {
  for (const FastModel model :
       {FastModel::gated, FastModel::two_layers, FastModel::three_layers, FastModel::swiglu})
    for (const bool branches : {false, true}) {
      CAPTURE(static_cast<int>(model));
      T5Attention options{
          .width = kDim, .heads = kHeads, .model = model, .hidden = model == FastModel::gated ? 0 : 6};
      if (branches) {
        options.height = kHeight;
        options.image_width = kWidth;
        options.convolutions = true;
        options.neighbourhood = 3;
      }
      options.form = FormChoice::primal;
      const Result primal = run(t5(options), image());
      options.form = FormChoice::dual;
      CHECK(max_error(run(t5(options), image()).values, primal.values) < kTolerance);
    }
}

TEST_CASE("T^5: the parameters are those of the published state dict") {
  CHECK(names(run(t5({.width = kDim, .heads = kHeads, .model = FastModel::three_layers, .hidden = 6}),
                  image())) == std::vector<std::string>{"qkv.weight[24,8]", "qkv.bias[24]", "w1[1,2,4,6]",
                                                        "w2[1,2,6,6]", "w3[1,2,6,4]", "proj.weight[8,8]",
                                                        "proj.bias[8]"});
}

TEST_CASE(
    "T^5: tokens are a set: in another order they give the "
    "same outputs in that order, unless they are an image") {
  const auto reversed = [](const Array& x) {
    Array out(x.dtype(), x.shape());
    auto to = out.as<double>();
    const auto from = x.as<double>();
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::size_t row = i / kDim, sequence = row / kTokens, token = row % kTokens;
      to[(sequence * kTokens + kTokens - 1 - token) * kDim + i % kDim] = from[i];
    }
    return out;
  };
  T5Attention options{.width = kDim, .heads = kHeads, .height = kHeight, .image_width = kWidth};
  const auto moved = [&] {
    return relative_error(run(t5(options), reversed(image()), false).values[0],
                          reversed(run(t5(options), image(), false).values[0]));
  };
  CHECK(moved() < kTolerance);
  options.convolutions = true;
  CHECK(moved() > 1e-3);
}

TEST_CASE("T^5: a rate of zero leaves the first weights, and the neighbourhood branch adds attention") {
  const auto written_out = [](bool neighbourhood) {
    return run(
        [=](Tensor x, const Params& p) {
          const Tensor qkv =
              matmul(x, p("qkv.weight", {3 * kDim, kDim}, Init::normal(1 / std::sqrt(8.0))), {.b = true}) +
              p("qkv.bias", {3 * kDim}, Init::zeros());
          const auto heads = [&](std::int64_t i) {
            return permute(reshape(slice(qkv, 2, i * kDim, (i + 1) * kDim), {kBatch, kTokens, kHeads, 4}),
                           {0, 2, 1, 3});
          };
          const auto w = [&](const char* name) { return p(name, {1, kHeads, 4, 4}, Init::normal(0.5)); };
          Tensor y = matmul(silu(matmul(heads(0), w("w1"))), w("w2"));
          if (neighbourhood)
            y = y + ttt::neighbourhood_attention_2d(heads(0), heads(1), heads(2), kHeight, kWidth, 3);
          const Tensor joined = reshape(permute(y, {0, 2, 1, 3}), {kBatch, kTokens, kDim});
          return matmul(joined, p("proj.weight", {kDim, kDim}, Init::normal(1 / std::sqrt(8.0))),
                        {.b = true}) +
                 p("proj.bias", {kDim}, Init::zeros());
        },
        image(), false);
  };
  T5Attention options{.width = kDim, .heads = kHeads, .rate = 0, .height = kHeight, .image_width = kWidth};
  CHECK(relative_error(run(t5(options), image(), false).values[0], written_out(false).values[0]) <
        kTolerance);
  options.neighbourhood = 3;
  CHECK(relative_error(run(t5(options), image(), false).values[0], written_out(true).values[0]) < kTolerance);
}

TEST_CASE("T^5: every norm of the keys and every branch, written out with the gradient taken by grad") {
  using ttt::KeyNorm;
  for (const KeyNorm key_norm : {KeyNorm::none, KeyNorm::rms, KeyNorm::layer, KeyNorm::instance,
                                 KeyNorm::centred, KeyNorm::not_centred})
    for (const bool diffusion : {false, true}) {  // the published layer of either kind
      CAPTURE(static_cast<int>(key_norm));
      CAPTURE(diffusion);
      const Layer written_out = [=](Tensor x, const Params& p) {
        const Tensor qkv = matmul(x, p("qkv.weight", {3 * kDim, kDim}, Init::normal(0.02)), {.b = true}) +
                           p("qkv.bias", {3 * kDim});
        const auto joined = [&](std::int64_t i) { return slice(qkv, 2, i * kDim, (i + 1) * kDim); };
        const auto heads = [&](Tensor y) {
          return permute(reshape(y, {kBatch, kTokens, kHeads, 4}), {0, 2, 1, 3});
        };
        const auto together = [&](Tensor y) {
          return reshape(permute(y, {0, 2, 1, 3}), {kBatch, kTokens, kDim});
        };
        Tensor q = joined(0), k = joined(1), v = joined(2);
        if (diffusion) {
          const Tensor gain = p("qk_scale_ttt", {1, 1, kDim, 2}, Init::ones()),
                       shift = p("qk_offset_ttt", {1, 1, kDim, 2});
          const auto column = [](Tensor y, std::int64_t i) { return reshape(slice(y, 3, i, i + 1), {kDim}); };
          q = q * column(gain, 0) + column(shift, 0);
          k = k * column(gain, 1) + column(shift, 1);
        }
        k = heads(k);
        const int over = key_norm == KeyNorm::rms || key_norm == KeyNorm::layer ? -1 : -2;
        const double eps = over == -1 ? 1e-6 : 1;
        const bool centre =
            key_norm == KeyNorm::layer || key_norm == KeyNorm::instance || key_norm == KeyNorm::centred;
        const Tensor centred = k - mean(k, {over}, kKeep);
        const Tensor square_of = key_norm == KeyNorm::rms ? k : centred;
        const Tensor top = centre ? centred : k;
        const bool divides = key_norm != KeyNorm::none && key_norm != KeyNorm::centred;
        k = together(divides ? top / sqrt(mean(square(square_of), {over}, kKeep) + eps) : top);
        const auto convolved = [&](Tensor y, const std::string& name) {
          const Tensor w = p(name + ".weight", {kDim, 1, 3, 3}), b = p(name + ".bias", {kDim});
          return y + reshape(depthwise_conv3x3(reshape(y, {kBatch, kHeight, kWidth, kDim}), w, b), y.shape());
        };
        q = convolved(q, "q_conv2d");
        k = convolved(k, "k_conv2d");
        if (!diffusion) v = convolved(v, "v_conv2d");
        const auto w = [&](const char* name) {
          return probe(broadcast_to(p(name, {1, kHeads, 4, 4}), {kBatch, kHeads, 4, 4}));
        };
        const Tensor w1 = w("w1"), w2 = w("w2");
        const Tensor f = matmul(silu(matmul(heads(k), w1)), w2);
        const Tensor loss = diffusion ? 0.5 * sum(square(f - heads(v))) : -sum(f * heads(v));
        const Tensors g = grad(loss * (0.5 / kTokens), {w1, w2});
        Tensor y = matmul(silu(matmul(heads(q), w1 - 0.7 * g[0])), w2 - 0.7 * g[1]);
        const Tensor near = ttt::neighbourhood_attention_2d(heads(joined(0)), heads(joined(1)),
                                                            heads(joined(2)), kHeight, kWidth, 3);
        y = diffusion ? 0.5 * y + 0.5 * near : y + near;
        return matmul(together(y), p("proj.weight", {kDim, kDim}), {.b = true}) + p("proj.bias", {kDim});
      };
      const Layer layer = t5({.width = kDim,
                              .heads = kHeads,
                              .rate = 0.7,
                              .key_norm = key_norm,
                              .squared_error = diffusion,
                              .rescale_qk = diffusion,
                              .height = kHeight,
                              .image_width = kWidth,
                              .convolutions = true,
                              .value_convolution = !diffusion,
                              .neighbourhood = 3,
                              .half_neighbourhood = diffusion});
      const TracedModel theirs =
          trace_model(DType::f64, {image().spec()}, [&](ParamTable& table, const std::vector<Tensor>& given) {
            return Tensors{layer(given[0], Params(table))};
          });
      const TracedModel ours =
          trace_model(DType::f64, {image().spec()}, [&](ParamTable& table, const std::vector<Tensor>& given) {
            return Tensors{written_out(given[0], Params(table))};
          });
      StateDict params;
      std::uint64_t seed = 20;
      for (const ParamSpec& p : theirs.params) params.emplace(p.name, random(f64(p.shape), seed++));
      CHECK(relative_error(theirs.function(theirs.bind({image()}, {&params}))[0],
                           ours.function(ours.bind({image()}, {&params}))[0]) < 1e-12);
    }
}

TEST_CASE(
    "ViT^3: the dual form gives the numbers of the primal "
    "form, with the parameters of the published state dict") {
  Vittt options = kVittt;
  options.form = FormChoice::primal;
  const Result primal = run(vittt(options), image());
  options.form = FormChoice::dual;
  CHECK(max_error(run(vittt(options), image()).values, primal.values) < kTolerance);
  CHECK(names(primal) == std::vector<std::string>{"qkv.weight[36,8]", "qkv.bias[36]", "w1[1,2,4,4]",
                                                  "w2[1,2,4,4]", "w3[4,1,3,3]", "proj.weight[8,12]",
                                                  "proj.bias[8]"});
}

TEST_CASE("ViT^3: a rate of zero is a convolution beside a gated linear unit that learn nothing") {
  Vittt options = kVittt;
  options.rate = 0;
  const Result still = run(vittt(options), image(), false);
  const Result written_out = run(
      [](Tensor x, const Params& p) {
        const Tensor all =
            matmul(x, p("qkv.weight", {36, kDim}, Init::normal(1 / std::sqrt(8.0))), {.b = true}) +
            p("qkv.bias", {36}, Init::zeros());
        const Tensor q = permute(reshape(slice(all, 2, 0, kDim), {kBatch, kTokens, kHeads, 4}), {0, 2, 1, 3});
        const auto w = [&](const char* name) { return p(name, {1, kHeads, 4, 4}, Init::normal(0.5)); };
        const Tensor unit = matmul(q, w("w1")) * silu(matmul(q, w("w2")));
        const Tensor seen = depthwise_conv3x3(reshape(slice(all, 2, 24, 28), {kBatch, kHeight, kWidth, 4}),
                                              p("w3", {4, 1, 3, 3}, Init::normal(1.0 / 3)), Tensor());
        const Tensor joined = concat({reshape(permute(unit, {0, 2, 1, 3}), {kBatch, kTokens, kDim}),
                                      reshape(seen, {kBatch, kTokens, 4})},
                                     2);
        return matmul(joined, p("proj.weight", {kDim, 12}, Init::normal(1 / std::sqrt(12.0))), {.b = true}) +
               p("proj.bias", {kDim}, Init::zeros());
      },
      image(), false);
  CHECK(relative_error(still.values[0], written_out.values[0]) < kTolerance);
  CHECK(relative_error(run(vittt(kVittt), image(), false).values[0], written_out.values[0]) > 1e-4);
}

TEST_CASE("sizes that do not fit are refused by name") {
  const auto refused = [](const Layer& layer) { run(layer, image(), false); };
  CHECK(contains(message_of<ConfigError>([&] { refused(t5({.width = kDim, .heads = 3})); }),
                 "[t5] width 8 is not a multiple of 3 heads"));
  CHECK(contains(message_of<ShapeError>([&] { refused(t5({.width = 6, .heads = 3})); }),
                 "x is f64[2,12,8], it must be [batch, tokens, 6]"));
  CHECK(contains(message_of<ShapeError>([&] {
                   refused(
                       t5({.width = kDim, .heads = 2, .height = 5, .image_width = 2, .convolutions = true}));
                 }),
                 "tokens are no image of 5 x 2"));
  CHECK(contains(
      message_of<ConfigError>([&] { refused(t5({.width = kDim, .heads = 2, .half_neighbourhood = true})); }),
      "half_neighbourhood is the mean with what a neighbourhood says"));
  Vittt tall = kVittt;
  tall.height = 4;
  CHECK(contains(message_of<ShapeError>([&] { refused(vittt(tall)); }), "tokens are no image of 4 x 4"));
  Vittt wy = kVittt;
  wy.form = FormChoice::wy;
  CHECK_THROWS_AS(refused(vittt(wy)), FormError);
}

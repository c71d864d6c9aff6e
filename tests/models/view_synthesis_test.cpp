// The promise: only fast weights carry anything from one view to another, the parameters are the published ones, and the
// fast weights are those of the golden files' learner.
#include "models/vision/view_synthesis.h"

#include <cmath>

#include "tests/models/vision_testing.h"
#include "ttt/learners/catalogue.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using vision::ViewLearner;
using vision::ViewSynthesisConfig;

namespace {

constexpr std::int64_t kInputs = 2, kViews = 3;

ViewSynthesisConfig small(const ViewLearner& learner = {}) {
  return {.height = 4,
          .image_width = 4,
          .patch = 2,
          .width = 8,
          .depth = 1,
          .heads = 2,
          .mlp_ratio = 1.5,
          .learner = learner};
}

Arrays scene() { return {random(f64({2, kInputs, 4, 4, 3}), 3, 0, 1), random(f64({2, kViews, 4, 4, 6}), 4)}; }

ImageModel model_of(const ViewSynthesisConfig& c) {
  return [c](const Params& p, const Tensors& in) {
    return Tensors{synthesized_views(in[0], in[1], kInputs, p, c)};
  };
}

// The derivative of everything in the asked views by the pixels of the input views.
Array by_pixels(const ViewLearner& learner) {
  const ImageModel model = [&](const Params& p, const Tensors& in) {
    const Tensor out = synthesized_views(in[0], in[1], kInputs, p, small(learner));
    return Tensors{grad(sum(out * constant(random(out.spec(), 77))), in[0], {.allow_zero = true})};
  };
  return outputs(model, scene())[0];
}

double largest(const Array& a) {
  double out = 0;
  for (const double x : a.to_vector()) out = std::max(out, std::abs(x));
  return out;
}

}  // namespace

TEST_CASE("view synthesis: the parameters are those of the published state dict") {
  std::vector<std::string> wanted{"input_linear.weight[8,48]",
                                  "input_layernorm.weight[8]",
                                  "blocks.0.module_list.0.ln.weight[8]",
                                  "blocks.0.module_list.0.f.to_qkv.weight[24,8]",
                                  "blocks.0.module_list.0.f.q_norm.weight[4]",
                                  "blocks.0.module_list.0.f.k_norm.weight[4]",
                                  "blocks.0.module_list.0.f.c_proj.weight[8,8]",
                                  "blocks.0.module_list.1.ln.weight[8]",
                                  "blocks.0.module_list.1.f.to_qkv.weight[24,8]",
                                  "blocks.0.module_list.1.f.w0[2,4,8]",
                                  "blocks.0.module_list.1.f.w1[2,8,4]",
                                  "blocks.0.module_list.1.f.w2[2,4,8]",
                                  "blocks.0.module_list.1.f.lr_fc.weight[6,8]",
                                  "blocks.0.module_list.1.f.lr_fc.bias[6]",
                                  "blocks.0.module_list.1.f.o_norm.weight[4]",
                                  "blocks.0.module_list.1.f.c_proj.weight[8,8]",
                                  "blocks.0.module_list.2.ln.weight[8]",
                                  "blocks.0.module_list.2.f.c_fc.weight[12,8]",
                                  "blocks.0.module_list.2.f.c_proj.weight[8,12]",
                                  "image_token_decoder.0.weight[8]",
                                  "image_token_decoder.1.weight[12,8]"};
  CHECK(parameter_names(model_of(small()), scene()) == wanted);
  const std::vector<std::string> off = parameter_names(model_of(small({.update = false})), scene());
  std::erase_if(wanted, [](const std::string& name) { return contains(name, "lr_fc"); });
  CHECK(off == wanted);
}

TEST_CASE("view synthesis: gradients with every learner are central differences") {
  for (const std::string& name : vision::view_learner_names()) {
    CAPTURE(name);
    ViewLearner learner = vision::view_learner_named(name);
    learner.muon_steps =
        std::min(learner.muon_steps, 1);  // five steps curve more than differences can follow
    // As published, the norms that weights are brought back to carry no gradient.
    const bool cut = learner.weight_norm && learner.update && !learner.single_layer;
    const std::vector<std::string> weights =
        cut ? std::vector<std::string>{".w0", ".w1", ".w2"} : std::vector<std::string>{};
    CHECK(wrong_gradients(name, model_of(small(learner)), scene(), 1, 1e4, weights) == "");
  }
}

TEST_CASE(
    "view synthesis: with update off no pixel of an input view reaches an asked one, with it on each does") {
  CHECK(largest(by_pixels({.update = false})) == 0);
  const Array on = by_pixels({});
  std::int64_t reached = 0;
  for (const double x : on.to_vector()) reached += x != 0;
  CHECK(reached == on.size());
  // The same of the numbers themselves.
  Arrays moved = scene();
  moved[0].as<double>()[5] += 0.5;
  for (const bool update : {false, true}) {
    const ImageModel model = model_of(small({.update = update}));
    CHECK(same_bits(outputs(model, scene()), outputs(model, moved)) == !update);
  }
}

TEST_CASE(
    "view synthesis: an asked view is answered by itself, whatever others are asked, and its image is not read") {
  const auto answers = [](std::int64_t views, const Array& images) {
    const Array rays = random(f64({1, 4, 4, 4, 6}), 4);
    const ImageModel model = [=](const Params& p, const Tensors& in) {
      return Tensors{synthesized_views(in[0], slice(in[1], 1, 0, views), kInputs, p, small())};
    };
    return outputs(model, {images, rays})[0];
  };
  const Array images = random(f64({1, 4, 4, 4, 3}), 3, 0, 1);
  Array others = images.clone();
  for (std::size_t i = kInputs * 48; i < 4 * 48; ++i) others.as<double>()[i] = 0.5;
  const Array one = answers(3, images), two = answers(4, images);
  CHECK(one.shape() == Shape{1, 1, 4, 4, 3});
  for (std::int64_t i = 0; i < one.size(); ++i) CHECK(std::abs(one.at(i) - two.at(i)) < 1e-15);
  CHECK(answers(4, others).same_bits(two));
}

TEST_CASE("view synthesis: fast weights are those of the learner that the golden files hold") {
  // One block written out around ttt's own system.
  const ImageModel by_hand = [](const Params& p, const Tensors& in) {
    const auto ln = [](Tensor x, Tensor gain) { return layer_norm(x, gain, 0.0, 1e-5); };
    const auto lin = [](Tensor x, Tensor w) { return matmul(x, w, {.b = true}); };
    const Tensor o = slice(in[1], 4, 0, 3), d = slice(in[1], 4, 3, 6);
    const auto at = [](Tensor x, std::int64_t i) { return slice(x, 4, i, i + 1); };
    std::vector<Tensor> pixels{o, d};
    for (std::int64_t i = 0; i < 3; ++i)
      pixels.push_back(at(o, (i + 1) % 3) * at(d, (i + 2) % 3) - at(o, (i + 2) % 3) * at(d, (i + 1) % 3));
    pixels.push_back(concat({in[0] * 2.0 - 1.0, zeros(DType::f64, {2, 1, 4, 4, 3})}, 1));
    // b v (hh ph) (ww pw) c -> b (v hh ww) (ph pw c)
    Tensor x = reshape(concat(pixels, 4), {2, 3, 2, 2, 2, 2, 12});
    x = reshape(permute(x, {0, 1, 2, 4, 3, 5, 6}), {2, 12, 48});
    x = ln(lin(x, p("input_linear.weight", {8, 48})), p("input_layernorm.weight", {8}));
    const auto heads = [](Tensor y, std::int64_t batch, std::int64_t tokens, std::int64_t i) {
      return permute(reshape(slice(y, 2, 8 * i, 8 * i + 8), {batch, tokens, 2, 4}), {0, 2, 1, 3});
    };
    const auto joined = [](Tensor y, std::int64_t batch, std::int64_t tokens) {
      return reshape(permute(y, {0, 2, 1, 3}), {batch, tokens, 8});
    };
    const Params a = p.at("blocks.0.module_list.0"), f = p.at("blocks.0.module_list.1"),
                 m = p.at("blocks.0.module_list.2");
    Tensor qkv = lin(reshape(ln(x, a("ln.weight", {8})), {6, 4, 8}), a("f.to_qkv.weight", {24, 8}));
    const Tensor qa = rms_norm(heads(qkv, 6, 4, 0), a("f.q_norm.weight", {4}), std::ldexp(1.0, -23)),
                 ka = rms_norm(heads(qkv, 6, 4, 1), a("f.k_norm.weight", {4}), std::ldexp(1.0, -23));
    const Tensor seen = matmul(softmax(matmul(qa, ka, {.b = true}) * 0.5, -1), heads(qkv, 6, 4, 2));
    x = x + reshape(lin(joined(seen, 6, 4), a("f.c_proj.weight", {8, 8})), {2, 12, 8});
    const Tensor y = ln(x, f("ln.weight", {8}));
    qkv = silu(lin(y, f("f.to_qkv.weight", {24, 8})));
    const auto unit = [](Tensor z) { return z / (sqrt(sum(square(z), {-1}, kKeep)) + 1e-5); };
    const auto inputs = [](Tensor z) { return slice(z, 2, 0, 8); };
    const Tensor raw = lin(y, f("f.lr_fc.weight", {6, 8})) + f("f.lr_fc.bias", {6});
    const auto rate = [&](std::int64_t i) {  // softplus of log(e^.01 - 1) is .01
      return inputs(permute(
          reshape(softplus(slice(raw, 2, 2 * i, 2 * i + 2) + std::log(std::expm1(0.01))), {2, 12, 2, 1}),
          {0, 2, 1, 3}));
    };
    const ttt::System& system = ttt::system_named("lact-nvs");
    Graph scratch;
    ParamTable unused(scratch, DType::f64);
    const auto learner = system.learner(Params(unused), {.heads = 2, .dim = 4});
    const ttt::Weights start = ttt::for_batch(
        learner->init().with({f("f.w0", {2, 4, 8}), f("f.w1", {2, 8, 4}), f("f.w2", {2, 4, 8})}), 2);
    const Tensor read = ttt::train_along(*learner, start,
                                         {unit(heads(qkv, 2, 12, 0)),
                                          inputs(unit(heads(qkv, 2, 12, 1))),
                                          inputs(heads(qkv, 2, 12, 2)),
                                          {{"rate.W0", rate(0)}, {"rate.W1", rate(1)}, {"rate.W2", rate(2)}},
                                          {}},
                                         {.policy = system.policy({})})
                            .output;
    x = x + lin(joined(rms_norm(read, f("f.o_norm.weight", {4}), 1e-5), 2, 12), f("f.c_proj.weight", {8, 8}));
    x = x + lin(gelu(lin(ln(x, m("ln.weight", {8})), m("f.c_fc.weight", {12, 8}))),
                m("f.c_proj.weight", {8, 12}));
    const Tensor asked = slice(x, 1, 8, 12);
    const Tensor out = sigmoid(
        lin(ln(asked, p("image_token_decoder.0.weight", {8})), p("image_token_decoder.1.weight", {12, 8})));
    return Tensors{reshape(permute(reshape(out, {2, 2, 2, 2, 2, 3}), {0, 1, 3, 2, 4, 5}), {2, 1, 4, 4, 3})};
  };
  // The numbers, and the gradients of the fast weights' start, in which the norms count as constants.
  const auto with_gradients = [](const ImageModel& model) -> ImageModel {
    return [=](const Params& p, const Tensors& in) {
      Tensors out = model(p, in);
      const Params f = p.at("blocks.0.module_list.1.f");
      const Tensors g =
          grad(sum(square(out[0])), {f("w0", {2, 4, 8}), f("w1", {2, 8, 4}), f("w2", {2, 4, 8})});
      out.insert(out.end(), g.begin(), g.end());
      return out;
    };
  };
  const StateDict params = random_parameters(traced(model_of(small()), scene()), DType::f64);
  const Arrays theirs = outputs(with_gradients(model_of(small())), scene(), params),
               ours = outputs(with_gradients(by_hand), scene(), params);
  for (std::size_t i = 0; i < ours.size(); ++i) CHECK(relative_error(theirs[i], ours[i]) < 1e-11);
}

TEST_CASE("view synthesis: the form that is chosen gives the numbers of the primal form") {
  for (const std::string& name : vision::view_learner_names()) {
    CAPTURE(name);
    ViewSynthesisConfig primal = small(vision::view_learner_named(name));
    primal.form = ttt::FormChoice::primal;
    CHECK(max_error(outputs(model_of(small(primal.learner)), scene()), outputs(model_of(primal), scene())) <
          1e-11);
  }
}

TEST_CASE("view synthesis: what the rungs and options say is what changes") {
  // Each pair with the same parameters.
  const auto params_of = [](const char* name) {
    return random_parameters(traced(model_of(small(vision::view_learner_named(name))), scene()), DType::f64);
  };
  StateDict params = params_of("baseline");
  const StateDict single = params_of("v3");
  const auto run = [&](const ViewLearner& learner, const StateDict& with) {
    return outputs(model_of(small(learner)), scene(), with);
  };
  const auto named = [&](const char* name) {
    const ViewLearner learner = vision::view_learner_named(name);
    return run(learner, learner.single_layer ? single : params);
  };
  const auto differ = [](const Arrays& a, const Arrays& b) { return max_error(a, b) > 1e-6; };
  CHECK(differ(named("baseline"), named("off")));
  CHECK(differ(named("baseline"), named("v1")));
  CHECK(differ(named("v1"), named("v2")));
  CHECK(differ(named("v3"), named("v4")));
  CHECK(same_bits(named("v4"), named("v5")));  // no momentum to take away
  CHECK(differ(named("v5"), named("v6")));
  CHECK(differ(named("baseline"), named("ascent")));
  CHECK(differ(run({.steps = 3}, params), named("baseline")));
  // Steps of nothing are none; without weight norm that is the first weights.
  CHECK(max_error(run({.weight_norm = false, .step_scale = 0}, params), named("off")) < 1e-14);
  // Ascent from the mirrored last layer is the negative of descent: the same but for the sign of c_proj's input.
  const Arrays descent = outputs(model_of(small()), scene(), params);
  for (const char* mirrored : {"blocks.0.module_list.1.f.w1", "blocks.0.module_list.1.f.c_proj.weight"})
    for (double& x : params.at(mirrored).as<double>()) x = -x;
  CHECK(same_bits(outputs(model_of(small({.ascent = true})), scene(), params), descent));
}

TEST_CASE("view synthesis, Q := K: queries have no part in what the fast weights answer") {
  const ImageModel model = model_of(small({.query_is_key = true}));
  StateDict params = random_parameters(traced(model, scene()), DType::f64);
  const Arrays before = outputs(model, scene(), params);
  auto weight = params.at("blocks.0.module_list.1.f.to_qkv.weight").as<double>();
  for (std::size_t i = 0; i < 64; ++i) weight[i] = weight[64 + i];
  CHECK(same_bits(outputs(model, scene(), params), before));
  CHECK(same_bits(outputs(model_of(small()), scene(), params), before));  // its queries are its keys
}

TEST_CASE("view synthesis: what does not fit is refused") {
  const auto refused = [](const ViewSynthesisConfig& c) {
    return message_of<ConfigError>([&] { c.check(); });
  };
  ViewSynthesisConfig c = small();
  c.patch = 3;
  CHECK(contains(refused(c), "patches of 3 x 3 do not divide images of 4 x 4"));
  CHECK(contains(refused(small({.only_last = true, .single_layer = true})), "set only_last or single_layer"));
  CHECK(contains(refused(small({.steps = 0})), "steps must be positive, it is 0"));
  CHECK(contains(message_of<ConfigError>([] { vision::view_learner_named("v7"); }),
                 "there are baseline, off, v1"));
  const auto with = [](std::int64_t inputs) {
    return message_of<ShapeError>([&] {
      traced([&](const Params& p,
                 const Tensors& in) { return Tensors{synthesized_views(in[0], in[1], inputs, p, small())}; },
             scene());
    });
  };
  CHECK(contains(with(3), "3 input views"));
  CHECK(contains(with(0), "0 input views"));
}

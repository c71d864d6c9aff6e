// The promise: a diffusion transformer has the published parameters and starts as the identity, its noise is the schedule's,
// and sampling goes where the predicted noise points.
#include "models/vision/diffusion.h"

#include <cmath>

#include "tests/models/vision_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using vision::DiffusionConfig;
using vision::NoiseSchedule;

namespace {

DiffusionConfig small(const std::string& mixer = "softmax", std::int64_t depth = 1) {
  const std::int64_t edge =
      mixer == "t5-diffusion" ? 10 : 4;  // a neighbourhood of 5 needs as many tokens a side
  return {.height = edge,
          .image_width = edge,
          .channels = 1,
          .patch = 2,
          .width = 8,
          .depth = depth,
          .heads = 2,
          .classes = 3,
          .levels = 30,
          .mlp_ratio = 1.5,
          .mixer = vision::mixer_named(mixer)};
}

Array integers(const std::vector<double>& values) {
  return Array::of(values, {static_cast<std::int64_t>(values.size())}, DType::i32);
}

// Images, levels, labels.
Arrays given(const DiffusionConfig& c) {
  return {random(f64({2, c.height, c.image_width, c.channels}), 3), integers({4, 29}), integers({1, 3})};
}

ImageModel noise_of(const DiffusionConfig& c) {
  return
      [c](const Params& p, const Tensors& in) { return Tensors{predicted_noise(in[0], in[1], in[2], p, c)}; };
}

}  // namespace

TEST_CASE("diffusion: the parameters are those of DiT's state dict") {
  std::vector<std::string> wanted{"x_embedder.proj.weight[8,1,2,2]",
                                  "x_embedder.proj.bias[8]",
                                  "t_embedder.mlp.0.weight[8,256]",
                                  "t_embedder.mlp.0.bias[8]",
                                  "t_embedder.mlp.2.weight[8,8]",
                                  "t_embedder.mlp.2.bias[8]",
                                  "y_embedder.embedding_table.weight[4,8]",
                                  "blocks.0.adaLN_modulation.1.weight[48,8]",
                                  "blocks.0.adaLN_modulation.1.bias[48]",
                                  "blocks.0.attn.qkv.weight[24,8]",
                                  "blocks.0.attn.qkv.bias[24]",
                                  "blocks.0.attn.proj.weight[8,8]",
                                  "blocks.0.attn.proj.bias[8]",
                                  "blocks.0.mlp.fc1.weight[12,8]",
                                  "blocks.0.mlp.fc1.bias[12]",
                                  "blocks.0.mlp.fc2.weight[8,12]",
                                  "blocks.0.mlp.fc2.bias[8]",
                                  "final_layer.adaLN_modulation.1.weight[16,8]",
                                  "final_layer.adaLN_modulation.1.bias[16]",
                                  "final_layer.linear.weight[4,8]",
                                  "final_layer.linear.bias[4]"};
  CHECK(parameter_names(noise_of(small()), given(small())) == wanted);
}

TEST_CASE("diffusion: a block written out by hand") {
  const ImageModel by_hand = [](const Params& p, const Tensors& in) {
    const auto lin = [&](Tensor x, const std::string& name, std::int64_t out) {
      return matmul(x, p(name + ".weight", {out, x.dim(-1)}), {.b = true}) + p(name + ".bias", {out});
    };
    const auto ln = [](Tensor x) { return layer_norm(x, 1.0, 0.0, 1e-6); };
    Tensor x = reshape(permute(reshape(in[0], {2, 2, 2, 2, 2}), {0, 1, 3, 2, 4}), {2, 4, 4});
    x = matmul(x, reshape(p("x_embedder.proj.weight", {8, 1, 2, 2}), {8, 4}), {.b = true}) +
        p("x_embedder.proj.bias", {8});
    std::vector<double> places, waves;
    for (int token = 0; token < 4; ++token)
      for (const int at : {token % 2, token / 2})
        for (int wave = 0; wave < 2; ++wave)
          for (const double speed : {1.0, 0.01})
            places.push_back(wave ? std::cos(at * speed) : std::sin(at * speed));
    for (const double level : {4.0, 29.0})
      for (int wave = 0; wave < 2; ++wave)
        for (int i = 0; i < 128; ++i) {
          const double angle = level * std::pow(10000.0, -i / 128.0);
          waves.push_back(wave ? std::sin(angle) : std::cos(angle));
        }
    x = x + constant(Array::of(places, {1, 4, 8}));
    const Tensor level =
        lin(silu(lin(constant(Array::of(waves, {2, 256})), "t_embedder.mlp.0", 8)), "t_embedder.mlp.2", 8);
    const Tensor c = silu(level + gather(p("y_embedder.embedding_table.weight", {4, 8}), in[2]));
    const auto part = [](Tensor all, std::int64_t i) {
      return reshape(slice(all, 1, 8 * i, 8 * i + 8), {2, 1, 8});
    };
    Tensor m = lin(c, "blocks.0.adaLN_modulation.1", 48);
    const Tensor qkv =
        reshape(lin(ln(x) * (1.0 + part(m, 1)) + part(m, 0), "blocks.0.attn.qkv", 24), {2, 4, 3, 2, 4});
    const auto view = [&](std::int64_t i) {
      return permute(reshape(slice(qkv, 2, i, i + 1), {2, 4, 2, 4}), {0, 2, 1, 3});
    };
    const Tensor seen = matmul(softmax(matmul(view(0), view(1), {.b = true}) * 0.5, -1), view(2));
    x = x + part(m, 2) * lin(reshape(permute(seen, {0, 2, 1, 3}), {2, 4, 8}), "blocks.0.attn.proj", 8);
    const Tensor hidden = gelu_tanh(lin(ln(x) * (1.0 + part(m, 4)) + part(m, 3), "blocks.0.mlp.fc1", 12));
    x = x + part(m, 5) * lin(hidden, "blocks.0.mlp.fc2", 8);
    m = lin(c, "final_layer.adaLN_modulation.1", 16);
    x = lin(ln(x) * (1.0 + part(m, 1)) + part(m, 0), "final_layer.linear", 4);
    return Tensors{reshape(permute(reshape(x, {2, 2, 2, 2, 2}), {0, 1, 3, 2, 4}), {2, 4, 4, 1})};
  };
  const Arrays in = given(small());
  const StateDict params = random_parameters(traced(noise_of(small()), in), DType::f64);
  CHECK(relative_error(outputs(noise_of(small()), in, params)[0], outputs(by_hand, in, params)[0]) < 1e-12);
}

TEST_CASE("diffusion: gradients are central differences, with every mixer that T^5's section 5.2 names") {
  for (const char* mixer : {"softmax", "t5-diffusion", "t5-diffusion-no-nat"}) {
    CAPTURE(mixer);
    const DiffusionConfig c = small(mixer);
    const NoiseSchedule schedule = NoiseSchedule::linear(c.levels);
    const Arrays in = given(c);
    const ImageModel loss = [&](const Params& p, const Tensors& x) {
      return Tensors{denoising_loss(x[0], x[1], constant(in[1]), constant(in[2]), p, c, schedule)};
    };
    CHECK(wrong_gradients(mixer, loss, {in[0], random(in[0].spec(), 8)}) == "");
  }
}

TEST_CASE("diffusion: at the start the model predicts nothing, and each block is the identity") {
  for (const char* mixer : {"softmax", "t5-diffusion"}) {
    const DiffusionConfig none = small(mixer, 0), two = small(mixer, 2);
    const TracedModel model = traced(noise_of(two), given(two));
    StateDict params = initial_parameters(model.params, DType::f64, 1);
    const auto largest = [](const Array& a) {
      return relative_error(a, Array::zeros(a.dtype(), a.shape()), 1);
    };
    CHECK(largest(outputs(noise_of(two), given(two), params)[0]) == 0);
    for (const char* name : {"final_layer.linear.weight", "final_layer.adaLN_modulation.1.weight"})
      params.at(name) = random(params.at(name).spec(), 4);
    const Arrays identity = outputs(noise_of(none), given(two), params);
    CHECK(largest(identity[0]) > 0.1);
    CHECK(same_bits(outputs(noise_of(two), given(two), params), identity));
    params.at("blocks.1.adaLN_modulation.1.weight") = random(f64({48, 8}), 5);
    CHECK(max_error(outputs(noise_of(two), given(two), params), identity) > 1e-3);
  }
}

TEST_CASE("diffusion: the loss is the squared error of the noise that was added, image by image") {
  const DiffusionConfig c = small();
  const NoiseSchedule schedule = NoiseSchedule::linear(c.levels);
  Arrays in = given(c);
  in.push_back(random(in[0].spec(), 8));
  const ImageModel both = [&](const Params& p, const Tensors& x) {
    const Tensor noisy = schedule.noisy(x[0], x[3], x[1]);
    return Tensors{denoising_loss(x[0], x[3], x[1], x[2], p, c, schedule),
                   predicted_noise(noisy, x[1], x[2], p, c)};
  };
  const Arrays out = outputs(both, in);
  REQUIRE(out[0].shape() == Shape{2});
  for (std::int64_t b = 0; b < 2; ++b) {
    double by_hand = 0;
    for (std::int64_t i = 16 * b; i < 16 * b + 16; ++i)
      by_hand += (out[1].at(i) - in[3].at(i)) * (out[1].at(i) - in[3].at(i)) / 16;
    CHECK(out[0].at(b) == doctest::Approx(by_hand).epsilon(1e-12));
  }
}

TEST_CASE("noise: a linear schedule keeps less from level to level, and noisy images are its mixtures") {
  const NoiseSchedule schedule = NoiseSchedule::linear(200);
  CHECK(schedule.levels() == 200);
  CHECK(schedule.kept(0) == doctest::Approx(1 - 5e-4));
  CHECK(schedule.kept(1) / schedule.kept(0) == doctest::Approx(1 - 5e-4 - 0.0995 / 199));
  CHECK(schedule.kept(199) / schedule.kept(198) == doctest::Approx(0.9));
  CHECK(schedule.kept(199) < 1e-4);
  const Arrays in{random(f64({2, 2, 3, 1}), 1), random(f64({2, 2, 3, 1}), 2), integers({0, 150})};
  const Array noisy = outputs(
      [&](const Params&, const Tensors& x) { return Tensors{schedule.noisy(x[0], x[1], x[2])}; }, in)[0];
  for (std::int64_t i = 0; i < 12; ++i) {
    const double kept = schedule.kept(i < 6 ? 0 : 150);
    CHECK(noisy.at(i) == doctest::Approx(std::sqrt(kept) * in[0].at(i) + std::sqrt(1 - kept) * in[1].at(i)));
  }
  CHECK(schedule.spaced(4) == std::vector<std::int64_t>{199, 132, 66, 0});
  CHECK(schedule.spaced(1) == std::vector<std::int64_t>{199});
  CHECK(schedule.spaced(200).at(1) == 198);
}

namespace {

// The noise in x if the image is `point`.
vision::EpsFunction eps_of(const NoiseSchedule& schedule,
                           const std::function<Array(std::int32_t label)>& point,
                           std::vector<Array>* seen = nullptr) {
  return [=](const Array& x, const Array& levels, const Array& labels) {
    Array out(x.spec());
    const std::int64_t each = x.size() / x.shape()[0];
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const double kept = schedule.kept(levels.as<std::int32_t>()[static_cast<std::size_t>(i / each)]);
      const Array image = point(labels.as<std::int32_t>()[static_cast<std::size_t>(i / each)]);
      out.as<double>()[static_cast<std::size_t>(i)] =
          (x.at(i) - std::sqrt(kept) * image.at(i % each)) / std::sqrt(1 - kept);
    }
    if (seen) seen->push_back(out);
    return out;
  };
}

}  // namespace

TEST_CASE(
    "sampling: with the noise of a single image that image is found, and its noise stays the same on the way") {
  const NoiseSchedule schedule = NoiseSchedule::linear(200);
  const auto image = [](std::int32_t label) {
    return random(f64({3, 3, 1}), 40 + static_cast<std::uint64_t>(label));
  };
  const Array noise = random_normal(f64({2, 3, 3, 1}), 0, 1, 5, 0), labels = integers({0, 1});
  std::vector<Array> seen;
  const Array found = sample_ddim(eps_of(schedule, image, &seen), schedule, noise, labels, {.steps = 9});
  for (std::int64_t i = 0; i < 18; ++i)
    CHECK(found.at(i) == doctest::Approx(image(i < 9 ? 0 : 1).at(i % 9)).epsilon(1e-9));
  REQUIRE(seen.size() == 9);
  for (const Array& eps : seen) CHECK(relative_error(eps, seen[0]) < 1e-9);
  // Guidance goes past the label's image, away from that of no label.
  const Array guided = sample_ddim(eps_of(schedule, image), schedule, noise, labels,
                                   {.steps = 9, .guidance = 1.5, .no_label = 2});
  for (std::int64_t i = 0; i < 18; ++i) {
    const double with = image(i < 9 ? 0 : 1).at(i % 9), without = image(2).at(i % 9);
    CHECK(guided.at(i) == doctest::Approx(without + 1.5 * (with - without)).epsilon(1e-9));
  }
  const Array held =
      sample_ddim(eps_of(schedule, image), schedule, noise, labels, {.steps = 9, .clip = 0.25});
  for (std::int64_t i = 0; i < 18; ++i)
    CHECK(held.at(i) ==
          doctest::Approx(std::clamp(image(i < 9 ? 0 : 1).at(i % 9), -0.25, 0.25)).epsilon(1e-9));
}

TEST_CASE("sampling: where an image is held, its noise becomes what is left of x") {
  const NoiseSchedule schedule({0.9, 0.5, 0.2});
  const auto slope = [](std::int64_t level) {
    return level == 0 ? 2.9 : 0.5;
  };  // of eps; the last image is not held
  const vision::EpsFunction eps = [&](const Array& x, const Array& levels, const Array&) {
    return Array::of({slope(levels.as<std::int32_t>()[0]) * x.at(0)}, {1, 1});
  };
  double x = 3;
  for (std::int64_t level = 2; level >= 0; --level) {
    const double now = schedule.kept(level), next = level > 0 ? schedule.kept(level - 1) : 1;
    double image = (x - std::sqrt(1 - now) * slope(level) * x) / std::sqrt(now);
    CHECK((image > 0.5) == (level > 0));
    image = std::min(image, 0.5);
    x = std::sqrt(next) * image + std::sqrt(1 - next) * (x - std::sqrt(now) * image) / std::sqrt(1 - now);
  }
  const Array found =
      sample_ddim(eps, schedule, Array::of({3}, {1, 1}), integers({0}), {.steps = 3, .clip = 0.5});
  CHECK(found.at(0) == doctest::Approx(x).epsilon(1e-13));
}

TEST_CASE("sampling: a traced model is sampled, the same bits each time") {
  const DiffusionConfig c = small();
  const TracedModel model = trace_model(
      DType::f32, {f32({2, 4, 4, 1}), i32({2}), i32({2})}, [&](ParamTable& table, const Tensors& in) {
        return Tensors{predicted_noise(in[0], in[1], in[2], Params(table), c)};
      });
  const StateDict params = random_parameters(model, DType::f32);
  const vision::EpsFunction eps = [&](const Array& x, const Array& levels, const Array& labels) {
    return model.function(model.bind({x, levels, labels}, {&params}))[0];
  };
  const Array noise = random_normal(f32({2, 4, 4, 1}), 0, 1, 5, 0);
  const auto sampled = [&](std::int32_t label) {
    return sample_ddim(eps, NoiseSchedule::linear(c.levels), noise, integers({0, static_cast<double>(label)}),
                       {.steps = 5, .guidance = 2, .no_label = c.no_label(), .clip = 1});
  };
  const Array first = sampled(1);
  CHECK(first_not_finite(first) < 0);
  CHECK(sampled(1).same_bits(first));
  CHECK(relative_error(sampled(2), first) > 1e-6);
}

TEST_CASE("diffusion: what makes no sense is refused") {
  const auto refused = [](const DiffusionConfig& c) { return message_of<ConfigError>([&] { c.check(); }); };
  DiffusionConfig c = small();
  c.width = 6;
  CHECK(contains(refused(c), "width must be a multiple of 4, it is 6"));
  c = small();
  c.patch = 3;
  CHECK(contains(refused(c), "patches of 3 x 3 do not divide images of 4 x 4"));
  c = small();
  CHECK(contains(message_of<ShapeError>([&] {
                   traced(noise_of(c), {random(f64({2, 4, 4, 1}), 1), integers({1}), integers({1, 2})});
                 }),
                 "levels i32[1]"));
  CHECK_THROWS_AS(outputs(noise_of(c), {given(c)[0], integers({1, 30}), integers({1, 2})}), ValueError);
  CHECK_THROWS_AS(outputs(noise_of(c), {given(c)[0], integers({1, 2}), integers({1, 4})}), ValueError);
  CHECK(contains(message_of<ConfigError>([] { NoiseSchedule::linear(20); }), "more than 20 levels, not 20"));
  CHECK_THROWS_AS(NoiseSchedule({0.5, 0.6}), ConfigError);
  CHECK(contains(message_of<ValueError>([] { NoiseSchedule::linear(30).kept(30); }), "there is no level 30"));
  CHECK_THROWS_AS(NoiseSchedule::linear(30).spaced(31), ConfigError);
  const auto none = [](const Array& x, const Array&, const Array&) { return x; };
  const Array noise = random(f64({2, 3}), 1);
  CHECK_THROWS_AS(sample_ddim(none, NoiseSchedule::linear(30), noise, integers({1})), ShapeError);
  CHECK_THROWS_AS(sample_ddim(none, NoiseSchedule::linear(30), noise, integers({1, 2}), {.guidance = 2}),
                  ConfigError);
  CHECK(contains(message_of<ConfigError>([&] {
                   traced(
                       [&](const Params& p, const Tensors& in) {
                         return Tensors{
                             denoising_loss(in[0], in[0], in[1], in[2], p, c, NoiseSchedule::linear(31))};
                       },
                       given(c));
                 }),
                 "the schedule has 31 levels, the model 30"));
}

// The promise: the loop that is inspected of a vision transformer's block is the one that the model runs, with what its
// loss wants of it; and its page shows the image.
#include <numeric>

#include "autograd/grad.h"
#include "look/inspection.h"
#include "look/views.h"
#include "tests/look/inspected_loops.h"
#include "tests/models/vision_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

vision::VisionCheckpoint untrained(const std::string& mixer, bool class_token = false) {
  const vision::VisionConfig c{.height = 10,
                               .image_width = 12,
                               .channels = 1,
                               .patch = 2,
                               .width = 8,
                               .depth = 2,
                               .heads = 2,
                               .classes = 3,
                               .mixer = vision::mixer_named(mixer),
                               .class_token = class_token};
  return {c, random_parameters(parameters_of(c), DType::f32)};
}

const Array kImage = random({DType::f32, {10, 12, 1}}, 3);

}  // namespace

TEST_CASE("inspection: a block's inner loop has the gradients of the whole image model") {
  for (const std::string mixer : {"vittt", "vittt-v1", "t5-swiglu", "t5-dwc-qk", "t5-nat3", "t5-diffusion"}) {
    CAPTURE(mixer);
    const vision::VisionCheckpoint checkpoint = untrained(mixer);
    const Arrays batch{kImage.reshaped({1, 10, 12, 1}), Array::of({2}, {1}, DType::i32)};
    const TracedModel whole =
        trace_model(DType::f64, specs_of(batch), [&](ParamTable& table, const Tensors& in) {
          const Tensor logits = class_logits(cast(in[0], DType::f64), Params(table), checkpoint.config);
          const Tensor loss = mean(cross_entropy(logits, in[1]));
          Tensors out{loss};
          for (const Tensor& g : grad(loss, table.tensors())) out.push_back(g);
          return out;
        });
    StateDict params;
    for (const auto& [name, value] : checkpoint.params) params.emplace(name, value.cast(DType::f64));
    const Arrays gradients = whole.function(whole.bind(batch, {&params}));
    for (const std::int64_t layer : {0, 1}) {
      const look::InspectedLoop s = inspected_block(checkpoint, kImage, 2, layer);
      CHECK(s.time() == 30);
      REQUIRE(s.outer_loss.size() == 1);
      CHECK(s.outer_loss[0] == doctest::Approx(gradients[0].item()).epsilon(1e-12));
      CHECK(check_same_gradients(s, whole, gradients, fmt::format("blocks.{}.attn.", layer)) >= 1);
    }
  }
}

TEST_CASE("inspection: a block's inner loop has the gradients of the whole diffusion transformer") {
  for (const std::string mixer : {"t5-diffusion", "t5-diffusion-no-nat", "vittt"}) {
    CAPTURE(mixer);
    const vision::DiffusionConfig c{.height = 10,
                                    .image_width = 12,
                                    .channels = 1,
                                    .patch = 2,
                                    .width = 8,
                                    .depth = 2,
                                    .heads = 2,
                                    .classes = 3,
                                    .levels = 30,
                                    .mixer = vision::mixer_named(mixer)};
    const vision::NoiseSchedule schedule = vision::NoiseSchedule::linear(30);
    const NoisyImage noisy{kImage, random({DType::f32, {10, 12, 1}}, 4), 17, 3};  // of no label
    const Arrays batch{noisy.image.reshaped({1, 10, 12, 1}).cast(DType::f64),
                       noisy.noise.reshaped({1, 10, 12, 1}).cast(DType::f64),
                       Array::of({17}, {1}, DType::i32), Array::of({3}, {1}, DType::i32)};
    const TracedModel whole =
        trace_model(DType::f64, specs_of(batch), [&](ParamTable& table, const Tensors& in) {
          const Tensor loss = mean(denoising_loss(in[0], in[1], in[2], in[3], Params(table), c, schedule));
          Tensors out{loss};
          for (const Tensor& g : grad(loss, table.tensors())) out.push_back(g);
          return out;
        });
    const StateDict params = random_parameters(whole, DType::f64);
    const Arrays gradients = whole.function(whole.bind(batch, {&params}));
    const look::InspectedLoop s = inspected_block({c, params}, schedule, noisy, 1);
    REQUIRE(s.outer_loss.size() == 30);
    CHECK(std::reduce(s.outer_loss.begin(), s.outer_loss.end()) / 30 ==
          doctest::Approx(gradients[0].item()).epsilon(1e-12));
    CHECK(check_same_gradients(s, whole, gradients, "blocks.1.attn.") == 2);
    CHECK(contains(s.patches->images[0].caption, "class 3 at noise level 17 of 30"));
    CHECK(contains(message_of<ConfigError>([&] {
                     inspected_block({c, params}, vision::NoiseSchedule::linear(60), noisy, 1);
                   }),
                   "the schedule has 60 levels, the model 30"));
    CHECK(inspect(s).holds());
  }
}

namespace {

constexpr std::int64_t kGiven = 2, kViews = 3;

ViewedScene scene() {
  return {random({DType::f32, {kViews, 4, 6, 3}}, 3, 0, 1), random({DType::f32, {kViews, 4, 6, 6}}, 4),
          kGiven};
}

vision::ViewSynthesisCheckpoint views_model(const std::string& learner) {
  const vision::ViewSynthesisConfig c{.height = 4,
                                      .image_width = 6,
                                      .patch = 2,
                                      .width = 8,
                                      .depth = 2,
                                      .heads = 2,
                                      .mlp_ratio = 1.5,
                                      .learner = vision::view_learner_named(learner)};
  return {c, random_parameters(parameters_of(c), DType::f32)};
}

}  // namespace

TEST_CASE("inspection: fast weights that carry views have the gradients of the whole model") {
  for (const std::string& learner : vision::view_learner_names()) {
    if (learner == "off") continue;
    CAPTURE(learner);
    const vision::ViewSynthesisCheckpoint checkpoint = views_model(learner);
    const ViewedScene views = scene();
    const Arrays batch{views.images.reshaped({1, kViews, 4, 6, 3}),
                       views.rays.reshaped({1, kViews, 4, 6, 6})};
    const TracedModel whole =
        trace_model(DType::f64, specs_of(batch), [&](ParamTable& table, const Tensors& in) {
          const Tensor images = cast(in[0], DType::f64), rays = cast(in[1], DType::f64);
          const Tensor made =
              synthesized_views(slice(images, 1, 0, kGiven), rays, kGiven, Params(table), checkpoint.config);
          const Tensor loss = mean(square(made - slice(images, 1, kGiven, kViews)));
          Tensors out{loss};
          for (const Tensor& g : grad(loss, table.tensors(), {.allow_zero = true})) out.push_back(g);
          return out;
        });
    StateDict params;
    for (const auto& [name, value] : checkpoint.params) params.emplace(name, value.cast(DType::f64));
    const Arrays gradients = whole.function(whole.bind(batch, {&params}));
    for (const std::int64_t layer : {0, 1}) {
      const look::InspectedLoop s = inspected_block(checkpoint, views, layer);
      CHECK(s.time() == kViews * 6);
      CHECK(s.outer_loss.at(0) == doctest::Approx(gradients[0].item()).epsilon(1e-12));
      const bool single = checkpoint.config.learner.single_layer;
      CHECK(check_same_gradients(s, whole, gradients, fmt::format("blocks.{}.module_list.1.f.", layer)) ==
            (single ? 1 : 3));
    }
  }
}

TEST_CASE(
    "inspection: the page of a model of views shows all of them, and no answer reads what is asked for") {
  const vision::ViewSynthesisCheckpoint checkpoint = views_model("baseline");
  const look::InspectedLoop loop = inspected_block(checkpoint, scene(), 1);
  const Inspection r = inspect(loop);
  CHECK(r.holds());
  REQUIRE(r.views[0].id == "patches");
  const auto& tiles = std::get<Images>(r.views[0].pictures[0]).tiles;
  REQUIRE(tiles.size() == kViews);
  CHECK(tiles[1].caption == "view 1, given");
  CHECK(tiles[2].caption == "view 2, asked for");
  const auto& made = std::get<Images>(r.views[0].pictures[1]).tiles;
  REQUIRE(made.size() == kViews - kGiven);
  CHECK(contains(made[0].caption, "view 2 as made, PSNR"));
  // The patch in the middle of the last view is framed, in no other.
  CHECK(tiles[2].image.at(3 * (2 * 6 + 2)) == doctest::Approx(0.9));
  CHECK(tiles[1].image.at(3 * (2 * 6 + 2)) == scene().images.at(3 * (4 * 6 + 2 * 6 + 2)));
  const auto& map = std::get<Heatmap>(r.views[0].pictures[2]);
  CHECK(map.rows == 2);
  REQUIRE(map.columns == 3 * kViews);
  const std::int64_t token = 12 + 4;  // row 1, column 1 of view 2
  for (std::int64_t i = 0; i < 18; ++i) {
    const std::int64_t view = i / 6, row = i / 3 % 2, column = i % 3;
    const double value = map.values.at(static_cast<std::size_t>(row * 9 + view * 3 + column));
    CHECK(value == r.arrays.at("implicit_attention").at(token * 18 + i));
    CHECK((value != 0) == (view < kGiven));
  }
  CHECK(r.arrays.at("images").shape() == Shape{kViews, 4, 6, 3});
}

TEST_CASE("inspection: views and models of views that do not go together are refused") {
  const auto refused = [](auto error, const std::string& learner, const ViewedScene& views,
                          std::int64_t layer) {
    return message_of<decltype(error)>([&] { inspected_block(views_model(learner), views, layer); });
  };
  CHECK(contains(refused(ConfigError(""), "baseline", scene(), 2), "there is no layer 2; the model has 2"));
  CHECK(contains(refused(ConfigError(""), "off", scene(), 0), "without an update there is no inner loop"));
  ViewedScene views = scene();
  views.inputs = kViews;
  CHECK(contains(refused(ConfigError(""), "baseline", views, 0), "3 of 3 views are given"));
  views.images = random({DType::f32, {kViews, 4, 4, 3}}, 1);
  CHECK(contains(refused(ShapeError(""), "baseline", views, 0), "the model sees f32[views,4,6,3]"));
  CHECK(contains(refused(ShapeError(""), "baseline", {Array(), Array(), 1}, 0), "the model sees"));
}

TEST_CASE("inspection: the page of an image model shows its image, and maps of its patches") {
  for (const bool class_token : {false, true}) {
    const look::InspectedLoop loop = inspected_block(untrained("t5-swiglu", class_token), kImage, 1, 0);
    CHECK(loop.time() == (class_token ? 31 : 30));
    REQUIRE(loop.patches);
    CHECK(loop.patches->rows == 5);
    CHECK(loop.patches->columns == 6);
    CHECK(contains(loop.patches->images[0].caption, "class 1, the model says"));
    const Inspection r = inspect(loop);
    CHECK(r.holds());
    CHECK(r.views.size() == look::views().size());
    REQUIRE(r.views[0].id == "patches");
    // The image, a map for each of two heads, and what the step changes.
    REQUIRE(r.views[0].pictures.size() == 4);
    const auto& image = std::get<Images>(r.views[0].pictures[0]).tiles.at(0).image;
    CHECK(image.shape() == Shape{10, 12, 3});
    CHECK(image.at(3 * (4 * 12 + 6)) == doctest::Approx(0.9));  // a corner of the patch in row 2, column 3
    CHECK(image.at(0) == kImage.at(0));
    // Its map is the row of implicit attention to that token.
    const std::int64_t first = class_token ? 1 : 0, token = first + 15, time = loop.time();
    const auto& map = std::get<Heatmap>(r.views[0].pictures[1]);
    for (std::int64_t i = 0; i < 30; ++i)
      CHECK(map.values.at(static_cast<std::size_t>(i)) ==
            r.arrays.at("implicit_attention").at(token * time + first + i));
  }
}

TEST_CASE(
    "inspection: the order of tokens is nothing to a learner of images, and something to a causal one") {
  look::InspectedLoop loop = inspected_block(untrained("vittt"), kImage, 1, 1);
  for (const Claim& c : look::order_of_tokens(loop)) CHECK(c.holds());
  look::InspectedLoop causal = look::inspected_learner(
      ttt::system_named("ttt-linear"), {.batch = 1, .heads = 2, .dim = 4, .time = 8, .chunk = 4}, 1);
  for (const Claim& c : look::order_of_tokens(causal)) CHECK_FALSE(c.holds());
}

TEST_CASE("inspection: image models, images and classes that do not go together are refused") {
  const vision::VisionCheckpoint checkpoint = untrained("t5-swiglu");
  const auto refused = [&](auto error, const vision::VisionCheckpoint& of, const Array& image,
                           std::int32_t label, std::int64_t layer) {
    return message_of<decltype(error)>([&] { inspected_block(of, image, label, layer); });
  };
  CHECK(contains(refused(ConfigError(""), checkpoint, kImage, 0, 2), "there is no layer 2; the model has 2"));
  CHECK(contains(refused(ConfigError(""), checkpoint, kImage, 3, 0),
                 "the image is of class 3; the model has 3"));
  CHECK(contains(refused(ShapeError(""), checkpoint, random({DType::f32, {8, 8, 1}}, 1), 0, 0),
                 "the model sees f32[10,12,1]"));
  CHECK(
      contains(refused(ConfigError(""), untrained("softmax"), kImage, 0, 0), "'softmax' has no inner loop"));
}

TEST_CASE("inspection: the precision of an image model's gradients is told tensor by tensor") {
  const auto check = [](const look::PrecisionProbe& r, const StateDict& params) {
    CHECK(r.entries.size() == params.size());
    CHECK(r.cosine > 1 - 1e-6);
  };
  const vision::VisionCheckpoint checkpoint = untrained("t5-swiglu");
  check(model_precision(checkpoint, kImage, 1), checkpoint.params);
  const vision::ViewSynthesisCheckpoint views = views_model("v3");
  check(model_precision(views, scene()), views.params);
  const vision::DiffusionConfig c{.height = 10,
                                  .image_width = 12,
                                  .patch = 2,
                                  .width = 8,
                                  .depth = 1,
                                  .heads = 2,
                                  .classes = 3,
                                  .levels = 30,
                                  .mixer = vision::mixer_named("t5-swiglu")};
  const vision::DiffusionCheckpoint diffusion{c, random_parameters(parameters_of(c), DType::f32)};
  check(model_precision(diffusion, vision::NoiseSchedule::linear(30), {kImage, kImage, 17, 1}),
        diffusion.params);
}

#include "reproduce/experiments/view_scenes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/core/random.h"
#include "models/images/scenes.h"
#include "ops/numerics/functions.h"
#include "ops/ops.h"
#include "reproduce/image_runs.h"

namespace nestgrad::reproduce {

namespace {

constexpr std::int64_t kViews = kGiven + kAskedFor, kPixels = kViewSize * kViewSize;
constexpr std::uint64_t kTrainingSeed = 0x747261696e, kSceneStream = 0x76696577;
constexpr std::int64_t kScenes = 2048;  // that are trained on
constexpr std::int64_t kShown = 3;      // scenes on the page

std::vector<Array> arrays(SceneViews scenes) {
  return {std::move(scenes.images), std::move(scenes.rays), std::move(scenes.masks)};
}
std::vector<Array> held_out(std::int64_t first) {
  return arrays(scene_views(kHeldOutSeed, static_cast<std::uint64_t>(first), kSceneBatch, kViews, kViewSize));
}

// Adds the quality of views [scenes, asked, size, size, 3] of a batch, a sum over views.
void add_quality(const Array& views, const std::vector<Array>& batch, ViewQuality& sum) {
  const std::span<const float> made = views.as<float>(), truth = batch[0].as<float>(),
                               mask = batch[2].as<float>();
  for (std::int64_t scene = 0; scene < kSceneBatch; ++scene)
    for (std::int64_t view = 0; view < kAskedFor; ++view) {
      const std::int64_t from = (scene * kAskedFor + view) * kPixels,
                         at = (scene * kViews + kGiven + view) * kPixels;
      double all = 0, inside = 0, objects = 0;
      for (std::int64_t p = 0; p < kPixels; ++p) {
        double error = 0;
        for (std::int64_t c = 0; c < 3; ++c) {
          const double d = static_cast<double>(made[static_cast<std::size_t>((from + p) * 3 + c)]) -
                           static_cast<double>(truth[static_cast<std::size_t>((at + p) * 3 + c)]);
          error += d * d / 3;
        }
        all += error;
        if (mask[static_cast<std::size_t>(at + p)] > 0) inside += error, objects += 1;
      }
      const auto decibels = [](double error) { return -10 / m::log(10.0) * m::log(std::max(error, 1e-10)); };
      sum.psnr += decibels(all / kPixels);
      sum.inside += decibels(objects > 0 ? inside / objects : all / kPixels);
    }
}

ViewQuality quality(std::int64_t scenes, const std::function<Array(const std::vector<Array>& batch)>& views) {
  ViewQuality sum;
  for (std::int64_t first = 0; first < scenes; first += kSceneBatch) {
    const std::vector<Array> batch = held_out(first);
    add_quality(views(batch), batch, sum);
  }
  const auto n = static_cast<double>(scenes * kAskedFor);
  return {sum.psnr / n, sum.inside / n};
}

// views(batch), from the given ones: from(scene, asked view, weight of each given one).
ViewQuality quality_of_mixed(
    std::int64_t scenes,
    const std::function<std::vector<double>(const std::vector<Array>& batch, std::int64_t scene,
                                            std::int64_t asked)>& weights) {
  return quality(scenes, [&](const std::vector<Array>& batch) {
    Array out = Array::zeros(DType::f32, {kSceneBatch, kAskedFor, kViewSize, kViewSize, 3});
    const std::span<const float> images = batch[0].as<float>();
    for (std::int64_t scene = 0; scene < kSceneBatch; ++scene)
      for (std::int64_t asked = 0; asked < kAskedFor; ++asked) {
        const std::vector<double> w = weights(batch, scene, asked);
        for (std::int64_t i = 0; i < kPixels * 3; ++i) {
          double value = 0;
          for (std::int64_t given = 0; given < kGiven; ++given)
            value += w[static_cast<std::size_t>(given)] *
                     static_cast<double>(
                         images[static_cast<std::size_t>((scene * kViews + given) * kPixels * 3 + i)]);
          out.as<float>()[static_cast<std::size_t>((scene * kAskedFor + asked) * kPixels * 3 + i)] =
              static_cast<float>(value);
        }
      }
    return out;
  });
}

TracedModel traced_views(const vision::ViewSynthesisConfig& config) {
  return trace_model(
      DType::f32, scene_specs(kSceneBatch), [&](ParamTable& table, const std::vector<Tensor>& in) {
        return std::vector<Tensor>{
            synthesized_views(slice(in[0], 1, 0, kGiven), in[1], kGiven, Params(table), config)};
      });
}

}  // namespace

vision::ViewSynthesisConfig view_model(const std::string& learner) {
  return {.height = kViewSize,
          .image_width = kViewSize,
          .patch = 8,
          .width = 64,
          .depth = 2,
          .heads = 2,
          .mlp_ratio = 2,
          .learner = vision::view_learner_named(learner)};
}

std::vector<Spec> scene_specs(std::int64_t scenes) {
  const auto of = [&](std::int64_t channels) {
    return Spec{DType::f32, {scenes, kViews, kViewSize, kViewSize, channels}};
  };
  return {of(3), of(6), of(1)};
}

const SceneViews& training_scenes() {
  static const SceneViews all = scene_views(kTrainingSeed, 0, kScenes, kViews, kViewSize);
  return all;
}

std::vector<Array> scene_batch(const SceneViews& all, std::int64_t step, std::uint64_t seed) {
  const std::int64_t scenes = all.images.shape()[0];
  std::vector<Array> out;
  for (const Spec& spec : scene_specs(kSceneBatch)) out.emplace_back(spec);
  for (std::int64_t i = 0; i < kSceneBatch; ++i) {
    const auto draw = static_cast<std::uint64_t>(step * kSceneBatch + i);
    const std::int64_t scene = random_below(static_cast<std::uint32_t>(scenes), seed, kSceneStream, draw);
    // Which views are given: an order of them.
    std::array<std::int64_t, kViews> order;
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t v = kViews - 1; v > 0; --v)
      std::swap(
          order[v],
          order[random_below(static_cast<std::uint32_t>(v + 1), seed, kSceneStream + 1, draw * kViews + v)]);
    const Array* parts[] = {&all.images, &all.rays, &all.masks};
    for (std::size_t part = 0; part < 3; ++part) {
      const std::int64_t size = parts[part]->size() / (scenes * kViews);
      for (std::int64_t v = 0; v < kViews; ++v)
        std::ranges::copy(
            parts[part]->as<float>().subspan(
                static_cast<std::size_t>((scene * kViews + order[static_cast<std::size_t>(v)]) * size),
                static_cast<std::size_t>(size)),
            out[part].as<float>().begin() + (i * kViews + v) * size);
    }
  }
  return out;
}

Tensor squared_errors(const std::vector<Tensor>& batch, const Params& params,
                      const vision::ViewSynthesisConfig& config) {
  const Tensor made = synthesized_views(slice(batch[0], 1, 0, kGiven), batch[1], kGiven, params, config);
  return square(made - slice(batch[0], 1, kGiven, kViews));
}

ViewQuality quality_of(const vision::ViewSynthesisConfig& config, const StateDict& params,
                       std::int64_t scenes) {
  const TracedModel traced = traced_views(config);
  Plan plan = traced.function.plan();
  return quality(scenes, [&](const std::vector<Array>& batch) {
    return plan.run(traced.bind(batch, {&params}))[0].clone();
  });
}

ViewQuality quality_of_nearest_view(std::int64_t scenes) {
  return quality_of_mixed(
      scenes, [](const std::vector<Array>& batch, std::int64_t scene, std::int64_t asked) {
        const std::span<const float> rays = batch[1].as<float>();
        const auto origin = [&](std::int64_t view, std::int64_t axis) {
          return static_cast<double>(
              rays[static_cast<std::size_t>((scene * kViews + view) * kPixels * 6 + axis)]);
        };
        std::int64_t nearest = 0;
        double least = std::numeric_limits<double>::infinity();
        for (std::int64_t given = 0; given < kGiven; ++given) {
          double squares = 0;
          for (std::int64_t axis = 0; axis < 3; ++axis) {
            const double d = origin(given, axis) - origin(kGiven + asked, axis);
            squares += d * d;
          }
          if (squares < least) least = squares, nearest = given;
        }
        std::vector<double> out(kGiven);
        out[static_cast<std::size_t>(nearest)] = 1;
        return out;
      });
}

ViewQuality quality_of_mean_view(std::int64_t scenes) {
  return quality_of_mixed(scenes, [](const std::vector<Array>&, std::int64_t, std::int64_t) {
    return std::vector<double>(kGiven, 1.0 / kGiven);
  });
}

std::vector<double> shown_pixels(const vision::ViewSynthesisConfig& config, const StateDict& params) {
  const TracedModel traced = traced_views(config);
  const Array views = traced.function(traced.bind(held_out(0), {&params}))[0];
  return pixels_of(views, kShown * kAskedFor);
}

ReportView pictures_of_views(const Results& results, const std::string& with, const std::string& without) {
  std::vector<Picture> pictures;
  const std::vector<Array> batch = held_out(0);
  for (std::int64_t scene = 0; scene < kShown; ++scene) {
    Images given{.title = fmt::format("Scene {}, given", scene + 1), .columns = kGiven},
        asked{.title = fmt::format("Scene {}, asked for", scene + 1),
              .columns = kAskedFor,
              .row_names = {"true"}};
    for (std::int64_t view = 0; view < kViews; ++view)
      (view < kGiven ? given : asked).tiles.push_back({image_of(batch[0], scene * kViews + view)});
    for (const std::string& row : {with, without}) {
      const auto pixels = results.curves(row, "pixels");
      if (pixels.empty()) continue;
      asked.row_names.push_back(row);
      for (std::int64_t view = 0; view < kAskedFor; ++view)
        asked.tiles.push_back(
            {image_of_pixels(pixels[0], scene * kAskedFor + view, {kViewSize, kViewSize, 3})});
    }
    pictures.push_back(std::move(given)), pictures.push_back(std::move(asked));
  }
  return {
      .id = "pictures",
      .title = "What it looks like",
      .question = "What do the asked views look like, with and without the update of the fast weights?",
      .reading =
          "The first held-out scenes, first seed. Without the update a view can only show what all scenes have in "
          "common: the floor and the sky.",
      .pictures = std::move(pictures)};
}

}  // namespace nestgrad::reproduce

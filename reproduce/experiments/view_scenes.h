// Scenes for the synthesis of views: batches, how good views are, and pictures of them.
#pragma once

#include "models/images/scenes.h"
#include "models/training.h"
#include "models/vision/view_synthesis.h"
#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

inline constexpr std::int64_t kSceneBatch = 16;           // scenes of a step
inline constexpr std::int64_t kGiven = 4, kAskedFor = 2;  // views of a scene
inline constexpr std::int64_t kViewSize = 32;             // pixels

vision::ViewSynthesisConfig view_model(const std::string& learner);

// images [scenes, views, size, size, 3], rays [.., 6], masks [.., 1]: as scene_views gives them.
std::vector<Spec> scene_specs(std::int64_t scenes);
// 2,048 scenes that are trained on, none of them held out: drawn once, as that takes longer than a step of training, and held.
const SceneViews& training_scenes();
// Of step `step`: which of these scenes, and which of their views are given, depends on step and seed alone.
std::vector<Array> scene_batch(const SceneViews& scenes, std::int64_t step, std::uint64_t seed);

// Of each pixel's colours in the asked views, [scenes, asked, size, size, 3].
Tensor squared_errors(const std::vector<Tensor>& batch, const Params& params,
                      const vision::ViewSynthesisConfig& config);

// Decibels below the error of an error of 1, of each view, then the mean; inside: of the pixels that show an object.
struct ViewQuality {
  double psnr = 0, inside = 0;
};
// On so many scenes that no training sees, the same for every seed; a multiple of kSceneBatch.
ViewQuality quality_of(const vision::ViewSynthesisConfig& config, const StateDict& params,
                       std::int64_t scenes);
// Of the given view whose camera is nearest to the asked one, and of the mean of the given views.
ViewQuality quality_of_nearest_view(std::int64_t scenes);
ViewQuality quality_of_mean_view(std::int64_t scenes);

// The asked views of the first held-out scenes, as whole numbers from 0 to 255: what a page shows.
std::vector<double> shown_pixels(const vision::ViewSynthesisConfig& config, const StateDict& params);
ReportView pictures_of_views(const Results& results, const std::string& with, const std::string& without);

}  // namespace nestgrad::reproduce

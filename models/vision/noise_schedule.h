// The noise of a diffusion model (Ho et al. 2020): x_t = sqrt(kept_t) x + sqrt(1 - kept_t) eps, and sampling
// without noise of its own from a model that predicts eps (DDIM, Song et al. 2021, eta = 0).
#pragma once

#include <functional>
#include <vector>

#include "engine/core/graph.h"

namespace nestgrad::vision {

// Levels 0 (almost no noise) to levels() - 1.
class NoiseSchedule {
 public:
  // Betas from 1e-4 to 0.02 for 1000 levels; for others times 1000 / levels, so that the last level is noise
  // all the same. ConfigError for 20 levels or fewer, where a beta would reach 1, and for more than a million.
  static NoiseSchedule linear(std::int64_t levels = 200);
  // kept[t] in (0, 1), falling. ConfigError otherwise.
  explicit NoiseSchedule(std::vector<double> kept);
  // Moving copies: one that was moved from still has its levels.
  NoiseSchedule(const NoiseSchedule&) = default;
  NoiseSchedule& operator=(const NoiseSchedule&) = default;

  std::int64_t levels() const { return static_cast<std::int64_t>(kept_.size()); }
  // Share of an image's variance that is left, the product of 1 - beta up to t (alpha bar). ValueError for a
  // level that there is not.
  double kept(std::int64_t level) const;
  // x_t of images [batch, ..] and noise like them, at levels i32 [batch].
  Tensor noisy(Tensor images, Tensor noise, Tensor levels) const;
  // The levels of a sampling, from the noisiest down to 0, evenly spaced; `steps` of them. ConfigError for
  // fewer than 1 or more than there are.
  std::vector<std::int64_t> spaced(std::int64_t steps) const;

 private:
  std::vector<double> kept_;
};

// Predicted noise like x [batch, ..], at levels i32 [batch], of labels i32 [batch].
using EpsFunction = std::function<Array(const Array& x, const Array& levels, const Array& labels)>;

struct SamplingOptions {
  std::int64_t steps = 25;  // evaluations, at so many of the levels
  // Classifier-free guidance (Ho and Salimans 2022): eps of no label + guidance (eps of the label - eps of no
  // label). 1: the label's alone, and half the work.
  double guidance = 1;
  std::int32_t no_label = -1;  // the label that stands for none; needed with guidance
  double clip = 0;             // > 0: each step's image is held in [-clip, clip]
};
// Images [batch, ..] from noise [batch, ..] f32 or f64, on the CPU, one of each label, i32 [batch]. The same
// bits for the same eps. ShapeError for labels or an eps of another shape.
Array sample_ddim(const EpsFunction& eps, const NoiseSchedule& schedule, const Array& noise,
                  const Array& labels, const SamplingOptions& options = {});

}  // namespace nestgrad::vision

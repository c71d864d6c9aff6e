// Learning at test time from the image that is to be classified, under corruptions that training has not seen, and training
// through such steps. After Sun et al. 2020, Gandelsman et al. 2022 and Bartler et al. 2022 (MT3).
#include "reproduce/experiments/catalogue.h"
#include "reproduce/experiments/shift_rows.h"

namespace nestgrad::reproduce {

// Rates of the steps were looked at with another seed, 1000, and other images: above .05 steps of all make clean images worse.
Experiment shift() {
  const ShiftProblem problem{
      .self = ShiftProblem::Self::patches,
      .classes = CharacterImages::kClasses,
      .weight = 2,
      .inner = 0.05,
      .rate = 0.02,
      .training =
          [](const Settings& s, std::int64_t step, std::int64_t batch, std::uint64_t seed) {
            return CharacterImages::of(s, Look::plain).training(step, batch, seed);
          },
      .held_out =
          [](const Settings& s, std::int64_t first, std::int64_t count) {
            return CharacterImages::of(s, Look::plain).held_out(first, count);
          }};
  const ShiftTexts texts{
      .question = "Does painting an image's hidden patches for a few steps help to classify it?",
      .task =
          "Characters of 28 x 28 pixels; in training a little turned, shifted and noisy, with more or less contrast. A "
          "vision transformer (width 48, three blocks) classifies, and "
          "paints patches that were hidden; joint training minimises both errors. At test time it makes five steps on "
          "the painting error of four copies of one image, a little turned and shifted, half of the patches hidden, "
          "classifies it, and forgets ('online': one step, and it is kept along one corruption).",
      .data = "Drawn characters; with --data the same is done to digits."};
  return shift_experiment(
      {.name = "shift",
       .title = "Learning at test time under a shift",
       .shows =
           "a classifier that first paints hidden patches of the image before it, with and without training "
           "through that step, under eight corruptions that it has not seen",
       .source = "Sun et al. 2020; Gandelsman et al. 2022; Bartler et al. 2022 (MT3)",
       .quick_minutes = 9,
       .full_minutes = 60,
       .full_seeds = 3,
       .data = Data::digits},
      problem, texts);
}

}  // namespace nestgrad::reproduce

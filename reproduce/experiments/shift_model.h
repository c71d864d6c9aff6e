// The model of the experiment on shifts: a vision transformer that classifies characters and paints hidden patches, trained at
// once or through a step of learning at test time, and what it does with images when it may learn from each.
#pragma once

#include "models/images/corruptions.h"
#include "models/training.h"
#include "reproduce/image_runs.h"

namespace nestgrad::reproduce {

enum class ShiftTraining : std::uint8_t {
  classes,  // cross-entropy alone
  joint,    // and the masked patches' error
  meta,  // and the cross-entropy after a step on an image's own masked patches, through which the gradient goes (MT3)
};
StateDict train_for_shift(ShiftTraining kind, std::int64_t steps, const Task& task, double share);

// What learns from an image.
enum class Learning : std::uint8_t {
  nothing,
  all,    // that the masked patches' error depends on
  norms,  // gains and shifts of norms
  lora,   // W + B A of rank 4 in the place of every matrix of a block
  block,  // the first block
};

struct TestTime {
  Learning what = Learning::nothing;
  int steps = 5;
  double rate = 0.02;
  bool keep =
      false;  // from image to image of one corruption (online); false: every image begins with the trained weights
};

// Of each image: cross-entropy (nats), and whether the class is right.
struct Answer {
  double loss;
  bool right;
};
// images [n, 28, 28, 1] with labels [n]; image i is number first + i, on which its masks and copies depend alone. With `keep`
// answers depend on the order of the images, else not one bit does.
std::vector<Answer> answers_of(const StateDict& params, const TestTime& how, const LabelledImages& images,
                               std::uint64_t first);

// The cosine between the gradients of cross-entropy and masked patches' error by all shared parameters.
double cosine_of_gradients(const StateDict& params, const LabelledImages& images);

}  // namespace nestgrad::reproduce

// The model of the experiments on shifts: a vision transformer that classifies characters and solves a task that needs no
// labels, trained at once or through a step of learning at test time, and what it does with images when it may learn from each.
#pragma once

#include "models/images/corruptions.h"
#include "models/training.h"
#include "reproduce/image_runs.h"

namespace nestgrad::reproduce {

// What learns from an image.
enum class Learning : std::uint8_t {
  nothing,
  all,    // that the loss of the task without labels depends on
  norms,  // gains and shifts of norms
  lora,   // W + B A of rank 4 in the place of every matrix of a block
  block,  // the first block
};

// What is classified, and what an image without a label is asked.
struct ShiftProblem {
  enum class Self : std::uint8_t {
    patches,   // what half of its patches show, which are hidden: their squared error
    rotation,  // by how many quarter turns it was turned: cross-entropy
  };
  Self self = Self::patches;
  std::int64_t classes = 10;
  double weight = 2;    // of the task without labels beside the cross-entropy of classes
  double inner = 0.05;  // rate of the step that is trained through
  double rate = 0.02;   // of steps at test time
  Learning learning =
      Learning::all;  // what learns online, and where the experiment's claims are about steps at test time
  // Batch `step`, and images that no training sees, as CharacterImages has them: [n, 28, 28, 1].
  std::function<LabelledImages(const Settings&, std::int64_t step, std::int64_t batch, std::uint64_t seed)>
      training;
  std::function<LabelledImages(const Settings&, std::int64_t first, std::int64_t count)> held_out;
};

// Images as the task without labels sees them, and what it asks of each: masks [n, 49, 1], or i32 [n], how it was turned.
struct Asked {
  Array images, question;
};
// Of images [n, 28, 28, 1]; image i is number first + i. every_turn: images 0 to 3, 4 to 7 and so on are turned in all ways,
// else each at random.
Asked asked_without_labels(const ShiftProblem& problem, const Array& images, std::uint64_t seed,
                           std::uint64_t first, bool every_turn);

enum class ShiftTraining : std::uint8_t {
  classes,  // cross-entropy alone
  joint,    // and the loss of the task without labels
  meta,  // and the cross-entropy after a step on that loss of one image, through which the gradient goes (MT3)
};
StateDict train_for_shift(const ShiftProblem& problem, ShiftTraining kind, std::int64_t steps,
                          const Task& task, double share);

struct TestTime {
  Learning what = Learning::nothing;
  int steps = 5;
  bool keep =
      false;  // from image to image of one corruption (online); false: every image begins with the trained weights
};

// Of each image: cross-entropy (nats), and whether the class is right.
struct Answer {
  double loss;
  bool right;
};
// images [n, 28, 28, 1] with labels [n]; image i is number first + i, on which what is asked of it and its copies depend alone.
// With `keep` answers depend on the order of the images, else not one bit does.
std::vector<Answer> answers_of(const ShiftProblem& problem, const StateDict& params, const TestTime& how,
                               const LabelledImages& images, std::uint64_t first);

// The cosine between the gradients of both tasks by all shared parameters.
double cosine_of_gradients(const ShiftProblem& problem, const StateDict& params,
                           const LabelledImages& images);

}  // namespace nestgrad::reproduce

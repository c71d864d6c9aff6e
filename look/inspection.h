// Inspection: everything that look/numbers.h can say of one inner loop, as a page for people, as files of
// numbers, and as a list of invariants. Each view is data, a picture and the invariant that a wrong picture
// would break.
#pragma once

#include <functional>
#include <optional>

#include "look/numbers.h"
#include "look/report.h"
#include "models/checkpoint.h"
#include "models/vision/vision_checkpoint.h"

namespace nestgrad {

struct InspectionOptions {
  // Whose step is shown; -1: the one in the middle, of an image in both directions.
  std::int64_t token = -1;
  // Precision of the gradients of a whole model, in place of the inner loop's own.
  std::function<look::PrecisionProbe()> precision = {};
  std::function<void(const std::string& what, double fraction_done)> progress = {};
};

struct Inspection {
  std::string title, subtitle;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<ReportView> views;
  std::map<std::string, Array> arrays;       // by name: views/NAME.npy
  std::string graph_dot, graph_text, trace;  // empty: there is none

  bool holds() const;           // every invariant of every view
  std::string html() const;     // report.html
  std::string summary() const;  // one JSON object a line, one line a view: its invariants, measured
  // report.html, graph.dot, graph.txt and trace.json where there are such, summary.jsonl with a last line that names the other files,
  // views/*.npy and the pictures as views/*.svg, each complete or not at all. What an earlier page of that folder has listed and
  // this one has not is removed.
  void save(const std::string& folder) const;
};

// The files that the summary.jsonl of a page lists beside itself and report.html; none where no such page is in the folder.
std::optional<std::vector<std::string>> inspected_files(const std::string& folder);

Inspection inspect(const look::InspectedLoop& loop, const InspectionOptions& options = {});

// The inner loop of one layer of a trained language model that reads `tokens`, i32 [1, time + 1], with the
// outer gradient of its next-token loss. ConfigError for a layer that does not exist or is no learner.
look::InspectedLoop inspected_layer(const Checkpoint& checkpoint, const Array& tokens, std::int64_t layer);

// The inner loop of one block of a vision transformer that looks at `image`, f32 [height, width, channels], with the outer
// gradient of its cross entropy at `label`. A convolution or a neighbourhood beside the learner is no part of it.
// ConfigError for a layer that does not exist or has no inner loop, ShapeError for an image of another size.
look::InspectedLoop inspected_block(const vision::VisionCheckpoint& checkpoint, const Array& image,
                                    std::int32_t label, std::int64_t layer);

// An image with noise, as a diffusion transformer is trained on it.
struct NoisyImage {
  Array image, noise;  // f32 [height, width, channels]
  std::int32_t level = 0, label = 0;
};
// Likewise of a block of a diffusion transformer, with the outer gradient of its squared error; the outer loss is that of
// each patch.
look::InspectedLoop inspected_block(const vision::DiffusionCheckpoint& checkpoint,
                                    const vision::NoiseSchedule& schedule, const NoisyImage& noisy,
                                    std::int64_t layer);

// Views of one scene, of which a model of views sees the first `inputs` and is asked for the others.
struct ViewedScene {
  Array
      images;  // f32 [views, height, width, 3], in [0, 1]; what the asked ones show is compared with, and not seen
  Array rays;  // f32 [views, height, width, 6]: vision::synthesized_views
  std::int64_t inputs = 0;
};
// Likewise of the fast weights of a block of such a model, with the outer gradient of its squared error in the asked views.
// The tokens are those of all views; asked ones have rates of zero.
look::InspectedLoop inspected_block(const vision::ViewSynthesisCheckpoint& checkpoint,
                                    const ViewedScene& scene, std::int64_t layer);

// A model that trains while it reads (TTT-E2E), reading `tokens`, i32 [1, time + 1] in whole chunks: losses before and
// after each inner step, what each step adds to the meta-gradient, inner gradients, precision. It has no graph and no
// trace. Of the options it takes `progress`. ConfigError for another model.
Inspection inspect_end_to_end(const Checkpoint& checkpoint, const Array& tokens,
                              const InspectionOptions& options = {});

// The gradient of every parameter of the model, in f32 beside f64.
look::PrecisionProbe model_precision(const Checkpoint& checkpoint, const Array& tokens);
look::PrecisionProbe model_precision(const vision::VisionCheckpoint& checkpoint, const Array& image,
                                     std::int32_t label);
look::PrecisionProbe model_precision(const vision::DiffusionCheckpoint& checkpoint,
                                     const vision::NoiseSchedule& schedule, const NoisyImage& noisy);
look::PrecisionProbe model_precision(const vision::ViewSynthesisCheckpoint& checkpoint,
                                     const ViewedScene& scene);

}  // namespace nestgrad

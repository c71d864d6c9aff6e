// 07_images: a vision transformer whose attention is a learner (T^5) is trained to tell drawn digits apart, and the gradient of
// its loss goes through the learner's step on every image. Then attention alone is trained, from the rest of that model.
// With a folder as its argument it writes the last model there, to look inside: inspect --checkpoint FOLDER.
#include <nestgrad/nestgrad.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "programs/out_folder.h"
#include "programs/program.h"

using namespace nestgrad;

constexpr std::int64_t kBatch = 32, kSize = 28, kSteps = 150;
const Spec kImages{DType::f32, {kBatch, kSize, kSize, 1}}, kLabels{DType::i32, {kBatch}};

// 49 tokens of 4 x 4 pixels.
vision::VisionConfig model(const char* mixer) {
  return {.height = kSize,
          .image_width = kSize,
          .channels = 1,
          .patch = 4,
          .width = 32,
          .depth = 1,
          .heads = 2,
          .classes = 10,
          .mixer = vision::mixer_named(mixer),
          .init_std = 0};
}

LabelledImages digits(std::uint64_t seed, std::int64_t step) {
  return glyphs({.size = kSize, .distractors = 0, .smallest = 0.7, .largest = 0.8}, seed,
                static_cast<std::uint64_t>(step * kBatch), kBatch);
}

// Training that is ready for its first step.
Training prepared(const vision::VisionConfig& config, std::vector<ParameterGroup> groups = {}) {
  Training training({.seed = 0, .groups = std::move(groups)});
  training.add({kImages, kLabels}, [config](ParamTable& table, const Tensors& in) {
    return Training::Objective{mean(cross_entropy(class_logits(in[0], Params(table), config), in[1]))};
  });
  return training;
}

void run(Training& training) {
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const LabelledImages batch = digits(1, step);
    const double loss =
        training.step(0, {batch.images, batch.labels}, cosine_rate(step, kSteps, 10, 4e-3)).loss;
    if (step % 50 == 0) std::printf("  step %3ld  loss %.3f\n", static_cast<long>(step), loss);
  }
}

// The share of right answers on digits that training has not seen.
double right(const vision::VisionConfig& config, const StateDict& params) {
  const TracedModel traced = trace_model(DType::f32, {kImages}, [&](ParamTable& table, const Tensors& in) {
    return Tensors{class_logits(in[0], Params(table), config)};
  });
  int count = 0;
  for (std::int64_t batch = 0; batch < 8; ++batch) {
    const LabelledImages asked = digits(2, batch);
    const std::vector<double> logits = traced.function(traced.bind({asked.images}, {&params}))[0].to_vector();
    for (std::size_t i = 0; i < kBatch; ++i) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(10 * i);
      count += std::max_element(begin, begin + 10) - begin == asked.labels.as<std::int32_t>()[i];
    }
  }
  return count / (8.0 * kBatch);
}

// folder: for the last model; "": it is not kept.
void convert(const std::string& folder) {
  if (!folder.empty()) {  // which is looked at before the training, not after it
    make_folder(folder, "FOLDER");
    check_replaceable(folder, image_model_rule(folder, "FOLDER"));
    check_writable(folder, {"config.json", "model.safetensors"});
  }
  std::printf("softmax attention:\n");
  Training softmax = prepared(model("softmax"));
  run(softmax);
  const double before = right(model("softmax"), softmax.parameters());
  std::printf("  %.0f %% right\n", 100 * before);

  // The same model with T^5 in the place of attention: what it inherits is frozen, what is new learns.
  const vision::VisionConfig converted = model("t5-swiglu");
  std::vector<ParameterGroup> groups;
  for (const std::string& name : vision::inherited_parameters(converted))
    groups.push_back({.names = name, .rate = 0});
  Training learner = prepared(converted, groups);
  StateDict start = learner.parameters();
  const PartialLoad load = load_by_name(start, softmax.parameters(), "the softmax model");
  std::printf("T^5 from it: %s\n", load.str().c_str());
  learner.start_from(start);
  const double untrained = right(converted, start);
  run(learner);
  const double after = right(converted, learner.parameters());
  std::printf("  %.0f %% right, %.0f %% before\n", 100 * after, 100 * untrained);
  if (!folder.empty()) vision::write_checkpoint(folder, {converted, learner.parameters()});
  if (!(before > 0.5 && after > untrained)) throw ValueError("the models have not learnt");
}

int main(int argc, char** argv) {
  CLI::App app{"Trains a small vision transformer, and T^5 from it."};
  std::string folder;
  app.add_option("FOLDER", folder, "Folder for the last model")->check(not_empty);
  return run_program(argc, argv, app, [&] { convert(folder); });
}

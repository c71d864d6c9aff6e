// small_models FOLDER: untrained models of images, one of each kind, as folders in FOLDER: for tests of programs that read
// them.
#include <cstdio>
#include <string>

#include "models/vision/vision_checkpoint.h"

using namespace nestgrad;

namespace {

// Random where a model starts from zero, so that what it makes depends on everything.
template <class Config>
void write(const std::string& folder, const Config& config) {
  std::vector<ParamSpec> params = parameters_of(config);
  for (ParamSpec& p : params)
    if (p.init.kind == Init::Kind::constant && p.init.value == 0) p.init = Init::normal(0.1);
  vision::write_checkpoint(
      folder, vision::ModelCheckpoint<Config>{config, initial_parameters(params, DType::f32, 1)});
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 || argv[1][0] == '-') return 2;
  const std::string folder = argv[1];
  write(folder + "/diffusion", vision::DiffusionConfig{.height = 10,
                                                       .image_width = 10,
                                                       .patch = 2,
                                                       .width = 8,
                                                       .depth = 2,
                                                       .heads = 2,
                                                       .classes = 10,
                                                       .levels = 40,
                                                       .mixer = vision::mixer_named("t5-diffusion")});
  write(folder + "/views", vision::ViewSynthesisConfig{.height = 8,
                                                       .image_width = 8,
                                                       .patch = 4,
                                                       .width = 8,
                                                       .depth = 2,
                                                       .heads = 2,
                                                       .learner = vision::view_learner_named("baseline")});
  write(folder + "/no-update", vision::ViewSynthesisConfig{.height = 8,
                                                           .image_width = 8,
                                                           .patch = 4,
                                                           .width = 8,
                                                           .depth = 1,
                                                           .heads = 2,
                                                           .learner = vision::view_learner_named("off")});
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}

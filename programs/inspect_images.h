// What `inspect` shows of a model of images: an inner loop of one of its blocks, with an image, a noisy one or the views of a
// scene before it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "look/inspection.h"

namespace nestgrad::programs {

struct ImageQuestion {
  std::string checkpoint;
  std::string data;                   // a folder of images; "": drawn ones
  std::optional<std::int64_t> image;  // which image or scene (0)
  std::optional<std::int64_t> level;  // of noise, for a diffusion transformer (the middle one)
  std::int64_t layer = 0;
};

struct OpenedImages {
  look::InspectedLoop loop;
  std::function<look::PrecisionProbe()> precision;         // of the whole model's gradients
  std::vector<std::pair<std::string, std::string>> facts;  // of the page: what the model looks at
};
// CLI::ValidationError for a layer that a model of so many does not have.
void check_layer(std::int64_t layer, std::int64_t layers);

// CLI::ValidationError for a question that this kind of model has no answer to; ConfigError and IoError for files.
OpenedImages opened_images(vision::ImageModel kind, const ImageQuestion& question);

}  // namespace nestgrad::programs

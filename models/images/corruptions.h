// Images that are worse than those of training, and copies that are a little different: for what learns at test time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/array.h"

namespace nestgrad {

// Corruptions of our own; severities go from 1 to 5. Those of ImageNet-C (Hendrycks and Dietterich, 2019) are other
// ones of the same kinds. Lengths are shares of the shorter side, so that images of any size look alike.
enum class Corruption : std::uint8_t {
  noise,            // normal numbers are added: of standard deviation 0.08 to 0.4
  blur,             // by a bell of standard deviation 0.6 to 2.4 of 28 pixels
  low_contrast,     // values move towards 1/2: 0.7 to 0.15 of the difference is left
  inverted_ground,  // v becomes 1 - v, in 20 to 100 percent of the image, from one of its sides on
  shear,            // rows, or columns, are shifted by 0.15 to 0.75 of their distance from the middle
  occlusion,        // a grey square at a random place, of side 0.15 to 0.45
  fog_ramp,         // white, from nothing at one side to 0.3 to 0.95 at the other, in a random direction
  pixels            // 14, 11, 9, 7 or 6 blocks of one value across
};

struct CorruptionRow {
  Corruption corruption;
  std::string_view name;   // as in the enumeration
  std::string_view title;  // for people: "low contrast"
};
const std::vector<CorruptionRow>& corruptions();
std::string_view name(Corruption corruption);
Corruption corruption_named(std::string_view name);  // ConfigError for a name that there is not

// images: f32 [n, height, width, channels] with values in [0, 1]; the same, corrupted. What is random of image i
// depends on (corruption, seed, first + i) alone, and not on the severity: an occluder only grows. Nothing leaves [0,
// 1]. ConfigError for another severity, ShapeError, DTypeError.
Array corrupted(const Array& images, Corruption corruption, int severity, std::uint64_t seed,
                std::uint64_t first = 0);

// What augmented() draws for each image, evenly up to these bounds to either side.
struct Augmentation {
  double shift = 0.06;     // of the shorter side, in both directions
  double rotation = 0.12;  // radians
  double scale = 0.08;     // factors 1 - scale to 1 + scale
  double contrast = 0;     // likewise of the difference to 1/2
  double noise = 0;        // standard deviation of normal numbers that are added
};

// A copy of each image that is turned, shifted and so on. What is beyond an edge is as the edge. Image i depends on
// (seed, first + i) alone: number the copies of one image by their own numbers. Errors as above; ConfigError for bounds
// that are negative, or not below 1 where they are shares.
//
//   Array copies = augmented(repeated(image, 8), seed, 8 * number);
Array augmented(const Array& images, std::uint64_t seed, std::uint64_t first, const Augmentation& how = {});

// n times image [height, width, channels]: [n, height, width, channels].
Array repeated(const Array& image, std::int64_t n);

}  // namespace nestgrad

// Twenty characters, each in many hands, as images of classes that can be turned: of digits 0, 1, 8 and the pair of 6 and 9
// hardly say how they are turned.
#pragma once

#include "models/images/labelled_images.h"
#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

class TurnableCharacters {
 public:
  static constexpr std::int64_t kClasses = 20, kSide = 28;
  // Those of --data, a folder of folders of PNG files, of which twenty are chosen; else invented ones, of which no two images
  // are in one hand. Read once for each path and shared; any thread may ask. IoError, ConfigError: read_image_folder, and
  // where there are fewer than twenty characters, or one of them has fewer than five images.
  static const TurnableCharacters& of(const Settings& settings);

  // Batch `step` of so many images: depends on these and the seed alone.
  LabelledImages training(std::int64_t step, std::int64_t batch, std::uint64_t seed) const;
  // So many that no training sees, from number `first` on, the same for every seed: a fifth of the images of each character
  // of --data, again from the first when there are no more.
  LabelledImages held_out(std::int64_t first, std::int64_t count) const;

 private:
  explicit TurnableCharacters(const std::string& path);
  std::vector<std::vector<Array>> training_, held_out_;  // images of each character; empty: invented ones
};

}  // namespace nestgrad::reproduce

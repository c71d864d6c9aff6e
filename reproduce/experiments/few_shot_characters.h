// Classes of characters from one image of each, as a problem of few-shot learning (Finn, Abbeel and Levine 2017, section 5.2).
#pragma once

#include "reproduce/experiment.h"
#include "reproduce/experiments/meta_learning.h"

namespace nestgrad::reproduce {

inline constexpr std::int64_t kWays = 5;  // classes of a task
inline constexpr std::int64_t kAskedOfClass =
    5;  // images of each class by which a task is judged; it is learnt from one
inline constexpr std::int64_t kCharacterSide = 14;  // pixels

// Characters, each in several hands: those of --data, a folder of folders of PNG files, else invented ones, which are drawn
// once (25,000 images, about two seconds). No character of one purpose is one of another's.
class Alphabet {
 public:
  // Read once for each path and shared; any thread may ask. IoError, ConfigError: read_image_folder, and where there are
  // fewer than 25 characters, or one has fewer than six images.
  static const Alphabet& of(const Settings& settings);
  std::string fingerprint() const { return fingerprint_; }  // empty: invented ones

  enum class Purpose : std::uint64_t { training, testing };
  // [tasks, kWays * (1 + kAskedOfClass), side * side]: in each task first one image of each class, then kAskedOfClass times
  // one of each. Depends on these and the seed alone.
  Array tasks(std::int64_t count, Purpose purpose, std::uint64_t batch, std::uint64_t seed) const;

 private:
  explicit Alphabet(const std::string& path);
  std::vector<std::vector<Array>> training_, testing_;  // images [side, side, 1] of each character
  std::string fingerprint_;
};

Spec character_spec(std::int64_t tasks);
// Three layers, 64 ReLU units between; from batches of Alphabet::tasks.
FewShotProblem character_problem();

// After 0, 1, .. steps on a task's one image of each class: the share of right answers (%) and the loss (nats) on its others,
// means over many tasks of characters that are not trained on.
struct FewShotQuality {
  std::vector<double> right, loss;
};
FewShotQuality quality_by_step(const StateDict& params, const Alphabet& alphabet, int steps,
                               std::uint64_t seed);

}  // namespace nestgrad::reproduce

// Runs of models of images: what the experiments on images share.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "models/images/labelled_images.h"
#include "models/training.h"
#include "models/vision/vision_checkpoint.h"
#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

// How characters lie on their images.
enum class Look : std::uint8_t {
  cluttered,  // 40 x 40, at a random place, size and angle, with four pieces of others beside them
  plain,      // 28 x 28, in the middle
};

// Characters of ten classes: digits of MNIST where --data is a folder that has it (a file of images and one of labels whose
// names end in images-idx3-ubyte and labels-idx1-ubyte, or that and .gz), else drawn ones. Four fifths are for training.
class CharacterImages {
 public:
  static constexpr std::int64_t kClasses = 10;
  // Read once for each path and shared; any thread may ask. IoError, ConfigError: read_mnist.
  static const CharacterImages& of(const Settings& settings, Look look = Look::cluttered);

  std::string fingerprint() const { return fingerprint_; }  // of the digits; empty: drawn ones

  // Batch `step` of so many images: depends on these and the seed alone.
  LabelledImages training(std::int64_t step, std::int64_t batch, std::uint64_t seed) const;
  // So many that no training sees, from number `first` on: the same for every seed.
  LabelledImages held_out(std::int64_t first, std::int64_t count) const;

 private:
  CharacterImages(const std::string& path, Look look);
  Look look_;
  std::optional<LabelledImages> training_, held_out_;  // nothing: drawn ones
  std::string fingerprint_;
};

// read_image_folder, of images of one channel. ConfigError for others.
LabelledImages grey_folder(const std::string& path);
// Fingerprint of such a folder's images and labels.
std::string fingerprint_of_folder(const std::string& path);

struct ImageRun {
  vision::VisionConfig model;
  std::int64_t images = 64000, batch = 64;  // that are trained on
  double lr = 2e-3;
  std::vector<ParameterGroup> groups = {};
  // Null: random, of the seed. What has another shape in the model starts so too.
  const StateDict* start = nullptr;
};

// A vision transformer of the size that the experiments share, with this mixer (models/vision/mixers.h).
vision::VisionConfig classifier(const std::string& mixer);

// All steps; adds the curve "training loss", means of 32 equal parts, and "images/s". ValueError when a loss is not finite.
StateDict train(const ImageRun& run, const Task& task, Measured& out, double share = 1);

// Adds "loss" (cross-entropy, nats) and "top-1" (%) of so many held-out images.
void measure(const vision::VisionConfig& model, const StateDict& params, const Task& task, Measured& out,
             std::int64_t images = 2000);

// Writes the model, if the task says where (Task::model_folder), for inspect --checkpoint. Config: of
// models/vision/vision_checkpoint.h.
template <class Config>
void keep_model(const Task& task, const Config& model, const StateDict& params) {
  if (!task.model_folder.empty())
    vision::write_checkpoint(task.model_folder, vision::ModelCheckpoint<Config>{model, params});
}

// Image number `index` of [.., height, width, channels], [height, width, channels].
Array image_of(const Array& images, std::int64_t index);
// The first images as whole numbers from 0 to 255, for results that a page shows; values from `low` to 1 are in range.
std::vector<double> pixels_of(const Array& images, std::int64_t count, double low = 0);
// Image number `index` of such pixels.
Array image_of_pixels(const std::vector<double>& pixels, std::int64_t index, const Shape& shape);

// What several runs of one seed begin with, made once by the run that asks first. One that asks while it is being made makes
// that of a later seed meanwhile, so that no core waits. Any thread may ask.
class SharedStarts {
 public:
  using Make = std::function<StateDict(std::uint64_t seed)>;
  // key: of the model and its settings. seeds: of all runs, first to last. What `make` throws all get that ask for it.
  std::shared_ptr<const StateDict> get(const std::string& key, std::uint64_t seed,
                                       const std::vector<std::uint64_t>& seeds, const Make& make);

 private:
  using Future = std::shared_future<std::shared_ptr<const StateDict>>;
  // Makes it, if none has begun to; nothing otherwise.
  bool begin(const std::string& key, std::uint64_t seed, const Make& make);

  std::mutex mutex_;
  std::map<std::pair<std::string, std::uint64_t>, Future> made_;
};

}  // namespace nestgrad::reproduce

// What a checkpoint of training holds beside its arrays, and whether a run may go on with it.
#pragma once

#include "engine/io/safetensors.h"
#include "models/training.h"

namespace nestgrad {

struct TrainingOptions;  // models/trainer.h

// A name in a checkpoint that is a parameter's, and not a moment's of AdamW or an average's.
bool is_parameter(std::string_view name);

// The parameters among a checkpoint's tensors, in f32. rounded: the names of those that had more digits are added. path: of the file.
// ConfigError as of in_type (models/partial_load.h).
StateDict parameters_in_f32(const StateDict& tensors, const std::string& path,
                            std::vector<std::string>& rounded);

inline constexpr const char* kFromSeed = "random, of the seed";  // what training began with
// Of names and numbers, wherever they are.
std::string fingerprint_of(const StateDict& params);

// What of a setup shapes the numbers of a step. A seed is of the start, which is in the file.
std::string setup_json(const TrainingSetup& setup);

// ConfigError unless what is JSON there is.
void check(const RunIdentity& identity);
void describe(SafeTensors& file, const RunIdentity& identity, const TrainingSetup& setup, std::int64_t steps,
              const std::string& start);

// Of the run that wrote it: 1 where it does not say. IoError for what is no number of grains.
std::int64_t grains_of_checkpoint(const SafeTensors& file, const std::string& path);

// ConfigError that says which settings of training the run that wrote it had otherwise; written_later: those that earlier versions did
// not write, as they were then. All in JSON.
void check_settings(const SafeTensors& file, const std::string& training, const std::string& written_later,
                    const std::string& path);

// The grains of a run of a Trainer that is gone on with. ConfigError where it was written with other settings than `asked`, of which the
// grains do not count; IoError as above.
std::int64_t resumed_grains(const SafeTensors& file, TrainingOptions asked, const std::string& path);

struct WrittenRun {
  std::int64_t step;
  std::string start;  // empty: checkpoints of earlier versions do not say
};
// Of a file that this run may go on with. ConfigError that says what differs, IoError for what is no checkpoint. start:
// what training began with here.
WrittenRun check_written(const SafeTensors& file, const RunIdentity& identity, const TrainingSetup& setup,
                         const std::string& start, const std::string& path);

}  // namespace nestgrad

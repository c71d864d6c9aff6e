// Where an experiment's data comes from, as pages and results say it.
#pragma once

#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

struct DataSource {
  std::string name;         // "the Eigen headers"; empty: it draws its own
  std::string fingerprint;  // of all that may be read; empty: nothing is read
};
// IoError, ConfigError: of what reads it.
DataSource source_of(const Experiment& experiment, const Settings& settings);

}  // namespace nestgrad::reproduce

#include "reproduce/data_source.h"

#include <fmt/format.h>

#include <filesystem>

#include "reproduce/experiments/few_shot_characters.h"
#include "reproduce/image_runs.h"
#include "reproduce/language_runs.h"

namespace nestgrad::reproduce {

DataSource source_of(const Experiment& experiment, const Settings& settings) {
  const auto named = [&](const char* otherwise) {
    return settings.data.empty() ? std::string(otherwise)
                                 : std::filesystem::path(settings.data).filename().string();
  };
  const auto hex = [](std::uint64_t number) { return fmt::format("{:016x}", number); };
  switch (experiment.data) {
    case Data::drawn:
      break;
    case Data::text:
      return {named("the Eigen headers"), hex(corpus_of(settings).fingerprint())};
    case Data::digits:
      return {named("drawn characters"), CharacterImages::of(settings).fingerprint()};
    case Data::characters:
      return {named("invented characters"), Alphabet::of(settings).fingerprint()};
  }
  return {};
}

}  // namespace nestgrad::reproduce

#include "reproduce/data_source.h"

#include <fmt/format.h>

#include <filesystem>

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
      return {named("invented characters"),
              settings.data.empty() ? "" : fingerprint_of_folder(settings.data)};
  }
  return {};
}

}  // namespace nestgrad::reproduce

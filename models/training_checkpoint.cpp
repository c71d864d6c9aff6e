#include "models/training_checkpoint.h"

#include <fmt/format.h>

#include "engine/core/hash.h"
#include "models/json.h"

namespace nestgrad {

namespace {

std::int64_t step_from(const SafeTensors& file, const std::string& path) {
  const auto at = file.metadata.find("step");
  std::int64_t step = -1;
  if (at != file.metadata.end() && at->second.find_first_not_of("0123456789") == std::string::npos &&
      !at->second.empty() && at->second.size() < 18)
    step = std::stoll(at->second);
  if (step < 0)
    throw IoError(
        fmt::format("{}: not a training checkpoint: its metadata have no "
                    "step count; resume from a folder that training wrote",
                    path));
  return step;
}

// The settings of a checkpoint that are not this run's. Settings that earlier versions did not write are taken for what
// they were then.
void check_same(const SafeTensors& file, const std::string& key, const std::string& ours,
                const std::string& written_later, const std::string& path) {
  const auto at = file.metadata.find(key);
  const nlohmann::json theirs = parse_json(at == file.metadata.end() ? "{}" : at->second),
                       mine = parse_json(ours),
                       later = parse_json(written_later.empty() ? "{}" : written_later);
  std::string different;
  for (const auto& [name, value] : mine.items()) {
    const bool there = theirs.is_object() && theirs.contains(name);
    if (name == "steps" || (there && theirs[name] == value)) continue;
    if (!there && later.contains(name) && later[name] == value) continue;
    different += fmt::format("{}{} = {}, this run has {}", different.empty() ? "" : "; ", name,
                             there ? shown(theirs[name]) : "nothing", value.dump());
  }
  if (!different.empty())
    throw ConfigError(fmt::format(
        "[train] {} was written with {}; resume with the same settings, or start anew in another folder",
        path, different));
}

}  // namespace

bool is_parameter(std::string_view name) {
  return !name.starts_with(kMomentPrefix) && !name.starts_with(kAveragePrefix);
}

std::int64_t grains_of_checkpoint(const SafeTensors& file) {
  const auto at = file.metadata.find("training");
  const nlohmann::json settings = parse_json(at == file.metadata.end() ? "{}" : at->second);
  std::int64_t grains = 1;
  if (settings.is_object() && settings.contains("grains") && fits(settings["grains"], grains))
    settings["grains"].get_to(grains);
  return grains;
}

std::string fingerprint_of(const StateDict& params) {
  std::uint64_t hash = fnv1a(std::string_view());
  for (const auto& [name, value] : params) {
    const Array here = value.to(Device::cpu());
    hash = fnv1a(std::span(static_cast<const std::byte*>(here.data()), here.bytes()), fnv1a(name, hash));
  }
  return fmt::format("{:016x}", hash);
}

void describe(SafeTensors& file, const RunIdentity& identity, std::int64_t steps, const std::string& start) {
  file.metadata = {{"format", "nestgrad training checkpoint"},
                   {"step", std::to_string(steps)},
                   {"data_position", std::to_string(steps)},
                   {"text", identity.data},
                   {"rng", fmt::format("philox4x32-10, seed {}, counter from step", identity.seed)},
                   {"start", start},
                   {"config", identity.config},
                   {"training", identity.training}};
}

WrittenRun check_written(const SafeTensors& file, const RunIdentity& identity, const std::string& start,
                         const std::string& path) {
  WrittenRun out{step_from(file, path), ""};
  check_same(file, "config", identity.config, identity.written_later, path);
  check_same(file, "training", identity.training, identity.written_later, path);
  const auto data = file.metadata.find("text");  // checkpoints of earlier versions do not say
  if (data != file.metadata.end() && data->second != identity.data)
    throw ConfigError(
        fmt::format("[train] {} was trained on other {} (fingerprint {}, this one has {}): a file or its "
                    "place changed; resume with the same {}, or start anew in another folder",
                    path, identity.data_is, data->second, identity.data, identity.data_is));
  if (const auto at = file.metadata.find("start"); at != file.metadata.end()) out.start = at->second;
  if (!out.start.empty() && start != kFromSeed && out.start != start)
    throw ConfigError(fmt::format(
        "[train] {} was not trained from the weights that this run starts from (theirs: {}, these: {}); resume "
        "with the same, or start anew in another folder",
        path, out.start, start));
  return out;
}

}  // namespace nestgrad

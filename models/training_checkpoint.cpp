#include "models/training_checkpoint.h"

#include <fmt/format.h>

#include "engine/core/array_hash.h"
#include "engine/io/file.h"
#include "models/json.h"
#include "models/partial_load.h"

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
        fmt::format("[train] {}: not a training checkpoint: its metadata have no "
                    "step count; resume from a folder that training wrote",
                    printable(path)));
  return step;
}

constexpr const char* kFormat = "nestgrad training checkpoint";

std::string generator(std::uint64_t seed) {
  return fmt::format("philox4x32-10, seed {}, counter from step", seed);
}

// What a checkpoint says of itself, where it does: that it is one, how its random numbers were drawn, and where in its
// data it is.
void check_described(const SafeTensors& file, std::int64_t steps, std::uint64_t seed,
                     const std::string& path) {
  const auto said = [&](const char* key, const std::string& as) {
    const auto at = file.metadata.find(key);
    return at == file.metadata.end() ? as : at->second;
  };
  if (const std::string format = said("format", kFormat); format != kFormat)
    throw IoError(
        fmt::format("{}: its header says that it is '{}', not '{}'; resume from a folder that training wrote",
                    printable(path), printable(format), kFormat));
  if (const std::string at = said("data_position", std::to_string(steps)); at != std::to_string(steps))
    throw IoError(fmt::format(
        "{}: its header says step {} and data_position {}, which are the same in every run; the file is damaged, bring it back",
        printable(path), steps, printable(at)));
  if (const std::string rng = said("rng", generator(seed)); rng != generator(seed))
    throw ConfigError(fmt::format(
        "[train] {} drew its random numbers by '{}', this run draws them by '{}'; resume with that seed and the version that "
        "wrote it, or start anew in another folder",
        printable(path), printable(rng), generator(seed)));
}

// The settings of a checkpoint that are not this run's. Settings that earlier versions did not write are taken for what
// they were then.
void check_same(const SafeTensors& file, const std::string& key, const std::string& ours,
                const std::string& written_later, const std::string& path) {
  const auto at = file.metadata.find(key);
  const nlohmann::json theirs = parse_json(at == file.metadata.end() ? "{}" : at->second),
                       mine = parse_json(ours),
                       later = parse_json(written_later.empty() ? "{}" : written_later);
  const std::string different = fields_apart(theirs, mine, [&](const std::string& name) {
    const bool there = theirs.is_object() && theirs.contains(name);
    return (key == "training" && name == "steps") ||
           (!there && later.contains(name) && later[name] == mine[name]);
  });
  if (!different.empty())
    throw ConfigError(fmt::format(
        "[train] {} was written with {}; resume with the same settings, or start anew in another folder",
        printable(path), different));
}

// Nothing said is an object without fields.
std::string object_text(const std::string& json) { return json.empty() ? "{}" : json; }

}  // namespace

std::string setup_json(const TrainingSetup& s) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const ParameterGroup& g : s.groups) {
    groups.push_back({{"names", g.names}, {"rate", g.rate}});
    if (g.weight_decay) groups.back()["weight_decay"] = *g.weight_decay;
  }
  return nlohmann::ordered_json{{"beta1", s.adamw.beta1},
                                {"beta2", s.adamw.beta2},
                                {"eps", s.adamw.eps},
                                {"weight_decay", s.adamw.weight_decay},
                                {"clip", s.adamw.clip},
                                {"groups", groups},
                                {"average_decay", s.average_decay},
                                {"grains", s.grains},
                                {"slices", s.slices}}
      .dump();
}

void check(const RunIdentity& identity) {
  for (const auto& [name, text] : {std::pair{"config", &identity.config},
                                   {"training", &identity.training},
                                   {"written_later", &identity.written_later}})
    if (!parse_json(object_text(*text)).is_object())
      throw ConfigError(
          fmt::format("[train] RunIdentity::{} is '{}'; it must be a JSON object, as {{\"lr\": 0.1}}", name,
                      printable(*text)));
}

bool is_parameter(std::string_view name) {
  return !name.starts_with(kMomentPrefix) && !name.starts_with(kAveragePrefix);
}

StateDict parameters_in_f32(const StateDict& tensors, const std::string& path,
                            std::vector<std::string>& rounded) {
  StateDict out;
  for (const auto& [name, value] : tensors) {
    if (!is_parameter(name)) continue;
    out.emplace(name, in_type(value, DType::f32, name, path));
    if (loses_digits(value, DType::f32)) rounded.push_back(name);
  }
  return out;
}

std::int64_t grains_of_checkpoint(const SafeTensors& file, const std::string& path) {
  const auto at = file.metadata.find("training");
  const nlohmann::json settings = parse_json(at == file.metadata.end() ? "{}" : at->second);
  if (!settings.is_object() || !settings.contains("grains")) return 1;
  const nlohmann::json& said = settings["grains"];
  const std::int64_t grains = fits(said, std::int64_t()) ? said.get<std::int64_t>() : 0;
  std::int64_t batch = 0;
  if (settings.contains("batch") && fits(settings["batch"], batch)) settings["batch"].get_to(batch);
  // A file of training has a batch that its grains divide.
  if (grains < 1 || batch % grains != 0)
    throw IoError(fmt::format(
        "{}: its header says {} grains{}, which no training has; the file is damaged, bring it back",
        printable(path), shown(said), batch > 0 ? fmt::format(" of a batch of {}", batch) : ""));
  return grains;
}

void check_settings(const SafeTensors& file, const std::string& training, const std::string& written_later,
                    const std::string& path) {
  check_same(file, "training", training, written_later, path);
}

std::string fingerprint_of(const StateDict& params) {
  std::uint64_t hash = fnv1a(std::string_view());
  for (const auto& [name, value] : params) hash = hash_of(value, fnv1a(name, hash));
  return fmt::format("{:016x}", hash);
}

void describe(SafeTensors& file, const RunIdentity& identity, const TrainingSetup& setup, std::int64_t steps,
              const std::string& start) {
  file.metadata = {{"format", kFormat},
                   {"step", std::to_string(steps)},
                   {"data_position", std::to_string(steps)},
                   {"text", identity.data},
                   {"rng", generator(identity.seed)},
                   {"start", start},
                   {"config", object_text(identity.config)},
                   {"training", object_text(identity.training)},
                   {"setup", setup_json(setup)}};
}

WrittenRun check_written(const SafeTensors& file, const RunIdentity& identity, const TrainingSetup& setup,
                         const std::string& start, const std::string& path) {
  check(identity);
  WrittenRun out{step_from(file, path), ""};
  check_same(file, "config", object_text(identity.config), identity.written_later, path);
  check_settings(file, object_text(identity.training), identity.written_later, path);
  check_described(file, out.step, identity.seed, path);
  if (file.metadata.contains("setup")) {  // checkpoints of earlier versions do not say
    check_same(file, "setup", setup_json(setup), "", path);
  }
  const auto data = file.metadata.find("text");  // checkpoints of earlier versions do not say
  if (data != file.metadata.end() && data->second != identity.data)
    throw ConfigError(
        fmt::format("[train] {} was trained on other {} (fingerprint {}, this one has {}): a file or its "
                    "place changed; resume with the same {}, or start anew in another folder",
                    printable(path), identity.data_is, data->second, identity.data, identity.data_is));
  if (const auto at = file.metadata.find("start"); at != file.metadata.end()) out.start = at->second;
  if (!out.start.empty() && start != kFromSeed && out.start != start)
    throw ConfigError(fmt::format(
        "[train] {} was not trained from the weights that this run starts from (theirs: {}, these: {}); resume "
        "with the same, or start anew in another folder",
        printable(path), out.start, start));
  return out;
}

}  // namespace nestgrad

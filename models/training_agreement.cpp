#include "models/training_agreement.h"

#include <fmt/format.h>

#include "engine/core/array_hash.h"
#include "engine/core/index.h"
#include "engine/processes/ranks.h"
#include "models/json.h"
#include "models/training_checkpoint.h"

namespace nestgrad {

namespace {

// Each number and text under its place: "/setup/beta1".
nlohmann::json described(const TrainingSetup& setup, const RunIdentity& identity,
                         const TrainingShape& shape) {
  nlohmann::json batches = nlohmann::json::array();
  for (const std::vector<Spec>& kind : shape.batches) {
    batches.emplace_back(nlohmann::json::array());
    for (const Spec& spec : kind) batches.back().push_back(to_string(spec));
  }
  const auto object = [](const std::string& text) { return parse_json(text.empty() ? "{}" : text); };
  return nlohmann::json{{"setup", object(setup_json(setup))},
                        {"training", object(identity.training)},
                        {"model", object(identity.config)},
                        {"fingerprint of the " + identity.data_is, identity.data},
                        {"seed of the random numbers", identity.seed},
                        {"kinds of batches", batches},
                        {"parameters without a gradient", shape.unused}}
      .flatten();
}

// The first place where two differ, and what each has there.
std::string first_apart(const nlohmann::json& theirs, const nlohmann::json& first) {
  const auto at = [](const nlohmann::json& j, const std::string& place) {
    return j.contains(place) && !j[place].is_null() ? shown(j[place]) : "nothing";
  };
  for (const nlohmann::json* one : {&first, &theirs})
    for (const auto& [place, value] : one->items())
      if (at(theirs, place) != at(first, place))
        return fmt::format("{} is {}, rank 0 has {}", place.substr(1), at(theirs, place), at(first, place));
  return "";
}

}  // namespace

void check_same_setup(Transport& processes, const TrainingSetup& setup, const RunIdentity& identity,
                      const TrainingShape& shape) {
  const std::string mine = described(setup, identity, shape).dump();
  const std::vector<Bytes> all = processes.all_gather(std::as_bytes(std::span(mine)));
  std::vector<int> others;
  for (int r = 1; r < processes.size(); ++r)
    if (all[uz(r)] != all[0]) others.push_back(r);
  if (others.empty()) return;
  const auto of = [&](int rank) {
    const Bytes& b = all[uz(rank)];
    return parse_json({reinterpret_cast<const char*>(b.data()), b.size()});
  };
  throw ProcessError(fmt::format(
      "[train] {} {} to train otherwise than rank 0: {}; give every process the same setup, batches and data",
      ranks_text(others), others.size() == 1 ? "is" : "are", first_apart(of(others[0]), of(0))));
}

void check_same_start(Transport& processes, const std::vector<ParamSpec>& specs,
                      const std::vector<Array>& params) {
  std::uint64_t hash = fnv1a(std::string_view());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    hash = fnv1a(specs[i].name + to_string(specs[i].shape), hash);
    hash = hash_of(params[i], hash);
  }
  processes.check_same(fmt::format("{:016x}", hash), "parameters to start from");
}

}  // namespace nestgrad

// The published systems, one file each, and those that a program registers.
#include "ttt/learners/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "engine/core/nearest_name.h"

namespace nestgrad::ttt {

namespace {

// Words that a language model's configuration gives another meaning (models/config.h).
constexpr std::string_view kTaken[] = {"linear", "mlp", "attention", "nadaraya-watson", "ttt-e2e"};

bool is_word(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

// Names of the systems that were registered -> where.
std::map<std::string, Loc, std::less<>>& places() {
  static auto& all = *new std::map<std::string, Loc, std::less<>>;
  return all;
}

std::deque<System>& mutable_systems() {
  static auto& all = *new std::deque<System>([] {
    std::deque<System> list;
    const auto add = [&](std::vector<System> more) { std::ranges::move(more, std::back_inserter(list)); };
#define SYSTEM(NAME) add({NAME()});
#define SYSTEMS(NAME) add(NAME());
#include "ttt/learners/catalogue.def"
    return list;
  }());
  return all;
}

}  // namespace

void register_system(System system, Loc loc) {
  if (!is_word(system.name))
    throw ConfigError(fmt::format(
        "[learner] '{}' ({}) is no name for a system; give System::name letters, digits, '-' and '_'",
        system.name, describe(loc)));
  check_complete(system);
  const auto taken = [&](const std::string& by) {
    throw ConfigError(
        fmt::format("[learner] the name of the system '{}' ({}) is taken by {}; give it another", system.name,
                    describe(loc), by));
  };
  if (const auto at = places().find(system.name); at != places().end())
    taken(fmt::format("the one that was registered at {}", describe(at->second)));
  if (std::ranges::find(kTaken, system.name) != std::end(kTaken))
    taken("the configuration of language models (models/config.h)");
  for (const System& s : systems())
    if (s.name == system.name) taken("a published one (ttt/learners/catalogue.def)");
  places().emplace(system.name, loc);
  mutable_systems().push_back(std::move(system));
}

const std::deque<System>& systems() { return mutable_systems(); }

const System& system_named(std::string_view name) {
  std::vector<std::string> known;
  for (const System& s : systems()) {
    if (s.name == name) return s;
    known.push_back(s.name);
  }
  throw ConfigError(fmt::format(
      "[learner] there is no learner '{}'{}; there are {}. One of a program's own is made known by "
      "register_system",
      name, did_you_mean(name, known), fmt::join(known, ", ")));
}

}  // namespace nestgrad::ttt

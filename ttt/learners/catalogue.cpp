// The published systems, one file each.
#include "ttt/learners/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace nestgrad::ttt {

const std::vector<System>& systems() {
  static const std::vector<System> all = [] {
    std::vector<System> list;
    const auto add = [&](std::vector<System> more) { std::ranges::move(more, std::back_inserter(list)); };
#define SYSTEM(NAME) add({NAME()});
#define SYSTEMS(NAME) add(NAME());
#include "ttt/learners/catalogue.def"
    return list;
  }();
  return all;
}

const System& system_named(std::string_view name) {
  std::vector<std::string> known;
  for (const System& s : systems()) {
    if (s.name == name) return s;
    known.push_back(s.name);
  }
  throw ConfigError(
      fmt::format("[learner] there is no learner '{}'; there are {}", name, fmt::join(known, ", ")));
}

}  // namespace nestgrad::ttt

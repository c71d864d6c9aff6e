#include "models/json.h"

#include <fmt/format.h>

#include "engine/io/file.h"

namespace nestgrad {

namespace {
constexpr int kDepthLimit = 16;
struct TooDeep {};  // never leaves this file
}  // namespace

nlohmann::json parse_json(const std::string& text) {
  const auto watch = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kDepthLimit) throw TooDeep();
    return true;
  };
  try {
    return nlohmann::json::parse(text, watch, false);
  } catch (const TooDeep&) {
    return nlohmann::json(nlohmann::json::value_t::discarded);
  }
}

std::string shown(const nlohmann::json& value) { return printable(value.dump()); }

std::string fields_apart(const nlohmann::json& theirs, const nlohmann::json& ours,
                         const std::function<bool(const std::string& name)>& may_differ) {
  std::string out;
  for (const auto& [name, value] : ours.items()) {
    const bool there = theirs.is_object() && theirs.contains(name);
    if ((there && theirs[name] == value) || (may_differ && may_differ(name))) continue;
    out += fmt::format("{}{} = {}, this run has {}", out.empty() ? "" : "; ", name,
                       there ? shown(theirs[name]) : "nothing", value.dump());
  }
  return out;
}

}  // namespace nestgrad

#include "models/json.h"

#include <fmt/format.h>

#include "engine/io/file.h"
#include "engine/io/json_check.h"

namespace nestgrad {

namespace {
constexpr std::size_t kMostOpen = 16;  // objects and arrays, one in the other
}  // namespace

nlohmann::json parse_json(const std::string& text) {
  JsonCheck check(kMostOpen);
  if (text.find('\0') != text.npos || !nlohmann::json::sax_parse(text, &check))
    return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(text, nullptr, false);
}

std::string why_no_object(const std::string& text) {
  if (text.find('\0') != text.npos) return "has a zero byte, which no JSON has";
  JsonCheck check(kMostOpen);
  nlohmann::json::sax_parse(text, &check);
  if (check.twice) return fmt::format("gives the key '{}' twice", printable(*check.twice));
  if (check.too_deep) return fmt::format("has more than {} objects and lists, one in the other", kMostOpen);
  return "is not a JSON object";
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

#include "models/json.h"

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

}  // namespace nestgrad

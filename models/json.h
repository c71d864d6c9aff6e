// JSON that was read from a file, which may hold anything.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace nestgrad {

// Discarded (is_discarded()) if the text is no JSON, has a zero byte, gives a key twice, or nests deeper than anything that we
// write.
nlohmann::json parse_json(const std::string& text);

// Why parse_json() made no object of it, to be read after a name: "is not a JSON object", "gives the key 'a' twice".
std::string why_no_object(const std::string& text);

// A value for one line of an error message.
std::string shown(const nlohmann::json& value);

// The fields of `ours` that `theirs` has not, or otherwise: "lr = 0.1, this run has 0.2; pack = nothing, this run has 1". Empty:
// there is none. Those of which `may_differ` is true are left out.
std::string fields_apart(const nlohmann::json& theirs, const nlohmann::json& ours,
                         const std::function<bool(const std::string& name)>& may_differ = {});

// Is this value of the variable's type? A fraction is no integer.
inline bool fits(const nlohmann::json& json, std::int64_t) {
  return json.is_number_integer() && (!json.is_number_unsigned() || json.get<std::uint64_t>() <= INT64_MAX);
}
inline bool fits(const nlohmann::json& json, double) { return json.is_number(); }
inline bool fits(const nlohmann::json& json, bool) { return json.is_boolean(); }
inline bool fits(const nlohmann::json& json, const std::string&) { return json.is_string(); }

}  // namespace nestgrad

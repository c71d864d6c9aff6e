// A look through a JSON text before it is parsed: how deep it nests, which functions of the library follow by calling themselves, and
// whether an object has a key twice, of which the library would take the last. In one pass; the library's own callbacks would walk
// through all elements of an object at the end of each object in it.
//
//   JsonCheck check(16);
//   if (!nlohmann::json::sax_parse(text, &check)) ..  // no JSON, or check.too_deep, or check.twice
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace nestgrad {

class JsonCheck final : public nlohmann::json::json_sax_t {
 public:
  // Objects and arrays that may be open at once.
  explicit JsonCheck(std::size_t most_open) : most_open_(most_open) {}

  bool too_deep = false;
  std::optional<std::string> twice;  // a key that its object has twice

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    twice = name;
    return false;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool open() {
    keys_.emplace_back();
    too_deep = keys_.size() > most_open_;
    return !too_deep;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::size_t most_open_;
  std::vector<std::unordered_set<std::string>> keys_;  // of each that is open
};

}  // namespace nestgrad

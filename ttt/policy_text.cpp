#include "ttt/policy_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>

#include "engine/core/nearest_name.h"

namespace nestgrad::ttt {

namespace {

using Strings = std::vector<std::string>;

// The parts between these letters; some may be empty.
Strings split(std::string_view text, char at) {
  Strings out{""};
  for (const char c : text) {
    if (c == at) out.emplace_back();
    else out.back() += c;
  }
  return out;
}

[[noreturn]] void refuse(std::string_view key, std::string_view value, std::string_view expected) {
  throw ConfigError(fmt::format("[policy] {}={}: expected {}", key, value, expected));
}

template <class T>
T integer(std::string_view key, std::string_view value) {
  T out = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (error != std::errc() || end != value.data() + value.size() || out < 0)
    refuse(key, value, fmt::format("a whole number from 0 to {}", std::numeric_limits<T>::max()));
  return out;
}

// The place of a value among the names of all.
std::size_t choice(std::string_view key, std::string_view value, const Strings& names) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == value) return i;
  refuse(key, value, fmt::format("{}", fmt::join(names, " or ")));
}

// Names of fast weights.
Strings weights(std::string_view key, std::string_view value) {
  if (value == "all") return {};
  Strings out = split(value, '+');
  if (std::ranges::find(out, "") != out.end())
    refuse(key, value, "names of weights with + between them, or all");
  return out;
}

struct Setting {
  std::string key;
  std::function<void(Policy&, std::string_view value)> set;
  std::function<std::string(const Policy&)> get;
};

template <class T>
Setting number(std::string key, T Policy::*field) {
  return {key, [=](Policy& p, std::string_view v) { p.*field = integer<T>(key, v); },
          [=](const Policy& p) { return fmt::format("{}", p.*field); }};
}
// Names in the order of the values.
template <class T>
Setting one_of(std::string key, T Policy::*field, Strings names) {
  return {key, [=](Policy& p, std::string_view v) { p.*field = static_cast<T>(choice(key, v, names)); },
          [=](const Policy& p) { return names[static_cast<std::size_t>(p.*field)]; }};
}

const std::vector<Setting>& settings() {
  const Strings no_yes{"false", "true"};
  static const auto& all = *new std::vector<Setting>{
      number("chunk", &Policy::chunk),
      one_of("update", &Policy::update, {"per-token", "per-chunk"}),
      one_of("read", &Policy::read, {"after-write", "before-write"}),
      number("steps", &Policy::steps),
      one_of("average", &Policy::average, no_yes),
      one_of("ascent", &Policy::ascent, no_yes),
      one_of("query_is_key", &Policy::query_is_key, no_yes),
      one_of("partial_chunk_writes", &Policy::partial_chunk_writes, no_yes),
      {"trained", [](Policy& p, std::string_view v) { p.trained = weights("trained", v); },
       [](const Policy& p) {
         return p.trained.empty() ? "all" : fmt::format("{}", fmt::join(p.trained, "+"));
       }},
      one_of("meta", &Policy::meta, {"full", "first-order", "truncated"}),
      number("horizon", &Policy::horizon)};
  return all;
}

}  // namespace

Policy overridden(Policy policy, std::string_view text) {
  if (text.empty()) return policy.check(), policy;
  Strings keys, given;
  for (const Setting& s : settings()) keys.push_back(s.key);
  for (const std::string& each : split(text, ',')) {
    const std::size_t equals = each.find('=');
    const std::string key = each.substr(0, equals);
    if (each.empty())
      throw ConfigError(
          fmt::format("[policy] '{}' has nothing beside a comma; write KEY=VALUE,KEY=VALUE", text));
    const auto setting = std::ranges::find_if(settings(), [&](const Setting& s) { return s.key == key; });
    if (setting == settings().end())
      throw ConfigError(fmt::format("[policy] there is no setting '{}'{}; there are {}", key,
                                    did_you_mean(key, keys), fmt::join(keys, ", ")));
    if (equals == each.npos)
      throw ConfigError(fmt::format("[policy] '{}' has no value; write {}=VALUE", key, key));
    if (std::ranges::find(given, key) != given.end())
      throw ConfigError(fmt::format("[policy] '{}' is given twice; give one value", key));
    given.push_back(key);
    setting->set(policy, std::string_view(each).substr(equals + 1));
  }
  policy.check();
  return policy;
}

std::string settings_of(const Policy& policy) {
  Strings out;
  for (const Setting& s : settings()) out.push_back(s.key + "=" + s.get(policy));
  return fmt::format("{}", fmt::join(out, ","));
}

}  // namespace nestgrad::ttt

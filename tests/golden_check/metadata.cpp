#include "tests/golden_check/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "engine/core/error.h"

namespace nestgrad {

namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

// "[0, 12]" -> 0, 12
std::optional<std::pair<std::int64_t, std::int64_t>> two_integers(std::string_view text) {
  text = trimmed(text);
  const bool square = text.starts_with('[') && text.ends_with(']'),
             round = text.starts_with('(') && text.ends_with(')');
  const std::size_t comma = text.find(',');
  if (!(square || round) || comma == text.npos) return std::nullopt;
  std::int64_t out[2]{};
  const std::string_view parts[2] = {trimmed(text.substr(1, comma - 1)),
                                     trimmed(text.substr(comma + 1, text.size() - comma - 2))};
  for (int i = 0; i < 2; ++i) {
    const char* last = parts[i].data() + parts[i].size();
    const auto [end, error] = std::from_chars(parts[i].data(), last, out[i]);
    if (error != std::errc() || end != last) return std::nullopt;
  }
  return std::pair{out[0], out[1]};
}

}  // namespace

bool GoldenMetadata::says(const std::string& key) const {
  const auto at = metadata.find(key);
  return at != metadata.end() && at->second != "None";
}

const std::string& GoldenMetadata::text(const std::string& key) const {
  if (!says(key))
    throw IoError(fmt::format("{}: its metadata has no '{}', which files of this kind have", path, key));
  return metadata.at(key);
}

std::int64_t GoldenMetadata::integer(const std::string& key, std::int64_t least, std::int64_t most) const {
  const std::string& written = text(key);
  std::int64_t value = 0;
  const char* last = written.data() + written.size();
  const auto [end, error] = std::from_chars(written.data(), last, value);
  if (error == std::errc::invalid_argument || end != last)
    throw IoError(fmt::format("{}: '{}' in the metadata is '{}', not an integer", path, key, written));
  if (error != std::errc() || value < least || value > most)
    throw IoError(fmt::format("{}: '{}' in the metadata is {}, it must be at least {} and at most {}", path,
                              key, written, least, most));
  return value;
}

double GoldenMetadata::number(const std::string& key, double least) const {
  const std::string& written = text(key);
  double value = 0;
  const char* last = written.data() + written.size();
  const auto [end, error] = std::from_chars(written.data(), last, value);
  if (error != std::errc() || end != last || !std::isfinite(value))
    throw IoError(fmt::format("{}: '{}' in the metadata is '{}', not a number", path, key, written));
  if (value < least)
    throw IoError(
        fmt::format("{}: '{}' in the metadata is {}, it must be at least {}", path, key, written, least));
  return value;
}

bool GoldenMetadata::flag(const std::string& key) const {
  const std::string& value = text(key);
  if (value == "True" || value == "true" || value == "1") return true;
  if (value == "False" || value == "false" || value == "0") return false;
  throw IoError(fmt::format("{}: '{}' in the metadata is '{}', not True or False", path, key, value));
}

std::pair<std::int64_t, std::int64_t> GoldenMetadata::range(const std::string& key,
                                                            std::int64_t count) const {
  const std::string& written = text(key);
  const auto ends = two_integers(written);
  if (!ends)
    throw IoError(fmt::format("{}: '{}' in the metadata is '{}', not [begin, end]", path, key, written));
  if (ends->first < 0 || ends->second <= ends->first || ends->second > count)
    throw IoError(fmt::format(
        "{}: '{}' in the metadata is '{}'; it must be [begin, end] with 0 <= begin < end <= {}, the number of tokens",
        path, key, written, count));
  return *ends;
}

void GoldenMetadata::only(const std::string& key, const std::vector<std::string>& known) const {
  if (std::ranges::count(known, text(key)) > 0) return;
  throw IoError(fmt::format("{}: '{}' in the metadata is '{}'; only '{}' can be checked", path, key,
                            text(key), fmt::join(known, "' and '")));
}

}  // namespace nestgrad

// What tests ask of pictures and pages: of their text, which is SVG and HTML.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/error.h"
#include "look/report.h"
#include "tests/special_numbers.h"
#include "tests/testing.h"

namespace nestgrad::testing {

// The path data of the last line drawn: legend swatches come before the lines.
inline std::string last_path(const std::string& picture) {
  const std::size_t end = picture.rfind("\"><title>");
  const std::size_t start = picture.rfind("d=\"", end) + 3;
  return picture.substr(start, end - start);
}

// True when every start tag has its end tag, in order: what an XML reader needs besides escaped text.
inline bool tags_match(std::string_view text) {
  std::vector<std::string> open;
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    if (text.substr(at).starts_with("<!DOCTYPE")) continue;
    const std::size_t end = text.find('>', at);
    if (end == std::string_view::npos) return false;
    const std::string_view tag = text.substr(at + 1, end - at - 1);
    if (tag.ends_with('/')) continue;
    if (!tag.starts_with('/')) {
      open.emplace_back(tag.substr(0, tag.find(' ')));
      continue;
    }
    if (open.empty() || open.back() != tag.substr(1)) return false;
    open.pop_back();
  }
  return open.empty();
}

}  // namespace nestgrad::testing

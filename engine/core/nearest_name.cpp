#include "engine/core/nearest_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace nestgrad {

namespace {

// Levenshtein's distance, one row of the table at a time.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  std::string best;
  for (const std::string& each : known)
    if (const std::size_t n = edits(name, each); n < least && n < each.size()) least = n, best = each;
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> known) {
  const std::string best = nearest_name(name, known);
  return best.empty() ? "" : fmt::format("; did you mean '{}'?", best);
}

}  // namespace nestgrad

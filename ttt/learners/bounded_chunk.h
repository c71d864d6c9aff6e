// For a learner that bounds what the tokens of a chunk do together, by rates that are less the more of them there are.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "ttt/system.h"

namespace nestgrad::ttt {

// For System::why_not.
inline std::string why_not_of_any_length(const Policy& policy) {
  if (policy.chunk != Policy::kWholeSequence) return {};
  return "the rates of a chunk's tokens are bounded together, and one chunk of the whole sequence has any number of them; give "
         "the number, chunk=N";
}

// ConfigError where a chunk is the whole sequence.
inline std::int64_t bounded_chunk(std::string_view system, const SystemSizes& sizes) {
  const std::string why = why_not_of_any_length({.chunk = sizes.chunk});
  if (!why.empty()) throw ConfigError(fmt::format("[{}] {}", system, why));
  return sizes.chunk;
}

}  // namespace nestgrad::ttt

#include "ttt/policy.h"

#include <fmt/format.h>

namespace nestgrad::ttt {

void Policy::check() const {
  const auto refuse = [](const std::string& why) { throw ConfigError("[policy] " + why); };
  if (chunk < 0)
    refuse(fmt::format("the chunk must have at least 1 token (0: the whole sequence), it has {}", chunk));
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 47;  // more than any memory holds
  if (chunk > kMostTokens)
    refuse(fmt::format("the chunk has at most {} tokens (0: the whole sequence), it is to have {}",
                       kMostTokens, chunk));
  if (steps < 1) refuse(fmt::format("there must be at least 1 step a chunk, there are {}", steps));
  if (horizon < 1) refuse(fmt::format("the horizon must be at least 1 chunk, it is {}", horizon));
  if (update == Update::per_token && steps > 1)
    refuse("several steps a chunk need update = per_chunk: a token's own step happens once");
  if (update == Update::per_token && average)
    refuse("average is for update = per_chunk: a token's own gradient is no mean");
}

std::string Policy::str() const {
  std::string out = chunk == kWholeSequence ? "whole sequence"
                    : chunk == 1            ? "online"
                                            : fmt::format("chunks of {}", chunk);
  out += update == Update::per_token ? ", a step per token"
         : steps == 1                ? ", a step per chunk"
                                     : fmt::format(", {} steps per chunk", steps);
  out += read == Read::after_write ? ", read after write" : ", read before write";
  if (average) out += ", mean gradient";
  if (ascent) out += ", ascent";
  if (query_is_key) out += ", query = key";
  if (!trained.empty()) out += fmt::format(", only {} learns", fmt::join(trained, ", "));
  if (!partial_chunk_writes) out += ", a partial chunk only reads";
  if (carry) out += ", carried between sequences";
  if (meta == Meta::first_order) out += ", first-order meta-gradient";
  if (meta == Meta::truncated) out += fmt::format(", meta-gradient cut every {} chunks", horizon);
  return out;
}

}  // namespace nestgrad::ttt

// Episodes of recall: pairs of a key and its value, one after the other, then all keys once more in another order. For
// example of two pairs, k and v being bytes:  k1 v1 k2 v2 | k2 k1, whose answers are v2 and v1.
#pragma once

#include <cstdint>

#include "engine/core/array.h"

namespace nestgrad::reproduce {

inline constexpr std::int64_t kKeys = 128;  // bytes below it are keys, all others values
inline constexpr std::int64_t kBytes = 256;

struct Episodes {
  Array tokens;   // i32 [episodes, 3 pairs]
  Array answers;  // i32 [episodes, pairs], of the last third
};

// Keys of an episode are different, values are drawn each by itself. Episode e of batch b depends on seed, pairs, b and e
// alone. pairs: at most kKeys.
Episodes recall_episodes(std::int64_t episodes, std::int64_t pairs, std::uint64_t batch, std::uint64_t seed);

}  // namespace nestgrad::reproduce

#include "reproduce/experiments/recall_episodes.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/random.h"

namespace nestgrad::reproduce {

namespace {

constexpr std::uint64_t kStream = 0x72656361ull << 32;  // "reca": apart from those of parameters

// Random numbers of one episode, in their order.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t episode) : seed_(seed), stream_(kStream + episode) {}
  std::int64_t below(std::int64_t n) {
    return random_below(static_cast<std::uint32_t>(n), seed_, stream_, at_++);
  }

 private:
  std::uint64_t seed_, stream_, at_ = 0;
};

// The first `count` of a random order of 0 .. n-1.
std::vector<std::int64_t> random_order(std::int64_t n, std::int64_t count, Draws& draws) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  for (std::int64_t i = 0; i < count; ++i)
    std::swap(out[static_cast<std::size_t>(i)], out[static_cast<std::size_t>(i + draws.below(n - i))]);
  out.resize(static_cast<std::size_t>(count));
  return out;
}

}  // namespace

Episodes recall_episodes(std::int64_t episodes, std::int64_t pairs, std::uint64_t batch, std::uint64_t seed) {
  if (pairs < 1 || pairs > kKeys || episodes < 1)
    throw ConfigError(
        fmt::format("[recall] {} episodes of {} pairs; there are {} keys", episodes, pairs, kKeys));
  Episodes out{Array(DType::i32, {episodes, 3 * pairs}), Array(DType::i32, {episodes, pairs})};
  std::int32_t *token = out.tokens.as<std::int32_t>().data(), *answer = out.answers.as<std::int32_t>().data();
  const auto number = static_cast<std::uint64_t>(pairs) << 24;  // batches of other sizes are other episodes
  for (std::int64_t e = 0; e < episodes; ++e) {
    Draws draws(seed, ((number + batch) << 12) + static_cast<std::uint64_t>(e));
    const std::vector<std::int64_t> keys = random_order(kKeys, pairs, draws);
    std::vector<std::int64_t> values;
    for (const std::int64_t key : keys) {
      values.push_back(kKeys + draws.below(kBytes - kKeys));
      *token++ = static_cast<std::int32_t>(key), *token++ = static_cast<std::int32_t>(values.back());
    }
    for (const std::int64_t asked : random_order(pairs, pairs, draws)) {
      *token++ = static_cast<std::int32_t>(keys[static_cast<std::size_t>(asked)]);
      *answer++ = static_cast<std::int32_t>(values[static_cast<std::size_t>(asked)]);
    }
  }
  return out;
}

}  // namespace nestgrad::reproduce

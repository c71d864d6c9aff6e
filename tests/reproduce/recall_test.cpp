// The promise: an episode of recall asks for what it has shown.
#include <doctest/doctest.h>

#include <map>

#include "engine/core/error.h"
#include "reproduce/experiments/recall_episodes.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;
using namespace nestgrad::testing;

TEST_CASE("recall: keys are different, every one is asked once, and its answer is its value") {
  constexpr std::int64_t episodes = 20, pairs = 16;
  const Episodes e = recall_episodes(episodes, pairs, 3, 7);
  const auto tokens = e.tokens.as<std::int32_t>(), answers = e.answers.as<std::int32_t>();
  bool in_order = true;
  for (std::size_t i = 0; i < episodes; ++i) {
    std::map<std::int32_t, std::int32_t> shown, asked;
    for (std::size_t p = 0; p < pairs; ++p) {
      const std::size_t at = i * 3 * pairs;
      const std::int32_t key = tokens[at + 2 * p], value = tokens[at + 2 * p + 1];
      CHECK(key >= 0);
      CHECK(key < kKeys);
      CHECK(value >= kKeys);
      CHECK(value < kBytes);
      shown[key] = value;
      asked[tokens[at + 2 * pairs + p]] = answers[i * pairs + p];
      in_order = in_order && tokens[at + 2 * pairs + p] == key;
    }
    CHECK(shown.size() == pairs);
    CHECK(asked == shown);
  }
  CHECK_FALSE(in_order);
  CHECK(recall_episodes(episodes, pairs, 3, 7).tokens.same_bits(e.tokens));
  CHECK_FALSE(recall_episodes(episodes, pairs, 4, 7).tokens.same_bits(e.tokens));
  CHECK_FALSE(recall_episodes(episodes, pairs, 3, 8).tokens.same_bits(e.tokens));
  CHECK(contains(message_of<ConfigError>([] { recall_episodes(1, kKeys + 1, 0, 0); }), "there are 128 keys"));
}

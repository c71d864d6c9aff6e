#include "reproduce/experiments/rotation_characters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>

#include "engine/core/index.h"
#include "engine/core/random.h"
#include "engine/io/file.h"
#include "models/images/invented.h"
#include "models/images/resized.h"
#include "reproduce/image_runs.h"

namespace nestgrad::reproduce {

namespace {

constexpr std::uint64_t kAlphabetSeed = 0x7475726e, kOrder = 1, kClass = 2, kHand = 3;
constexpr std::uint64_t kHeldOutHands = 1 << 19;  // from here on; those before are trained on

LabelledImages none(std::int64_t count) {
  constexpr std::int64_t side = TurnableCharacters::kSide;
  return {Array(DType::f32, {count, side, side, 1}), Array(DType::i32, {count}), {}};
}

// image becomes number i of `all`.
void put(const Array& image, std::int64_t label, std::int64_t i, LabelledImages& all) {
  std::ranges::copy(image.as<float>(),
                    all.images.as<float>().begin() + static_cast<std::ptrdiff_t>(i * image.size()));
  all.labels.as<std::int32_t>()[uz(i)] = static_cast<std::int32_t>(label);
}

}  // namespace

TurnableCharacters::TurnableCharacters(const std::string& path) {
  if (path.empty()) return;
  const LabelledImages all = grey_folder(path);
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(fmt::format("[reproduce] {} {}", printable(path), what));
  };
  if (std::ssize(all.classes) < kClasses)
    refuse(fmt::format("has {} characters; this experiment wants {} at least", all.classes.size(), kClasses));
  std::vector<std::uint32_t> order(all.classes.size());
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i], order[random_below(static_cast<std::uint32_t>(i + 1), kAlphabetSeed, kOrder, i)]);
  for (std::int64_t c = 0; c < kClasses; ++c) {
    std::vector<Array> images;
    for (std::int64_t i = 0; i < all.labels.size(); ++i) {
      if (all.labels.at(i) != order[uz(c)]) continue;
      Array image = resized(image_of(all.images, i), kSide, kSide);
      for (float& pixel : image.as<float>()) pixel = 1 - pixel;  // black on white becomes white on black
      images.push_back(std::move(image));
    }
    if (images.size() < 5)
      refuse(fmt::format("has {} images of '{}'; this experiment wants five at least", images.size(),
                         printable(all.classes[order[uz(c)]])));
    const auto kept = images.end() - static_cast<std::ptrdiff_t>(images.size() / 5);
    training_.emplace_back(images.begin(), kept);
    held_out_.emplace_back(kept, images.end());
  }
}

const TurnableCharacters& TurnableCharacters::of(const Settings& settings) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const TurnableCharacters>> known;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const TurnableCharacters>& out = known[settings.data];
  if (!out) out.reset(new TurnableCharacters(settings.data));
  return *out;
}

LabelledImages TurnableCharacters::training(std::int64_t step, std::int64_t batch, std::uint64_t seed) const {
  LabelledImages out = none(batch);
  for (std::int64_t i = 0; i < batch; ++i) {
    const auto number = static_cast<std::uint64_t>(step * batch + i);
    const std::uint32_t c = random_below(kClasses, seed, kClass, number);
    if (training_.empty()) {
      put(invented(kAlphabetSeed, c, random_below(kHeldOutHands, seed, kHand, number), kSide), c, i, out);
    } else {
      const auto known = static_cast<std::uint32_t>(training_[c].size());
      put(training_[c][random_below(known, seed, kHand, number)], c, i, out);
    }
  }
  return out;
}

LabelledImages TurnableCharacters::held_out(std::int64_t first, std::int64_t count) const {
  LabelledImages out = none(count);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t number = first + i, c = number % kClasses, turn = number / kClasses;
    if (held_out_.empty())
      put(invented(kAlphabetSeed, static_cast<std::uint64_t>(c),
                   kHeldOutHands + static_cast<std::uint64_t>(turn), kSide),
          c, i, out);
    else put(held_out_[uz(c)][uz(turn) % held_out_[uz(c)].size()], c, i, out);
  }
  return out;
}

}  // namespace nestgrad::reproduce

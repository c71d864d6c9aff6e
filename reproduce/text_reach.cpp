#include "reproduce/text_reach.h"

#include <unordered_map>

#include "ops/numerics/functions.h"

namespace nestgrad::reproduce {

namespace {

constexpr double kCacheWeight = 16, kPrior = 4;

// Of the n bytes before text[at], and of these with text[at] behind them: n + 1 bytes fit a number.
std::uint64_t behind(std::span<const std::uint8_t> text, std::size_t at, int n) {
  std::uint64_t out = 0;
  for (int i = n; i > 0; --i) out = out << 8 | text[at - static_cast<std::size_t>(i)];
  return out;
}

}  // namespace

// How often each n bytes were seen, and each byte behind them.
struct CacheModel::Counts {
  std::unordered_map<std::uint64_t, std::int32_t> all, each;

  void add(std::span<const std::uint8_t> text, std::size_t at, int n, std::int32_t count) {
    if (at < static_cast<std::size_t>(n)) return;
    const std::uint64_t before = behind(text, at, n);
    all[before] += count;
    each[before << 8 | text[at]] += count;
  }
  static std::int32_t of(const std::unordered_map<std::uint64_t, std::int32_t>& counts, std::uint64_t key) {
    const auto found = counts.find(key);
    return found == counts.end() ? 0 : found->second;
  }
};

CacheModel::CacheModel(std::span<const std::uint8_t> training) : training_(kOrders) {
  for (std::size_t at = 0; at < training.size(); ++at)
    for (int n = 0; n < kOrders; ++n) training_[static_cast<std::size_t>(n)].add(training, at, n, 1);
}

CacheModel::~CacheModel() = default;

double CacheModel::loss(std::span<const std::uint8_t> text, std::size_t from, std::size_t memory) const {
  std::vector<Counts> cache(kOrders);
  double sum = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (at >= from) {
      double p = 1.0 / 256;
      for (int n = 0; n < kOrders && at >= static_cast<std::size_t>(n); ++n) {
        const std::uint64_t before = behind(text, at, n), with = before << 8 | text[at];
        const auto count = [&](const Counts& c, bool whole) {
          return static_cast<double>(whole ? Counts::of(c.all, before) : Counts::of(c.each, with));
        };
        const Counts &known = training_[static_cast<std::size_t>(n)],
                     &now = cache[static_cast<std::size_t>(n)];
        p = (count(known, false) + kCacheWeight * count(now, false) + kPrior * p) /
            (count(known, true) + kCacheWeight * count(now, true) + kPrior);
      }
      sum -= m::log(p);
    }
    for (int n = 0; n < kOrders; ++n) {
      Counts& c = cache[static_cast<std::size_t>(n)];
      c.add(text, at, n, 1);
      if (at >= memory) c.add(text, at - memory, n, -1);
    }
  }
  return sum / static_cast<double>(text.size() - from);
}

}  // namespace nestgrad::reproduce

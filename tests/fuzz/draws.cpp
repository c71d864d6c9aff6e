#include "tests/fuzz/draws.h"

#include <algorithm>

namespace nestgrad::fuzz {

namespace {

// SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

int Draws::below(int n) {
  if (n <= 1) return 0;  // no choice, no draw
  if (at_ == drawn_.size()) {
    // In f64, so that the number is spread alike for every n; past the end of a replay it is 0.
    const double unit = replays_ ? 0.0 : static_cast<double>(next_random(state_) >> 11) * 0x1p-53;
    drawn_.push_back(static_cast<std::uint32_t>(unit * n));
  }
  drawn_[at_] = std::min(drawn_[at_], static_cast<std::uint32_t>(n - 1));
  return static_cast<int>(drawn_[at_++]);
}

}  // namespace nestgrad::fuzz

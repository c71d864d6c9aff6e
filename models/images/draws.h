// Random numbers of one image: the k-th is a function of (seed, purpose, index, k) alone, so that an image is the same
// whichever others are drawn, and in which order.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/core/random.h"
#include "engine/core/random_fill.h"

namespace nestgrad::detail {

// One thread at a time. Not twice among the arguments of one call: their order is not defined (in braces it is).
// Philox4x32-10 (engine/core/random.h) with the counter {k / 2, index, purpose} and the seed as key; two words for each
// number.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint32_t purpose, std::uint64_t index)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        counter_{0, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), purpose} {}

  double unit() {  // in [0, 1)
    if (at_ == 4) {
      philox4x32(counter_, key_, words_);
      ++counter_[0];
      at_ = 0;
    }
    at_ += 2;
    return unit_f64(words_[at_ - 2], words_[at_ - 1]);
  }
  double between(double low, double high) { return low + (high - low) * unit(); }
  double around(double width) { return between(-width, width); }
  int below(int n) { return static_cast<int>(unit() * n); }  // 0 to n - 1
  double normal() {                                          // standard
    const double radius = std::sqrt(-2 * log_of(1 - unit()));
    double cosine, sine;
    cos_sin_of_turns(unit(), cosine, sine);
    return radius * cosine;
  }

 private:
  std::uint32_t key_[2], counter_[4], words_[4] = {};
  int at_ = 4;
};

}  // namespace nestgrad::detail

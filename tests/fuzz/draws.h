// Draws: the choices that a random case is made of. See campaign.h.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace nestgrad::fuzz {

// What a check throws when the library is wrong: what was compared, and by how much it differs.
class Finding : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The choices of one case. One thread at a time.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  // These numbers again; past the last one every draw is 0.
  explicit Draws(std::vector<std::uint32_t> replayed) : drawn_(std::move(replayed)), replays_(true) {}

  int below(int n);  // 0 .. n - 1
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int n) { return below(n) == n - 1; }  // true with probability 1/n
  template <class T>
  const T& of(const std::vector<T>& choices) {  // the first is the simplest
    return choices[static_cast<std::size_t>(below(static_cast<int>(choices.size())))];
  }
  std::uint64_t seed() { return static_cast<std::uint64_t>(below(1 << 20)); }  // of random numbers

  // A line for people about the case: printed if it fails. Example: draws.say("chunks of 4, 11 tokens").
  void say(std::string line) { said_.push_back(std::move(line)); }

  const std::vector<std::uint32_t>& drawn() const { return drawn_; }
  std::size_t used() const { return at_; }
  const std::vector<std::string>& said() const { return said_; }

 private:
  std::uint64_t state_ = 0;
  std::vector<std::uint32_t> drawn_;
  std::size_t at_ = 0;
  bool replays_ = false;
  std::vector<std::string> said_;
};

}  // namespace nestgrad::fuzz

// How far back a text's bytes depend on others: what a reader gains that remembers more of it. To be measured before any
// model is asked whether it uses a long context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nestgrad::reproduce {

// A cache model: counts of what followed the last 0 to 5 bytes, in a training text and, with more weight, in the last
// `memory` bytes of the text that is read; each order falls back on the one below it by a Dirichlet prior.
//
//   p_n(b) = (c_n(b) + kCacheWeight m_n(b) + kPrior p_{n-1}(b)) / (c_n + kCacheWeight m_n + kPrior)
//
// c: counts of the training text behind these n bytes, m: of the memory, p_{-1}(b) = 1/256.
class CacheModel {
 public:
  static constexpr int kOrders = 6;  // 0 to 5 bytes
  explicit CacheModel(std::span<const std::uint8_t> training);
  ~CacheModel();
  CacheModel(const CacheModel&) = delete;
  CacheModel& operator=(const CacheModel&) = delete;

  // The mean loss, in nats, of text[from..], every byte given those before it, of which the last `memory` are remembered.
  double loss(std::span<const std::uint8_t> text, std::size_t from, std::size_t memory) const;

 private:
  struct Counts;
  std::vector<Counts> training_;  // one for each order
};

}  // namespace nestgrad::reproduce

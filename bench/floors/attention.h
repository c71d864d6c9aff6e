// Causal softmax attention, in blocks of 64 queries and 64 keys that never leave the first-level cache.
//
//   forward   P = exp(q k' / 8 - top), output = P v / sum P: per block of queries a walk over the blocks of keys,
//             with the largest score so far (top), the sum and the output so far; a new top scales both down.
//             Kept is log_sum = top + log(sum P).
//   backward  P = exp(q k' / 8 - log_sum), dv = P' d, dS = P (d v' - d . output), dq = dS k / 8, dk = dS' q / 8,
//             where d is the cotangent.
#pragma once

#include <algorithm>
#include <vector>

#include "bench/floors/floor.h"
#include "bench/floors/products.h"

namespace nestgrad::floors {

template <class T>
class Attention : public Floor {
 public:
  Attention(const Sizes& sizes, Arrays inputs)
      : Floor(sizes, std::move(inputs)),
        kt_(blocks()),
        vt_(blocks()),
        log_sums_(static_cast<std::size_t>(sizes.time)) {
    if (sizes.time % kBlock != 0)
      throw ConfigError(
          fmt::format("[floors] {} tokens; this program is written for multiples of {}", sizes.time, kBlock));
    const Shape shape{sizes.batch, sizes.heads, sizes.time, kDim};
    q_ = reinterpret_cast<Rows<const T>>(input<T>("q", shape));
    k_ = reinterpret_cast<Rows<const T>>(input<T>("k", shape));
    v_ = reinterpret_cast<Rows<const T>>(input<T>("v", shape));
    output_ = reinterpret_cast<Rows<T>>(output<T>("output", shape));
    if (!sizes.backward) return;
    cotangent_ = reinterpret_cast<Rows<const T>>(input<T>("cotangent", shape));
    dq_ = reinterpret_cast<Rows<T>>(gradient<T>("q"));
    dk_ = reinterpret_cast<Rows<T>>(gradient<T>("k"));
    dv_ = reinterpret_cast<Rows<T>>(gradient<T>("v"));
  }

  void run() override {
    if (sizes_.backward) {
      clear("grad.k");
      clear("grad.v");
    }
    for (std::int64_t first = 0; first < sizes_.batch * sizes_.heads * sizes_.time; first += sizes_.time) {
      for (std::int64_t b = 0; b < sizes_.time; b += kBlock)
        transpose<kBlock>(k_ + first + b, kt_[index(b)].at);
      for (std::int64_t b = 0; b < sizes_.time; b += kBlock) forward(first, b);
      if (!sizes_.backward) continue;
      for (std::int64_t b = 0; b < sizes_.time; b += kBlock)
        transpose<kBlock>(v_ + first + b, vt_[index(b)].at);
      for (std::int64_t b = 0; b < sizes_.time; b += kBlock) backward(first, b);
    }
  }

 private:
  static constexpr int kBlock = 64;
  static_assert(kBlock == kDim);         // rows of scores are Rows as well
  static constexpr T kScale = T{1} / 8;  // 1 / sqrt(dim)
  static constexpr T kNever = T{-1e30};  // a score that adds nothing
  struct alignas(64) Block {
    T at[kBlock][kDim];
  };

  std::size_t blocks() const { return static_cast<std::size_t>(sizes_.time / kBlock); }
  static std::size_t index(std::int64_t token) { return static_cast<std::size_t>(token / kBlock); }

  static void scaled(Rows<const T> from, Block& to) {
    for (int i = 0; i < kBlock; ++i) store(to.at[i], kScale * row(from[i]));
  }
  // The block on the diagonal: queries do not see later keys.
  static void mask(Block& scores) {
    for (int i = 0; i < kBlock; ++i) std::fill(scores.at[i] + i + 1, scores.at[i] + kBlock, kNever);
  }

  // A row of scores becomes exp(score - top).
  static void weigh(T* scores, T* output, T& top, T& total) {
    const Row<T> s = row(scores);
    Vec<T> highest = s.part[0];
#pragma GCC unroll 16
    for (int j = 1; j < Row<T>::size; ++j) highest = larger<T>(highest, s.part[j]);
    const T now = std::max(top, largest<T>(highest)), keep = std::exp(top - now);
    Vec<T> sums{};
#pragma GCC unroll 16
    for (int j = 0; j < Row<T>::size; ++j) {
      const Vec<T> p = exp<T>(s.part[j] - now);
      store<T>(scores + j * lanes<T>, p);
      sums += p;
    }
    total = total * keep + sum<T>(sums);
    if (now != top) store(output, keep * row(output));
    top = now;
  }

  // One block of queries; `first` is where its sequence begins.
  void forward(std::int64_t first, std::int64_t queries) {
    Block q, scores, out{};
    T top[kBlock], total[kBlock] = {};
    std::fill(top, top + kBlock, kNever);
    scaled(q_ + first + queries, q);
    for (std::int64_t keys = 0; keys <= queries; keys += kBlock) {
      product<kBlock>(scores.at, zero, times(q.at, kt_[index(keys)].at));
      if (keys == queries) mask(scores);
      for (int i = 0; i < kBlock; ++i) weigh(scores.at[i], out.at[i], top[i], total[i]);
      product<kBlock>(out.at, from(out.at), times(scores.at, v_ + first + keys));
    }
    for (int i = 0; i < kBlock; ++i) {
      log_sums_[static_cast<std::size_t>(queries + i)] = top[i] + std::log(total[i]);
      store(output_[first + queries + i], T{1} / total[i] * row(out.at[i]));
    }
  }

  // scores become P, dscores (d v' so far) dS.
  void weigh_back(Block& scores, Block& dscores, std::int64_t queries, const T (&d_output)[kBlock]) const {
    for (int i = 0; i < kBlock; ++i) {
      const T log_sum = log_sums_[static_cast<std::size_t>(queries + i)];
#pragma GCC unroll 16
      for (int j = 0; j < kBlock; j += lanes<T>) {
        const Vec<T> p = exp<T>(load(&scores.at[i][j]) - log_sum);
        store<T>(&scores.at[i][j], p);
        store<T>(&dscores.at[i][j], p * (load(&dscores.at[i][j]) - d_output[i]));
      }
    }
  }

  void backward(std::int64_t first, std::int64_t queries) {
    Block q, scores, dscores, dq{};
    T d_output[kBlock];  // d . output
    const auto d = cotangent_ + first + queries;
    scaled(q_ + first + queries, q);
    for (int i = 0; i < kBlock; ++i) d_output[i] = dot(row(d[i]), row(output_[first + queries + i]));
    for (std::int64_t keys = 0; keys <= queries; keys += kBlock) {
      const auto dk = dk_ + first + keys, dv = dv_ + first + keys;
      product<kBlock>(scores.at, zero, times(q.at, kt_[index(keys)].at));
      product<kBlock>(dscores.at, zero, times(d, vt_[index(keys)].at));
      if (keys == queries) mask(scores);
      weigh_back(scores, dscores, queries, d_output);
      product<kBlock>(dv, from(dv), transposed_times<kBlock>(scores.at, d));
      product<kBlock>(dk, from(dk), transposed_times<kBlock>(dscores.at, q.at));
      product<kBlock>(dq.at, from(dq.at), times(dscores.at, k_ + first + keys));
    }
    scaled(dq.at, q);
    for (int i = 0; i < kBlock; ++i) store(dq_[first + queries + i], row(q.at[i]));
  }

  Rows<const T> q_ = nullptr, k_ = nullptr, v_ = nullptr, cotangent_ = nullptr;
  Rows<T> output_ = nullptr, dq_ = nullptr, dk_ = nullptr, dv_ = nullptr;
  std::vector<Block> kt_, vt_;  // k', v' of a sequence, block by block
  std::vector<T> log_sums_;
};

}  // namespace nestgrad::floors

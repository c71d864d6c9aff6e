// Causal softmax attention of one head, forward and backward, by tiles of 64 queries x 64 keys whose scores
// stay in the first-level cache: the kernels, one set of them for every instruction set. Who calls them shares
// blocks and heads among threads (ttt/causal_attention.cpp).
#pragma once

#include <cstdint>

#include "ops/numerics/isa.h"

namespace nestgrad {

// Queries, and keys, of a tile.
constexpr std::int64_t kAttentionBlock = 64;

// Of one head: q and k [time, dim], v [time, out], y and ct [time, out + 2], dense and row-major. A query reads
// its own key and those before it; of them the last `window`, 0: all.
struct AttentionSizes {
  std::int64_t time, dim, out, window;

  std::int64_t row() const { return out + 2; }  // of y
  std::int64_t blocks() const { return (time + kAttentionBlock - 1) / kAttentionBlock; }
  // The first block of keys that a block of queries reads, and the last block of queries that reads a block
  // of keys.
  std::int64_t first_keys(std::int64_t queries) const {
    const std::int64_t first = queries * kAttentionBlock - window + 1;
    return window == 0 || first < 0 ? 0 : first / kAttentionBlock;
  }
  std::int64_t last_queries(std::int64_t keys) const {
    const std::int64_t last = (keys + 1) * kAttentionBlock - 1 + window - 1;
    return window == 0 || last >= time ? blocks() - 1 : last / kAttentionBlock;
  }
  // Do queries of block `queries` read keys of the blocks before `keys`?
  bool reads_before(std::int64_t queries, std::int64_t keys) const { return first_keys(queries) < keys; }
  // Elements of memory that a kernel works in.
  std::int64_t scratch() const {
    constexpr std::int64_t kSpare = 64;  // a register of the smallest elements, for each of the tiles
    return kAttentionBlock * (4 * kAttentionBlock + 4 * (dim + kSpare) + 4 * (out + kSpare)) + 3 * time;
  }
};

// Of one head and the keys of the blocks begin .. end: operands, and where their cotangents go.
template <class T>
struct AttentionBackward {
  const T *q, *k, *v, *y, *ct;
  std::int64_t begin, end;
  // The cotangent of q: of blocks of queries that read no keys before these, rows of dq, [time, dim]; of the
  // others rows of `dq_own`, dense, whose first is that of the first of these keys. Rows that read none of these
  // keys are left alone.
  T *dq, *dq_own;
  // Those of k and v, side by side: [time, dim + out].
  T* dkv;
  std::int64_t d_row;  // elements from one row of dq and of dkv to the next
  bool add;            // to what stands in dkv
};

// Pure functions. `scratch` is best at the begin of a cache line.
template <class T>
struct AttentionKernel {
  // The rows of y of one block of queries: softmax(q k') v, and behind it the logarithm of the sum of the
  // exponentials of the scores, and what rounding took from that. By blocks of keys, in ascending order, with
  // the largest score and the sum of exponentials so far; what was added up is scaled where the largest score grows.
  void (*forward)(const AttentionSizes& sizes, const T* q, const T* k, const T* v, T* y, std::int64_t queries,
                  T* scratch);
  // Cotangents of q, k and v from that of y: by blocks of keys, and of queries that read them, both in
  // ascending order.
  void (*backward)(const AttentionSizes& sizes, const AttentionBackward<T>& head, T* scratch);
};

inline namespace NESTGRAD_ISA {
extern const AttentionKernel<float> attention_f32;
extern const AttentionKernel<double> attention_f64;
}  // namespace NESTGRAD_ISA

}  // namespace nestgrad

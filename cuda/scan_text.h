// A scan over independent slices as a text that a block of threads reads (cuda/scan.cu): where its values
// are, step by step (engine/plan/step_table.h), and its body, op after op.
#pragma once

#include <algorithm>

#include "cuda/batch.h"
#include "cuda/cluster_text.h"
#include "cuda/product_shape.h"
#include "cuda/scan_arguments.h"
#include "cuda/strided.h"
#include "engine/plan/step_table.h"
#include "ops/attrs.h"

namespace nestgrad::cuda {

struct BlockPlace {
  enum Kind : int { memory, external, absolute };
  int kind = memory;
  std::int64_t at = 0;  // offset in the slice's memory, number of an external value, or address
};

struct Product {
  std::int64_t m, n, k, a_row, a_column, b_row, b_column, count;
  std::int64_t parts;  // of its sums (cuda/product_shape.h)
  Strided a, b;        // where the matrices of each member of the batch begin
};

inline Product product_of(const OpCall& call) {
  const Shape &a = call.in[0].shape, &b = call.in[1].shape, &c = call.out.shape;
  const bool ta = call.attrs.as<MatmulAttrs>().a, tb = call.attrs.as<MatmulAttrs>().b;
  const Batch batch = batch_of(call);
  const std::int64_t m = c[c.size() - 2], n = c.back(), k = ta ? a[a.size() - 2] : a.back();
  return {.m = m,
          .n = n,
          .k = k,
          .a_row = ta ? 1 : a.back(),
          .a_column = ta ? a.back() : 1,
          .b_row = tb ? 1 : b.back(),
          .b_column = tb ? b.back() : 1,
          .count = batch.out.count(),
          .parts = parts_of_sum(m, n, k),
          .a = batch.a,
          .b = batch.b};
}

// For texts: does a part begin at a multiple of 16 bytes in every slice, and a value at every step?
inline bool is_whole(const StepTable& table, const StepPart& part) {
  const auto begin = table.offsets.begin() + part.at;
  return std::all_of(begin, begin + table.slices, [](std::int64_t at) { return at % 16 == 0; });
}
inline bool is_whole(const StepTable& table, const StepValue& v) {
  return is_whole(table, v.part) && v.stride % 16 == 0 && v.scratch % 16 == 0;
}

struct BlockCluster {
  Text text;
  Sizes sizes;
  const Strided* walks;
};

struct Triangle {
  std::int64_t size, rows, columns, diagonal;
};

struct Line {
  std::int64_t size, lines, extent, stride;
  int reverse;
};

enum class BlockCode : int { cluster, product, move, zero, sum, largest, tril, iota, cumsum };

struct BlockOp {
  BlockCode code{};
  BlockPlace in[kMostClusterInputs], out[kMostClusterOps];
  int ins = 0, outs = 0;
  std::int64_t elements = 0;      // of zero
  const void* details = nullptr;  // on the device
};

struct ScanText {
  StepTableView table;
  int ops = 0;
  std::int64_t memory_bytes = 0;  // of a slice
  std::int64_t scratch_at = 0;    // in it: what clusters need
  const BlockOp* op = nullptr;
};

}  // namespace nestgrad::cuda

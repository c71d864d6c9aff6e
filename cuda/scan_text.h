// A scan over independent slices as a text that a block of threads reads (cuda/scan.cu): where its values
// are, step by step (engine/plan/step_table.h), and its body, op after op.
#pragma once

#include "cuda/cluster_text.h"
#include "cuda/scan_arguments.h"
#include "cuda/strided.h"
#include "engine/plan/step_table.h"

namespace nestgrad::cuda {

struct BlockPlace {
  enum Kind : int { memory, external, absolute };
  int kind = memory;
  std::int64_t at = 0;  // offset in the slice's memory, number of an external value, or address
};

struct Product {
  std::int64_t m, n, k, a_row, a_column, b_row, b_column, count;
  Strided a, b;  // where the matrices of each member of the batch begin
};

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

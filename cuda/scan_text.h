// A scan over independent slices as a text that a block of threads reads (cuda/scan.cu): where its values
// are, step by step, and its body, op after op.
#pragma once

#include "cuda/cluster_text.h"
#include "cuda/strided.h"

namespace nestgrad::cuda {

constexpr int kMostExternals = 256, kMostBases = 256;

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

struct PartText {
  const std::int64_t* at = nullptr;  // by slice, in bytes
  const char* owner = nullptr;
  std::int64_t bytes = 0;
};

struct CarryText {
  PartText part;
  int init = 0, final_value = -1, terms = -1, copies = -1;  // bases
  int stack = -1;                                           // which of them
  int partial = 0;
  std::int64_t ping = 0, pong = 0;
};

// A value of every step: read, or written. lazy: there is
// room for so many times, one after the other; 0: for all.
struct StepsText {
  PartText part;
  int base = 0;
  std::int64_t stride = 0, buffer = 0;  // buffer: a step of scratch in the slice's memory
  int of_carry = 0, lazy = 0;
  NESTGRAD_HOST_DEVICE std::int64_t offset(std::int64_t slice, int time) const {
    return part.at[slice] + (lazy ? time % lazy : time) * stride;
  }
};

struct ScanText {
  int reverse = 0, slices = 0, carries = 0, xs = 0, consts = 0, stacks = 0, ops = 0;
  std::int64_t memory_bytes = 0;  // of a slice
  std::int64_t scratch_at = 0;    // in it: what clusters need
  const CarryText* carry = nullptr;
  const StepsText *x = nullptr, *constant = nullptr, *stack = nullptr;
  const BlockOp* op = nullptr;
};

struct Bases {
  std::byte* at[kMostBases];
};

}  // namespace nestgrad::cuda

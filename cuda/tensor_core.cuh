// Products of a block of threads on tensor cores, for kernels of scans that are compiled with another precision than f32: operands
// are rounded to TF32 or bf16 (to nearest), and products of two such numbers, which are exact in f32, are added up in f32, in an order
// that the GPU decides. The emulator adds them up in order of k.
#pragma once

#include "cuda/scan_parts.cuh"

namespace nestgrad::cuda {

enum class Operands : int { tf32, bf16 };

// What a lane has of four numbers x that lie along k: a register each in TF32, two in one in bf16.
template <Operands kOperands>
struct Packed {
  static constexpr int kCount = kOperands == Operands::tf32 ? 4 : 2;
  std::uint32_t bits[kCount];
};

#ifndef __CUDACC__
// Without its last bits, to the nearest number; `middle` is added to what lies in the middle between two.
inline std::uint32_t without_last(float x, int last, std::uint32_t middle) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  if (x - x != 0) return bits;
  return (bits + (std::uint32_t{1} << (last - 1)) - 1 + middle) >> last << last;
}
inline std::uint32_t bf16_of(float x) {  // in the upper half; to even
  return without_last(x, 16, __builtin_bit_cast(std::uint32_t, x) >> 16 & 1);
}
#endif

__device__ inline std::uint32_t to_tf32(float x) {
#ifdef __CUDACC__
  std::uint32_t out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));
  return out;
#else
  return without_last(x, 13, 1);
#endif
}

// Two numbers, `low` in the lower half.
__device__ inline std::uint32_t to_bf16(float low, float high) {
#ifdef __CUDACC__
  std::uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#else
  return bf16_of(high) | bf16_of(low) >> 16;
#endif
}

template <Operands kOperands>
__device__ Packed<kOperands> packed(const float (&x)[4]) {
  if constexpr (kOperands == Operands::tf32)
    return {{to_tf32(x[0]), to_tf32(x[1]), to_tf32(x[2]), to_tf32(x[3])}};
  else return {{to_bf16(x[0], x[1]), to_bf16(x[2], x[3])}};
}

// C [16, 8] += A [16, K] B [K, 8] by a warp, K 8 in TF32 and 16 in bf16, as mma.sync wants it. Of lane 4 g + q: a0 and a2 are of
// row g of A, a1 and a3 of row g + 8; b0 and b1 of column g of B; c[0] and c[1] of row g and columns 2 q and 2 q + 1, c[2] and c[3] of row
// g + 8. In TF32 a0, a1 and b0 are of k = q, the others of q + 4; in bf16 of 2 q and 2 q + 1, the others of eight more.
template <Operands kOperands>
__device__ void multiply_add(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                             std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
#ifdef __CUDACC__
  if constexpr (kOperands == Operands::tf32)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  constexpr int kHalves = kOperands == Operands::tf32 ? 1 : 2;
  const int lane = static_cast<int>(threadIdx.x % kWarp), group = lane / 4, quarter = lane % 4;
  const auto number = [](std::uint32_t bits, int half) {
    if (kHalves == 2) bits = half == 0 ? bits << 16 : bits >> 16 << 16;
    return __builtin_bit_cast(float, bits);
  };
  for (int later = 0; later < 2; ++later)
    for (int q = 0; q < 4; ++q) {
      const std::uint32_t top = __shfl_sync(kFullWarp, later ? a2 : a0, 4 * group + q),
                          low = __shfl_sync(kFullWarp, later ? a3 : a1, 4 * group + q),
                          left = __shfl_sync(kFullWarp, later ? b1 : b0, 8 * quarter + q),
                          right = __shfl_sync(kFullWarp, later ? b1 : b0, 8 * quarter + 4 + q);
      for (int h = 0; h < kHalves; ++h) {
        c[0] = fma(number(top, h), number(left, h), c[0]);
        c[1] = fma(number(top, h), number(right, h), c[1]);
        c[2] = fma(number(low, h), number(left, h), c[2]);
        c[3] = fma(number(low, h), number(right, h), c[3]);
      }
    }
#endif
}

// kCount (1, 2 or 4) numbers side by side. kWhole: they are read and written as one.
template <int kCount>
struct alignas(sizeof(float) * kCount) Beside {
  float x[kCount];
};
template <bool kWhole, int kCount>
__device__ void load_beside(const float* from, float (&to)[kCount]) {
  if constexpr (kWhole) {
    const auto all = *reinterpret_cast<const Beside<kCount>*>(from);
    for (int i = 0; i < kCount; ++i) to[i] = all.x[i];
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}
template <bool kWhole, int kCount>
__device__ void store_beside(const float (&from)[kCount], float* to) {
  if constexpr (kWhole) {
    Beside<kCount> all;
    for (int i = 0; i < kCount; ++i) all.x[i] = from[i];
    *reinterpret_cast<Beside<kCount>*>(to) = all;
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}
// Four numbers side by side, one after the other: a lane begins with number `first`. Lanes whose rows would all lie in the same banks of
// shared memory begin with different ones, so that they read from different banks.
__device__ inline void load_in_turns(const float* from, int first, float (&to)[4]) {
  const float x0 = from[first], x1 = from[(1 + first) % 4], x2 = from[(2 + first) % 4],
              x3 = from[(3 + first) % 4];
  const bool odd = first % 2 != 0, far = first >= 2;
  const float y0 = odd ? x3 : x0, y1 = odd ? x0 : x1, y2 = odd ? x1 : x2, y3 = odd ? x2 : x3;
  to[0] = far ? y2 : y0, to[1] = far ? y3 : y1, to[2] = far ? y0 : y2, to[3] = far ? y1 : y3;
}

// What a product on tensor cores is, for the compiler: C [M, N] = A B, M and K multiples of 16, N of 8. A: element (row, k) at
// row * ARow + k * AColumn; B: (k, column) at k * BRow + column * BColumn; of each, one of the two is 1. AWhole, BWhole, CWhole: they,
// and what lies along the other stride, begin at multiples of 16 bytes. A warp takes kTall times 16 rows and kWide times 8 columns, and
// one of kParts parts of the sums over K, so that as many warps as possible have something to do.
template <Operands kOperands_, int M_, int N_, int K_, int ARow_, int AColumn_, int BRow_, int BColumn_,
          bool AWhole_, bool BWhole_, bool CWhole_, int Parts_>
struct TensorCoreProduct {
  static constexpr Operands kOperands = kOperands_;
  static constexpr int M = M_, N = N_, K = K_, ARow = ARow_, AColumn = AColumn_, BRow = BRow_,
                       BColumn = BColumn_;
  static constexpr bool AWhole = AWhole_, BWhole = BWhole_, CWhole = CWhole_;
  static_assert(M % 16 == 0 && N % 8 == 0 && K % 16 == 0 && (ARow == 1 || AColumn == 1) &&
                (BRow == 1 || BColumn == 1));
  static constexpr int kTall = tensor_core_rows(M, ARow == 1) / 16, kWide = tensor_core_columns(N) / 8,
                       kAcross = N / (8 * kWide), kUnits = M / (16 * kTall) * kAcross, kParts = Parts_,
                       kPart = K / kParts;
};

// C of a warp's unit: sum[t][j] of the t-th 16 rows and the j-th 8 columns. Of 16 k at once a lane has those from 4 * quarter: which k two
// lanes multiply is no matter as long as it is the same, and these lie side by side. So do the rows of an A that is transposed, and
// the columns of a B that is not: a lane takes neighbours, for different products.
template <class P>
__device__ void sum_unit(const float* a, const float* b, int row, int column,
                         float (&sum)[P::kTall][P::kWide][4]) {
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  NESTGRAD_UNROLL
  for (int begin = 0; begin < P::kPart; begin += 16) {
    const int k = begin + 4 * quarter;
    float x[2 * P::kTall][4], y[P::kWide][4];
    if constexpr (P::AColumn == 1) {
      NESTGRAD_UNROLL_WHOLE
      for (int r = 0; r < 2; ++r) load_beside<P::AWhole>(a + (row + 8 * r) * P::ARow + k, x[r]);
    } else {
      NESTGRAD_UNROLL_WHOLE
      for (int i = 0; i < 4; ++i) {
        float all[2 * P::kTall];
        const float* const from = a + row + (k + i) * P::AColumn;
        if constexpr (P::kTall == 2) load_in_turns(from, quarter, all);
        else load_beside<P::AWhole>(from, all);
        NESTGRAD_UNROLL_WHOLE
        for (int r = 0; r < 2 * P::kTall; ++r) x[r][i] = all[r];
      }
    }
    if constexpr (P::BColumn == 1) {
      NESTGRAD_UNROLL_WHOLE
      for (int i = 0; i < 4; ++i) {
        float all[P::kWide];
        const float* const from = b + (k + i) * P::BRow + column;
        if constexpr (P::kWide == 4) load_in_turns(from, quarter, all);
        else load_beside<P::BWhole>(from, all);
        NESTGRAD_UNROLL_WHOLE
        for (int j = 0; j < P::kWide; ++j) y[j][i] = all[j];
      }
    } else {
      NESTGRAD_UNROLL_WHOLE
      for (int j = 0; j < P::kWide; ++j) load_beside<P::BWhole>(b + (column + j) * P::BColumn + k, y[j]);
    }
    Packed<P::kOperands> left[2 * P::kTall];
    NESTGRAD_UNROLL_WHOLE
    for (int r = 0; r < 2 * P::kTall; ++r) left[r] = packed<P::kOperands>(x[r]);
    NESTGRAD_UNROLL_WHOLE
    for (int j = 0; j < P::kWide; ++j) {
      const Packed<P::kOperands> right = packed<P::kOperands>(y[j]);
      NESTGRAD_UNROLL_WHOLE
      for (int p = 0; p < Packed<P::kOperands>::kCount; p += 2) {
        NESTGRAD_UNROLL_WHOLE
        for (int t = 0; t < P::kTall; ++t) {
          const auto &above = left[2 * t], &below = left[2 * t + 1];
          multiply_add<P::kOperands>(sum[t][j], above.bits[p], below.bits[p], above.bits[p + 1],
                                     below.bits[p + 1], right.bits[p], right.bits[p + 1]);
        }
      }
    }
  }
}

// Where a unit begins in C, and a lane's first row of A and C and first column of B in it.
template <class P>
struct UnitPlace {
  int top, left, row, column;
  __device__ explicit UnitPlace(int unit) {
    const int group = static_cast<int>(threadIdx.x % kWarp) / 4;
    top = unit / P::kAcross * 16 * P::kTall, left = unit % P::kAcross * 8 * P::kWide;
    row = top + (P::ARow == 1 ? 2 * P::kTall * group : group), column = left + P::kWide * group;
  }
};

// A lane has columns 2 q and 2 q + 1 of each product: of C, 2 kWide columns side by side.
template <class P>
__device__ void store_unit(const float (&sum)[P::kTall][P::kWide][4], const UnitPlace<P>& at, float* c) {
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  NESTGRAD_UNROLL_WHOLE
  for (int r = 0; r < 2 * P::kTall; ++r) {
    float* const row = c + (at.row + (P::ARow == 1 ? r : 8 * r)) * P::N + at.left;
    NESTGRAD_UNROLL_WHOLE
    for (int s = 0; s < 2; ++s) {
      float out[P::kWide];
      NESTGRAD_UNROLL_WHOLE
      for (int j = 0; j < P::kWide; ++j) out[j] = sum[r / 2][j][2 * (r % 2) + s];
      store_beside<P::CWhole>(out, row + (2 * quarter + s) * P::kWide);
    }
  }
}

// By all threads of the block. scratch: (kParts - 1) M N elements, where parts of the sums meet.
template <class P>
__device__ void product_in(const float* a, const float* b, float* c, [[maybe_unused]] float* scratch) {
  constexpr int kLanes = static_cast<int>(kWarp), kWarps = static_cast<int>(kScanThreads) / kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  if constexpr (P::kParts > 1) {
    static_assert(P::kUnits * P::kParts <= kWarps);
    constexpr int kVectors = P::kTall * P::kWide, kAll = P::kUnits * kLanes;
    const int unit = warp % P::kUnits, part = warp / P::kUnits;
    const UnitPlace<P> at(unit);
    auto* const others =
        reinterpret_cast<Beside<4>*>(scratch) + unit * kLanes + static_cast<int>(threadIdx.x) % kLanes;
    float sum[P::kTall][P::kWide][4] = {};
    if (part < P::kParts) {
      sum_unit<P>(a + part * P::kPart * P::AColumn, b + part * P::kPart * P::BRow, at.row, at.column, sum);
      if (part > 0) {
        NESTGRAD_UNROLL_WHOLE
        for (int v = 0; v < kVectors; ++v) {
          const auto& from = sum[v / P::kWide][v % P::kWide];
          others[((part - 1) * kVectors + v) * kAll] = {{from[0], from[1], from[2], from[3]}};
        }
      }
    }
    __syncthreads();
    if (part > 0) return;
    for (int p = 1; p < P::kParts; ++p) {
      NESTGRAD_UNROLL_WHOLE
      for (int v = 0; v < kVectors; ++v) {
        const Beside<4> other = others[((p - 1) * kVectors + v) * kAll];
        for (int i = 0; i < 4; ++i) sum[v / P::kWide][v % P::kWide][i] += other.x[i];
      }
    }
    store_unit<P>(sum, at, c);
  } else {
    for (int unit = warp; unit < P::kUnits; unit += kWarps) {
      const UnitPlace<P> at(unit);
      float sum[P::kTall][P::kWide][4] = {};
      sum_unit<P>(a, b, at.row, at.column, sum);
      store_unit<P>(sum, at, c);
    }
  }
}

}  // namespace nestgrad::cuda

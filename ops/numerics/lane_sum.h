// The sum of many f32 in an order that no instruction set changes, nearly as exact as one in double.
//
// Elements are added up in 16 lanes side by side, element i of a row in lane i mod 16. After eight elements a
// lane is added to a sum in double and begins at zero again. So with u = 2^-24
//
//   |computed - exact| <= 7 u (|x_0| + |x_1| + ..) + u |exact|
//
// for any length: seven additions in f32 (the first to a zero is exact), and the rounding of the result. What
// the additions in double lose is at most 2^-32 n u (|x_0| + |x_1| + ..). Eight elements of a lane whose sum no
// f32 holds are infinite, as they would be in any sum of f32.
//
//   LaneSum sum;
//   for (i = 0; i < n; i += 16, sum.end_of_lanes())
//     for (int k = 0; k < LaneSum::kPacks; ++k) sum.add(k, Pack<float>::load(x + i + k * Pack<float>::size));
//   const double total = sum.result();
#pragma once

#include "ops/numerics/pack.h"

namespace nestgrad::inline NESTGRAD_ISA {

// Elements that are added up in f32 before their sum is added up in double.
constexpr int kAddedInF32 = 8;

// Adds the two halves of a register, in double.
NESTGRAD_MEMBER_FN void add_halves(const Register<float>::Raw& x, Register<double>::Raw& low_sum,
                                   Register<double>::Raw& high_sum) {
#if defined(__AVX512F__)  // g++ 12 makes twice the conversions of the last form, in memory
  low_sum += _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, x, 0));
  high_sum += _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, x, 1));
#elif defined(__FMA__)
  low_sum += _mm256_cvtps_pd(_mm256_castps256_ps128(x));
  high_sum += _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
#else
  typedef float Half __attribute__((vector_size(kRegisterBytes / 2)));
  Half low, high;
  __builtin_memcpy(&low, &x, sizeof low);
  __builtin_memcpy(&high, reinterpret_cast<const char*>(&x) + sizeof low, sizeof high);
  low_sum += __builtin_convertvector(low, Register<double>::Raw);
  high_sum += __builtin_convertvector(high, Register<double>::Raw);
#endif
}

// ((0 + 4) + (1 + 5)) + ((2 + 6) + (3 + 7)) of eight parts, two at a time.
NESTGRAD_MEMBER_FN double sum_of_parts(const Register<double>::Raw (&part)[64 / kRegisterBytes]) {
  typedef double Two __attribute__((vector_size(16)));
  Two two[4];
  __builtin_memcpy(two, part, sizeof two);
  const Two low = two[0] + two[2], high = two[1] + two[3];
  const Two sums = __builtin_shufflevector(low, high, 0, 2) + __builtin_shufflevector(low, high, 1, 3);
  return sums[0] + sums[1];
}

// Loops over registers are unrolled by a pragma, so that they need no memory.
class LaneSum {
 public:
  static constexpr int kPacks = kLanes<float> / Pack<float>::size;

  NESTGRAD_MEMBER_FN LaneSum() {
#pragma GCC unroll 4
    for (int i = 0; i < kPacks; ++i) lanes_[i] = Register<float>::Raw{};
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) part_[i] = Register<double>::Raw{};
  }
  // Registers 0 .. kPacks - 1 of 16 elements; then end_of_lanes().
  NESTGRAD_MEMBER_FN void add(int register_number, Pack<float> x) { lanes_[register_number] += x.raw; }
  NESTGRAD_MEMBER_FN void end_of_lanes() {
    if (++added_ == kAddedInF32) widen();
  }
  NESTGRAD_MEMBER_FN double result() {
    widen();
    return sum_of_parts(part_);
  }

 private:
  static constexpr int kParts = 64 / kRegisterBytes;

  // Adds lanes k and k + 8 to part k.
  NESTGRAD_MEMBER_FN void widen() {
#pragma GCC unroll 4
    for (int i = 0; i < kPacks; ++i) {
      add_halves(lanes_[i], part_[2 * i % kParts], part_[(2 * i + 1) % kParts]);
      lanes_[i] = Register<float>::Raw{};
    }
    added_ = 0;
  }

  Register<float>::Raw lanes_[kPacks];
  Register<double>::Raw part_[kParts];
  int added_ = 0;
};

}  // namespace nestgrad::inline NESTGRAD_ISA

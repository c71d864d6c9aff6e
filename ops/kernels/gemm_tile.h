// Tiles of a product: some rows of C times a panel of columns, summed in registers.
#pragma once

#include <cstdint>
#include <utility>

#include "ops/kernels/some.h"

namespace nestgrad::inline NESTGRAD_ISA {

// Loops over what has to stay in registers are unrolled by a pragma: the compiler unrolls them anyway, but
// too late to see that no array is needed.

using Size = std::int64_t;

constexpr Size smaller(Size a, Size b) { return a < b ? a : b; }

// A tile of C is summed in registers, next to what is multiplied: 6 rows of 2 packets in 16 registers, 12 of
// 2 in 32. With fewer rows tiles are wider, so that enough sums are under way. Without an instruction for fma
// a sum is long code, and registers are short.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 24;
#elif defined(__FMA__)
constexpr int kSums = 12;
#else
constexpr int kSums = 4;
#endif
constexpr int kMaxPackets = 8;
constexpr int kMaxRows = kSums / 2;  // of two packets and more
// Of a tile of so many packets. One packet is for narrow products, whose rows sixteen often divides.
constexpr int kMostRows = kSums >= 24 ? 16 : kMaxRows;
constexpr int max_rows(int packets) { return packets == 1 ? kMostRows : kSums / packets; }

constexpr int kMaxPackedPackets = 4;

// Rows in tiles of at most `most`, even to a row: the first ones are a row higher.
struct Partition {
  Size count, height, higher;
};
constexpr Partition partition(Size rows, int most) {
  if (rows <= most) return {1, rows, 0};
  const Size count = (rows + most - 1) / most;
  return {count, rows / count, rows % count};
}

// How many packets wide the first panels of a product are. Four packets take the fewest loads, two the fewest
// tiles. Two are for copies, where all loads are near, and where a tile of four has so few rows that it comes back
// to the same columns too often, if those are long. Of so few rows that it does twice at most, it reads more of a row of
// B at once instead: from beyond the second-level cache that is 1.6 to 4 times as fast (AVX2).
constexpr int first_packets(Size rows, Size k, bool copies_b, bool copies_a) {
  int packets = copies_b ? kMaxPackedPackets : kMaxPackets;
  const bool often = max_rows(4) < 4 && k > 64 && partition(rows, max_rows(4)).count > 3;
  const int least = copies_b || copies_a || often ? 2 : 4;
  while (packets > least && smaller(rows, kMaxRows) > max_rows(packets)) packets /= 2;
  return packets;
}

// And those that begin where so many packets are left of the row, after panels of `packets`.
constexpr int packets_of(int packets, Size left, bool copies_a) {
  if (left == 3 && packets >= 2 && !copies_a && max_rows(3) > 0) return 3;
  while (packets > left) packets /= 2;
  return packets;
}

// x, for the compiler a value that comes from nowhere: it stays in a register, where it would be loaded again
// for each of its uses.
template <class T>
NESTGRAD_MEMBER_FN Pack<T> kept(Pack<T> x) {
#if defined(__x86_64__) && defined(__AVX512F__)
  __asm__("" : "+v"(x.raw));
#elif defined(__x86_64__)
  __asm__("" : "+x"(x.raw));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x.raw));
#endif
  return x;
}

template <class T>
NESTGRAD_MEMBER_FN T* kept(T* p) {
  __asm__("" : "+r"(p));
  return p;
}

// Tiles of C, one below the other: their rows times a panel of columns, over one block of k.
template <class T>
struct Tiles {
  const T* a;
  Size a_row, a_step,
      a_tile;  // from one row of op(A) to the next, from one k to the next, from one tile to the next
  const T* b;
  Size b_step;
  T* c;
  Size c_row;
  const T* plus;  // what the product is added to, laid out like C; null: nothing
  Size k, count;
  Size last;  // columns of the last packet, where the tiles are ragged
  bool far;   // is C read too, from beyond the second-level cache
};

template <class T, int Rows, int Packets, bool Ragged>
void multiply(const Tiles<T>& t) {
  constexpr int size = Pack<T>::size;
  const Some<T> some(t.last);
  const Size k = t.k, a_row = t.a_row, a_step = t.a_step, b_step = t.b_step, c_row = t.c_row;
  const T* a_tile = t.a;
  T* c = t.c;
  const T* plus = t.plus;
  for (Size tile = t.count; tile > 0; --tile, a_tile += t.a_tile) {
    Pack<T> sum[Rows][Packets];
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < Packets; ++j) sum[i][j] = Pack<T>(0);
    // A pointer for three rows: what is between those is in an
    // address, one for each row would not fit in registers.
    constexpr int groups = (Rows + 2) / 3;
    const T* a[groups];
#pragma GCC unroll 16
    for (int i = 0; i < groups; ++i) a[i] = i == 0 ? a_tile : kept(a[i - 1] + 3 * a_row);
    const T* b = t.b;
    const auto right = [&](int j) __attribute__((always_inline)) {
      return kept(Ragged && j == Packets - 1 ? some.load(b + j * size) : Pack<T>::load(b + j * size));
    };
    const auto step = [&]() __attribute__((always_inline)) {
      if constexpr (Rows >= Packets) {  // the smaller side is kept, the larger goes by
        Pack<T> y[Packets];
#pragma GCC unroll 16
        for (int j = 0; j < Packets; ++j) y[j] = right(j);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) {
          const Pack<T> x = Pack<T>::load_repeated(a[i / 3] + i % 3 * a_row);
#pragma GCC unroll 16
          for (int j = 0; j < Packets; ++j) sum[i][j] = fma(x, y[j], sum[i][j]);
        }
      } else {
        Pack<T> x[Rows];
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) x[i] = Pack<T>::load_repeated(a[i / 3] + i % 3 * a_row);
#pragma GCC unroll 16
        for (int j = 0; j < Packets; ++j) {
          const Pack<T> y = right(j);
#pragma GCC unroll 16
          for (int i = 0; i < Rows; ++i) sum[i][j] = fma(x[i], y, sum[i][j]);
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < groups; ++i) a[i] += a_step;
      b += b_step;
    };
    if (t.far) {  // asked for in time
      T* to = c;
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 16
        for (int j = 0; j < Packets * kRegisterBytes; j += 64)
          __builtin_prefetch(reinterpret_cast<char*>(to) + j, 1);
        to = kept(to + c_row);
      }
    }
    Size p = k;
    // Steps of few sums are short beside what a loop costs. With many it is seen in long loops, of four
    // packets or of f64; two packets of f32 are slower for it (measured on Sapphire Rapids).
    constexpr bool many = Rows * Packets >= 12;
    constexpr int unroll = kSums == 4            ? 1
                           : Packets >= 4        ? 4
                           : many                ? sizeof(T) == 8 ? 4 : 1
                           : Rows * Packets >= 6 ? 2
                                                 : 4;
    constexpr Size least = many ? 32 : unroll;
    if constexpr (unroll > 1)
      if (p >= least)
        for (; p >= unroll; p -= unroll) {
#pragma GCC unroll 16
          for (int i = 0; i < unroll; ++i) step();
        }
    for (; p > 0; --p) step();
    const auto put = [&](const T* from) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 16
        for (int j = 0; j < Packets; ++j) {
          T* const to = c + j * size;
          const T* const old = from + j * size;
          if (Ragged && j == Packets - 1) some.store(from ? some.load_once(old) + sum[i][j] : sum[i][j], to);
          else (from ? Pack<T>::load(old) + sum[i][j] : sum[i][j]).store(to);
        }
        c = kept(c + c_row);
        if (from) from = kept(from + c_row);
      }
    };
    if (plus) put(plus), plus += Rows * c_row;
    else put(nullptr);
  }
}

template <class T>
using Multiply = void (*)(const Tiles<T>&);

// multiply() of 0 .. kMostRows rows of so many packets; null where there is none.
template <class T>
struct Multiplies {
  Multiply<T> of[kMostRows + 1];
};
template <class T, int Packets, bool Ragged, int Rows>
constexpr Multiply<T> multiply_or_null() {
  if constexpr (Rows > 0 && Rows <= max_rows(Packets)) return multiply<T, Rows, Packets, Ragged>;
  else return nullptr;
}
template <class T, int Packets, bool Ragged, int... Rows>
constexpr Multiplies<T> multiplies(std::integer_sequence<int, Rows...>) {
  return {{multiply_or_null<T, Packets, Ragged, Rows>()...}};
}
template <class T, int Packets, bool Ragged>
constexpr Multiplies<T> kMultiplies =
    multiplies<T, Packets, Ragged>(std::make_integer_sequence<int, kMostRows + 1>{});

template <class T, bool Ragged>
const Multiply<T>* multiplies_for(int packets) {
  return packets == 8   ? kMultiplies<T, 8, Ragged>.of
         : packets == 4 ? kMultiplies<T, 4, Ragged>.of
         : packets == 3 ? kMultiplies<T, 3, Ragged>.of
         : packets == 2 ? kMultiplies<T, 2, Ragged>.of
                        : kMultiplies<T, 1, Ragged>.of;
}
template <class T>
const Multiply<T>* multiplies_for(int packets, bool ragged) {
  return ragged ? multiplies_for<T, true>(packets) : multiplies_for<T, false>(packets);
}

}  // namespace nestgrad::inline NESTGRAD_ISA

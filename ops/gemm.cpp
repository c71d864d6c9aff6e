#include "ops/gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "engine/threads.h"
#include "ops/pack.h"

namespace nestgrad {

namespace {

// Loops over what has to stay in registers are unrolled by a pragma: the compiler unrolls them anyway, but
// too late to see that no array is needed.

using Size = std::int64_t;

// A tile of C is summed in registers, next to what is multiplied: 6 rows of 2 packets in 16 registers, 12 of
// 2 in 32. With fewer rows tiles are wider, so that enough sums are under way.
constexpr int kSums = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 24 : 12;
constexpr int kMaxRows = kSums / 2, kMaxPackets = 8, kMaxPackedPackets = 4;

// What stays in the second-level cache: kChunk packets of kBlock rows of B, kChunkTiles tiles of A.
constexpr Size kChunk = 32, kChunkTiles = 16;

// From these sizes on, copying B into panels pays: its rows are long, and there are enough rows of A to use
// the copy.
constexpr Size kPackRows = 32, kPackBytes = 1024;

// And copying A, where its rows or columns lie far apart: it is more than the first-level cache holds, and
// there are columns enough to use the copy.
constexpr Size kPackABytes = Size{1} << 15, kPackAColumns = 64;

constexpr Size kShare = Size{1} << 22;  // flops that are worth a thread

// count < Max elements, in copies of known sizes. (A loop would become a call of memcpy.)
template <int Max, class T>
EIGEN_ALWAYS_INLINE void copy_some(const T* from, T* to, Size count) {
#pragma GCC unroll 16
  for (int part = Max / 2; part > 0; part /= 2)
    if (count & part) {
      std::memcpy(to, from, part * sizeof(T));
      from += part, to += part;
    }
}

// A row of sums becomes the row of C, added to what there is: the same row of `plus`, or nothing if that is
// null.
template <class T, int Packets>
EIGEN_ALWAYS_INLINE void put(const Pack<T> (&sum)[Packets], T* c, Size columns, const T* plus) {
  constexpr int size = Pack<T>::size;
  const auto add_to = [&](const T* from, T* to) {
#pragma GCC unroll 16
    for (int j = 0; j < Packets; ++j)
      (from ? Pack<T>::load(from + j * size) + sum[j] : sum[j]).store(to + j * size);
  };
  if (columns >= Packets * size) return add_to(plus, c);
  T wide[Packets * size] = {};
  if (plus) copy_some<Packets * size>(plus, wide, columns);
  add_to(plus ? wide : nullptr, wide);
  copy_some<Packets * size>(wide, c, columns);
}

// Rows of C times a panel of columns, over one block of k.
template <class T>
struct Tile {
  const T* a;
  Size a_row, a_step;  // from one row of op(A) to the next, from one k to the next
  const T* b;
  Size b_step;
  T* c;
  Size c_row, columns;  // the panel may be wider than C
  Size k;
  const T* plus;  // what the product is added to, laid out like C; null: nothing
};

template <class T, int Rows, int Packets>
void multiply(const Tile<T>& t) {
  constexpr int size = Pack<T>::size;
  Pack<T> sum[Rows][Packets];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < Packets; ++j) sum[i][j] = Pack<T>(0);
  const T* a = t.a;
  const T* b = t.b;
  const Size k = t.k, a_step = t.a_step, b_step = t.b_step;
#pragma GCC unroll 4
  for (Size p = 0; p < k; ++p, a += a_step, b += b_step)
    if constexpr (Rows >= Packets) {  // the smaller side is kept, the larger goes by
      Pack<T> y[Packets];
#pragma GCC unroll 16
      for (int j = 0; j < Packets; ++j) y[j] = Pack<T>::load(b + j * size);
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) {
        const Pack<T> x = Pack<T>::load_repeated(a + i * t.a_row);
#pragma GCC unroll 16
        for (int j = 0; j < Packets; ++j) sum[i][j] = fma(x, y[j], sum[i][j]);
      }
    } else {
      Pack<T> x[Rows];
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) x[i] = Pack<T>::load_repeated(a + i * t.a_row);
#pragma GCC unroll 16
      for (int j = 0; j < Packets; ++j) {
        const Pack<T> y = Pack<T>::load(b + j * size);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) sum[i][j] = fma(x[i], y, sum[i][j]);
      }
    }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
    put(sum[i], t.c + i * t.c_row, t.columns, t.plus ? t.plus + i * t.c_row : nullptr);
}

template <class T>
using Multiply = void (*)(const Tile<T>&);

// multiply() of 1 .. kMaxRows rows; null where the sums are too many.
template <class T, int Packets>
constexpr auto kMultiply = []<int... I>(std::integer_sequence<int, I...>) {
  const auto of = []<int Rows>(std::integral_constant<int, Rows>) -> Multiply<T> {
    if constexpr (Rows * Packets <= kSums) return multiply<T, Rows, Packets>;
    else return nullptr;
  };
  return std::array{of(std::integral_constant<int, I + 1>{})...};
}
(std::make_integer_sequence<int, kMaxRows>{});

template <class T>
Multiply<T> multiply_for(Size rows, int packets) {
  const auto& by_rows = packets == 8   ? kMultiply<T, 8>
                        : packets == 4 ? kMultiply<T, 4>
                        : packets == 2 ? kMultiply<T, 2>
                                       : kMultiply<T, 1>;
  return by_rows[static_cast<std::size_t>(rows - 1)];
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"  // of a register as a template argument
template <class T>
using Square = Eigen::internal::PacketBlock<typename Pack<T>::Raw, Pack<T>::size>;
#pragma GCC diagnostic pop

// As many columns of B' as a packet holds, as many of k; packet p of the result is b[., p]. Columns that are
// not there are zero.
template <class T>
EIGEN_ALWAYS_INLINE Square<T> transposed(const T* b, Size stride, Size columns) {
  constexpr int size = Pack<T>::size;
  Square<T> square;
  if (columns >= size) {
#pragma GCC unroll 16
    for (int j = 0; j < size; ++j) square.packet[j] = Pack<T>::load(b + j * stride).raw;
  } else {
    for (int j = 0; j < size; ++j)
      square.packet[j] = (j < columns ? Pack<T>::load(b + j * stride) : Pack<T>(0)).raw;
  }
  Eigen::internal::ptranspose(square);
  return square;
}

// The panel to[p, j] = b[j, p] for p < k, j < width; zero from `columns` on.
template <class T>
void pack_transposed(const T* b, Size stride, Size columns, Size k, T* to, Size width) {
  constexpr Size size = Pack<T>::size;
  for (Size j = 0; j < width; j += size, b += size * stride) {
    if (k < size)
      for (Size p = 0; p < k; ++p)
        for (Size i = 0; i < size; ++i) to[p * width + j + i] = j + i < columns ? b[i * stride + p] : T(0);
    else
      for (Size next = 0; next < k; next += size) {
        const Size p = std::min(next, k - size);  // the last overlaps the one before
        const Square<T> square = transposed(b + p, stride, columns - j);
#pragma GCC unroll 16
        for (Size i = 0; i < size; ++i) Pack<T>(square.packet[i]).store(to + (p + i) * width + j);
      }
  }
}

// The panel to[p, j] = b[p, j] for p < k, j < width; from `columns` on anything: what follows in B, as far as
// B goes, then zero.
template <class T>
void pack_rows(const T* b, Size stride, Size columns, Size k, const T* end, T* to, Size width) {
  for (Size p = 0; p < k; ++p, b += stride, to += width)
    if (end - b >= width)
      for (Size j = 0; j < width; j += Pack<T>::size) Pack<T>::load(b + j).store(to + j);
    else std::fill(std::copy_n(b, columns, to), to + width, T(0));
}

// Rows of a tile of A, one after the other, from rows that are `stride` apart.
template <class T>
void pack_tile(const T* a, Size stride, Size rows, Size k, T* to) {
  for (Size i = 0; i < rows; ++i) std::copy_n(a + i * stride, k, to + i * k);
}

// The columns of a tile of A', one after the other, kMaxRows apart. `end`: of A'.
template <class T>
void pack_tile_transposed(const T* a, Size stride, Size rows, Size k, const T* end, T* to) {
  for (Size p = 0; p < k; ++p, a += stride, to += kMaxRows)
    if (end - a >= kMaxRows) std::memcpy(to, a, kMaxRows * sizeof(T));
    else std::copy_n(a, rows, to);
}

// Rows of k elements, each times x.
template <class T, int Rows>
void multiply_along(const T* rows, const T* x, Size k, const T* plus, T* y) {
  constexpr int size = Pack<T>::size;
  Pack<T> even[Rows], odd[Rows];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) even[i] = odd[i] = Pack<T>(0);
  Size p = 0;
  for (; p + 2 * size <= k; p += 2 * size) {
    const Pack<T> x0 = Pack<T>::load(x + p), x1 = Pack<T>::load(x + p + size);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      even[i] = fma(x0, Pack<T>::load(rows + i * k + p), even[i]);
      odd[i] = fma(x1, Pack<T>::load(rows + i * k + p + size), odd[i]);
    }
  }
  for (; p < k; p += size) {  // the rest, filled up with zeros
    const Size left = std::min<Size>(size, k - p);
    const auto filled = [&](const T* from) {
      T wide[size] = {};
      std::copy_n(from, left, wide);
      return Pack<T>::load(wide);
    };
    const Pack<T> x0 = filled(x + p);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) even[i] = fma(x0, filled(rows + i * k + p), even[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    const T sum = Eigen::internal::predux((even[i] + odd[i]).raw);
    y[i] = plus ? plus[i] + sum : sum;
  }
}

}  // namespace

template <class T>
Gemm<T>::Gemm(Size m, Size n, Size k, bool transpose_a, bool transpose_b)
    : swapped_(n == 1 && m > 1 && transpose_a),
      along_((m == 1 && (transpose_b || n == 1)) || (n == 1 && !transpose_a)),
      m_(m),
      n_(n),
      k_(k),
      ta_(transpose_a),
      tb_(transpose_b) {
  if (swapped_) {  // columns fill packets
    std::swap(m_, n_);
    ta_ = !transpose_b, tb_ = !transpose_a;
  }
  if (m_ == 1) ta_ = false;  // the same bytes
  pack_ = tb_ || (m_ >= kPackRows && n_ * Size{sizeof(T)} >= kPackBytes);
  pack_a_ = (ta_ || k_ > kBlock) && n_ >= kPackAColumns &&
            m_ * std::min(k_, kBlock) * Size{sizeof(T)} > kPackABytes;
  panel_ = pack_ ? kMaxPackedPackets : kMaxPackets;
  while (panel_ > 2 && std::min<Size>(m_, kMaxRows) * panel_ > kSums) panel_ /= 2;
}

// The last panels of C are narrower.
template <class T>
int Gemm<T>::packets_for(Size columns) const {
  int packets = panel_;
  while (packets > 1 && (packets - 1) * Pack<T>::size >= columns) packets /= 2;
  return packets;
}

template <class T>
typename Gemm<T>::Sharing Gemm<T>::sharing(std::int64_t count) const {
  constexpr Size kPartsOfAThread = 8;  // so that threads which are held up do not hold up the others
  const Size threads = thread_count(), shares = 2 * m_ * n_ * k_ * count / kShare;
  if (shares < 2 || threads == 1) return {1, 1};
  if (count % threads == 0 || count >= 4 * threads)
    return {static_cast<int>(std::min(count, kPartsOfAThread * threads)), 1};
  const Size each = along_ ? 1 : std::min({shares, threads, std::max<Size>(1, m_ / kMaxRows)});
  return {static_cast<int>(count * each), static_cast<int>(each)};
}

template <class T>
void Gemm<T>::part(const T* a, const T* b, const T* d, T* c, int i, int parts) const {
  if (along_) return m_ == 1 ? run_vector(b, a, d, c) : run_vector(a, b, d, c);
  if (swapped_) std::swap(a, b);
  const Size from = i * m_ / parts;
  run_rows(a, b, d, c, from, (i + 1) * m_ / parts - from);
}

template <class T>
void Gemm<T>::run_vector(const T* matrix, const T* vector, const T* d, T* c) const {
  in_blocks(m_ * n_, std::max<Size>(1, kShare / (2 * std::max<Size>(1, k_))), [&](Size begin, Size end) {
    Size i = begin;
    for (; i + 4 <= end; i += 4)
      multiply_along<T, 4>(matrix + i * k_, vector, k_, d ? d + i : nullptr, c + i);
    for (; i < end; ++i) multiply_along<T, 1>(matrix + i * k_, vector, k_, d ? d + i : nullptr, c + i);
  });
}

template <class T>
void Gemm<T>::run_rows(const T* a, const T* b, const T* d, T* c, Size from, Size rows) const {
  if (rows == 0) return;
  // What is packed for a single tile is read once, best at once.
  const Size chunk = (rows <= kMaxRows ? panel_ : kChunk) * Pack<T>::size;
  Size done = 0;
  do {  // once at least: without k, C is zero
    const Block block{.done = done, .k = std::min(kBlock, k_ - done)};
    for (Size first = 0; first < n_; first += chunk)
      multiply_part(a, b, done == 0 ? d : c, c, block,
                    {.row = from, .rows = rows, .column = first, .columns = std::min(chunk, n_ - first)});
    done += block.k;
  } while (done < k_);
}

template <class T>
void Gemm<T>::multiply_part(const T* a, const T* b, const T* plus, T* c, Block block, Part part) const {
  alignas(64) thread_local T packed[kBlock * kChunk * Pack<T>::size];
  const Size end = part.column + part.columns;
  const auto each_panel = [&](auto fn) {
    for (Size j = part.column; j < end;) {
      const int packets = packets_for(end - j);
      const Size width = packets * Pack<T>::size;
      fn(j, packets, width, pack_ || width > end - j ? packed + (j - part.column) * block.k : nullptr);
      j += width;
    }
  };
  each_panel([&](Size j, int, Size width, T* panel) {
    if (!panel) return;
    if (tb_) pack_transposed(b + j * k_ + block.done, k_, end - j, block.k, panel, width);
    else pack_rows(b + block.done * n_ + j, n_, std::min(end - j, width), block.k, b + k_ * n_, panel, width);
  });
  // Rows are multiplied together in tiles, even to a row: the first ones are a row higher.
  const Size tiles = (part.rows + kMaxRows - 1) / kMaxRows;
  const Size rows = part.rows / tiles, higher = part.rows % tiles;
  const auto height_of = [&](Size tile) { return rows + (tile < higher); };
  const Size a_row = ta_ ? 1 : k_, a_step = ta_ ? m_ : 1;
  alignas(64) thread_local T packed_a[kBlock * kMaxRows * kChunkTiles];
  for (Size from = 0; from < tiles; from += kChunkTiles) {
    const Size to = std::min(tiles, from + kChunkTiles);
    const Size row = part.row + from * rows + std::min(from, higher);
    const T* first = a + row * a_row + block.done * a_step;
    if (pack_a_) {
      const T* source = first;
      for (Size i = from; i < to; source += height_of(i++) * a_row) {
        T* tile = packed_a + (i - from) * kMaxRows * block.k;
        if (ta_) pack_tile_transposed(source, m_, height_of(i), block.k, a + m_ * k_, tile);
        else pack_tile(source, k_, height_of(i), block.k, tile);
      }
    }
    each_panel([&](Size j, int packets, Size width, const T* panel) {
      Tile<T> t{.a = pack_a_ ? packed_a : first,
                .a_row = pack_a_ && !ta_ ? block.k : a_row,
                .a_step = pack_a_ && ta_ ? kMaxRows : a_step,
                .b = panel ? panel : b + block.done * n_ + j,
                .b_step = panel ? width : n_,
                .c = c + row * n_ + j,
                .c_row = n_,
                .columns = end - j,
                .k = block.k,
                .plus = plus ? plus + row * n_ + j : nullptr};
      for (Size i = from; i < to; ++i) {
        const Size height = height_of(i);
        multiply_for<T>(height, packets)(t);
        t.a += pack_a_ ? kMaxRows * block.k : height * t.a_row;
        t.c += height * n_;
        if (plus) t.plus += height * n_;
      }
    });
  }
}

template class Gemm<float>;
template class Gemm<double>;

}  // namespace nestgrad

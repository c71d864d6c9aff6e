#include "ops/kernels/gemm.h"

#include "engine/core/thread_memory.h"
#include "ops/kernels/gemm_along.h"
#include "ops/kernels/gemm_pack.h"
#include "ops/kernels/gemm_tile.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace {

// What stays in the second-level cache: tiles of A of this size. What stays in the third: panels of B, where
// they meet more than one such chunk of tiles.
constexpr Size kChunkBytes = Size{1} << 18, kRangeBytes = Size{1} << 20;

// A matrix of this size is not in the second-level cache when it is needed again.
constexpr Size kFarBytes = Size{1} << 20;

// Bytes of a row of B that are copied into panels at once.
constexpr Size kWide = 1024;
static_assert(kMaxPackets * kRegisterBytes <= kWide && kWide * kGemmBlock <= kRangeBytes);

// From these sizes on, copying B into panels pays: its rows are long, and there are enough rows of A to use
// the copy.
constexpr Size kPackRows = 32;
constexpr Size packed_from(Size rows) { return rows < 256 ? 2048 : 1024; }  // bytes

// And copying A, where its rows or columns lie far apart: it is more than the first-level cache holds, and
// there are columns enough to use the copy.
constexpr Size kPackABytes = Size{1} << 15, kPackAColumns = 64;

using Function = void (*)();  // what Multiply<T> is in a plan

// The group of panels, with its tiles for so many rows.
template <class T>
__attribute__((noinline)) GemmPlan::Group of_rows(GemmPlan::Group g, Size rows) {
  const Partition tiles = partition(rows, g.max_height);
  g.tiles = tiles.count, g.height = tiles.height, g.higher = tiles.higher;
  const Multiply<T>* const of = multiplies_for<T>(static_cast<int>(g.width / Pack<T>::size), g.ragged);
  g.multiply = reinterpret_cast<Function>(of[g.height]);
  g.multiply_higher = g.higher > 0 ? reinterpret_cast<Function>(of[g.height + 1]) : nullptr;
  return g;
}

template <class T>
GemmPlan::Group group_of(const GemmPlan& p, Size begin, int packets) {
  constexpr Size size = Pack<T>::size;
  GemmPlan::Group g{};
  g.width = packets * size;
  g.ragged = p.n - begin < g.width;
  g.end = g.ragged ? p.n : begin + (p.n - begin) / g.width * g.width;
  g.last = g.ragged ? p.n - begin - (g.width - size) : size;
  g.max_height = p.pack_a ? kMaxRows : max_rows(packets);
  return of_rows<T>(g, p.m);
}

template <class T>
GemmPlan plan(Size m, Size n, Size k, bool transpose_a, bool transpose_b) {
  constexpr Size size = Pack<T>::size;
  GemmPlan p{};
  p.m = m, p.n = n, p.k = k, p.ta = transpose_a, p.tb = transpose_b;
  p.swapped = n == 1 && m > 1 && transpose_a;
  p.along = (m == 1 && (transpose_b || n == 1)) || (n == 1 && !transpose_a);
  if (p.swapped) {  // columns fill packets
    p.m = n, p.n = m;
    p.ta = !transpose_b, p.tb = !transpose_a;
  }
  if (p.m == 1) p.ta = false;  // the same bytes
  p.units = p.along ? p.m * p.n : p.m;
  if (p.along || p.units == 0) return p;
  p.pack = p.tb || (p.m >= kPackRows && p.n * Size{sizeof(T)} >= packed_from(p.m));
  p.pack_a = (p.ta || k > kGemmBlock) && p.n >= kPackAColumns &&
             p.m * smaller(k, kGemmBlock) * Size{sizeof(T)} > kPackABytes;
  int packets = first_packets(p.m, k, p.pack, p.pack_a);
  for (Size begin = 0; begin < p.n; begin = p.group[p.groups++].end) {
    packets = packets_of(packets, (p.n - begin + size - 1) / size, p.pack_a);
    p.group[p.groups] = group_of<T>(p, begin, packets);
  }
  p.direct = p.groups > 0 && !p.swapped && !p.pack && !p.pack_a && k <= kGemmBlock;
  for (int i = 0; i < p.groups; ++i) p.direct = p.direct && (!p.group[i].ragged || Some<T>::kExact);
  return p;
}

// Rows that go as far as the last one's column, where C = A A'.
constexpr Size kSymmetricRows = 48 / kMaxRows * kMaxRows;

template <class T>
GemmPlan symmetric_plan(Size m, Size k) {
  GemmPlan p = plan<T>(m, m, k, false, true);
  p.symmetric = !p.along && !p.swapped && m >= 2 * kSymmetricRows;
  return p;
}

// C[j, i] = C[i, j] for j < i.
template <class T>
__attribute__((noinline)) void mirror(T* c, Size n) {
  constexpr Size size = Pack<T>::size;
  for (Size i = 0; i < n; i += size)
    for (Size j = 0; j <= i; j += size) {
      if (j == i || i + size > n) {
        for (Size r = i; r < smaller(i + size, n); ++r)
          for (Size s = j; s < smaller(j + size, r); ++s) c[s * n + r] = c[r * n + s];
        continue;
      }
      Pack<T> square[size];
#pragma GCC unroll 16
      for (int r = 0; r < size; ++r) square[r] = Pack<T>::load(c + (i + r) * n + j);
      transpose<T>(square);
#pragma GCC unroll 16
      for (int r = 0; r < size; ++r) square[r].store(c + (j + r) * n + i);
    }
}

// Copies of what is multiplied, in memory of each thread for all types: panels of B, then tiles of A. A packet more: copies
// write whole ones; the widest of any instruction set, as sets share the memory.
constexpr Size kWidestRegister = 64;
static_assert(kRegisterBytes <= kWidestRegister);
constexpr Size kCopiesBytes = kRangeBytes + kChunkBytes + kWidestRegister;

// Rows of op(A) over some of k, as tiles one after the other, the rows of each side by side, kMaxRows apart.
// `end`: of A.
template <class T>
__attribute__((noinline)) void pack_tiles(const GemmPlan& g, const T* a, Size rows, Size k, const T* end,
                                          T* to) {
  const Partition tiles = partition(rows, kMaxRows);
  for (Size i = 0; i < tiles.count; ++i, to += kMaxRows * k) {
    const Size height = tiles.height + (i < tiles.higher);
    if (g.ta) pack_tile_transposed(a, g.m, height, k, end, to), a += height;
    else pack_transposed(a, g.k, height, k, to, kMaxRows), a += height * g.k;
  }
}

// Rows that are packed together: whole tiles, as even as they can be.
template <class T>
__attribute__((noinline)) Size chunk_of(Size rows) {
  constexpr Size most = kChunkBytes / (kGemmBlock * kMaxRows * Size{sizeof(T)}) * kMaxRows;
  const Partition chunks = partition(rows, most);
  return (chunks.height + (chunks.higher > 0) + kMaxRows - 1) / kMaxRows * kMaxRows;
}

// Columns begin .. end of op(B), of one group, over the k rows from `done` on, as panels one after the other.
template <class T>
void copy_panels(const GemmPlan& g, const GemmPlan::Group& group, const T* b, Size done, Size k, Size begin,
                 Size end, T* to) {
  const Size width = group.width, panels = (end - begin + width - 1) / width;
  if (g.tb) {
    for (Size i = 0; i < panels; ++i, begin += width)
      pack_transposed(b + begin * g.k + done, g.k, g.n - begin, k, to + i * width * k, width);
    return;
  }
  b += done * g.n + begin;
  if (group.ragged) return pack_rows(b, g.n, end - begin, k, to, width);
  const Size wide = kWide / (width * Size{sizeof(T)}), packets = width / Pack<T>::size;
  for (Size i = 0; i < panels; i += wide, b += wide * width, to += wide * width * k) {
    const Size some = smaller(wide, panels - i);
    if (packets == 4) pack_panels<T, 4>(b, g.n, some, k, to);
    else if (packets == 3) pack_panels<T, 3>(b, g.n, some, k, to);
    else if (packets == 2) pack_panels<T, 2>(b, g.n, some, k, to);
    else pack_panels<T, 1>(b, g.n, some, k, to);
  }
}

// All rows of a small product: the shortest way to its kernels.
template <class T>
NESTGRAD_MEMBER_FN void run_direct(const GemmPlan& g, const T* a, const T* b, const T* d, T* c) {
  const Size a_row = g.ta ? 1 : g.k;
  Tiles<T> t;
  t.a_row = a_row, t.a_step = g.ta ? g.m : 1;
  t.b = b, t.b_step = g.n;
  t.c_row = g.n, t.k = g.k, t.far = false;
  const GemmPlan::Group* p = g.group;
  for (Size j = 0;;) {
    t.a = a, t.c = c, t.plus = d;
    t.last = p->last;
    const Size height = p->height, higher = p->higher;
    if (higher > 0) {
      const Size rows = higher * (height + 1);
      t.a_tile = (height + 1) * a_row;
      t.count = higher;
      reinterpret_cast<Multiply<T>>(p->multiply_higher)(t);
      t.a += rows * a_row, t.c += rows * g.n;
      if (d) t.plus += rows * g.n;
    }
    t.a_tile = height * a_row;
    t.count = p->tiles - higher;
    reinterpret_cast<Multiply<T>>(p->multiply)(t);
    const Size width = p->width;
    j += width;
    if (j >= p->end) {
      if (j >= g.n) return;
      ++p;
    }
    t.b += width, c += width;
    if (d) d += width;
  }
}

template <class T>
void run_any(const GemmPlan& g, const T* a, const T* b, const T* d, T* c, Size begin, Size end) {
  if (begin >= end || g.n == 0) return;
  if (g.along)
    return g.m == 1 ? run_along(b, a, g.k, d, c, begin, end) : run_along(a, b, g.k, d, c, begin, end);
  if (g.swapped) {
    const T* const other = a;
    a = b, b = other;
  }
  std::byte* copies = memory_of_products;
  if (!copies) copies = make_thread_memory(memory_of_products, kCopiesBytes, "matrix products");
  T* const panels = reinterpret_cast<T*>(copies);
  T* const tiles = reinterpret_cast<T*>(copies + kRangeBytes);
  const Size a_row = g.ta ? 1 : g.k, a_step = g.ta ? g.m : 1, all = end - begin;
  // Rows of A that meet all of B before the next ones do.
  const bool large = all * smaller(g.k, kGemmBlock) * Size{sizeof(T)} > kFarBytes / 2;
  const Size chunk = g.symmetric ? kSymmetricRows : g.pack_a || (g.pack && large) ? chunk_of<T>(all) : all;
  // Columns whose panels are there at once. What is copied for a single tile is read once, best at once.
  const Size range = chunk < all                   ? kRangeBytes / (kGemmBlock * Size{sizeof(T)})
                     : all > g.group[0].max_height ? kWide / Size{sizeof(T)}
                                                   : g.group[0].width;
  Size done = 0;
  do {  // once at least: without k, C is zero
    Tiles<T> t;
    t.k = smaller(kGemmBlock, g.k - done);
    t.c_row = g.n;
    const T* const plus = done == 0 ? d : c;
    t.far = plus && g.m * g.n * Size{sizeof(T)} > kFarBytes;
    for (Size j0 = 0; j0 < g.n; j0 += range) {
      const Size last = smaller(g.n, j0 + range);
      const auto each_group = [&](const GemmPlan::Group* group, Size stop, auto fn) {
        // fn(group, first, end, copied)
        for (Size j = j0; j < stop; ++group) {
          if (group->end <= j) continue;
          const Size here = smaller(group->end, stop);
          fn(*group, j, here,
             g.pack || (group->ragged && !Some<T>::kExact) ? panels + (j - j0) * t.k : nullptr);
          j = here;
        }
      };
      each_group(g.group, last, [&](const GemmPlan::Group& p, Size j, Size stop, T* copy) {
        if (copy) copy_panels<T>(g, p, b, done, t.k, j, stop, copy);
      });
      for (Size from = begin; from < end; from += chunk) {
        const Size rows = smaller(chunk, end - from);
        const T* first = a + from * a_row + done * a_step;
        t.a_row = a_row, t.a_step = a_step;
        if (g.pack_a) {
          if (j0 == 0 || chunk < all) pack_tiles<T>(g, first, rows, t.k, a + g.m * g.k, tiles);
          first = tiles, t.a_row = 1, t.a_step = kMaxRows;
        }
        GemmPlan::Group own[GemmPlan::kMaxGroups];
        if (rows != g.m)
          for (int i = 0; i < g.groups; ++i) own[i] = of_rows<T>(g.group[i], rows);
        each_group(rows != g.m ? own : g.group, g.symmetric ? smaller(last, from + rows) : last,
                   [&](const GemmPlan::Group& p, Size j, Size stop, const T* copy) {
                     t.last = p.last;
                     t.b = copy ? copy : b + done * g.n + j;
                     t.b_step = copy ? p.width : g.n;
                     for (; j < stop; j += p.width, t.b += copy ? p.width * t.k : p.width) {
                       t.a = first;
                       t.c = c + from * g.n + j, t.plus = plus ? plus + from * g.n + j : nullptr;
                       if (p.higher > 0) {
                         const Size height = p.height + 1, above = p.higher * height;
                         t.a_tile = g.pack_a ? kMaxRows * t.k : height * a_row;
                         t.count = p.higher;
                         reinterpret_cast<Multiply<T>>(p.multiply_higher)(t);
                         t.a += p.higher * t.a_tile, t.c += above * g.n;
                         if (plus) t.plus += above * g.n;
                       }
                       t.a_tile = g.pack_a ? kMaxRows * t.k : p.height * a_row;
                       t.count = p.tiles - p.higher;
                       reinterpret_cast<Multiply<T>>(p.multiply)(t);
                     }
                   });
      }
    }
    done += kGemmBlock;
  } while (done < g.k);
}

template <class T>
void run(const GemmPlan& g, const T* a, const T* b, const T* d, T* c, Size begin, Size end) {
  if (g.direct && end - begin == g.m) run_direct<T>(g, a, b, d, c);
  else run_any<T>(g, a, b, d, c, begin, end);
  if (g.symmetric) mirror<T>(c, g.n);
}

}  // namespace

const GemmKernel<float> gemm_f32{
    .plan = plan<float>, .symmetric_plan = symmetric_plan<float>, .run = run<float>, .tile_rows = kMaxRows};
const GemmKernel<double> gemm_f64{.plan = plan<double>,
                                  .symmetric_plan = symmetric_plan<double>,
                                  .run = run<double>,
                                  .tile_rows = kMaxRows};

}  // namespace nestgrad::inline NESTGRAD_ISA

#include "ops/kernels/attention.h"

#include "ops/kernels/gemm_pack.h"
#include "ops/numerics/logarithm.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace {

constexpr Size kBlock = kAttentionBlock;

// The score of what is not read: its weight is e^-infinity, 0, for the largest score never is below kLowest.
template <class T>
constexpr T kUnread = static_cast<T>(-__builtin_inf());
template <class T>
constexpr T kLowest = static_cast<T>(-m::kLargest<T>);

// The next columns of a tile that are multiple of a register.
template <class T>
constexpr Size padded(Size columns) {
  return (columns + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// Rows of a matrix, `step` elements from one to the next. Of operands on the right: readable up to the next
// whole register.
template <class T>
struct Rows {
  T* at;
  Size step;
  NESTGRAD_MEMBER_FN Rows from(Size row) const { return {at + row * step, step}; }
};

// C[m,n] = op(A) B, or with `add` C += op(A) B; element i, p of op(A) is a[i row + p step].
template <class T>
struct Left {
  const T* at;
  Size row, step;
};
template <class T>
__attribute__((noinline)) void multiply_tiles(Size m, Size n, Size k, Left<T> a, Rows<const T> b, Rows<T> c,
                                              bool add) {
  constexpr Size size = Pack<T>::size;
  if (m == 0) return;
  Tiles<T> t{};
  t.a_row = a.row, t.a_step = a.step;
  t.b_step = b.step, t.c_row = c.step, t.k = k;
  for (Size j = 0; j < n;) {
    const int packets = n - j > size ? 2 : 1;
    const Size width = smaller(packets * size, n - j);
    const bool ragged = width < packets * size;
    const Size count = (m + max_rows(packets) - 1) / max_rows(packets), height = m / count,
               higher = m % count;
    const Multiply<T>* const of = multiplies_for<T>(packets, ragged);
    t.last = width - (packets - 1) * size;
    t.a = a.at, t.b = b.at + j, t.c = c.at + j;
    for (const Size rows : {height + 1, height}) {
      t.count = rows > height ? higher : count - higher;
      if (t.count == 0) continue;
      t.a_tile = rows * a.row;
      t.plus = add ? t.c : nullptr;
      of[rows](t);
      t.a += t.count * t.a_tile, t.c += t.count * rows * c.step;
    }
    j += width;
  }
}

// The rows as an operand on the right: where they lie if their columns fill registers, else copied to `to`.
template <class T>
Rows<const T> right_operand(Rows<const T> rows, Size count, Size columns, T* to) {
  const Size width = padded<T>(columns);
  if (width == columns) return rows;
  pack_rows(rows.at, rows.step, columns, count, to, width);
  return {to, width};
}

// Which columns of a row of a tile are read: begin .. end.
struct Range {
  Size begin, end;
};
NESTGRAD_MEMBER_FN Range within(Size begin, Size end, Size count) {
  const Size first = begin < 0 ? 0 : smaller(begin, count);
  return {first, end < first ? first : smaller(end, count)};
}
NESTGRAD_MEMBER_FN Range within_block(Size begin, Size end) { return within(begin, end, kBlock); }

// Of a block of queries and a block of keys: is there a query of those that does not read all of these?
NESTGRAD_MEMBER_FN bool is_masked(const AttentionSizes& s, Size queries, Size keys) {
  return queries == keys || (s.window != 0 && (queries + 1) * kBlock - 1 - keys * kBlock >= s.window);
}

// Of `count` columns.
template <class T>
NESTGRAD_MEMBER_FN void fill_outside(T* row, Range r, Size count, T value) {
  for (Size i = 0; i < r.begin; ++i) row[i] = value;
  for (Size i = r.end; i < count; ++i) row[i] = value;
}

// ---- forward ----

// What is known of a block of queries after some blocks of keys.
template <class T>
struct Queries {
  T top[kBlock];         // the largest score
  double total[kBlock];  // sum of e^(score - top)
  T factor[kBlock];      // by which the last change of `top` scales what was added up before
};

// Scores, keys x queries, become e^(score - top); top, total and factor are those with these keys. Of `packs` registers of queries
// from query i on.
template <int packs, class T>
NESTGRAD_MEMBER_FN void exponentials_of(T* scores, Size keys, Size i, Queries<T>& to) {
  constexpr int size = Pack<T>::size, kParts = 4;
  Pack<T> top[packs];
#pragma GCC unroll 16
  for (int c = 0; c < packs; ++c) top[c] = Pack<T>::load(to.top + i + c * size);
  for (Size j = 0; j < keys; ++j)
#pragma GCC unroll 16
    for (int c = 0; c < packs; ++c)
      top[c] = at_least(Pack<T>::load(scores + j * kBlock + i + c * size), top[c]);
  for (int c = 0; c < packs; ++c) {
    T* const column = scores + i + c * size;
    T* const old = to.top + i + c * size;
    m::exp(Pack<T>::load(old) - top[c]).store(to.factor + i + c * size);
    top[c].store(old);
    Pack<T> sum[kParts];
#pragma GCC unroll 16
    for (Pack<T>& s : sum) s = Pack<T>(0);
    for (Size j = 0; j < keys; j += kParts)
#pragma GCC unroll 16
      for (int part = 0; part < kParts; ++part) {
        T* const p = column + (j + part) * kBlock;
        const Pack<T> e = m::exp(Pack<T>::load(p) - top[c]);
        e.store(p);
        sum[part] = sum[part] + e;
      }
    T sums[size];
    ((sum[0] + sum[1]) + (sum[2] + sum[3])).store(sums);
    for (int lane = 0; lane < size; ++lane) {
      const Size at = i + c * size + lane;
      to.total[at] = to.total[at] * static_cast<double>(to.factor[at]) + static_cast<double>(sums[lane]);
    }
  }
}

// Of the first keys, a multiple of four, and queries, which fill registers. (Weights of other keys are zeros, which change no sum.)
template <class T>
__attribute__((noinline)) void exponentials(T* scores, Size keys, Size queries, Queries<T>& to) {
  constexpr int size = Pack<T>::size, packs = kBlock / size < 4 ? kBlock / size : 4;
  Size i = 0;
  for (; i + packs * size <= queries; i += packs * size) exponentials_of<packs>(scores, keys, i, to);
  for (; i < queries; i += size) exponentials_of<1>(scores, keys, i, to);
}

// The queries first_query .. that read key j of the keys first_key .., and the keys that query i reads.
NESTGRAD_MEMBER_FN Range readers(const AttentionSizes& s, Size first_query, Size first_key, Size j) {
  const Size begin = first_key + j - first_query;
  return within_block(begin, s.window == 0 ? kBlock : begin + s.window);
}
NESTGRAD_MEMBER_FN Range read_by(const AttentionSizes& s, Size first_query, Size first_key, Size i) {
  const Size end = first_query + i - first_key + 1;
  return within_block(s.window == 0 ? 0 : end - s.window, end);
}

// Of a tile where not every query reads every key, products go over halves, and leave out what none of a half
// reads. The keys that one of the queries begin .. end reads, of `count` keys; the queries that read one of the
// keys begin .. end, of `count` queries.
constexpr Size kHalf = kBlock / 2;
NESTGRAD_MEMBER_FN Range keys_of(const AttentionSizes& s, Size first_query, Size first_key, Range queries,
                                 Size count) {
  return within(read_by(s, first_query, first_key, queries.begin).begin,
                read_by(s, first_query, first_key, queries.end - 1).end, count);
}
NESTGRAD_MEMBER_FN Range queries_of(const AttentionSizes& s, Size first_query, Size first_key, Range keys,
                                    Size count) {
  return within(readers(s, first_query, first_key, keys.begin).begin,
                readers(s, first_query, first_key, keys.end - 1).end, count);
}

template <class T>
void forward(const AttentionSizes& s, const T* q, const T* k, const T* v, T* y, Size queries, T* scratch) {
  const Size first = queries * kBlock, rows = smaller(kBlock, s.time - first), width = padded<T>(s.out);
  T* const q_columns = scratch;                  // [dim, queries]
  T* const scores = q_columns + s.dim * kBlock;  // [keys, queries]
  T* const sums = scores + kBlock * kBlock;      // [queries, width]
  T* const v_copy = sums + kBlock * width;
  alignas(64) Queries<T> about;
  for (Size i = 0; i < kBlock; ++i) about.top[i] = kLowest<T>, about.total[i] = 0;
  pack_transposed(q + first * s.dim, s.dim, rows, s.dim, q_columns, kBlock);
  const Size columns = padded<T>(rows);
  for (Size block = s.first_keys(queries); block <= queries; ++block) {
    const Size at = block * kBlock, keys = smaller(kBlock, s.time - at), key_rows = (keys + 3) / 4 * 4;
    const bool masked = is_masked(s, queries, block);
    const Size part = masked ? kHalf : kBlock;
    for (Size i = 0; i < columns; i += part) {
      const Range of = masked ? keys_of(s, first, at, {i, i + part}, keys) : Range{0, keys};
      multiply_tiles<T>(of.end - of.begin, smaller(part, columns - i), s.dim,
                        {k + (at + of.begin) * s.dim, s.dim, 1}, {q_columns + i, kBlock},
                        {scores + of.begin * kBlock + i, kBlock}, false);
    }
    if (masked)
      for (Size j = 0; j < key_rows; ++j)
        fill_outside(scores + j * kBlock, readers(s, first, at, j), columns, kUnread<T>);
    exponentials(scores, key_rows, columns, about);
    const bool add = block > s.first_keys(queries);
    if (add)
      for (Size i = 0; i < rows; ++i)
        if (about.factor[i] != 1)
          for (Size c = 0; c < s.out; ++c) sums[i * width + c] *= about.factor[i];
    const Rows<const T> v_rows = right_operand<T>({v + at * s.out, s.out}, keys, s.out, v_copy);
    for (Size i = 0; i < rows; i += part) {
      const Range of = masked ? keys_of(s, first, at, {i, i + part}, keys) : Range{0, keys};
      multiply_tiles<T>(smaller(part, rows - i), s.out, of.end - of.begin,
                        {scores + of.begin * kBlock + i, 1, kBlock}, v_rows.from(of.begin),
                        {sums + i * width, width}, add);
    }
  }
  T total[kBlock], lse[kBlock], rest[kBlock];
  for (Size i = 0; i < kBlock; ++i) total[i] = static_cast<T>(about.total[i]);
  for (Size i = 0; i < kBlock; i += Pack<T>::size) {
    const Pack<T> top = Pack<T>::load(about.top + i), log_total = m::log(Pack<T>::load(total + i)),
                  sum = top + log_total;
    sum.store(lse + i);
    ((top - sum) + log_total).store(rest + i);
  }
  for (Size i = 0; i < rows; ++i) {
    T* const to = y + (first + i) * s.row();
    for (Size c = 0; c < s.out; ++c) to[c] = sums[i * width + c] / total[i];
    to[s.out] = lse[i], to[s.out + 1] = rest[i];
  }
}

// ---- backward ----

// What is known of each query: the logarithm of its sum, what rounding took from that, and the product of cotangent
// and output.
template <class T>
struct Known {
  T *lse, *rest, *delta;
  NESTGRAD_MEMBER_FN Known from(Size row) const { return {lse + row, rest + row, delta + row}; }
};

// Rows of a tile, queries x keys (`columns` of them, which fill registers): scores become weights
// e^(score - lse - rest), their cotangents `d` those of the scores, weight (d - delta). The larger numbers are
// subtracted first, so that what is rounded is the small number that is left of them.
template <class T>
__attribute__((noinline)) void weights(T* scores, T* d, Known<T> of, Size rows, Size columns) {
  for (Size i = 0; i < rows; ++i) {
    const Pack<T> lse = Pack<T>::load_repeated(of.lse + i), rest = Pack<T>::load_repeated(of.rest + i),
                  minus = Pack<T>::load_repeated(of.delta + i);
#pragma GCC unroll 2
    for (Size j = i * kBlock; j < i * kBlock + columns; j += Pack<T>::size) {
      const Pack<T> e = m::exp((Pack<T>::load(scores + j) - lse) - rest);
      e.store(scores + j);
      (e * (Pack<T>::load(d + j) - minus)).store(d + j);
    }
  }
}

// What the rows begin .. end of y say. The rest is zero but for rounding, and so is its derivative: its cotangent
// is not read.
template <class T>
__attribute__((noinline)) void read_rows(const AttentionSizes& s, Range rows, const T* y, const T* ct,
                                         Known<T> to) {
  constexpr int kParts = 8;
  y += rows.begin * s.row(), ct += rows.begin * s.row();
  for (Size i = rows.begin; i < rows.end; ++i, y += s.row(), ct += s.row()) {
    double part[kParts] = {};
    Size c = 0;
    for (; c + kParts <= s.out; c += kParts)
      for (int p = 0; p < kParts; ++p)
        part[p] += static_cast<double>(y[c + p]) * static_cast<double>(ct[c + p]);
    for (; c < s.out; ++c) part[0] += static_cast<double>(y[c]) * static_cast<double>(ct[c]);
    const double sum =
        ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
    to.lse[i] = y[s.out], to.rest[i] = y[s.out + 1];
    to.delta[i] = static_cast<T>(sum - static_cast<double>(ct[s.out]));
  }
}

template <class T>
void backward(const AttentionSizes& s, const AttentionBackward<T>& head, T* scratch) {
  const Size k_width = padded<T>(s.dim), v_width = padded<T>(s.out);
  T* const k_columns = scratch;                     // [dim, keys]
  T* const v_columns = k_columns + s.dim * kBlock;  // [out, keys]
  T* const scores = v_columns + s.out * kBlock;     // [queries, keys]
  T* const d_scores = scores + kBlock * kBlock;     // [queries, keys]
  T* const dk = d_scores + kBlock * kBlock;         // [keys, k_width]
  T* const dv = dk + kBlock * k_width;              // [keys, v_width]
  T* const k_copy = dv + kBlock * v_width;
  T* const q_copy = k_copy + kBlock * k_width;
  T* const ct_copy = q_copy + kBlock * k_width;
  T* const lse = ct_copy + kBlock * v_width;
  const Known<T> known{lse, lse + s.time, lse + 2 * s.time};
  read_rows(s, {head.begin * kBlock, smaller((s.last_queries(head.end - 1) + 1) * kBlock, s.time)}, head.y,
            head.ct, known);
  for (Size block = head.begin; block < head.end; ++block) {
    const Size at = block * kBlock, keys = smaller(kBlock, s.time - at), columns = padded<T>(keys),
               last = s.last_queries(block);
    const T* const k = head.k + at * s.dim;
    pack_transposed(k, s.dim, keys, s.dim, k_columns, kBlock);
    pack_transposed(head.v + at * s.out, s.out, keys, s.out, v_columns, kBlock);
    const Rows<const T> k_rows = right_operand<T>({k, s.dim}, keys, s.dim, k_copy);
    for (Size queries = block; queries <= last; ++queries) {
      const Size first = queries * kBlock, rows = smaller(kBlock, s.time - first);
      const Rows<const T> q{head.q + first * s.dim, s.dim}, ct{head.ct + first * s.row(), s.row()};
      const bool masked = is_masked(s, queries, block);
      const Size part = masked ? kHalf : kBlock;
      for (Size i = 0; i < rows; i += part) {
        const Size count = smaller(part, rows - i);
        const Range read = masked ? keys_of(s, first, at, {i, i + count}, columns) : Range{0, columns};
        const Size j = read.begin / kHalf * kHalf,
                   width = smaller((read.end + kHalf - 1) / kHalf * kHalf, columns) - j;
        multiply_tiles<T>(count, width, s.dim, {q.from(i).at, q.step, 1}, {k_columns + j, kBlock},
                          {scores + i * kBlock + j, kBlock}, false);
        multiply_tiles<T>(count, width, s.out, {ct.from(i).at, ct.step, 1}, {v_columns + j, kBlock},
                          {d_scores + i * kBlock + j, kBlock}, false);
      }
      weights(scores, d_scores, known.from(first), rows, columns);
      if (masked)
        for (Size i = 0; i < rows; ++i)
          for (T* const row : {scores + i * kBlock, d_scores + i * kBlock})
            fill_outside(row, read_by(s, first, at, i), columns, T(0));
      const bool add = queries > block;
      const Rows<const T> ct_rows = right_operand<T>(ct, rows, s.out, ct_copy),
                          q_rows = right_operand<T>(q, rows, s.dim, q_copy);
      for (Size j = 0; j < keys; j += part) {
        const Size count = smaller(part, keys - j);
        const Range of = masked ? queries_of(s, first, at, {j, j + count}, rows) : Range{0, rows};
        multiply_tiles<T>(count, s.out, of.end - of.begin, {scores + of.begin * kBlock + j, 1, kBlock},
                          ct_rows.from(of.begin), {dv + j * v_width, v_width}, add);
        multiply_tiles<T>(count, s.dim, of.end - of.begin, {d_scores + of.begin * kBlock + j, 1, kBlock},
                          q_rows.from(of.begin), {dk + j * k_width, k_width}, add);
      }
      const bool own = s.reads_before(queries, head.begin);
      const Rows<T> dq = own ? Rows<T>{head.dq_own + (first - head.begin * kBlock) * s.dim, s.dim}
                             : Rows<T>{head.dq + first * head.d_row, head.d_row};
      for (Size i = 0; i < rows; i += part) {
        const Size count = smaller(part, rows - i);
        const Range of = masked ? keys_of(s, first, at, {i, i + count}, keys) : Range{0, keys};
        multiply_tiles<T>(count, s.dim, of.end - of.begin, {d_scores + i * kBlock + of.begin, kBlock, 1},
                          k_rows.from(of.begin), dq.from(i),
                          own ? block > head.begin : s.reads_before(queries, block));
      }
    }
    for (Size j = 0; j < keys; ++j) {
      T* const to = head.dkv + (at + j) * head.d_row;
      const T *const dk_row = dk + j * k_width, *const dv_row = dv + j * v_width;
      for (Size c = 0; c < s.dim; ++c) to[c] = head.add ? to[c] + dk_row[c] : dk_row[c];
      for (Size c = 0; c < s.out; ++c) to[s.dim + c] = head.add ? to[s.dim + c] + dv_row[c] : dv_row[c];
    }
  }
}

}  // namespace

constinit const AttentionKernel<float> attention_f32{.forward = forward<float>, .backward = backward<float>};
constinit const AttentionKernel<double> attention_f64{.forward = forward<double>,
                                                      .backward = backward<double>};

}  // namespace nestgrad::inline NESTGRAD_ISA

#include "ttt/causal_attention_kernels.h"

#include <algorithm>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "ops/attrs.h"
#include "ops/kernels.h"
#include "ops/rules.h"

namespace nestgrad {

namespace {

AttentionSizes sizes_of(const OpCall& c) {
  const Shape& q = c.in[0].shape;
  return {.time = q[2],
          .dim = q[3],
          .out = c.in[2].shape[3],
          .window = c.attrs.as<CausalAttentionAttrs>().window};
}

// Scores that are not masked, of all heads.
double scores_of(const OpCall& c) {
  const AttentionSizes s = sizes_of(c);
  const auto time = static_cast<double>(s.time);
  const double window = s.window == 0 || s.window > s.time ? time : static_cast<double>(s.window);
  return static_cast<double>(c.in[0].shape[0] * c.in[0].shape[1]) *
         (window * time - window * (window - 1) / 2);
}

// What kernels work in: some elements of T for each worker, from the begin of a cache line on.
template <class T>
class Scratch {
 public:
  Scratch(std::int64_t each, int workers)
      : each_((each + kLine - 1) / kLine * kLine), memory_(uz(each_ * workers + kLine)) {}
  T* of(int worker) {
    constexpr std::uintptr_t kBytes = kLine * sizeof(T);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
    return reinterpret_cast<T*>((begin + kBytes - 1) / kBytes * kBytes) + worker * each_;
  }

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(T);
  std::int64_t each_;
  std::vector<T> memory_;
};

// Threads that there is enough to do for.
int workers_for(const OpCall& c) {
  constexpr double kShared = 1 << 23;  // flops
  return c.op.cost(c).flops < kShared ? 1 : thread_count();
}

// fn(part, worker) for 0 <= part < parts.
template <class Fn>
void share(std::int64_t parts, int workers, Fn fn) {
  if (workers > 1) return in_parallel(static_cast<int>(parts), workers, std::ref(fn));
  for (int i = 0; i < parts; ++i) fn(i, 0);
}

// Heads of queries, of all sequences, and how many of them read the same keys and values.
struct Heads {
  std::int64_t count, each;
};
Heads heads_of(const OpCall& c) {
  const Shape &q = c.in[0].shape, &k = c.in[1].shape;
  return {q[0] * q[1], q[1] / k[1]};
}

// The blocks of keys of a sequence in parts, one after the other, with as many tiles each: what threads take. The
// shapes alone say how it is cut; there is more than one part where groups are few and sequences long. Of
// queries that read keys of earlier parts too, a part makes the cotangents in rows of its own, [heads of the
// group, rows from its first key to the last query that reads its keys, dim]. They are added in the order of the
// parts.
struct KeyParts {
  std::vector<std::int64_t> begins;  // of each part its first block, and behind them that of none
  std::vector<std::int64_t> own;     // where each part's own rows begin, and how many elements they are

  std::int64_t count() const { return std::ssize(own) - 1; }
};

KeyParts parts_of(const AttentionSizes& s, Heads heads) {
  constexpr std::int64_t kParts = 8, kLeastBlocks = 4;  // of all groups; of keys in a part
  const std::int64_t groups = heads.count / heads.each, blocks = s.blocks(),
                     most = std::max<std::int64_t>(1, blocks / kLeastBlocks),
                     parts = std::clamp<std::int64_t>(kParts / groups, 1, most);
  const auto tiles = [&](std::int64_t block) { return s.last_queries(block) - block + 1; };
  std::int64_t all = 0, before = 0;
  for (std::int64_t block = 0; block < blocks; ++block) all += tiles(block);
  KeyParts out{{}, {0}};
  for (std::int64_t block = 0; block < blocks; before += tiles(block++))
    if (before * parts >= all * std::ssize(out.begins)) out.begins.push_back(block);
  out.begins.push_back(blocks);
  for (std::size_t part = 0; part + 1 < out.begins.size(); ++part) {
    const std::int64_t first = out.begins[part] * kAttentionBlock,
                       end = (s.last_queries(out.begins[part + 1] - 1) + 1) * kAttentionBlock,
                       rows = part == 0 ? 0 : heads.each * (std::min(end, s.time) - first);
    out.own.push_back(out.own.back() + rows * s.dim);
  }
  return out;
}

template <class T>
class Backward {
 public:
  explicit Backward(const OpCall& c)
      : s_(sizes_of(c)),
        heads_(heads_of(c)),
        workers_(workers_for(c)),
        parts_(parts_of(s_, heads_)),
        scratch_(s_.scratch(), workers_),
        own_(uz(groups() * parts_.own.back())) {}

  void operator()(const std::byte* const* operands, std::byte* result) {
    const auto* const in = reinterpret_cast<const T* const*>(operands);
    T* const out = reinterpret_cast<T*>(result);
    share(groups() * parts_.count(), workers_, [&](int i, int worker) {
      keys(in, out, i / parts_.count(), uz(i % parts_.count()), scratch_.of(worker));
    });
    if (parts_.count() > 1)
      share(heads_.count * s_.blocks(), workers_,
            [&](int i, int) { add_own(out, i / s_.blocks(), i % s_.blocks()); });
  }

 private:
  std::int64_t groups() const { return heads_.count / heads_.each; }
  // The cotangents of a group and a time, side by side: of q, head by head, of k and of v.
  std::int64_t width() const { return (heads_.each + 1) * s_.dim + s_.out; }
  // The own rows of a part, of a head of a group.
  T* own_rows(std::size_t part, std::int64_t group, std::int64_t head) {
    return own_.data() + group * parts_.own.back() + parts_.own[part] +
           head * ((parts_.own[part + 1] - parts_.own[part]) / heads_.each);
  }

  void keys(const T* const* in, T* out, std::int64_t group, std::size_t part, T* scratch) {
    const std::int64_t key = group * s_.time;
    T* const d = out + key * width();
    for (std::int64_t i = 0; i < heads_.each; ++i) {
      const std::int64_t row = (group * heads_.each + i) * s_.time;
      kernel_.backward(s_,
                       {.q = in[0] + row * s_.dim,
                        .k = in[1] + key * s_.dim,
                        .v = in[2] + key * s_.out,
                        .y = in[3] + row * s_.row(),
                        .ct = in[4] + row * s_.row(),
                        .begin = parts_.begins[part],
                        .end = parts_.begins[part + 1],
                        .dq = d + i * s_.dim,
                        .dq_own = own_rows(part, group, i),
                        .dkv = d + heads_.each * s_.dim,
                        .d_row = width(),
                        .add = i > 0},
                       scratch);
    }
  }

  void add_own(T* out, std::int64_t head, std::int64_t queries) {
    const std::int64_t group = head / heads_.each, i = head % heads_.each, first = queries * kAttentionBlock,
                       end = std::min(first + kAttentionBlock, s_.time);
    T* const d = out + group * s_.time * width() + i * s_.dim;
    for (std::size_t part = 1; part < uz(parts_.count()) && parts_.begins[part] <= queries; ++part) {
      if (!s_.reads_before(queries, parts_.begins[part])) continue;
      const T* from = own_rows(part, group, i) + (first - parts_.begins[part] * kAttentionBlock) * s_.dim;
      for (std::int64_t t = first; t < end; ++t, from += s_.dim)
        for (std::int64_t c = 0; c < s_.dim; ++c) d[t * width() + c] += from[c];
    }
  }

  AttentionSizes s_;
  Heads heads_;
  int workers_;
  KeyParts parts_;
  Scratch<T> scratch_;
  std::vector<T> own_;
  const AttentionKernel<T>& kernel_ = attention_kernel<T>();
};

template <class T>
OpKernel forward_kernel(const OpCall& c) {
  const AttentionSizes s = sizes_of(c);
  const int workers = workers_for(c);
  return [s, workers, heads = heads_of(c), scratch = Scratch<T>(s.scratch(), workers),
          &kernel = attention_kernel<T>()](const std::byte* const* operands, std::byte* result) mutable {
    const auto* const in = reinterpret_cast<const T* const*>(operands);
    T* const out = reinterpret_cast<T*>(result);
    share(heads.count * s.blocks(), workers, [&](int part, int worker) {
      // The last queries of a head read the most keys, and come first, so that threads end together.
      const std::int64_t head = part / s.blocks(), queries = s.blocks() - 1 - part % s.blocks();
      const std::int64_t row = head * s.time, key = head / heads.each * s.time;
      kernel.forward(s, in[0] + row * s.dim, in[1] + key * s.dim, in[2] + key * s.out, out + row * s.row(),
                     queries, scratch.of(worker));
    });
  };
}

}  // namespace

OpCost causal_attention_cost(const OpCall& c) {
  const AttentionSizes s = sizes_of(c);
  return {scores_of(c) * static_cast<double>(2 * s.dim + 2 * s.out), elementwise_cost(c).bytes};
}

OpCost causal_attention_derivative_cost(const OpCall& c) {
  const AttentionSizes s = sizes_of(c);
  return {scores_of(c) * static_cast<double>(6 * s.dim + 4 * s.out), elementwise_cost(c).bytes};
}

OpKernel causal_attention_kernel(const OpCall& c) {
  return c.out.dtype == DType::f32 ? forward_kernel<float>(c) : forward_kernel<double>(c);
}

OpKernel causal_attention_derivative_kernel(const OpCall& c) {
  return c.out.dtype == DType::f32 ? OpKernel(Backward<float>(c)) : OpKernel(Backward<double>(c));
}

}  // namespace nestgrad

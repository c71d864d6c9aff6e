// A scan over independent slices as one kernel: a block of threads takes a slice through all its steps, op
// after op, with the slice's state in shared memory where it fits. The composite is the same scan without
// slices, op by op. Which scans: every op of the body is one of those below. With checkpoints through time
// the kernel runs once for each segment, and once more where a segment is recomputed.
#include <algorithm>
#include <optional>

#include "cuda/backend.h"
#include "cuda/cluster.cuh"
#include "cuda/moves.cuh"
#include "cuda/reductions.cuh"
#include "engine/program.h"

namespace nestgrad::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr int kMostExternals = 256, kMostBases = 256;

// ---- the text of a scan, as the device reads it ----

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

// A value of every step: read, or written. lazy: there is room for so many times, one after the other; 0: for
// all.
struct StepsText {
  PartText part;
  int base = 0;
  std::int64_t stride = 0, buffer = 0;  // buffer: a step of scratch in the slice's memory
  int of_carry = 0, lazy = 0;
  __device__ std::int64_t offset(std::int64_t slice, int time) const {
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

// ---- the ops of a body, by a whole block ----

// C = A B with 16 x 16 threads, each with Rows x 4 elements of C at a time. Where B is read along its rows,
// the columns of a warp begin their sums at different k, so that they read different banks.
template <int Rows, class T>
__device__ void product_tiles(const Product& p, const T* a, const T* b, T* out) {
  constexpr int kSide = 16, kColumns = 4;
  const int row_thread = static_cast<int>(threadIdx.x) / kSide,
            column_thread = static_cast<int>(threadIdx.x) % kSide;
  const std::int64_t rotate = p.b_row < p.b_column ? column_thread % p.k : 0;
  for (std::int64_t top = 0; top < p.m; top += kSide * Rows)
    for (std::int64_t left = 0; left < p.n; left += kSide * kColumns) {
      T sum[Rows][kColumns] = {};
      const T* from_a[Rows];
      const T* from_b[kColumns];
      for (int r = 0; r < Rows; ++r) {
        const std::int64_t row = top + row_thread + r * kSide;
        from_a[r] = a + (row < p.m ? row : 0) * p.a_row;
      }
      for (int c = 0; c < kColumns; ++c) {
        const std::int64_t column = left + column_thread + c * kSide;
        from_b[c] = b + (column < p.n ? column : 0) * p.b_column;
      }
      for (std::int64_t i = 0, k = rotate; i < p.k; ++i) {
        T x[Rows], y[kColumns];
        for (int r = 0; r < Rows; ++r) x[r] = from_a[r][k * p.a_column];
        for (int c = 0; c < kColumns; ++c) y[c] = from_b[c][k * p.b_row];
        for (int r = 0; r < Rows; ++r)
          for (int c = 0; c < kColumns; ++c) sum[r][c] += x[r] * y[c];
        if (++k == p.k) k = 0;
      }
      for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < kColumns; ++c) {
          const std::int64_t row = top + row_thread + r * kSide, column = left + column_thread + c * kSide;
          if (row < p.m && column < p.n) out[row * p.n + column] = sum[r][c];
        }
    }
}

template <class T>
__device__ void run_product(const Product& p, const T* a, const T* b, T* out) {
  for (std::int64_t i = 0; i < p.count; ++i) {
    const T *from_a = a + p.a.at(i), *from_b = b + p.b.at(i);
    T* to = out + i * p.m * p.n;
    if (p.m <= 16) product_tiles<1>(p, from_a, from_b, to);
    else if (p.m <= 32) product_tiles<2>(p, from_a, from_b, to);
    else product_tiles<4>(p, from_a, from_b, to);
  }
}

template <class T>
struct SliceMemory {
  std::byte* memory;
  std::byte* const* external;

  __device__ std::byte* at(const BlockPlace& p) const {
    if (p.kind == BlockPlace::memory) return memory + p.at;
    return p.kind == BlockPlace::external ? external[p.at] : reinterpret_cast<std::byte*>(p.at);
  }
  __device__ const T* in(const BlockOp& op, int i) const { return reinterpret_cast<const T*>(at(op.in[i])); }
  __device__ T* out(const BlockOp& op) const { return reinterpret_cast<T*>(at(op.out[0])); }
};

template <class T>
__device__ void run_op(const BlockOp& op, const SliceMemory<T>& where, T* scratch) {
  switch (op.code) {
    case BlockCode::cluster: {
      const auto& c = *static_cast<const BlockCluster*>(op.details);
      Pointers pointers;
      for (int i = 0; i < op.ins; ++i) pointers.in[i] = where.at(op.in[i]);
      for (int i = 0; i < op.outs; ++i) pointers.out[i] = where.at(op.out[i]);
      return run_cluster(c.text, c.walks, pointers, c.sizes, scratch, 0, 1);
    }
    case BlockCode::product:
      return run_product(*static_cast<const Product*>(op.details), where.in(op, 0), where.in(op, 1),
                         where.out(op));
    case BlockCode::move: {
      const auto& m = *static_cast<const Move*>(op.details);
      const T* from = where.in(op, 0);
      T* to = where.out(op);
      for (std::int64_t i = threadIdx.x; i < m.size; i += blockDim.x)
        to[m.target_offset + m.to.at(i)] = from[m.source_offset + m.from.at(i)];
      return;
    }
    case BlockCode::zero: {
      T* to = where.out(op);
      for (std::int64_t i = threadIdx.x; i < op.elements; i += blockDim.x) to[i] = T(0);
      return;
    }
    case BlockCode::sum:
    case BlockCode::largest: {
      const auto& r = *static_cast<const Reduction*>(op.details);
      const T* from = where.in(op, 0);
      T* to = where.out(op);
      for (std::int64_t o = threadIdx.x / kWarp; o < r.outputs; o += blockDim.x / kWarp) {
        const T total =
            op.code == BlockCode::sum ? reduce_by_warp<Sum>(r, from, o) : reduce_by_warp<Max>(r, from, o);
        if (threadIdx.x % kWarp == 0) to[o] = total;
      }
      return;
    }
    case BlockCode::tril: {
      const auto& t = *static_cast<const Triangle*>(op.details);
      const T* from = where.in(op, 0);
      T* to = where.out(op);
      for (std::int64_t i = threadIdx.x; i < t.size; i += blockDim.x)
        to[i] = i % t.columns <= i / t.columns % t.rows + t.diagonal ? from[i] : T(0);
      return;
    }
    case BlockCode::iota: {
      const auto& l = *static_cast<const Line*>(op.details);
      T* to = where.out(op);
      for (std::int64_t i = threadIdx.x; i < l.size; i += blockDim.x)
        to[i] = static_cast<T>(i / l.stride % l.extent);
      return;
    }
    case BlockCode::cumsum: {
      const auto& l = *static_cast<const Line*>(op.details);
      for (std::int64_t line = threadIdx.x; line < l.lines; line += blockDim.x)
        sum_along(where.in(op, 0), where.out(op), line, l.extent, l.stride, l.reverse != 0);
      return;
    }
  }
}

// ---- the kernel ----

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    scan(const ScanText* text_at, Bases bases, Backend::FusedScan::Steps steps, std::byte* spilled) {
  NESTGRAD_SHARED(std::byte*, table);  // externals, then what the carries are now; then the slice's memory
  const ScanText& text = *text_at;
  const int inputs = text.carries + text.xs + text.consts;
  std::byte** const external = table;
  std::byte** const carried = table + kMostExternals;
  const std::int64_t s = blockIdx.x;
  std::byte* const memory =
      spilled ? spilled + s * text.memory_bytes : reinterpret_cast<std::byte*>(table + 2 * kMostExternals);
  const SliceMemory<T> where{memory, external};
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);

  const auto stack_slot = [&](const StepsText& v, int time) {
    return v.lazy || (steps.store && v.part.owner[s]) ? bases.at[v.base] + v.offset(s, time)
                                                      : memory + v.buffer;
  };
  const auto copy_of = [&](const CarryText& c, int number) {
    return bases.at[c.copies] + (static_cast<std::int64_t>(number) * text.slices + s) * c.part.bytes;
  };
  const auto working = [&](const CarryText& c, int parity) {
    return memory + (parity % 2 ? c.pong : c.ping);
  };
  const auto next_carry = [&](const CarryText& c, int time, int parity, bool last) {
    if (last) {
      if (steps.to_copy >= 0) return copy_of(c, steps.to_copy);
      if (!steps.last || c.final_value < 0) return working(c, parity);
      if (c.partial) return bases.at[c.terms] + s * c.part.bytes;
      return c.part.owner[s] ? bases.at[c.final_value] + c.part.at[s] : working(c, parity);
    }
    if (c.stack < 0) return working(c, parity);
    const StepsText& v = text.stack[c.stack];
    const int next = text.reverse ? time - 1 : time + 1;
    return v.lazy || (steps.store && v.part.owner[s]) ? stack_slot(v, next) : working(c, parity);
  };

  // Of a sum over slices, the first slice has what it begins with.
  for (int c = 0; c < text.carries; ++c) {
    const CarryText& carry = text.carry[c];
    const std::int64_t n = carry.part.bytes / static_cast<std::int64_t>(sizeof(T));
    std::byte* begin =
        steps.from_copy >= 0 ? copy_of(carry, steps.from_copy) : bases.at[carry.init] + carry.part.at[s];
    if (steps.from_copy < 0 && carry.partial && !carry.part.owner[s]) {
      begin = memory + carry.pong;
      for (std::int64_t i = thread; i < n; i += threads) reinterpret_cast<T*>(begin)[i] = T(0);
    } else if (carry.stack >= 0) {
      T* to = reinterpret_cast<T*>(stack_slot(text.stack[carry.stack], steps.first));
      for (std::int64_t i = thread; i < n; i += threads) to[i] = reinterpret_cast<const T*>(begin)[i];
    }
    if (thread == 0) carried[c] = begin;
  }
  for (int i = 0; i < steps.count; ++i) {
    const int time = text.reverse ? steps.first - i : steps.first + i;
    __syncthreads();
    for (int k = thread; k < text.carries; k += threads) {
      external[k] = carried[k];
      carried[k] = external[inputs + k] = next_carry(text.carry[k], time, i, i + 1 == steps.count);
    }
    for (int k = thread; k < text.xs; k += threads)
      external[text.carries + k] = bases.at[text.x[k].base] + text.x[k].offset(s, time);
    for (int k = thread; k < text.consts; k += threads)
      external[text.carries + text.xs + k] = bases.at[text.constant[k].base] + text.constant[k].part.at[s];
    if (thread == 0)
      for (int k = 0, out = inputs + text.carries; k < text.stacks; ++k)
        if (!text.stack[k].of_carry) external[out++] = stack_slot(text.stack[k], time);
    __syncthreads();
    for (int o = 0; o < text.ops; ++o) {
      run_op(text.op[o], where, reinterpret_cast<T*>(memory + text.scratch_at));
      __syncthreads();
    }
  }
}

// Last values of which the slices have terms, added up in the order of the slices.
template <class T>
__global__ void add_terms(const T* terms, std::byte* sum, PartText part, std::int64_t slices) {
  const std::int64_t i = global_thread(), n = part.bytes / static_cast<std::int64_t>(sizeof(T));
  if (i >= n) return;
  for (std::int64_t s = 0; s < slices; ++s) {
    T* to = reinterpret_cast<T*>(sum + part.at[s]) + i;
    *to = part.owner[s] ? terms[s * n + i] : *to + terms[s * n + i];
  }
}

// ---- from a scan to its text ----

struct Unsuited {};  // never leaves this file

std::int64_t signed_size(std::size_t n) { return static_cast<std::int64_t>(n); }

// The text of one scan, in the memory of the device.
template <class T>
class ScanWriter {
 public:
  ScanWriter(const ScanStep& step, const Program& parent, CudaBackend& backend,
             std::vector<DeviceTable>& tables)
      : step_(step), parent_(parent), body_(step.workers[0].body), backend_(backend), tables_(tables) {
    text_.reverse = step.reverse, text_.slices = step.slices;
    write_values();
    for (const Instruction& ins : body_.code) write(ins);
    text_.op = upload(ops_);
    text_.ops = static_cast<int>(ops_.size());
    text_.scratch_at = signed_size((step.memory_bytes + 15) / 16 * 16);
    text_.memory_bytes = (text_.scratch_at + scratch_bytes_ + 63) / 64 * 64;
  }

  const ScanText& text() const { return text_; }
  const std::vector<Place>& bases() const { return bases_; }
  const std::vector<CarryText>& carries() const { return carries_; }

 private:
  template <class V>
  const V* upload(const std::vector<V>& values) {
    tables_.emplace_back(backend_, values.data(), values.size() * sizeof(V));
    return tables_.back().template as<V>();
  }
  template <class V>
  const V* upload_one(const V& value) {
    return upload(std::vector<V>{value});
  }

  int base(const Place& place) {
    if (place.kind == Place::Kind::none) throw Unsuited();
    const auto same = [&](const Place& p) { return p.kind == place.kind && p.at == place.at; };
    const auto known = std::ranges::find_if(bases_, same);
    if (known != bases_.end()) return static_cast<int>(known - bases_.begin());
    if (bases_.size() == kMostBases) throw Unsuited();
    bases_.push_back(place);
    return static_cast<int>(bases_.size()) - 1;
  }
  PartText part(const SliceOf& p, const std::vector<std::size_t>& at) {
    return {upload(std::vector<std::int64_t>(at.begin(), at.end())), upload(p.owner), signed_size(p.bytes)};
  }

  void write_values() {
    for (const ScanStep::Carry& c : step_.carries) {
      CarryText t{.part = part(c.part, c.part.at),
                  .init = base(c.init),
                  .stack = c.stack,
                  .partial = c.part.partial,
                  .ping = signed_size(c.ping),
                  .pong = signed_size(c.pong)};
      if (c.final_value.kind != Place::Kind::none) t.final_value = base(c.final_value);
      if (c.part.partial && t.final_value >= 0) t.terms = base({Place::Kind::arena, c.terms});
      if (step_.copies) t.copies = base({Place::Kind::arena, c.checkpoints});
      carries_.push_back(t);
    }
    std::vector<StepsText> xs, consts, stacks;
    int every = step_.every;
    for (const ScanStep::PerStep& x : step_.xs) {
      if (x.producer >= 0) {
        const ScanStep& other = *parent_.code[static_cast<std::size_t>(x.producer)].scan;
        if (every != 0 && every != other.every) throw Unsuited();  // segments that do not meet
        every = other.every;
        xs.push_back(lazy(other, other.stacks[x.stack]));
        continue;
      }
      xs.push_back({{upload(std::vector<std::int64_t>(x.where.at.begin(), x.where.at.end()))},
                    base(x.source),
                    signed_size(x.where.stride)});
    }
    for (const ScanStep::Const& c : step_.consts) consts.push_back({part(c.part, c.part.at), base(c.source)});
    for (const ScanStep::Stack& s : step_.stacks) {
      StepsText t = s.lazy ? lazy(step_, s) : StepsText{.part = part(s.part, s.where.at)};
      if (!s.lazy) {
        t.base = base(s.stored);
        t.stride = signed_size(s.where.stride), t.buffer = signed_size(s.buffer);
      }
      t.of_carry = s.of_carry;
      stacks.push_back(t);
    }
    text_.carries = static_cast<int>(carries_.size()), text_.xs = static_cast<int>(xs.size());
    text_.consts = static_cast<int>(consts.size()), text_.stacks = static_cast<int>(stacks.size());
    if (2 * text_.carries + text_.xs + text_.consts + text_.stacks > kMostExternals) throw Unsuited();
    text_.carry = upload(carries_), text_.x = upload(xs), text_.constant = upload(consts),
    text_.stack = upload(stacks);
  }

  BlockPlace place(const Place& p) const {
    if (p.kind == Place::Kind::arena) return {BlockPlace::memory, signed_size(step_.body_arena + p.at)};
    if (p.kind == Place::Kind::external) return {BlockPlace::external, signed_size(p.at)};
    const std::byte* literal = body_.literals[p.at].data();
    return {BlockPlace::absolute, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(literal))};
  }

  void write(const Instruction& ins) {
    BlockOp op;
    if (ins.in.size() > kMostClusterInputs || ins.scan) throw Unsuited();
    for (const Place& p : ins.in) op.in[op.ins++] = place(p);
    if (ins.cluster) {
      for (const Place& p : ins.outs) op.out[op.outs++] = place(p);
      return write_cluster(*ins.call, op);
    }
    op.out[op.outs++] = place(ins.out);
    const Node& node = body_.graph->node(ins.node);
    if (!ins.op) {
      const Shape flat{node.spec.size()};
      return write_move(op, move_over(flat, {1}, {1}));
    }
    const NodeCall call(body_.graph->nodes(), node);
    const std::string_view name = ins.op->name;
    if (ins.op->loop) return write_cluster(single(call), op);
    if (ins.op->view) return write_move(op, move_of_view(call));
    if (name == "matmul") return write_product(call, op);
    if (name == "sum" || name == "max_over") {
      op.code = name == "sum" ? BlockCode::sum : BlockCode::largest;
      op.details = upload_one(reduction_of(call));
    } else if (name == "pad") {
      write_zero(op, node.spec.size());
      return write_move(op, move_of_pad(call));
    } else if (name == "concat") {
      const std::vector<Move> moves = moves_of_concat(call);
      for (std::size_t i = 0; i < moves.size(); ++i) {
        BlockOp one = op;
        one.in[0] = op.in[i], one.ins = 1;
        write_move(one, moves[i]);
      }
      return;
    } else if (name == "tril") {
      const Shape& shape = node.spec.shape;
      op.code = BlockCode::tril;
      op.details =
          upload_one(Triangle{node.spec.size(), shape[shape.size() - 2], shape.back(), node.attrs.ints[0]});
    } else if (name == "iota" || name == "cumsum") {
      const auto axis = static_cast<std::size_t>(node.attrs.ints[0]);
      const std::int64_t extent = node.spec.shape[axis];
      op.code = name == "iota" ? BlockCode::iota : BlockCode::cumsum;
      op.details =
          upload_one(Line{node.spec.size(), node.spec.size() / std::max<std::int64_t>(1, extent), extent,
                          strides_of(node.spec.shape)[axis], name == "cumsum" && node.attrs.ints[1] != 0});
    } else {
      throw Unsuited();
    }
    ops_.push_back(op);
  }

  void write_zero(BlockOp op, std::int64_t elements) {
    op.code = BlockCode::zero, op.elements = elements;
    ops_.push_back(op);
  }
  void write_move(BlockOp op, const Move& move) {
    op.code = BlockCode::move, op.details = upload_one(move);
    ops_.push_back(op);
  }

  void write_cluster(const ClusterCall& call, BlockOp op) {
    if (call.shape.size() == 0) return;
    const ClusterPlan<T> plan(call);
    op.code = BlockCode::cluster;
    op.details = upload_one(BlockCluster{plan.text, plan.sizes, upload(plan.walks)});
    scratch_bytes_ = std::max(scratch_bytes_, signed_size(plan.bytes()));
    ops_.push_back(op);
  }

  void write_product(const Call& call, BlockOp op) {
    const Shape &a = call.in[0].shape, &b = call.in[1].shape, &c = call.out.shape;
    const bool ta = call.attrs.ints[0] != 0, tb = call.attrs.ints[1] != 0;
    Product p{};
    p.m = c[c.size() - 2], p.n = c.back(), p.k = ta ? a[a.size() - 2] : a.back();
    p.a_row = ta ? 1 : a.back(), p.a_column = ta ? a.back() : 1;
    p.b_row = tb ? 1 : b.back(), p.b_column = tb ? b.back() : 1;
    const Shape batch(c.begin(), c.end() - 2);
    p.count = numel(batch);
    p.a = batch_walk(batch, a), p.b = batch_walk(batch, b);
    if (p.k == 0) return write_zero(op, call.out.size());
    op.code = BlockCode::product, op.details = upload_one(p);
    ops_.push_back(op);
  }

  // Slices one after the other, each with its last `every` times.
  StepsText lazy(const ScanStep& scan, const ScanStep::Stack& s) {
    std::vector<std::int64_t> at;
    for (int slice = 0; slice < scan.slices; ++slice)
      at.push_back(signed_size(s.part.bytes) * scan.every * slice);
    StepsText out{.part = {upload(at), upload(s.part.owner), signed_size(s.part.bytes)}};
    out.base = base({Place::Kind::arena, s.buffer});
    out.stride = signed_size(s.part.bytes), out.lazy = scan.every;
    return out;
  }

  const ScanStep& step_;
  const Program& parent_;
  const Program& body_;
  CudaBackend& backend_;
  std::vector<DeviceTable>& tables_;
  ScanText text_;
  std::vector<CarryText> carries_;
  std::vector<BlockOp> ops_;
  std::vector<Place> bases_;
  std::int64_t scratch_bytes_ = 0;
};

template <class T>
class ScanKernel final : public Backend::FusedScan {
 public:
  ScanKernel(const ScanStep& step, const Program& parent, CudaBackend& backend)
      : backend_(backend), slices_(step.slices) {
    ScanWriter<T> writer(step, parent, backend, tables_);
    places = writer.bases();
    carries_ = writer.carries();
    tables_.emplace_back(backend, &writer.text(), sizeof(ScanText));
    const std::size_t table = 2 * kMostExternals * sizeof(std::byte*),
                      memory = static_cast<std::size_t>(writer.text().memory_bytes);
    extent_ = {slices_, kThreads, table + memory};
    if (extent_.shared > backend.shared_limit()) {
      extent_.shared = table;
      spilled_.emplace(backend, memory * static_cast<std::size_t>(slices_));
    }
    if (extent_.shared > kPlainShared) allow_shared(scan<T>, backend.shared_limit());
  }

  void run(std::byte* const* addresses, const Steps& steps) override {
    Bases bases{};
    std::copy_n(addresses, places.size(), bases.at);
    launch(backend_, extent_, scan<T>, tables_.back().template as<ScanText>(), bases, steps,
           spilled_ ? spilled_->as<std::byte>() : nullptr);
    for (const CarryText& c : carries_)
      if (c.terms >= 0 && steps.last)
        launch(backend_, for_each_of(c.part.bytes / static_cast<std::int64_t>(sizeof(T))), add_terms<T>,
               reinterpret_cast<const T*>(addresses[c.terms]), addresses[c.final_value], c.part, slices_);
  }
  std::string describe() const override {
    return "one kernel, " + std::to_string(extent_.shared) + " bytes of shared memory a slice" +
           (spilled_ ? ", its state outside of it" : "");
  }

 private:
  CudaBackend& backend_;
  std::int64_t slices_;
  Extent extent_{};
  std::vector<CarryText> carries_;
  std::vector<DeviceTable> tables_;  // the scan's text last
  std::optional<DeviceTable> spilled_;
};

bool runs_in_block(const Op& op) {
  if (op.kind == OpKind::input || op.kind == OpKind::constant || op.alias) return true;
  if (op.kind != OpKind::value) return false;
  if (op.loop || op.view || op.expand) return true;
  for (const char* name : {"matmul", "sum", "max_over", "pad", "concat", "tril", "iota", "cumsum"})
    if (op.name == name) return true;
  return false;
}

}  // namespace

bool CudaBackend::suits_fused_scan(const Graph& body) {
  const DType dtype = body.node(0).spec.dtype;
  for (const Node& n : body.nodes())
    if (n.spec.dtype != dtype || !runs_in_block(*n.op)) return false;
  return is_float(dtype);
}

std::unique_ptr<Backend::FusedScan> CudaBackend::fuse_scan(const ScanStep& step, const Program& parent) {
  use();
  const Program& body = step.workers[0].body;
  try {
    if (body.graph->node(0).spec.dtype == DType::f32)
      return std::make_unique<ScanKernel<float>>(step, parent, *this);
    return std::make_unique<ScanKernel<double>>(step, parent, *this);
  } catch (const Unsuited&) {
    return nullptr;
  }
}

}  // namespace nestgrad::cuda

#include "engine/plan/cluster.h"

#include <algorithm>

#include "engine/core/index.h"
#include "engine/core/spread_operand.h"
#include "engine/core/thread_memory.h"
#include "engine/core/threads.h"

namespace nestgrad {

namespace {

constexpr std::int64_t kBlock = 1024;  // elements
constexpr std::size_t kMostArity = 3;
static_assert(kMostClusterRank <= SpreadOperand::kMostAxes);

// A value has a slot, which holds where its block begins; values that are not seen from outside have blocks
// of their own in a thread's memory.
template <class T>
class Cluster {
 public:
  Cluster(const std::vector<ClusterOp>& ops, const std::vector<Spec>& inputs, const Spec& shape)
      : inputs_(inputs), shape_(shape), narrow_shape_(narrow_spec(shape)) {
    if (std::ranges::any_of(ops, [](const ClusterOp& op) { return op.narrow; })) row_ = shape.shape.back();
    rows_ = shape.size() / row_;
    find_long_runs(ops);
    for (std::size_t i = 0; i < ops.size(); ++i) add(ops, i);
  }

  void operator()(const std::byte* const* in, std::byte* const* out) const {
    in_blocks(rows_, std::max<std::int64_t>(1, kGrain / row_), [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t room = std::max<std::int64_t>(1, kBlock / row_),
                         parts = (run_rows_ + room - 1) / room, most = (run_rows_ + parts - 1) / parts;
      for (std::int64_t row = begin; row < end;) {
        const std::int64_t rows = std::min({most, run_rows_ - row % run_rows_, end - row});
        run_block(in, out, row, rows);
        row += rows;
      }
    });
  }

 private:
  static constexpr std::size_t kMostSlots = 2 * (kMostClusterInputs + kMostClusterOps);

  // whole: as large as what reads it. one: a single element. spread: it is spread in memory, block by block. run, repeated: each
  // block lies within one run of it, which is read where it lies, or is one element.
  enum class Kind : std::uint8_t { whole, one, spread, run, repeated };
  // Runs from which on operands are read where they lie: of shorter ones each would be a block, which takes longer than to copy them.
  static constexpr std::int64_t kLongRun = 256;
  struct Source {  // an input as operands see it
    std::size_t input;
    bool narrow;
    Kind kind;
    SpreadOperand spread;
    std::size_t slot;
  };
  struct Step {
    ElementLoop loop = nullptr;  // neither this nor reduce: the row's one element is repeated
    RowReduction reduce = nullptr;
    bool narrow = false;
    std::vector<std::size_t> operands;
    std::size_t out = 0;
  };
  struct Result {
    std::size_t slot = 0;
    int wide = -1;  // slot of a narrow value, repeated along the rows
  };
  struct Output {
    std::size_t slot;
    bool narrow;
  };

  std::size_t new_slot(bool in_memory) {
    blocks_.push_back(in_memory ? static_cast<int>(memory_blocks_++) : -1);
    return blocks_.size() - 1;
  }

  // If all that is spread over the shape has long runs, blocks are cut so that none crosses the end of one. (What is reduced must be
  // in memory.)
  void find_long_runs(const std::vector<ClusterOp>& ops) {
    std::int64_t least = shape_.size();
    for (const ClusterOp& op : ops)
      for (int o : op.operands) {
        if (o < 0 || (op.narrow && !op.reduce)) continue;
        const Spec& in = inputs_[uz(o)];
        if (in.size() == shape_.size() || in.size() == 1) continue;
        least = op.reduce ? 0 : std::min(least, SpreadOperand(in, shape_).run());
      }
    long_runs_ = least >= kLongRun && least % row_ == 0;
    run_rows_ = std::max<std::int64_t>(1, (long_runs_ ? least : shape_.size()) / row_);
  }

  std::size_t slot_of_input(std::size_t input, bool as_narrow) {
    for (const Source& s : sources_)
      if (s.input == input && s.narrow == as_narrow) return s.slot;
    const Spec& target = as_narrow ? narrow_shape_ : shape_;
    SpreadOperand spread(inputs_[input], target);
    const Kind kind = inputs_[input].size() == target.size() ? Kind::whole
                      : inputs_[input].size() == 1           ? Kind::one
                      : as_narrow || !long_runs_             ? Kind::spread
                      : spread.repeats()                     ? Kind::repeated
                                                             : Kind::run;
    const std::size_t slot = new_slot(kind == Kind::spread);
    sources_.push_back({input, as_narrow, kind, std::move(spread), slot});
    return slot;
  }
  bool is_one(std::size_t slot) const {
    return std::ranges::any_of(sources_, [&](const Source& s) {
      return s.slot == slot && (s.kind == Kind::one || s.kind == Kind::repeated);
    });
  }

  void add(const std::vector<ClusterOp>& ops, std::size_t i) {
    const ClusterOp& op = ops[i];
    Step step{.reduce = op.reduce, .narrow = op.narrow && !op.reduce, .operands = {}};
    std::vector<char> stretched;
    for (int o : op.operands) {
      if (o >= 0) {
        step.operands.push_back(slot_of_input(uz(o), step.narrow));
      } else {
        Result& r = results_[uz(~o)];
        if (ops[uz(~o)].narrow && !step.narrow && r.wide < 0) {
          r.wide = static_cast<int>(new_slot(true));
          steps_.push_back({.operands = {r.slot}, .out = uz(r.wide)});
        }
        step.operands.push_back(ops[uz(~o)].narrow && !step.narrow ? uz(r.wide) : r.slot);
      }
      stretched.push_back(is_one(step.operands.back()));
    }
    if (!op.reduce) step.loop = op.op->element_loop(shape_.dtype, stretched);
    results_.push_back({new_slot(op.output < 0), -1});
    step.out = results_.back().slot;
    if (op.output >= 0) {
      if (outputs_.size() <= uz(op.output)) outputs_.resize(uz(op.output) + 1);
      outputs_[uz(op.output)] = {step.out, op.narrow};
    }
    steps_.push_back(std::move(step));
  }

  void run_block(const std::byte* const* in, std::byte* const* out, std::int64_t row,
                 std::int64_t rows) const {
    // For the widest type, since clusters of all types share it.
    constexpr std::size_t kBytes = kMostSlots * uz(std::max(kBlock, kMostClusterRow)) * sizeof(double);
    std::byte* bytes = memory_of_clusters;
    if (!bytes) bytes = make_thread_memory(memory_of_clusters, kBytes, "elementwise ops");
    T* const memory = reinterpret_cast<T*>(bytes);
    const std::int64_t begin = row * row_, n = rows * row_;
    T* at[kMostSlots];
    for (std::size_t s = 0; s < blocks_.size(); ++s)
      if (blocks_[s] >= 0) at[s] = memory + blocks_[s] * n;
    for (const Source& s : sources_) {
      T* x = const_cast<T*>(reinterpret_cast<const T*>(in[s.input]));
      if (s.kind == Kind::whole) at[s.slot] = x + (s.narrow ? row : begin);
      else if (s.kind == Kind::one) at[s.slot] = x;
      else if (s.kind != Kind::spread) at[s.slot] = x + s.spread.place(begin);
      else if (s.narrow) s.spread.expand(x, row, row + rows, at[s.slot]);
      else s.spread.expand(x, begin, begin + n, at[s.slot]);
    }
    for (std::size_t k = 0; k < outputs_.size(); ++k)
      at[outputs_[k].slot] = reinterpret_cast<T*>(out[k]) + (outputs_[k].narrow ? row : begin);
    for (const Step& s : steps_) {
      T* y = at[s.out];
      const T* x = at[s.operands[0]];
      if (s.loop) {
        const std::byte* operands[kMostArity];
        for (std::size_t k = 0; k < s.operands.size(); ++k)
          operands[k] = reinterpret_cast<const std::byte*>(at[s.operands[k]]);
        s.loop(operands, reinterpret_cast<std::byte*>(y), s.narrow ? rows : n);
      } else if (s.reduce) {
        for (std::int64_t r = 0; r < rows; ++r)
          s.reduce(reinterpret_cast<const std::byte*>(x + r * row_), reinterpret_cast<std::byte*>(y + r),
                   row_);
      } else {
        for (std::int64_t r = 0; r < rows; ++r) std::fill_n(y + r * row_, row_, x[r]);
      }
    }
  }

  std::vector<Spec> inputs_;
  Spec shape_, narrow_shape_;
  std::int64_t row_ = 1, rows_ = 0;  // without narrow values any element is a row
  bool long_runs_ = false;
  std::int64_t run_rows_ = 1;  // of the shortest run, if those are long
  std::vector<Source> sources_;
  std::vector<Step> steps_;
  std::vector<Result> results_;
  std::vector<Output> outputs_;
  std::vector<int> blocks_;  // slot -> its block of memory; -1: none
  std::size_t memory_blocks_ = 0;
};

}  // namespace

Spec narrow_spec(Spec spec) {
  if (!spec.shape.empty()) spec.shape.back() = 1;
  return spec;
}

ClusterKernel cluster_kernel(const ClusterCall& call) {
  return dispatch(call.shape.dtype,
                  [&]<class T>(T) -> ClusterKernel { return Cluster<T>(call.ops, call.in, call.shape); });
}

}  // namespace nestgrad

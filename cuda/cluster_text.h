// A cluster (engine/plan/cluster.h) as a text that a block of
// threads reads: one step after another.
#pragma once

#include <algorithm>
#include <optional>

#include "cuda/strided.h"
#include "engine/plan/cluster.h"
#include "ops/table.h"

namespace nestgrad::cuda {

// What a step does: one of the formulas of ops/elementwise.def, or one of these.
enum Code : int {
#define UNARY(NAME, ...) code_##NAME,
#include "ops/elementwise.def"
  code_row_sum,
  code_row_max,
  code_spread  // an input, to the block's elements, where it repeats
};

inline std::optional<Code> code_of(const Op& op) {
#define UNARY(NAME, ...) \
  if (&op == &NAME##_op) return code_##NAME;
#include "ops/elementwise.def"
  if (&op == &sum_op) return code_row_sum;
  if (&op == &max_over_op) return code_row_max;
  return std::nullopt;
}

// Where a step reads or writes: a slot of the block's memory, an input or an output. Of `wide` values the
// block has rows * row elements, of others one a row.
struct Operand {
  enum Kind : int { slot, input, output };
  int kind = slot;
  int index = 0;
  int wide = 1;
  int one = 0;  // an input of one element
};

constexpr int kMostOperands = 3;

struct Step {
  int code = 0;
  int operands = 0;
  Operand in[kMostOperands];
  Operand out;
  int barrier = 0;  // other threads' results are read, or overwritten
  int spread = 0;   // of code_spread: which of the walks
};

constexpr int kMostSteps = 2 * static_cast<int>(kMostClusterOps + kMostClusterInputs);

struct Text {
  int steps = 0;
  Step step[kMostSteps];
};

struct Sizes {
  std::int64_t rows = 0, row = 0;         // of the values
  int rows_at_once = 1, slot_stride = 0;  // of a block
};

// An input as elements of the output's shape.
inline Strided walk_over(const Spec& in, const Spec& out) {
  Strided walk;
  const Shape strides = strides_of(in.shape);
  for (int d = 0; d < out.rank(); ++d) {
    const int axis = d - (out.rank() - in.rank());
    const bool repeats = axis < 0 || in.shape[static_cast<std::size_t>(axis)] == 1;
    if (!append(out.shape[static_cast<std::size_t>(d)],
                {{walk, repeats ? 0 : strides[static_cast<std::size_t>(axis)]}}))
      throw ShapeError("[cluster] more than 16 axes that are spread; reshape() some together");
  }
  return walk;
}

// Writes the text of a cluster. by_rows: some of its values have one element a row.
class ClusterWriter {
 public:
  ClusterWriter(const std::vector<ClusterOp>& ops, const std::vector<Spec>& inputs, const Spec& shape,
                bool by_rows)
      : ops_(ops), inputs_(inputs), shape_(shape), by_rows_(by_rows) {
    for (std::size_t i = 0; i < ops.size(); ++i) add(i);
    set_barriers();
  }

  Text text;
  std::vector<Strided> walks;
  int slots = 0;

 private:
  Operand input(std::size_t i, bool wide) {
    const Spec target = wide ? shape_ : narrow_spec(shape_);
    const std::int64_t size = inputs_[i].size();
    if (size == target.size() || size == 1) return {Operand::input, static_cast<int>(i), wide, size == 1};
    if (by_rows_ && inputs_[i] == narrow_spec(shape_)) return {Operand::input, static_cast<int>(i), 0, 0};
    for (const auto& [known, operand] : spread_)
      if (known == i && (operand.wide != 0) == wide) return operand;
    const Operand slot{Operand::slot, slots++, wide, 0};
    Step& step = next();
    step.code = code_spread, step.operands = 1, step.out = slot;
    step.in[0] = {Operand::input, static_cast<int>(i), 0, 0};
    step.spread = static_cast<int>(walks.size());
    walks.push_back(walk_over(inputs_[i], target));
    spread_.emplace_back(i, slot);
    return slot;
  }

  Step& next() { return text.step[text.steps++]; }

  void add(std::size_t i) {
    const ClusterOp& op = ops_[i];
    const bool wide = !op.narrow, reads_wide = wide || op.reduce;
    Operand in[kMostOperands];
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const int o = op.operands[k];
      in[k] =
          o >= 0 ? input(static_cast<std::size_t>(o), reads_wide) : results_[static_cast<std::size_t>(~o)];
    }
    Step& step = next();
    step.code = *code_of(*op.op);
    step.operands = static_cast<int>(op.operands.size());
    std::copy_n(in, kMostOperands, step.in);
    step.out = op.output >= 0 ? Operand{Operand::output, op.output, wide, 0}
                              : Operand{Operand::slot, slots++, wide, 0};
    results_.push_back(step.out);
  }

  // Elements of one width belong to the same threads in every step.
  void set_barriers() {
    const auto kind = [](const Step& s) {
      return s.code == code_row_sum || s.code == code_row_max ? 2 : s.out.wide;
    };
    for (int s = 1; s < text.steps; ++s) {
      const Step& step = text.step[s];
      bool mixed = kind(step) == 2 || kind(text.step[s - 1]) != kind(step);
      for (int k = 0; k < step.operands; ++k)
        mixed = mixed || (step.code != code_spread && step.in[k].wide != step.out.wide && !step.in[k].one);
      text.step[s].barrier = mixed;
    }
  }

  const std::vector<ClusterOp>& ops_;
  const std::vector<Spec>& inputs_;
  Spec shape_;
  bool by_rows_;
  std::vector<Operand> results_;
  std::vector<std::pair<std::size_t, Operand>> spread_;
};

// A cluster as kernels take it.
template <class T>
struct ClusterPlan {
  Text text;
  std::vector<Strided> walks;
  Sizes sizes;
  int slots = 0;

  explicit ClusterPlan(const ClusterCall& call) {
    const bool by_rows = std::ranges::any_of(call.ops, [](const ClusterOp& op) { return op.narrow; });
    ClusterWriter writer(call.ops, call.in, call.shape, by_rows);
    text = writer.text, walks = std::move(writer.walks), slots = writer.slots;
    sizes.row = by_rows ? call.shape.shape.back() : 1;
    sizes.rows = call.shape.size() / sizes.row;
    sizes.rows_at_once = static_cast<int>(std::max<std::int64_t>(1, kElementsAtOnce / sizes.row));
    sizes.slot_stride = static_cast<int>(sizes.rows_at_once * sizes.row);
  }
  // Memory that a block of threads needs.
  std::size_t bytes() const {
    return static_cast<std::size_t>(slots) * static_cast<std::size_t>(sizes.slot_stride) * sizeof(T);
  }

 private:
  static constexpr std::int64_t kElementsAtOnce = 1024;  // of a block
};

// A cluster of one op, elementwise.
inline ClusterCall single(const OpCall& call) {
  ClusterOp op{.op = &call.op, .operands = {}, .output = 0};
  for (std::size_t k = 0; k < call.in.size(); ++k) op.operands.push_back(static_cast<int>(k));
  return {{op}, {call.in.begin(), call.in.end()}, call.out};
}

}  // namespace nestgrad::cuda

// The compiler of plans, in two files: compile.cpp, and compile_scan.cpp for scans. Only they include it;
// the way in is compile() (engine/plan/program.h).
#pragma once

#include <optional>
#include <unordered_map>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/rewrite.h"
#include "engine/plan/arena.h"
#include "engine/plan/backend.h"
#include "engine/plan/fusion.h"
#include "engine/plan/program.h"
#include "engine/plan/stepped.h"

namespace nestgrad {

// Scans that a backend does not run as one kernel, though their slices are independent, and why.
using OpByOp = std::unordered_map<NodeId, std::string>;

class Compiler {
 public:
  // of_scan: it is the body of a scan. op_by_op: what is known of it, to which run() adds.
  Compiler(Lowered lowered, const PlanOptions& options, bool of_scan, OpByOp& op_by_op);
  // Nothing if a scan that was cut is no kernel of the backend after all; then op_by_op has it.
  std::optional<Program> run();

 private:
  friend class ScanCompiler;

  // A value's home. `buffer` indexes buffers_ while compiling; Place::at is filled in when offsets are known.
  struct Value {
    Place place;
    int buffer = -1;
  };
  struct ScanInfo {
    std::size_t instruction = 0;
    std::vector<int> own_buffers;   // working memory, and what else it needs when it is pulled
    std::vector<NodeId> carries;    // those in the table
    std::vector<NodeId> pulled_by;  // scans that read a lazy stack
  };

  const GraphNode& node(NodeId id) const { return graph_.node(id); }
  Value& value(NodeId id) { return values_[uz(id)]; }
  Backend* backend() const { return options_.device.backend(); }
  KernelOptions kernel_options() const { return {options_.precision, options_.compile}; }
  int now() const { return static_cast<int>(program_.code.size()); }

  // ---- homes ----

  // The node whose bytes these are.
  NodeId root_of(NodeId id) const;
  void place_inputs();
  // An output takes its value's place when an instruction writes that value and no earlier output claimed it.
  // One that is written over an input takes it when nothing reads the input any more.
  void place_outputs();
  // To where they are to be, what is elsewhere. Copies over inputs are last: others may show those inputs.
  void copy_outputs();
  Place copy(NodeId id, Place from, Place to);
  // Lets id, an output, live where the input lives that was donated for it, if no later instruction reads that.
  bool take_input(NodeId id);
  void live_over(NodeId id, std::size_t input);
  int new_buffer(std::size_t bytes);
  // Gives id a home in the arena unless it has one (an output).
  void give_home(NodeId id);
  // Lets the output live where a dying input lived.
  template <class MayReuse>
  bool take_over(NodeId id, const std::vector<NodeId>& inputs, MayReuse may_reuse);
  void find_last_readers();
  // Notes that the instruction about to be issued reads id; returns its place.
  Place use(NodeId id);

  // ---- instructions ----

  // Of a backend's kernel, for the instruction that is being made; the CPU's kernels have their own.
  void give_scratch(Instruction& instruction, std::size_t bytes);
  void issue(const Fusion::Group& group);
  void issue(NodeId id);
  void issue_sum(NodeId id);
  void issue_cluster(const Fusion::Group& group);

  // ---- scans ----

  // How a scan is cut follows from its body, and from which of its stacks are read.
  void slice_scans();
  // Of two scans one of which reads what the other made of each step, neither is one kernel if the other is not: they
  // could not recompute for each other.
  void keep_op_by_op_together();
  // Slices pay on a device only where a kernel does the steps of one.
  bool is_fused(NodeId scan) const { return backend() && slicings_.contains(scan); }
  bool fuse_scans();  // false: one of them cannot be
  // What a slice has of a value of a scan's body.
  SliceOf part_in(NodeId scan, NodeId body_node) const;
  int every_of(const GraphNode& scan) const;
  // The scan that begins its segments with this stack, of which then nobody else reads anything; -1: none.
  NodeId recomputed_by(NodeId stack) const;
  // Recomputed where it is read, if only scans read it, step by step, whose own segments do not straddle its
  // segments: what one of them recomputes must not take away the segment that another is reading.
  bool is_lazy(NodeId stack, int every) const;
  void issue_scan(NodeId id);
  // A scan whose values are pulled later needs its memory, and everything it reads, until the last pull.
  void extend_lazy_lifetimes();
  void extend(int buffer, int until);

  // ---- the end ----

  void count_flops();
  // Replaces buffer numbers by offsets.
  void finish();

  Lowered source_;
  const Graph& graph_;
  PlanOptions options_;
  bool of_scan_;
  OpByOp& op_by_op_;
  Program program_;
  std::vector<char> live_;
  Readers readers_;
  std::vector<Value> values_;
  std::vector<Lifetime> buffers_;
  std::vector<Place> homes_;                      // of the outputs, at the end
  // Value that is an output, or of which one is made in its place -> the input donated for it.
  std::unordered_map<NodeId, std::size_t> over_;
  std::unordered_map<std::size_t, NodeId> lives_over_;  // such an input -> the value that has its place now
  std::size_t group_ = 0;                         // of fusion_.order: what is being issued
  std::vector<std::size_t> last_reader_;          // of a value's bytes: the last group that reads them
  Fusion fusion_;
  std::unordered_map<NodeId, SlicedBody> slicings_;
  StepLayouts layouts_;
  std::vector<ScanInfo> scans_;
  std::vector<NodeId> scan_order_;
  std::unordered_map<NodeId, int> last_pull_;
  // stack node -> its scan, position
  std::unordered_map<NodeId, std::pair<NodeId, std::size_t>> lazy_stacks_;
};

}  // namespace nestgrad

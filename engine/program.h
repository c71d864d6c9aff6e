// Program: what the executor runs. A flat list of instructions whose operands are places; scan bodies are
// programs inside an instruction. Internal to the plan.
//
// Every address is (kind, offset), resolved against the frame it runs in, so that one compiled body can be
// run on any memory: another time step, another segment, another slice of independent sequences.
#pragma once

#include <memory>

#include "engine/arena.h"
#include "engine/plan.h"

namespace nestgrad {

struct Place {
  enum class Kind : std::uint8_t { none, arena, external, literal };
  Kind kind = Kind::none;
  std::size_t at = 0;  // arena: byte offset; external: index; literal: index into Program::literals
};

struct ScanStep;

struct Instruction {
  const Op* op = nullptr;  // null: copy inputs[0] to out
  Kernel kernel;
  std::vector<Place> in;
  Place out;
  std::size_t bytes = 0;           // of a copy
  std::unique_ptr<ScanStep> scan;  // a whole scan, instead of a kernel
  NodeId node = -1;                // in the lowered graph
  Loc loc;
};

struct Program {
  std::vector<Instruction> code;
  std::vector<Array> literals;
  std::vector<Spec> inputs, outputs;
  std::size_t arena_bytes = 0;
  std::vector<BufferInfo> buffers;
  std::shared_ptr<Graph> graph;  // the lowered graph, for printing and errors
};

// One run of a program: where its arena and its inputs and outputs (inputs first) are.
struct Frame {
  std::byte* arena = nullptr;
  std::byte* const* external = nullptr;
};

// One scan. Body inputs: carries, xs, consts. Body outputs: next carries, then the stacked values.
struct ScanStep {
  Program body;
  int steps = 0;
  bool reverse = false;
  int every =
      0;  // 0: all wanted values are stored; n: carries are kept at every n-th time, the rest is recomputed

  struct Carry {
    Place init;
    Place final_value;               // none when nobody reads it
    std::size_t ping = 0, pong = 0;  // arena offsets of the two working copies
    std::size_t checkpoints = 0;     // arena offset of [segments] copies, when every > 0
    std::size_t bytes = 0;
  };
  struct PerStep {
    Place source;  // [steps, ...]
    std::size_t stride = 0;
    ScanStep* producer = nullptr;  // set: the value is recomputed by this scan when asked for
    std::size_t stack = 0;         // which of the producer's stacks
  };
  struct Stack {
    Place stored;  // [steps, ...]; none when lazy
    bool lazy = false;
    std::size_t buffer = 0;  // arena offset: lazy: one segment [every, ...]; stored: one step of scratch
    std::size_t stride = 0;
  };
  std::vector<Carry> carries;
  std::vector<PerStep> xs;
  std::vector<Place> consts;
  std::vector<Stack> stacks;
  std::size_t body_arena = 0;  // arena offset of the body's own arena

  // Run state, sized at plan time.
  std::vector<std::byte*> externals, carry_in;
  int segment = -1;  // which segment the lazy buffers hold
};

Program compile(const std::deque<Node>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const PlanOptions& options);
void execute(Program& program, const Frame& frame);

}  // namespace nestgrad

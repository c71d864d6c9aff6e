#include "engine/run/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "engine/plan/arena.h"
#include "engine/run/recorder.h"

namespace nestgrad {

namespace {

int level_of(const Program& program, const Instruction& ins) {
  int level = program.graph->node(ins.node).level;
  for (NodeId member : ins.with) level = std::max(level, program.graph->node(member).level);
  return level;
}

// Numbers the instructions, those of each worker alike.
void enter(Program& program, int depth, int parent, std::vector<InstructionProfile>& entries) {
  for (Instruction& ins : program.code) {
    const GraphNode& n = program.graph->node(ins.node);
    const int entry = ins.entry = static_cast<int>(entries.size());
    entries.push_back({.ops = ops_of(program, ins),
                       .out = n.spec,
                       .level = level_of(program, ins),
                       .scope = n.scope.str(),
                       .loc = ins.loc,
                       .depth = depth,
                       .parent = parent});
    if (!ins.scan) continue;
    for (ScanStep::Worker& worker : ins.scan->workers) {
      entries.resize(uz(entry) + 1);
      enter(worker.body, depth + 1, entry, entries);
    }
  }
}

// ---- memory ----

using Written = std::function<void(const Place& place, int level)>;
void for_each_write(const Program& program, const Instruction& ins, const Written& written);

std::vector<int> levels_of_outputs(const Program& body) {
  std::vector<int> levels(body.outputs.size(), 0);
  for (const Instruction& ins : body.code)
    for_each_write(body, ins, [&](const Place& place, int level) {
      // A carry that is written in place is input i and output i.
      if (place.kind == Place::Kind::external)
        levels[place.at < body.inputs.size() ? place.at : place.at - body.inputs.size()] = level;
    });
  return levels;
}

void for_each_write(const Program& program, const Instruction& ins, const Written& written) {
  const int level = level_of(program, ins);
  if (!ins.scan) {
    if (ins.outs.empty()) written(ins.out, level);
    for (const Place& out : ins.outs) written(out, level);
    return;
  }
  const StepTable& table = ins.scan->table;
  const auto base = [&](int number, int by) {
    if (number >= 0) written(table.bases[uz(number)].place, by);
  };
  base(0, level);
  const std::vector<int> levels = levels_of_outputs(ins.scan->workers[0].body);
  std::vector<int> of_stacks(table.stacks.size(), 0);
  for (std::size_t i = 0; i < table.carries.size(); ++i) {
    const StepCarry& c = table.carries[i];
    if (c.stack >= 0) of_stacks[uz(c.stack)] = levels[i];
    base(c.copies, level), base(c.terms, level), base(c.final_value, levels[i]);
  }
  std::size_t output = table.carries.size();
  for (std::size_t i = 0; i < table.stacks.size(); ++i) {
    if (!table.stacks[i].of_carry) of_stacks[i] = levels[output++];
    if (table.stacks[i].window == 0) base(table.stacks[i].base, of_stacks[i]);
  }
}

std::vector<MemoryPoint> live_bytes(const Program& program, int levels) {
  const std::vector<BufferInfo>& buffers = program.buffers;
  std::vector<int> level(buffers.size(), 0);  // of what a buffer holds now
  std::vector<MemoryPoint> points;
  for (int i = 0; i < static_cast<int>(program.code.size()); ++i) {
    const Instruction& ins = program.code[uz(i)];
    const auto for_each_live = [&](const auto& fn) {
      for (std::size_t b = 0; b < buffers.size(); ++b)
        if (buffers[b].bytes > 0 && buffers[b].first <= i && i <= buffers[b].last) fn(b);
    };
    for_each_write(program, ins, [&](const Place& place, int written) {
      if (place.kind != Place::Kind::arena) return;
      for_each_live([&](std::size_t b) {
        if (buffers[b].offset == place.at) level[b] = written;
      });
    });
    MemoryPoint point{.instruction = ins.entry, .bytes_by_level = std::vector<std::size_t>(uz(levels), 0)};
    for_each_live([&](std::size_t b) { point.bytes_by_level[uz(level[b])] += buffers[b].bytes; });
    points.push_back(std::move(point));
  }
  return points;
}

std::size_t spare_on_top(const Program& program) {
  for (const Instruction& ins : program.code) {
    if (!ins.scan) continue;
    const ScanStep& scan = *ins.scan;
    const StepTable& table = scan.table;
    if (scan.memory() + scan.memory_bytes() * scan.workers.size() < program.arena_bytes) continue;
    if (const Program& body = scan.workers[0].body; body.arena_bytes > 0) return spare_on_top(body);
    const int in_a_row = scan.every ? std::min(scan.every, table.steps) : table.steps;
    std::int64_t needed = 0;
    for (const StepCarry& c : table.carries)
      if (c.stack < 0 && c.even >= 0 && in_a_row > 2)
        needed = std::max(needed, (c.in_place ? c.even : c.odd) + c.part.bytes);
    for (const StepValue& v : table.stacks)
      if (v.window) needed = std::max(needed, table.offsets[uz(v.part.at)] + v.part.bytes * v.window);
    return needed == 0 ? scan.memory_bytes() * scan.workers.size() : scan.memory_bytes() - uz(needed);
  }
  return 0;
}

class PaintedArena {
 public:
  explicit PaintedArena(std::size_t bytes)
      : memory_(DType::i32, {static_cast<std::int64_t>((bytes + kBehind) / sizeof(std::int32_t))}) {}

  std::byte* data() { return memory_.data(); }
  void paint(std::byte colour) {
    colour_ = colour;
    std::memset(memory_.data(), std::to_integer<int>(colour), memory_.bytes());
  }
  // One past the last byte of another colour.
  std::size_t written() const {
    std::size_t n = memory_.bytes();
    while (n > 0 && memory_.data()[n - 1] == colour_) --n;
    return n;
  }

 private:
  static constexpr std::size_t kBehind = 4096;
  Array memory_;
  std::byte colour_{};
};

// ---- events ----

// How many events each instruction may leave: of those that run more often, the same number.
std::vector<std::int64_t> quotas(const std::vector<Recorder::Tally>& tallies, std::int64_t most_events) {
  std::int64_t each = 0, most_runs = 0;
  for (const Recorder::Tally& t : tallies) most_runs = std::max(most_runs, t.runs);
  const auto events = [&](std::int64_t limit) {
    return std::transform_reduce(tallies.begin(), tallies.end(), std::int64_t{0}, std::plus{},
                                 [&](const Recorder::Tally& t) { return std::min(t.runs, limit); });
  };
  for (std::int64_t above = most_runs + 1; each + 1 < above;) {
    const std::int64_t middle = each + (above - each) / 2;
    (events(middle) <= most_events ? each : above) = middle;
  }
  std::int64_t left = most_events - events(each);
  std::vector<std::int64_t> out;
  for (const Recorder::Tally& t : tallies) {
    out.push_back(std::min(t.runs, each));
    if (out.back() < t.runs && left > 0) ++out.back(), --left;
  }
  return out;
}

}  // namespace

Profile profile(Program& program, std::byte* const* external, std::int64_t most_events,
                const std::function<void()>& place_inputs) {
  Profile out{.predicted_peak = program.arena_bytes, .spare_on_top = spare_on_top(program)};
  enter(program, 0, -1, out.instructions);
  for (const InstructionProfile& ins : out.instructions) out.levels = std::max(out.levels, ins.level + 1);

  const SingleThreadScope alone;
  PaintedArena arena(program.arena_bytes);
  // Two colours, so that a number that looks like one of them does not hide.
  const auto run = [&](std::byte colour, Recorder& recorder) {
    place_inputs();
    arena.paint(colour);
    const std::int64_t begin_ns = recorder.now_ns();
    execute(program, {.arena = arena.data(), .external = external, .recorder = &recorder});
    const std::int64_t end_ns = recorder.now_ns();
    out.measured_peak = std::max(out.measured_peak, arena.written());
    return std::pair(begin_ns, end_ns);
  };
  Recorder warm_up(std::vector<std::int64_t>(out.instructions.size(), 0));
  run(std::byte{0x55}, warm_up);
  Recorder recorder(quotas(warm_up.tallies(), std::max(most_events, std::int64_t{0})));
  const auto [begin_ns, end_ns] = run(std::byte{0xaa}, recorder);

  const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-9; };
  std::int64_t recomputed_ns = 0;
  for (std::size_t i = 0; i < out.instructions.size(); ++i) {
    InstructionProfile& ins = out.instructions[i];
    const Recorder::Tally& t = recorder.tallies()[i];
    ins.runs = t.runs, ins.recomputed_runs = t.recomputed_runs;
    ins.seconds = seconds(t.ns), ins.recomputed_seconds = seconds(t.recomputed_ns);
    recomputed_ns += t.recomputed_ns;
    out.events_left_out += t.runs;
  }
  out.seconds = seconds(end_ns - begin_ns);
  if (recomputed_ns > 0) out.recompute_share = seconds(recomputed_ns) / out.seconds;

  out.memory = live_bytes(program, out.levels);
  for (MemoryPoint& point : out.memory)
    point.begin_s = seconds(recorder.tallies()[uz(point.instruction)].first_begin_ns - begin_ns);
  out.events = std::move(recorder.events());
  out.events_left_out -= static_cast<std::int64_t>(out.events.size());
  for (TraceEvent& e : out.events) e.begin_ns -= begin_ns;
  // What runs inside another begins no earlier and was noted before it.
  std::ranges::reverse(out.events);
  std::ranges::stable_sort(out.events, {}, &TraceEvent::begin_ns);
  return out;
}

bool Profile::peaks_agree() const {
  return measured_peak <= predicted_peak && predicted_peak - measured_peak < kArenaAlignment + spare_on_top;
}

std::size_t Profile::most_live_bytes() const {
  std::size_t most = 0;
  for (const MemoryPoint& point : memory)
    most = std::max(
        most, std::accumulate(point.bytes_by_level.begin(), point.bytes_by_level.end(), std::size_t{0}));
  return most;
}

std::string level_name(int level, int levels) {
  if (level == 0) return "level 0: the program as written";
  if (level == 1) return levels == 2 ? "level 1: gradient" : "level 1: inner gradient";
  return fmt::format("level {}: gradient through level {}", level, level - 1);
}

}  // namespace nestgrad

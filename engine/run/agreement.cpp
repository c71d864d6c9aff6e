#include "engine/run/agreement.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/array_hash.h"
#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "engine/core/over_processes.h"
#include "engine/processes/group.h"

namespace nestgrad {

namespace {

struct Collectives {
  std::string text;         // one after the other, as they run
  std::vector<int> groups;  // each once
};

void add(const Program& program, Collectives& out) {
  for (const Instruction& ins : program.code) {
    if (ins.scan) {
      Collectives inside{{}, out.groups};
      add(ins.scan->workers[0].body, inside);
      if (!inside.text.empty())
        out.text += fmt::format("{} times {}(every {}): [{}] ", ins.scan->table.steps,
                                ins.scan->on_demand ? "on demand " : "", ins.scan->every, inside.text);
      out.groups = std::move(inside.groups);
      continue;
    }
    if (!ins.op || ins.call) continue;
    const GraphNode& n = program.graph->node(ins.node);
    if (n.op != ins.op || !exchanges(*n.op, n.attrs)) continue;
    const int group = static_cast<int>(n.attrs.numbers().front());
    const auto known = std::ranges::find(out.groups, group);
    // Its number is each process's own.
    out.text += fmt::format("{} of {} over group {} ({}), ", n.op->name, to_string(n.spec),
                            known - out.groups.begin(), describe(ins.loc));
    if (known == out.groups.end()) out.groups.push_back(group);
  }
}

}  // namespace

void check_same_collectives(const Program& program) {
  Collectives all;
  add(program, all);
  for (const int id : all.groups)
    if (const std::shared_ptr<Transport> group = ProcessGroup::find(id); group && group->size() > 1)
      group->check_same(all.text, "collectives in a plan");
}

void check_same_inputs(const std::vector<PartlyOwn>& partly_own, std::span<const Array> inputs,
                       const std::vector<std::string>& names) {
  for (const auto& [input, groups] : partly_own)
    for (const int id : groups) {
      const std::shared_ptr<Transport> group = ProcessGroup::find(id);
      if (!group || group->size() == 1) continue;
      group->check_same(
          fmt::format("{:016x}", hash_of(inputs[uz(input)])),
          fmt::format("numbers of {}, of which no own() speaks in group {},", names[uz(input)], id));
    }
}

}  // namespace nestgrad

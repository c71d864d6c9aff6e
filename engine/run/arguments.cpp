#include "engine/run/arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/index.h"
#include "engine/core/node_text.h"

namespace nestgrad {

void check_nodes(std::string_view rule, std::span<const NodeId> inputs, std::span<const NodeId> outputs,
                 const std::deque<GraphNode>& nodes) {
  for (const auto& [what, ids] : {std::pair{"input", inputs}, std::pair{"output", outputs}})
    for (const NodeId id : ids) {
      if (id < 0 || id >= std::ssize(nodes))
        throw GraphError(
            fmt::format("[{}] node {} is to be an {}; the graph has {} nodes", rule, id, what, nodes.size()));
      if (nodes[uz(id)].op->kind == OpKind::scan)
        throw GraphError(fmt::format(
            "[{}] {} is to be an {}; a loop has no value of its own, take one of its carries or stacks", rule,
            describe(nodes, id), what));
    }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (const auto before = std::ranges::find(inputs.first(i), inputs[i]); before != inputs.first(i).end())
      throw GraphError(fmt::format("[{}] inputs {} and {} are the same node, {}; name it once", rule,
                                   before - inputs.begin(), i, describe(nodes, inputs[i])));
}

void check_given(std::string_view what, std::span<const Array> given, const Signature& wanted) {
  if (given.size() != wanted.specs.size())
    throw ShapeError(fmt::format("[plan] {} {}s given, the function has {}: {}", given.size(), what,
                                 wanted.specs.size(), fmt::join(wanted.names, ", ")));
  for (std::size_t i = 0; i < given.size(); ++i)
    if (!given[i].defined() || given[i].spec() != wanted.specs[i])
      throw ShapeError(fmt::format("[plan] {} {} is {}, the function wants {}", what, i,
                                   given[i].defined() ? to_string(given[i].spec()) : "empty",
                                   wanted.names[i]));
}

std::vector<int> donors_of(std::span<const Donation> donate, const Signature& inputs,
                           const Signature& outputs) {
  constexpr const char* kWhat = "[plan] PlanOptions::donate";
  const auto require_known = [&](const char* what, std::size_t number, std::size_t count) {
    if (number >= count)
      throw ConfigError(fmt::format("{} names {} {}, the function has {}: they are numbered from 0", kWhat,
                                    what, number, count));
  };
  std::vector<int> donors(outputs.specs.size(), -1);
  for (const auto& [output, input] : donate) {
    require_known("output", output, outputs.specs.size());
    require_known("input", input, inputs.specs.size());
    const auto earlier = std::ranges::find(donors, static_cast<int>(input)) - donors.begin();
    if (uz(earlier) < donors.size())
      throw ConfigError(
          fmt::format("{} gives input {} ({}) to outputs {} and {}; an input has memory for one", kWhat,
                      input, inputs.names[input], earlier, output));
    if (donors[output] >= 0)
      throw ConfigError(fmt::format("{} gives output {} ({}) two inputs, {} and {}; leave one of them out",
                                    kWhat, output, outputs.names[output], donors[output], input));
    if (inputs.specs[input] != outputs.specs[output])
      throw ShapeError(fmt::format(
          "{}: output {} ({}) cannot be written over input {} ({}), {} is not {}; donate an input of "
          "the output's type and shape",
          kWhat, output, outputs.names[output], input, inputs.names[input], to_string(inputs.specs[input]),
          to_string(outputs.specs[output])));
    donors[output] = static_cast<int>(input);
  }
  return donors;
}

void OwnMemory::check(std::span<const Array> inputs, std::span<const Array> outputs,
                      std::span<const int> donors) {
  written_.clear();
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].size() == 0) continue;
    if (donors[k] >= 0 && outputs[k].data() != inputs[uz(donors[k])].data())
      throw ConfigError(fmt::format(
          "[plan] output {} is written over input {} (PlanOptions::donate), but was given another array; give "
          "it that input's",
          k, donors[k]));
    written_.emplace_back(outputs[k].data(), static_cast<int>(k));
  }
  std::ranges::sort(written_);
  for (std::size_t w = 1; w < written_.size(); ++w)
    if (written_[w - 1].first == written_[w].first)
      throw ConfigError(fmt::format("[plan] outputs {} and {} were given the same array; give each its own",
                                    written_[w - 1].second, written_[w].second));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto at =
        std::ranges::lower_bound(written_, inputs[i].data(), {}, &std::pair<const std::byte*, int>::first);
    if (at == written_.end() || at->first != inputs[i].data() ||
        donors[uz(at->second)] == static_cast<int>(i))
      continue;
    const int donor = donors[uz(at->second)];
    if (donor >= 0)
      throw ConfigError(fmt::format(
          "[plan] inputs {} and {} were given the same array, which output {} is "
          "written over (PlanOptions::donate); clone() one of them",
          std::min<int>(donor, static_cast<int>(i)), std::max<int>(donor, static_cast<int>(i)), at->second));
    throw ConfigError(fmt::format(
        "[plan] output {} was given the array of input {}; give it its own, or say that it may be written over "
        "that input: PlanOptions::donate",
        at->second, i));
  }
}

}  // namespace nestgrad

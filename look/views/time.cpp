// Where the program's time goes.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "look/views.h"

namespace nestgrad::look {

ReportView time_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const Profile& p = context.profile();
  context.out.trace = chrome_trace(p, inspected.name);
  ReportView view{"time", "Time by op and level", "Where does the time go?",
                  "Own time of the instructions of one run, one thread, added up by op and by the level "
                  "that wrote them. Ops that run as one instruction are joined by +."};
  std::map<std::string, std::vector<double>> by_op;
  std::vector<double> by_level(static_cast<std::size_t>(p.levels), 0);
  double total = 0;
  for (const InstructionProfile& i : p.instructions) {
    auto& row = by_op[i.ops];
    row.resize(static_cast<std::size_t>(p.levels), 0);
    row[static_cast<std::size_t>(i.level)] += i.seconds;
    by_level[static_cast<std::size_t>(i.level)] += i.seconds;
    total += i.seconds;
  }
  view.claims = {
      {"the instructions' own times are within the run's", worse(0.0, total - p.seconds) / p.seconds, 1e-9}};
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [op, row] : by_op) order.emplace_back(std::accumulate(row.begin(), row.end(), 0.0), op);
  std::ranges::sort(order, std::greater<>());
  constexpr std::size_t kMostOps = 12;
  Bars bars{.title = "Time by op", .y_label = "time (us)", .stacked = true};
  for (int level = 0; level < p.levels; ++level) bars.groups.push_back({level_name(level, p.levels), {}});
  // The ops that take longest, and what all others take together.
  for (std::size_t i = 0; i < std::min(kMostOps, order.size()); ++i) {
    const std::string& op = order[i].second;
    bars.names.push_back(op.size() > 28 ? op.substr(0, 25) + "..." : op);
    for (std::size_t level = 0; level < bars.groups.size(); ++level)
      bars.groups[level].values.push_back(by_op[op][level] * 1e6);
  }
  if (order.size() > kMostOps) {
    bars.names.push_back(fmt::format("{} others", order.size() - kMostOps));
    for (std::size_t level = 0; level < bars.groups.size(); ++level) {
      double rest = 0;
      for (std::size_t i = kMostOps; i < order.size(); ++i) rest += by_op[order[i].second][level];
      bars.groups[level].values.push_back(rest * 1e6);
    }
  }
  Table levels{.title = "Time by level", .columns = {"level", "time (us)", "share (%)"}};
  for (std::size_t level = 0; level < by_level.size(); ++level)
    levels.rows.push_back({level_name(static_cast<int>(level), p.levels),
                           format_number(by_level[level] * 1e6),
                           format_number(100 * by_level[level] / total)});
  view.pictures = {bars, levels};
  return view;
}

}  // namespace nestgrad::look

// What is live while the program runs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/plan/arena.h"
#include "look/views.h"

namespace nestgrad::look {

ReportView memory_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const int segment = std::max(1, static_cast<int>(std::lround(std::sqrt(inspected.chunks()))));
  const MetaProgram kept = meta_program(inspected, DType::f64, segment);
  const Profile &p = context.profile(),
                q = kept.function.plan({.device = Device::cpu()}).profile(kept.inputs);

  const double apart = std::abs(static_cast<double>(p.predicted_peak) - static_cast<double>(p.measured_peak)),
               spare = static_cast<double>(p.spare_on_top);
  ReportView view{
      "memory", "Memory over the run", "What fills the memory, and did the planner know?",
      "Bytes that are live while each instruction of the outermost program runs, by the level of what "
      "wrote them. Stacks of the inner loop's steps are what a meta-gradient stores; checkpointing "
      "trades them for computing the steps again.\n\n"
      "The planner predicts the peak before the run. It is measured by painting the memory and finding "
      "the highest byte that changed."};
  view.claims = {{"predicted peak = highest byte written, but for padding and unused scratch on top",
                  std::max(0.0, apart - spare), static_cast<double>(kArenaAlignment), "bytes"}};
  Chart chart{"Live memory", "instruction", "memory (MB)", {}};
  for (int level = 0; level < p.levels; ++level) {
    Series s{level_name(level, p.levels), {}, {}};
    for (const MemoryPoint& m : p.memory) {
      s.x.push_back(static_cast<double>(s.x.size()));
      const auto at = static_cast<std::size_t>(level);
      s.y.push_back(at < m.bytes_by_level.size() ? static_cast<double>(m.bytes_by_level[at]) / 1e6 : 0);
    }
    chart.series.push_back(s);
  }
  chart.reference_lines = {{"predicted peak", static_cast<double>(p.predicted_peak) / 1e6}};
  Table peaks{.title = "Peaks",
              .columns = {"plan", "predicted (kB)", "measured (kB)", "recomputed (% of time)"}};
  const auto kilo = [](std::size_t bytes) { return format_number(static_cast<double>(bytes) / 1e3); };
  for (const auto& [name, x] :
       {std::pair{std::string("every step stored"), &p}, {fmt::format("every {} steps stored", segment), &q}})
    peaks.rows.push_back(
        {name, kilo(x->predicted_peak), kilo(x->measured_peak), format_number(100 * x->recompute_share)});
  view.pictures = {chart, peaks};

  return view;
}

}  // namespace nestgrad::look

// The trace event format: "Trace Event Format", Google, 2016.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/graph.h"
#include "engine/core/index.h"
#include "engine/run/profile.h"

namespace nestgrad {

namespace {

using nlohmann::json;

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1000; }

json metadata(std::string_view what, int track, json args) {
  return {{"ph", "M"}, {"pid", 1}, {"tid", track}, {"name", what}, {"args", std::move(args)}};
}

// Viewers take 0 for the idle thread.
int track_of(int level) { return level + 1; }

json event_of(const TraceEvent& e, const InstructionProfile& ins) {
  json args = {{"out", to_string(ins.out)}, {"line", describe(ins.loc)}};
  if (!ins.scope.empty()) args["scope"] = ins.scope;
  if (e.step >= 0) args["step"] = e.step, args["slice"] = e.slice, args["recomputed"] = e.recomputed;
  // One nanosecond less: some viewers cut times down to whole ones, and neighbours must not overlap then.
  return {{"ph", "X"},
          {"pid", 1},
          {"tid", track_of(ins.level)},
          {"name", ins.ops},
          {"cat", e.recomputed ? "recomputed" : "computed"},
          {"ts", microseconds(e.begin_ns)},
          {"dur", microseconds(std::max<std::int64_t>(e.ns - 1, 0))},
          {"args", std::move(args)}};
}

json counter_at(double microseconds, const std::vector<std::size_t>& bytes_by_level) {
  json args = json::object();
  for (std::size_t level = 0; level < bytes_by_level.size(); ++level)
    args["level " + std::to_string(level)] = bytes_by_level[level];
  return {{"ph", "C"}, {"pid", 1}, {"name", "live bytes"}, {"ts", microseconds}, {"args", std::move(args)}};
}

}  // namespace

std::string chrome_trace(const Profile& profile, std::string_view name) {
  json events = json::array();
  events.push_back(metadata("process_name", 0, {{"name", name}}));
  for (int level = 0; level < profile.levels; ++level) {
    events.push_back(metadata("thread_name", track_of(level), {{"name", level_name(level, profile.levels)}}));
    events.push_back(metadata("thread_sort_index", track_of(level), {{"sort_index", level}}));
  }
  for (const TraceEvent& e : profile.events)
    events.push_back(event_of(e, profile.instructions[uz(e.instruction)]));
  for (const MemoryPoint& point : profile.memory)
    events.push_back(counter_at(point.begin_s * 1e6, point.bytes_by_level));
  const std::vector<std::size_t> nothing(uz(profile.levels), 0);
  events.push_back(counter_at(profile.seconds * 1e6, nothing));
  const json trace = {{"traceEvents", std::move(events)},
                      {"displayTimeUnit", "ns"},
                      {"otherData",
                       {{"events_left_out", profile.events_left_out},
                        {"seconds", profile.seconds},
                        {"recompute_share", profile.recompute_share},
                        {"predicted_peak_bytes", profile.predicted_peak},
                        {"measured_peak_bytes", profile.measured_peak}}}};
  return trace.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace nestgrad

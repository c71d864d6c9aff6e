// A profile tells where a run's time and memory went, and agrees with the plan and with itself.
#include "engine/run/profile.h"

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "engine/plan/arena.h"
#include "engine/plan/program.h"
#include "tests/engine/profiled_programs.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using nlohmann::json;

namespace {

// The only instruction whose ops contain this name.
const InstructionProfile& find(const Profile& p, std::string_view op, int level) {
  const InstructionProfile* found = nullptr;
  for (const InstructionProfile& ins : p.instructions)
    if (contains(ins.ops, op) && ins.level == level) {
      CHECK_MESSAGE(found == nullptr, "two instructions: ", op);
      found = &ins;
    }
  REQUIRE(found != nullptr);
  return *found;
}

int slices_of(const Plan& plan) {
  const std::string text = plan.str();
  const auto at = text.find("slices ");
  REQUIRE(at != std::string::npos);
  return std::stoi(text.substr(at + 7));
}

struct Interval {
  std::int64_t begin, end;
};
// Of any two, one lies in the other or they are apart.
bool nest(std::vector<Interval> all) {
  std::ranges::stable_sort(all, [](const Interval& a, const Interval& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<Interval> open;
  for (const Interval& i : all) {
    while (!open.empty() && open.back().end <= i.begin) open.pop_back();
    if (!open.empty() && i.end > open.back().end) return false;
    open.push_back(i);
  }
  return true;
}

std::int64_t nanoseconds(const json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

}  // namespace

TEST_CASE("A profiled run gives the bits of an ordinary one, and leaves the plan as it was") {
  for (const Named& p : programs()) {
    CAPTURE(p.name);
    Plan plan = p.function.plan(p.options);
    const Arrays expected = p.function.plan(p.options).run(p.in);
    CHECK(same_bits(plan.profile(p.in).outputs, expected));
    CHECK(same_bits(plan.run(p.in), expected));
    CHECK(same_bits(plan.profile(p.in).outputs, expected));
  }
}

TEST_CASE("Instructions come in the order of the plan's text, with their ops, levels, scopes and lines") {
  const Function f = trace(
      [](Tensor x) {
        const Tensor y = [&] {
          const Scope scope("layer");
          return sin(x);
        }();
        return grad(sum(y * y), x);
      },
      f64({8}));
  const Profile p = f.plan({.fuse = false, .device = Device::cpu()}).profile({random(f64({8}), 1)});
  const InstructionProfile& sine = find(p, "sin", 0);
  CHECK(sine.scope == "layer");
  CHECK(sine.out == f64({8}));
  CHECK(contains(sine.loc.file_name(), "profile_test.cpp"));
  CHECK(find(p, "cos", 1).runs == 1);
  CHECK(p.levels == 2);
  for (const Named& program : programs()) {
    CAPTURE(program.name);
    Plan plan = program.function.plan(program.options);
    const Profile profile = plan.profile(program.in);
    CHECK(profile.instructions.size() == plan.stats().instructions);
    const std::string text = plan.str();
    std::size_t at = 0;
    for (std::size_t i = 0; i < profile.instructions.size(); ++i) {
      const InstructionProfile& ins = profile.instructions[i];
      at = text.find(" " + ins.ops + " ", at);
      REQUIRE(at != std::string::npos);
      ++at;
      CHECK(ins.parent < static_cast<int>(i));
      CHECK((ins.parent < 0) == (ins.depth == 0));
      if (ins.parent < 0) continue;
      const InstructionProfile& scan = profile.instructions[static_cast<std::size_t>(ins.parent)];
      CHECK(scan.ops == "scan");
      CHECK(scan.depth == ins.depth - 1);
    }
  }
}

TEST_CASE("What is in a scan's body runs once for each step and slice") {
  const std::int64_t steps = 10;
  const auto specs = recurrence_specs(steps);
  const Function f = derivative(recurrence, specs, 0);
  for (const int workers : {1, 4})
    for (const bool slice : {false, true}) {
      Plan plan = f.plan({.slice = slice, .device = Device::cpu(), .workers = workers});
      const int slices = slices_of(plan);
      CHECK((slices > 1) == slice);
      const Profile p = plan.profile(random(specs, 1));
      const InstructionProfile& scan = find(p, "scan", 0);
      CHECK(scan.runs == 1);
      CHECK(scan.depth == 0);
      int inside = 0;
      for (const InstructionProfile& ins : p.instructions) {
        CHECK(ins.runs == (ins.depth == 1 ? steps * slices : 1));
        CHECK(ins.recomputed_runs == 0);
        inside += ins.depth == 1;
      }
      CHECK(inside > 0);
      CHECK(p.recompute_share == 0);
      // Every step of every slice has been there.
      const auto& matmul = find(p, "matmul", 0);
      std::map<std::pair<int, int>, int> seen;
      for (const TraceEvent& e : p.events)
        if (&p.instructions[static_cast<std::size_t>(e.instruction)] == &matmul) ++seen[{e.step, e.slice}];
      CHECK(static_cast<std::int64_t>(seen.size()) == steps * slices);
      CHECK(seen.contains({static_cast<int>(steps) - 1, slices - 1}));
    }
}

// A backward scan finds the last segment where the forward scan of the same slice left it, if no other slice
// has run on that worker since.
TEST_CASE("Recomputed steps are counted: all segments but the last of a lone slice") {
  const std::int64_t steps = 10;
  const int every = 4;  // segments of 4, 4 and 2
  const auto specs = recurrence_specs(steps);
  const Function f = derivative(recurrence, specs, 1);
  for (const bool slice : {false, true}) {
    Plan plan = f.plan({.rematerialize = false,
                        .slice = slice,
                        .checkpoint_every = every,
                        .device = Device::cpu(),
                        .workers = 1});
    const int slices = slices_of(plan);
    CHECK((slices > 1) == slice);
    const Profile p = plan.profile(random(specs, 1));
    const std::int64_t again = slice ? steps * slices : steps - 2;
    int forward = 0, backward = 0;
    for (const InstructionProfile& ins : p.instructions) {
      if (ins.depth == 0) continue;
      const bool repeats = ins.level == 0;
      (repeats ? forward : backward) += 1;
      CHECK(ins.recomputed_runs == (repeats ? again : 0));
      CHECK(ins.runs == steps * slices + ins.recomputed_runs);
      CHECK((ins.recomputed_seconds > 0) == repeats);
      CHECK(ins.recomputed_seconds <= ins.seconds);
    }
    CHECK(forward > 0);
    CHECK(backward > 0);
    CHECK(p.recompute_share > 0);
    CHECK(p.recompute_share < 1);
    std::int64_t recomputed = 0;
    for (const TraceEvent& e : p.events) recomputed += e.recomputed;
    CHECK(recomputed == again * forward);
    const PlanOptions keep_all{.rematerialize = false, .checkpoint_every = 0, .device = Device::cpu()};
    CHECK(f.plan(keep_all).profile(random(specs, 1)).recompute_share == 0);
  }
}

TEST_CASE("The instructions' own times add up to no more than the run") {
  for (const Named& program : programs()) {
    CAPTURE(program.name);
    const Profile p = program.function.plan(program.options).profile(program.in);
    double sum = 0, recomputed = 0;
    for (const InstructionProfile& ins : p.instructions) {
      CHECK(ins.seconds > 0);
      CHECK(ins.recomputed_seconds <= ins.seconds);
      sum += ins.seconds, recomputed += ins.recomputed_seconds;
    }
    CHECK(sum <= p.seconds * (1 + 1e-9));
    CHECK(sum > 0.2 * p.seconds);  // little is left outside
    CHECK(p.recompute_share == doctest::Approx(recomputed / p.seconds));
    // The outermost events hold all the others.
    double outermost = 0;
    for (const TraceEvent& e : p.events)
      if (e.step < 0) outermost += static_cast<double>(e.ns) * 1e-9;
    CHECK(outermost == doctest::Approx(sum));
  }
}

TEST_CASE("The trace is JSON in which events nest within the run, on a track for each level") {
  CHECK(nest({{0, 10}, {0, 5}, {5, 10}, {6, 7}, {20, 30}}));
  CHECK_FALSE(nest({{0, 10}, {5, 11}}));
  for (const Named& program : programs()) {
    CAPTURE(program.name);
    const Profile p = program.function.plan(program.options).profile(program.in);
    const json trace = json::parse(chrome_trace(p, "a \"name\""));
    CHECK(trace["otherData"]["events_left_out"].get<int>() == 0);
    std::map<int, std::string> tracks;
    std::map<int, std::vector<Interval>> events;
    std::vector<Interval> all;
    std::size_t counters = 0, complete = 0;
    std::int64_t runs = 0;
    for (const json& e : trace["traceEvents"]) {
      const auto kind = e["ph"].get<std::string>();
      if (kind == "M" && e["name"].get<std::string>() == "thread_name")
        tracks[e["tid"].get<int>()] = e["args"]["name"].get<std::string>();
      if (kind == "C") ++counters;
      if (kind != "X") continue;
      const TraceEvent& noted = p.events[complete++];
      const InstructionProfile& ins = p.instructions[static_cast<std::size_t>(noted.instruction)];
      CHECK(e["name"].get<std::string>() == ins.ops);
      CHECK(e["args"]["line"].get<std::string>() == describe(ins.loc));
      CHECK(e["args"]["out"].get<std::string>() == to_string(ins.out));
      if (ins.depth > 0) {
        CHECK(e["args"]["step"].get<int>() == noted.step);
        CHECK(e["args"]["slice"].get<int>() == noted.slice);
        CHECK(e["args"]["recomputed"].get<bool>() == noted.recomputed);
      }
      const Interval i{nanoseconds(e["ts"]), nanoseconds(e["ts"]) + nanoseconds(e["dur"])};
      CHECK(i.begin >= 0);
      CHECK(static_cast<double>(i.end) <= p.seconds * 1e9 + 1);
      events[e["tid"].get<int>()].push_back(i);
      all.push_back(i);
    }
    for (const InstructionProfile& ins : p.instructions) runs += ins.runs;
    CHECK(static_cast<std::int64_t>(complete) == runs);
    CHECK(complete == p.events.size());
    CHECK(counters == p.memory.size() + 1);
    CHECK(static_cast<int>(tracks.size()) == p.levels);
    for (const auto& [track, intervals] : events) {
      CHECK(tracks.contains(track));
      CHECK(nest(intervals));
    }
    CHECK(nest(all));
    CHECK(tracks.begin()->second == "level 0: the program as written");
  }
  CHECK(level_name(1, 2) == "level 1: gradient");
  CHECK(level_name(1, 3) == "level 1: inner gradient");
  CHECK(level_name(2, 3) == "level 2: gradient through level 1");
}

TEST_CASE("Of too many events the first of each instruction are kept, and the rest are counted") {
  const auto specs = recurrence_specs(10);
  Plan plan = derivative(recurrence, specs, 1).plan({.checkpoint_every = 4, .device = Device::cpu()});
  const Arrays in = random(specs, 1);
  const Profile all = plan.profile(in);
  CHECK(all.events_left_out == 0);
  const auto of = [](const Profile& p, int instruction) {
    std::vector<std::tuple<int, int, bool>> when;
    for (const TraceEvent& e : p.events)
      if (e.instruction == instruction) when.emplace_back(e.step, e.slice, e.recomputed);
    return when;
  };
  const auto total = static_cast<std::int64_t>(all.events.size());
  const auto instructions = static_cast<std::int64_t>(all.instructions.size());
  for (const std::int64_t most :
       {std::int64_t{0}, std::int64_t{3}, instructions, 4 * instructions, total - 1, total, total + 100}) {
    CAPTURE(most);
    const Profile some = plan.profile(in, most);
    CHECK(static_cast<std::int64_t>(some.events.size()) == std::min(most, total));
    CHECK(some.events_left_out == total - std::min(most, total));
    CHECK(json::parse(chrome_trace(some))["otherData"]["events_left_out"].get<std::int64_t>() ==
          some.events_left_out);
    for (int i = 0; i < static_cast<int>(instructions); ++i) {
      CHECK(some.instructions[static_cast<std::size_t>(i)].runs ==
            all.instructions[static_cast<std::size_t>(i)].runs);
      const auto kept = of(some, i), every = of(all, i);
      if (most >= instructions) CHECK(!kept.empty());
      CHECK(std::equal(kept.begin(), kept.end(), every.begin()));
    }
  }
}

TEST_CASE("A profile refuses wrong inputs, and plans that are not the CPU's") {
  const Function f = trace([](Tensor x) { return sum(sin(x)); }, f64({2}));
  Plan plan = f.plan({.device = Device::cpu()});
  CHECK(contains(message_of<ShapeError>([&] { plan.profile({}); }), "0 inputs given, the function has 1"));
  if (Device::cuda_count() > 0) {
    Plan elsewhere = f.plan({.device = Device::cuda()});
    const std::string why =
        message_of<DeviceError>([&] { elsewhere.profile({Array::zeros(DType::f64, {2})}); });
    CHECK(contains(why, "only plans for the CPU can be profiled"));
    CHECK(contains(why, "Device::cpu()"));
  }
}

TEST_CASE("An error in a profiled run is that of an ordinary one, and the plan stays usable") {
  const Function f = trace([](Tensor table, Tensor i) { return gather(table, i); }, f64({3, 1}), i32({1}));
  Plan plan = f.plan({.device = Device::cpu()});
  const Array table = Array::of({1, 2, 3}, {3, 1});
  const std::string why = message_of<ValueError>([&] {
    plan.profile({table, Array::of({3}, {1}, DType::i32)});
  });
  CHECK(contains(why, "profile_test.cpp"));
  CHECK(plan.profile({table, Array::of({2}, {1}, DType::i32)}).outputs[0].item() == 3);
}

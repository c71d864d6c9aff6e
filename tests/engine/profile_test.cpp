// A profile tells where a run's time and memory went, and agrees with the plan and with itself.
#include "engine/profile.h"

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "engine/arena.h"
#include "engine/program.h"
#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using nlohmann::json;

namespace {

constexpr std::int64_t kBatch = 6;

std::vector<Spec> recurrence_specs(std::int64_t steps) {
  return {f64({kBatch, 2, 4}), f64({4, 4}), f64({steps, kBatch, 2, 4})};
}
// Of kBatch independent sequences.
Tensor recurrence(const Tensors& in) {
  const ScanResult r = scan(
      [&](const Tensors& c, const Tensors& x) -> Step {
        const Tensor next = tanh(matmul(c[0], in[1]) + x[0]);
        return {{next}, {next}};
      },
      {in[0]}, {in[2]});
  return sum(square(r.carries[0])) + sum(r.ys[0]);
}

struct Named {
  std::string name;
  Function function;
  Arrays in;
  PlanOptions options = {};
};

std::vector<Named> programs() {
  std::vector<Named> out;
  const auto add = [&](std::string name, Function f, const std::vector<Spec>& specs, PlanOptions options) {
    options.device = Device::cpu();
    out.push_back({std::move(name), std::move(f), random(specs, 3), options});
  };
  const std::vector<Spec> dense{f64({8, 16}), f64({16, 32}), f64({32, 4})};
  const Function plain = derivative(
      [](const Tensors& in) { return sum(square(matmul(tanh(matmul(in[0], in[1])), in[2]))); }, dense, 1);
  add("plain", plain, dense, {});
  add("plain, nothing reused", plain, dense, {.reuse = false});
  const auto specs = recurrence_specs(10);
  const Function forward = derivative(recurrence, specs, 0), backward = derivative(recurrence, specs, 1);
  for (const int workers : {1, 4}) {
    const std::string with = fmt::format(", {} workers", workers);
    add("scan" + with, forward, specs, {.workers = workers});
    add("scan and its derivative" + with, backward, specs, {.workers = workers});
    add("checkpointed scan and its derivative" + with, backward, specs,
        {.checkpoint_every = 4, .workers = workers});
  }
  add("checkpointed scan, whole", backward, specs, {.slice = false, .checkpoint_every = 4});
  add("scan, nothing reused", backward, specs, {.reuse = false});
  const auto learning = learner_specs(10);
  for (const int order : {1, 2})
    for (const int every : {0, 3}) {
      add(fmt::format("learner, order {}, every {}", order, every),
          derivative([](const Tensors& in) { return learner(in, as_scan); }, learning, order), learning,
          {.checkpoint_every = every});
      add(fmt::format("nested learner, order {}, every {}", order, every),
          derivative([](const Tensors& in) { return nested_learner(in, as_scan); }, learning, order),
          learning, {.checkpoint_every = every});
    }
  return out;
}

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
        return grad(sum(y * y), {x})[0];
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
    const Profile stored = f.plan({.checkpoint_every = 0, .device = Device::cpu()}).profile(random(specs, 1));
    CHECK(stored.recompute_share == 0);
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

TEST_CASE("Two profiles of a plan have equal counts, memory and peaks") {
  for (const Named& program : programs()) {
    CAPTURE(program.name);
    Plan plan = program.function.plan(program.options);
    const Profile a = plan.profile(program.in), b = plan.profile(program.in);
    REQUIRE(a.instructions.size() == b.instructions.size());
    for (std::size_t i = 0; i < a.instructions.size(); ++i) {
      CHECK(a.instructions[i].runs == b.instructions[i].runs);
      CHECK(a.instructions[i].recomputed_runs == b.instructions[i].recomputed_runs);
    }
    REQUIRE(a.memory.size() == b.memory.size());
    for (std::size_t i = 0; i < a.memory.size(); ++i)
      CHECK(a.memory[i].bytes_by_level == b.memory[i].bytes_by_level);
    CHECK(a.measured_peak == b.measured_peak);
    CHECK(a.events.size() == b.events.size());
  }
}

TEST_CASE("The measured peak is the predicted one, up to padding") {
  std::vector<std::size_t> predicted;
  for (const Named& program : programs()) {
    CAPTURE(program.name);
    Plan plan = program.function.plan(program.options);
    const Profile p = plan.profile(program.in);
    CHECK(p.predicted_peak == plan.stats().arena_bytes);
    CHECK(p.predicted_peak > 0);
    CAPTURE(p.measured_peak);
    CAPTURE(p.predicted_peak);
    CHECK(p.spare_on_top == 0);
    CHECK(p.peaks_agree());
    CHECK(p.predicted_peak - p.measured_peak < kArenaAlignment);
    predicted.push_back(p.predicted_peak);
  }
  CHECK_FALSE(Profile{.predicted_peak = predicted[1], .measured_peak = predicted[0]}.peaks_agree());
  CHECK_FALSE(Profile{.predicted_peak = predicted[0], .measured_peak = predicted[0] + 1}.peaks_agree());
}

TEST_CASE("The memory of every worker is measured") {
  const auto specs = recurrence_specs(10);
  const Function f = trace(
      [](const Tensors& in) -> Tensors {
        const ScanResult r = scan(
            [&](const Tensors& c, const Tensors& x) -> Step {
              const Tensor next = tanh(matmul(c[0], in[1]) + x[0]);
              return {{next}, {next}};
            },
            {in[0]}, {in[2]});
        return {sum(sin(r.ys[0]))};
      },
      specs);
  std::vector<std::size_t> peaks;
  for (const int workers : {1, 4}) {
    Plan plan = f.plan({.device = Device::cpu(), .workers = workers});
    REQUIRE(contains(plan.str(), fmt::format("workers {}", workers)));
    const Profile p = plan.profile(random(specs, 1));
    CHECK(p.spare_on_top == 0);
    CHECK(p.predicted_peak - p.measured_peak < kArenaAlignment);
    peaks.push_back(p.measured_peak);
  }
  CHECK(peaks[1] > peaks[0]);
}

TEST_CASE("The peaks agree where no worker of a scan on top of the arena writes anything") {
  const std::vector<Spec> specs{f64({4, 2, 4})};
  const Function f = trace(
      [](const Tensors& in) -> Tensors {
        const Tensor last = scan(
                                [](const Tensors& c, const Tensors&) -> Step {
                                  return {{c[0]}, {}};
                                },
                                {exp(in[0])}, {}, {.steps = 1})
                                .carries[0];
        return {last, sum(last * 2)};
      },
      specs);
  for (const int workers : {1, 2, 3}) {
    Plan plan = f.plan({.device = Device::cpu(), .workers = workers});
    INFO(plan.str());
    REQUIRE(contains(plan.str(), fmt::format("workers {}", workers)));
    CHECK(plan.profile(random(specs, 1)).peaks_agree());
  }
}

TEST_CASE("The peaks agree where a scan's scratch is on top of the arena, and nobody writes it") {
  const std::vector<Spec> specs{f64({400}), f64({400}), f64({7, 400})};
  for (const std::optional<int> every : {std::optional<int>{}, std::optional<int>{3}})
    for (int order = 0; order <= 1; ++order) {
      const Function f = derivative(
          [](const Tensors& in) {
            const ScanResult r = scan(
                [&](const Tensors& c, const Tensors& x) -> Step {
                  const Tensor next = tanh(c[0] * in[1] + x[0]);
                  return {{next}, {next * c[0]}};
                },
                {in[0]}, {in[2]});
            return sum(sin(r.ys[0]));
          },
          specs, order);
      const Profile p =
          f.plan({.checkpoint_every = every, .device = Device::cpu()}).profile(random(specs, 1));
      CAPTURE(order);
      CAPTURE(p.measured_peak);
      CAPTURE(p.predicted_peak);
      CHECK(p.spare_on_top < p.predicted_peak / 4);
      CHECK(p.peaks_agree());
    }
}

TEST_CASE("A program that writes elsewhere than it was planned to has another measured peak") {
  Program program;
  program.graph = std::make_shared<Graph>();
  program.graph->input(f64({4}));
  program.arena_bytes = 256;
  const auto measured = [&](std::byte value, std::size_t bytes) {
    program.code.clear();
    program.code.push_back(
        {.op = find_op("add"),
         .kernel = [=](const std::byte* const*,
                       std::byte* out) { std::memset(out, std::to_integer<int>(value), bytes); },
         .out = {Place::Kind::arena, 0},
         .node = 0});
    return profile(program, nullptr, 0).measured_peak;
  };
  CHECK(measured(std::byte{1}, 300) == 300);
  for (int value = 0; value < 256; ++value) CHECK(measured(std::byte(value), 100) == 100);
  CHECK(measured(std::byte{1}, 0) == 0);
}

TEST_CASE("Live bytes stay within the arena, and fill it where nothing leaves gaps") {
  for (const Named& program : programs()) {
    CAPTURE(program.name);
    Plan plan = program.function.plan(program.options);
    const Profile p = plan.profile(program.in);
    const std::vector<BufferInfo> buffers = plan.buffers();
    CHECK(p.most_live_bytes() <= p.predicted_peak);
    CHECK(p.most_live_bytes() > p.predicted_peak / 2);
    double before = 0;
    for (std::size_t i = 0; i < p.memory.size(); ++i) {
      const MemoryPoint& point = p.memory[i];
      CHECK(p.instructions[static_cast<std::size_t>(point.instruction)].depth == 0);
      CHECK(static_cast<int>(point.bytes_by_level.size()) == p.levels);
      CHECK(point.begin_s >= before);
      before = point.begin_s;
      std::size_t live = 0, planned = 0;
      for (std::size_t bytes : point.bytes_by_level) live += bytes;
      for (const BufferInfo& b : buffers)
        if (b.first <= static_cast<int>(i) && static_cast<int>(i) <= b.last) planned += b.bytes;
      CHECK(live == planned);
    }
    CHECK(before <= p.seconds);
  }
  // One buffer after the other, each of whole lines.
  const Function chain = trace(
      [](Tensor x) {
        for (int i = 0; i < 5; ++i) x = sin(matmul(x, x));
        return sum(x);
      },
      f64({32, 32}));
  const Profile p = chain.plan({.device = Device::cpu()}).profile({random(f64({32, 32}), 1)});
  CHECK(p.most_live_bytes() == p.predicted_peak);
}

TEST_CASE("Memory has the level of what was written; what a scan hands out, that of its body's instruction") {
  const std::int64_t steps = 7, n = 512;
  const Function f = trace(
      [](Tensor start, Tensor xs) {
        const ScanResult r = scan(
            [](const Tensors& c, const Tensors& x) -> Step {
              const Tensor y = x[0] * c[0], g = grad(sum(square(y)), {c[0]})[0];
              return {{c[0] - 0.1 * g}, {y, g}};
            },
            {start}, {xs});
        return sum(sin(r.ys[0])) + sum(sin(r.ys[1]));
      },
      f64({n}), f64({steps, n}));
  const std::vector<Spec> specs{f64({n}), f64({steps, n})};
  const Profile p =
      f.plan({.fuse = false, .slice = false, .device = Device::cpu()}).profile(random(specs, 1));
  const auto scan = std::ranges::find_if(p.memory, [&](const MemoryPoint& m) {
    return p.instructions[static_cast<std::size_t>(m.instruction)].ops == "scan";
  });
  REQUIRE(scan != p.memory.end());
  const std::size_t stack = static_cast<std::size_t>(steps * n) * 8;
  CHECK(scan->bytes_by_level.size() == 2);
  CHECK(scan->bytes_by_level[1] == stack);
  CHECK(scan->bytes_by_level[0] >= stack);  // and working memory
  CHECK(scan->bytes_by_level[0] < 2 * stack);
  CHECK(p.memory.back().bytes_by_level[1] < stack);  // both are gone, or summed
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

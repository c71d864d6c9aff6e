// A profile measures the memory that the plan predicted.
#include <cstring>

#include "engine/plan/arena.h"
#include "engine/plan/program.h"
#include "tests/engine/profiled_programs.h"

using namespace nestgrad;
using namespace nestgrad::testing;

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
            [&](const Tensors& c, const Tensors& x) -> StepOutput {
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
                                [](const Tensors& c, const Tensors&) -> StepOutput {
                                  return {{tanh(c[0])}, {}};
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
                [&](const Tensors& c, const Tensors& x) -> StepOutput {
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
            [](const Tensors& c, const Tensors& x) -> StepOutput {
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

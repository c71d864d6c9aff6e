// A plan gives the numbers of its program, whatever memory it shares.
#include "engine/run/plan.h"

#include <random>

#include "engine/plan/arena.h"
#include "tests/fuzz/compare.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

void check_random_program(std::uint64_t seed) {
  CAPTURE(seed);
  fuzz::Draws draws(seed);
  const fuzz::Subject s = fuzz::random_subject(draws);
  const Arrays in = fuzz::numbers_for(s.specs, seed);
  fuzz::check_plans(s, in, draws);
  fuzz::check_replays(s, in, draws);
}

}  // namespace

// programs_fuzz checks more of them.
TEST_CASE(
    "Random programs: live buffers never overlap, and any plan, in a dirty arena too, gives the numbers") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) CHECK_NOTHROW(check_random_program(seed));
}

TEST_CASE("The arena keeps live buffers apart, aligned, and reuses what is dead") {
  for (unsigned seed = 0; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    // Few are placed by size, many by time.
    std::vector<Lifetime> buffers(seed < 50 ? 60 : kMostBySize + 1000);
    const unsigned steps = static_cast<unsigned>(buffers.size()) * 2 / 3;
    std::size_t total = 0;
    for (Lifetime& b : buffers) {
      b.bytes = random() % 5 == 0 ? 0 : random() % 5000;
      b.first = static_cast<int>(random() % steps);
      b.last = b.first + static_cast<int>(random() % 6);
      total += b.bytes + kArenaAlignment;
    }
    const ArenaLayout layout = lay_out(buffers);
    std::size_t peak = 0;  // no layout can do better than what is live at once
    for (int step = 0; step < static_cast<int>(steps) + 6; ++step) {
      std::size_t live = 0;
      for (const Lifetime& b : buffers) live += b.first <= step && step <= b.last ? b.bytes : 0;
      peak = std::max(peak, live);
    }
    CHECK(layout.bytes >= peak);
    CHECK(layout.bytes < (seed < 50 ? total / 2 : 2 * peak));
    bool all_apart = true;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      CHECK(layout.offsets[i] % kArenaAlignment == 0);
      CHECK(layout.offsets[i] + buffers[i].bytes <= layout.bytes);
      for (std::size_t j = 0; j < i; ++j) {
        if (buffers[i].first > buffers[j].last || buffers[j].first > buffers[i].last) continue;
        const bool apart = layout.offsets[i] + buffers[i].bytes <= layout.offsets[j] ||
                           layout.offsets[j] + buffers[j].bytes <= layout.offsets[i] ||
                           buffers[i].bytes == 0 || buffers[j].bytes == 0;
        all_apart = all_apart && apart;
      }
    }
    CHECK(all_apart);
  }
  CHECK(lay_out({}).bytes == 0);
}

TEST_CASE("An arena of many buffers joins what becomes free beside what is free") {
  std::vector<Lifetime> buffers{{64, 0, 2}, {64, 0, 1}, {64, 0, 9}, {128, 3, 9}};
  for (int step = 10; buffers.size() <= kMostBySize; ++step) buffers.push_back({64, step, step});
  const ArenaLayout layout = lay_out(buffers);
  CHECK(layout.offsets[3] == 0);  // where the first two were, of which the second was free before
  CHECK(layout.bytes == 192);
}

TEST_CASE("A sum does not write over a term of which its product still reads") {
  const std::int64_t n = 150;
  const Function f = trace(
      [](Tensor x) {
        const Tensor y = sin(x);
        return Tensors{matmul(matmul(y, y) + y, x)};
      },
      f64({n, n}));
  const Array x = random(f64({n, n}), 3);
  CHECK(same_bits(f({x}), f.plan({.reuse = false}).run({x})));
}

TEST_CASE("A dying input's buffer is written over, unless reuse is off") {
  const Function f = trace(
      [](Tensor x) {
        for (int i = 0; i < 20; ++i) x = sin(x) + 1.0;
        return sum(x);
      },
      f64({1000}));
  const std::size_t shared = f.plan().stats().arena_bytes,
                    apart = f.plan({.reuse = false}).stats().arena_bytes;
  CHECK(shared < 9000);
  CHECK(apart < 18000);
  CHECK(shared < apart);
  const Arrays at{random(f64({1000}), 1)};
  CHECK(same_bits(f.plan().run(at), f.plan({.reuse = false}).run(at)));
}

TEST_CASE("Outputs may be inputs, numbers, the same value twice, and views of each other") {
  const Function f = trace(
      [](Tensor x) -> Tensors {
        const Tensor y = x + 1.0;
        return {
            x,     y, reshape(x, {2, 2}), y, reshape(y, {2, 2}), constant(Array::scalar(7)), stop_gradient(x),
            y * y, x};
      },
      f64({4}));
  Plan plan = f.plan();
  for (int run = 0; run < 2; ++run) {
    const Arrays out = plan.run({Array::of({1, 2, 3, 4}, {4})});
    CHECK(out[0].to_vector() == std::vector<double>{1, 2, 3, 4});
    CHECK(out[1].to_vector() == std::vector<double>{2, 3, 4, 5});
    CHECK(out[2].to_vector() == out[0].to_vector());
    CHECK(out[2].shape() == Shape{2, 2});
    CHECK(out[3].same_bits(out[1]));
    CHECK(out[4].to_vector() == out[1].to_vector());
    CHECK(out[5].item() == 7);
    CHECK(out[6].same_bits(out[0]));
    CHECK(out[7].to_vector() == std::vector<double>{4, 9, 16, 25});
    CHECK(out[8].same_bits(out[0]));
  }
}

TEST_CASE("A plan refuses inputs and outputs that are missing, or of the wrong shape or type") {
  const Function f = trace([](Tensor x, Tensor y) { return x + y; }, f64({2}), f64({2}));
  Plan plan = f.plan();
  const Array good = Array::zeros(DType::f64, {2});
  CHECK(contains(message_of<ShapeError>([&] { plan.run({good}); }), "1 inputs given, the function has 2"));
  CHECK(contains(message_of<ShapeError>([&] {
                   plan.run({good, Array::zeros(DType::f64, {3})});
                 }),
                 "input 1 is f64[3], the function wants %1 = input 'in1' f64[2]"));
  CHECK(contains(message_of<ShapeError>([&] {
                   plan.run({good.cast(DType::f32), good});
                 }),
                 "input 0 is f32[2]"));
  CHECK(contains(message_of<ShapeError>([&] { plan.run({good, Array()}); }), "input 1 is empty"));
  Arrays in{good, good}, out{Array::zeros(DType::f64, {1})};
  CHECK(contains(message_of<ShapeError>([&] { plan.run(std::span<const Array>(in), out); }),
                 "output 0 is f64[1]"));
}

TEST_CASE(
    "A plan refuses options that make no sense, a budget that none fits, and to run once it was moved from") {
  const Function f = trace([](Tensor x) { return x + 1.0; }, f64({2}));
  for (const int wrong : {-1, -7}) {
    CHECK(contains(message_of<ConfigError>([&] { f.plan({.checkpoint_every = wrong}); }),
                   "checkpoint_every is -"));
    CHECK(contains(message_of<ConfigError>([&] { f.plan({.workers = wrong}); }), "workers is -"));
  }
  const Function loop = trace(
      [](Tensor x) {
        const ScanResult r = scan(
            [](const Tensors& c, const Tensors&) -> StepOutput {
              return {{sin(c[0])}, {}};
            },
            {x}, {}, {.steps = 1'500'000'000});
        return grad(sum(r.carries[0]), x);
      },
      f64({2}));
  CHECK(contains(message_of<ConfigError>([&] { loop.plan({.memory_budget = 1000}); }),
                 "a memory budget of 1000 bytes"));
  Plan from = f.plan();
  Plan to = std::move(from);
  CHECK(
      contains(message_of<GraphError>([&] { from.run({Array::zeros(DType::f64, {2})}); }), "was moved from"));
  CHECK(to.run({Array::zeros(DType::f64, {2})})[0].at(0) == 1);
}

TEST_CASE("A value of a scan that there is not is refused") {
  message_of<ShapeError>([] {
    trace(
        [](Tensor x) {
          const Tensor y = scan(
                               [](const Tensors& c, const Tensors&) -> StepOutput {
                                 return {{sin(c[0])}, {}};
                               },
                               {x}, {}, {.steps = 2})
                               .carries[0];
          return scan_final(y.graph().tensor(y.graph().node(y.id()).inputs[0]), 99);
        },
        f64({2}));
  });
}

TEST_CASE("Stats count what a plan runs, its text has a line for each instruction") {
  const Function f = trace(
      [](Tensor x, Tensor unused) {
        (void)exp(unused);  // dead
        return scan(
                   [](const Tensors& c, const Tensors& now) -> StepOutput {
                     return {{sin(c[0]) * now[0]}, {}};
                   },
                   {sum(x)}, {x})
            .carries[0];
      },
      f64({8}), f64({8}));
  const Plan plan = f.plan({.fuse = false});
  CHECK(plan.stats().instructions == 4);  // sum, scan, and sin and mul in its body
  CHECK(plan.stats().arena_bytes > 0);
  CHECK(count(plan.str(), "\n") == 5);            // and one for the whole
  CHECK(plan.stats().flops == 8 + 8 * (20 + 1));  // a sum, and sines and products
  CHECK(plan.stats().recompute_factor == 1);
  CHECK(contains(plan.str(), "scan steps 8 every 0"));
  CHECK_FALSE(contains(plan.str(), "exp"));
  CHECK(contains(plan.str(), "plan_test.cpp"));
  CHECK(contains(f.plan().str(), " sin+mul "));  // one instruction
}

TEST_CASE("Carries that nobody reads are not computed") {
  const auto instructions = [](bool wanted) {
    return trace(
               [&](Tensor x) {
                 const Tensors c = scan(
                                       [](const Tensors& s, const Tensors& now) -> StepOutput {
                                         return {{s[0] + now[0], exp(s[1]) * s[0], s[2] + s[1]}, {}};
                                       },
                                       {sum(x), sum(x), sum(x)}, {x})
                                       .carries;
                 return wanted ? c[2] : c[0];
               },
               f64({8}))
        .plan({.fuse = false})
        .stats()
        .instructions;
  };
  CHECK(instructions(false) == 3);  // sum, scan, add
  CHECK(instructions(true) == 6);
}

TEST_CASE(
    "What is computed again is counted: in checkpoint(), of large values, of values and carries of scans") {
  const auto layers = [](bool marked) {
    return trace(
        [=](Tensor x, Tensor w) {
          Tensor h = x;
          for (int i = 0; i < 4; ++i) {
            const auto layer = [&] { return Tensors{h + matmul(square(matmul(h, w)) + 1.0, w)}; };
            h = (marked ? checkpoint(layer) : layer())[0];
          }
          return grad(sum(square(h)), w);
        },
        f64({16, 8}), f64({8, 8}));
  };
  const double once = layers(false).plan({.rematerialize = false}).stats().flops;
  const auto check = [](const Plan& plan, double without) {
    CHECK(plan.stats().flops > without);
    CHECK(plan.stats().recompute_factor == doctest::Approx(plan.stats().flops / without).epsilon(1e-9));
  };
  check(layers(true).plan({.rematerialize = false}), once);
  check(layers(false).plan({.recompute_above = 0}), once);
  CHECK(layers(false).plan().stats().recompute_factor == 1);

  const Function scanned = trace(
      [](const Tensors& in) {
        const ScanResult r = scan(
            [](const Tensors& c, const Tensors& x) -> StepOutput {
              const Tensor y = x[0] * 2.0 + 1.0;
              return {{c[0] * y}, {tanh(matmul(c[0], y))}};
            },
            {in[0]}, {in[1]});
        return grad(sum(square(r.ys[0])), in);
      },
      std::vector<Spec>{f64({8, 8}), f64({40, 8, 8})});
  const double kept = scanned.plan({.rematerialize = false}).stats().flops;
  check(scanned.plan(), kept);
  check(scanned.plan({.rematerialize = false, .checkpoint_every = 5}), kept);
}

TEST_CASE("A memory budget chooses the checkpoint schedule, and changes no bit") {
  const std::int64_t steps = 256, dim = 12;
  const auto gradient = [&](std::int64_t time) {
    return trace(
        [](const Tensors& in) {
          const ScanResult r = scan(
              [](const Tensors& c, const Tensors& x) -> StepOutput {
                const Tensor next = tanh(matmul(c[0], c[0]) * x[0]);
                return {{next}, {}};
              },
              {in[0]}, {in[1]});
          return grad(sum(square(r.carries[0])), in);
        },
        std::vector<Spec>{f64({dim, dim}), f64({time, dim, dim})});
  };
  const Function f = gradient(steps);
  const std::vector<Spec> specs{f64({dim, dim}), f64({steps, dim, dim})};
  const Arrays at = random(specs, 9);
  const Plan all = f.plan({.rematerialize = false});
  const std::size_t most = all.stats().arena_bytes;
  CHECK(f.plan({.rematerialize = false, .memory_budget = most}).stats().recompute_factor == 1);
  Plan half = f.plan({.rematerialize = false, .memory_budget = most / 2});
  CHECK(half.stats().arena_bytes <= most / 2);
  CHECK(half.stats().recompute_factor > 1);
  CHECK(half.stats().recompute_factor < 1.5);
  CHECK(contains(half.str(), "times those without recomputation"));
  CHECK(same_bits(half.run(at), f.plan().run(at)));
  const std::string why = message_of<ConfigError>([&] { f.plan({.memory_budget = 1000}); });
  CHECK(contains(why, "a memory budget of 1000 bytes is too small"));
  CHECK(contains(why, fmt::format("as asked for the plan needs {}", f.plan().stats().arena_bytes)));
  CHECK(contains(why, "with the best checkpoint schedule"));
  // Where there is no scan, what is cheap is computed again, however small it is.
  const Function chain = trace(
      [](Tensor x, Tensor w) {
        Tensor y = x;
        for (int layer = 0; layer < 8; ++layer) y = matmul(tanh(sin(square(y))), w);
        return grad(sum(y), w);
      },
      f64({64, 4}), f64({4, 4}));
  const std::size_t kept = chain.plan().stats().arena_bytes,
                    least_kept = chain.plan({.recompute_above = 0}).stats().arena_bytes;
  REQUIRE(least_kept < kept);
  CHECK(chain.plan({.memory_budget = least_kept}).stats().arena_bytes == least_kept);
  const std::string nothing_left = message_of<ConfigError>([&] { chain.plan({.memory_budget = 1000}); });
  CHECK(contains(nothing_left, fmt::format("with what is cheap computed again {} (", least_kept)));
  CHECK(contains(nothing_left, "make the inputs smaller (a batch, a context), or write loops with scan()"));
  // Four times the length needs about twice the memory.
  const auto least = [&](std::int64_t time) {
    std::size_t bytes = 0;
    const std::string text = message_of<ConfigError>([&] { gradient(time).plan({.memory_budget = 1}); });
    bytes = std::stoul(text.substr(text.find("schedule ") + 9));
    return static_cast<double>(bytes);
  };
  CHECK(least(1024) < 2.3 * least(256));
}

TEST_CASE("A run-time error names the op and the user's line, and the plan stays usable") {
  const Function f = trace([](Tensor table, Tensor i) { return gather(table, i); }, f64({3, 1}), i32({1}));
  Plan plan = f.plan();
  const Array table = Array::of({1, 2, 3}, {3, 1});
  const std::string why = message_of<ValueError>([&] { plan.run({table, Array::of({3}, {1}, DType::i32)}); });
  CHECK(contains(why, "[gather]"));
  CHECK(contains(why, "plan_test.cpp"));
  CHECK(plan.run({table, Array::of({2}, {1}, DType::i32)})[0].item() == 3);
}

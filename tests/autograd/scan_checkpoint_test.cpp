// Whether a scan's values are stored or recomputed never changes a bit, at any order, and saves memory.
#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr int kAll = 1000;  // one segment: only the first carry is kept
const int kSchedules[] = {1, 2, 3, 4, 6, 7, 12, kAll};

void check_every_schedule(const Function& f, const Arrays& at) {
  Plan stored = f.plan({.checkpoint_every = 0});
  const Arrays expected = stored.run(at);
  for (const int n : kSchedules) {
    CAPTURE(n);
    Plan plan = f.plan({.checkpoint_every = n});
    CHECK(same_bits(plan.run(at), expected));
    CHECK(same_bits(plan.run(at), expected));  // nothing is left over from the run before
  }
}

}  // namespace

TEST_CASE("Every checkpoint schedule gives the same bits at orders 0 to 3") {
  for (const std::int64_t steps : {6, 10})
    for (const bool reverse : {false, true}) {
      const auto specs = learner_specs(steps);
      for (int order = 0; order <= 3; ++order) {
        CAPTURE(order);
        check_every_schedule(
            derivative([&](const Tensors& in) { return learner(in, as_scan, {.reverse = reverse}); }, specs,
                       order),
            random(specs, 5));
      }
    }
}

TEST_CASE("Every checkpoint schedule gives the same bits through scans inside scans") {
  const auto specs = learner_specs(5);
  for (int order = 1; order <= 2; ++order)
    check_every_schedule(
        derivative([&](const Tensors& in) { return nested_learner(in, as_scan); }, specs, order),
        random(specs, 5));
}

TEST_SUITE("slow") {
  TEST_CASE("Every checkpoint schedule gives the same third derivatives through scans inside scans") {
    const auto specs = learner_specs(7);
    check_every_schedule(
        derivative([&](const Tensors& in) { return nested_learner(in, as_scan, {}, 5); }, specs, 3),
        random(specs, 5));
  }
}

TEST_CASE("Every checkpoint schedule gives the same bits through scans that read one another") {
  const std::vector<Spec> specs{f64({2}), f64({7, 2})};
  const auto chain = [](const Tensors& in) {
    const auto smooth = [&](const Tensors& xs, bool reverse) {
      return scan(
          [&](const Tensors& s, const Tensors& x) -> StepOutput {
            const Tensor next = tanh(s[0] * in[0] + (x.size() > 1 ? x[0] * x[1] : x[0]));
            return {{next}, {next * s[0]}};
          },
          {in[0]}, xs, {.reverse = reverse});
    };
    const ScanResult a = smooth({in[1]}, false), b = smooth({a.ys[0]}, true),
                     c = smooth({a.ys[0], b.ys[0]}, false);
    return sum(c.ys[0]) + sum(b.carries[0]) + sum(square(c.carries[0]));
  };
  for (int order = 0; order <= 3; ++order)
    check_every_schedule(derivative(chain, specs, order), random(specs, 5));
}

TEST_CASE("Each scan may ask for a schedule of its own, and a plan may override it") {
  const auto specs = learner_specs(7);
  for (int order = 1; order <= 3; ++order) {
    const auto build = [&](int every) {
      return derivative([&](const Tensors& in) { return learner(in, as_scan, {.checkpoint_every = every}); },
                        specs, order);
    };
    const Arrays at = random(specs, 5), expected = build(0)(at);
    CHECK(same_bits(build(3)(at), expected));
    CHECK(same_bits(build(3).plan({.checkpoint_every = 0}).run(at), expected));
    CHECK(build(3).plan().stats().arena_bytes == build(0).plan({.checkpoint_every = 3}).stats().arena_bytes);
  }
}

// Scans with segments of different lengths that read each other's values must not read a segment that the
// other's recomputation has already replaced.
TEST_CASE("Scans with different schedules that read one another give the same bits") {
  const std::vector<Spec> specs{f64({2}), f64({2}), f64({12, 2})};
  const auto chain = [&](std::vector<int> every) {
    return [=](const Tensors& in) {
      const ScanResult a = scan(
          [&](const Tensors& s, const Tensors& x) -> StepOutput {
            const Tensor next = tanh(s[0] * in[0] + x[0]);
            return {{next}, {next * in[1]}};
          },
          {in[1]}, {in[2]}, {.checkpoint_every = every[0]});
      const ScanResult b = scan(
          [&](const Tensors& s, const Tensors& x) -> StepOutput {
            const Tensor next = sin(s[0] + x[0] * in[0]);
            return {{next}, {next}};
          },
          {in[0]}, {a.ys[0]}, {.checkpoint_every = every[1]});
      const ScanResult c = scan(
          [&](const Tensors& s, const Tensors& x) -> StepOutput {
            return {{s[0] + square(x[0]) * x[1] * x[2]}, {}};
          },
          {in[0]}, {a.ys[0], b.ys[0], in[2]}, {.checkpoint_every = every[2]});
      return sum(c.carries[0]);
    };
  };
  const Arrays at = random(specs, 5);
  for (int order = 0; order <= 2; ++order) {
    const Arrays expected = derivative(chain({0, 0, 0}), specs, order)(at);
    for (const auto& every : std::vector<std::vector<int>>{
             {2, 3, 0}, {3, 2, 0}, {5, 2, 3}, {2, 5, 12}, {1, 4, 0}, {4, 1, 6}, {0, 2, 3}, {3, 0, 2}}) {
      CAPTURE(fmt::format("{} {} {}", every[0], every[1], every[2]));
      CAPTURE(order);
      CHECK(same_bits(derivative(chain(every), specs, order)(at), expected));
    }
  }
}

// Recomputing reads what the scan read; cos(2 x) may not have taken over the place of 2 x by then.
TEST_CASE("What a checkpointed scan reads is kept until its last recomputation") {
  const std::vector<Spec> specs{f64({2}), f64({7, 2})};
  const Function f = derivative(
      [](const Tensors& in) {
        const Tensor xs = in[1] * 2.0, w = in[0] * 3.0;
        const ScanResult r = scan(
            [&](const Tensors& c, const Tensors& x) -> StepOutput {
              return {{tanh(c[0]) + x[0] + w}, {}};
            },
            {in[0]}, {xs});
        return sum(r.carries[0]) + sum(sin(xs)) + sum(sin(w));
      },
      specs, 1);
  check_every_schedule(f, random(specs, 5));
}

// A derivative's scan carries the sums of its gradients, and nothing of it is computed again: no n-th of them is kept.
TEST_CASE("A scan of which nothing is computed again keeps no carries, whatever its schedule") {
  const std::vector<Spec> specs{f64({1, 8}), f64({8, 8}), f64({64, 1, 8})};
  const auto recurrent = [](const Tensors& in) {
    return sum(square(scan(
                          [&](const Tensors& c, const Tensors& x) -> StepOutput {
                            return {{tanh(matmul(c[0], in[1]) + x[0])}, {}};
                          },
                          {in[0]}, {in[2]})
                          .carries[0]));
  };
  const auto bytes = [&](const Function& f, int every) {
    return f.plan({.checkpoint_every = every}).stats().arena_bytes;
  };
  const Function value = derivative(recurrent, specs, 0), gradient = derivative(recurrent, specs, 1);
  check_every_schedule(gradient, random(specs, 5));
  for (const int every : kSchedules) {
    CAPTURE(every);
    CHECK(bytes(value, every) == bytes(value, 0));
  }
  // The shared weights are larger than all carries between the steps: keeping them once a segment would cost more than the
  // schedule saves.
  CHECK(bytes(gradient, 8) < bytes(gradient, 0));
  const std::size_t weights = 8 * 8 * sizeof(double);
  CHECK(bytes(gradient, 1) < bytes(gradient, 0) + 2 * weights);
}

TEST_CASE("Checkpointing keeps less for long sequences") {
  const auto specs = learner_specs(256);
  for (int order = 1; order <= 2; ++order) {
    const Function f = derivative([](const Tensors& in) { return learner(in, as_scan); }, specs, order);
    const auto bytes = [&](int every) {
      return f.plan({.rematerialize = false, .checkpoint_every = every}).stats().arena_bytes;
    };
    CHECK(bytes(16) < bytes(0) / 2);
    CHECK(bytes(16) < bytes(1));
    CHECK(bytes(16) < bytes(256));
  }
}

// Programs that tests of profiles run.
#pragma once

#include "engine/run/profile.h"
#include "tests/autograd/deriving.h"

namespace nestgrad::testing {

constexpr std::int64_t kBatch = 6;

inline std::vector<Spec> recurrence_specs(std::int64_t steps) {
  return {f64({kBatch, 2, 4}), f64({4, 4}), f64({steps, kBatch, 2, 4})};
}
// Of kBatch independent sequences.
inline Tensor recurrence(const Tensors& in) {
  const ScanResult r = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
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

inline std::vector<Named> programs() {
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

}  // namespace nestgrad::testing

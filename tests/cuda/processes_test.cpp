// Processes on one GPU: ranks that take turns on it, as the slices of one process do. Their bytes go through the host.
#include <doctest/doctest.h>

#include "engine/core/context.h"
#include "engine/processes/group.h"
#include "ops/collectives.h"
#include "tests/lent_transport.h"
#include "tests/models/training_testing.h"
#include "tests/ops/collective_cases.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_SUITE_BEGIN("cuda");

TEST_CASE(
    "CUDA: collectives of ranks on one GPU have the values and derivatives, to order 3, of one process") {
  for (int size = 1; size <= 4; ++size) {
    RankThreads ranks(size, nullptr, 1);
    check_collectives(ranks, [](int) { return Device::cuda(); });
  }
}

TEST_CASE("CUDA: sums over ranks on one GPU have the CPU's bits") {
  for (int size = 2; size <= 5; ++size)
    for (const std::int64_t n : {1, 2, 3, 7, 64, 1000})
      for (const DType dtype : {DType::f32, DType::f64}) {
        const auto sums_on = [&](const Device& device) {
          std::vector<Array> sums(static_cast<std::size_t>(size));
          RankThreads ranks(size, nullptr, 1);
          ranks.run([&](Transport& all) {
            const ProcessGroup group(lent(all));
            const Function f =
                trace(TraceFn([&](const Tensors& t) { return Tensors{all_sum(own(t[0], group), group)}; }),
                      {Spec{dtype, {n}}});
            sums[static_cast<std::size_t>(all.rank())] =
                f.to(device)({random(Spec{dtype, {n}}, static_cast<std::uint64_t>(all.rank()))})[0];
          });
          return sums;
        };
        const std::vector<Array> here = sums_on(Device::cpu()), there = sums_on(Device::cuda());
        for (std::size_t r = 0; r < here.size(); ++r) CHECK(there[r].same_bits(here[0]));
      }
}

TEST_CASE("CUDA: training with sequences cut into slices has the CPU's losses") {
  TrainingOptions o = small_training("ttt-linear");
  o.slices = 2, o.grains = 2, o.steps = 4;
  const ByteCorpus corpus = text_of_documents();
  const auto losses_on = [&](const Device& device) {
    const DeviceScope scope(device);
    Trainer trainer(o, corpus);
    std::vector<double> losses;
    for (int i = 0; i < o.steps; ++i) losses.push_back(trainer.step().loss);
    losses.push_back(trainer.validate(trainer.validation_windows(4)).loss);
    return losses;
  };
  const std::vector<double> here = losses_on(Device::cpu()), there = losses_on(Device::cuda());
  for (std::size_t i = 0; i < here.size(); ++i) CHECK(there[i] == doctest::Approx(here[i]).epsilon(1e-4));
}

TEST_SUITE_END();

// The promises: collectives bring what their texts say, and with them a program on several processes has the value and the
// derivatives, up to order 3, of the same program on one; what would have a part of a gradient is refused.
#include "ops/collectives.h"

#include <doctest/doctest.h>

#include <mutex>

#include "engine/processes/threads.h"
#include "tests/lent_transport.h"
#include "tests/ops/collective_cases.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("collectives: values and derivatives to order 3 are those of one process that has everything") {
  for (int size = 1; size <= 4; ++size) {
    RankThreads ranks(size, nullptr);
    check_collectives(ranks, [](int) { return default_device(); });
  }
}

TEST_CASE("collectives: in the body of a loop they go over all processes in each step") {
  std::vector<double> got(3);
  run_as_processes(3, [&](Transport& all) {
    const ProcessGroup group(lent(all));
    const Function f = trace(TraceFn([&](const Tensors& t) {
                               const Tensor start = own(t[0], group), xs = own(t[1], group);
                               const ScanResult loop = scan(
                                   [&](const Tensors& carry, const Tensors& x) -> StepOutput {
                                     return {{vary(all_sum(carry[0] * x[0], group), group)}, {}};
                                   },
                                   {start}, {xs});
                               return Tensors{all_sum(loop.carries[0], group)};
                             }),
                             {f64(), f64({4})});
    const double mine = all.rank() + 1.0;
    got[static_cast<std::size_t>(all.rank())] =
        f({Array::scalar(1, DType::f64), Array::full(DType::f64, {4}, mine)})[0].item();
  });
  // c -> 6 c in each of 4 steps from 1 each, the first with 1 each; then three times that.
  for (const double x : got) CHECK(x == 3 * 6 * 6 * 6 * 6);
}

TEST_CASE("collectives: what would have a part of a gradient is refused, and says where and what to do") {
  const ProcessGroup alone(std::make_shared<OneProcess>());
  const auto refused = [&](const std::function<Tensor(Tensor x, Tensor w)>& fn) {
    return message_of<GraphError>([&] {
      const Function f =
          trace(TraceFn([&](const Tensors& t) { return Tensors{fn(t[0], t[1])}; }), {f64({3}), f64({3})});
      f({Array::zeros(DType::f64, {3}), Array::zeros(DType::f64, {3})});
    });
  };
  const std::string joined =
      refused([&](Tensor x, Tensor w) { return all_sum(sum(own(x, alone) * w), alone); });
  CHECK(contains(joined, "mul"));
  CHECK(contains(joined, "each process's own"));
  CHECK(contains(joined, "collectives_test.cpp:"));
  CHECK(contains(joined, "vary() makes that"));
  CHECK(contains(refused([&](Tensor x, Tensor) { return all_sum(x, alone); }),
                 "wants what is each process's own"));
  CHECK(contains(refused([&](Tensor x, Tensor) {
                   return exchange(reshape(x, {1, 3}), alone);
                 }),
                 "wants what is each process's own"));
  CHECK(contains(refused([&](Tensor x, Tensor) { return vary(own(x, alone), alone); }),
                 "wants what is the same in all processes"));
  CHECK(contains(refused([&](Tensor x, Tensor) { return own(x * x, alone); }), "which is no input"));
  CHECK(contains(
      message_of<ShapeError>([&] {
        trace(TraceFn([&](const Tensors& t) { return Tensors{own_part(t[0], 0, ProcessGroup())}; }),
              {f64({3})});
        run_as_processes(2, [&](Transport& all) {
          const ProcessGroup two(lent(all));
          trace(TraceFn([&](const Tensors& t) { return Tensors{own_part(t[0], 0, two)}; }), {f64({3})});
        });
      }),
      "cannot be cut into 2 equal parts"));
  // Constants, and what is made of them alone, are of either kind.
  const Function f = trace(
      TraceFn([&](const Tensors& t) { return Tensors{all_sum(sum(own(t[0], alone) * 2.0), alone) * 3.0}; }),
      {f64({3})});
  CHECK(f({Array::full(DType::f64, {3}, 1)})[0].item() == 18);
}

TEST_CASE("collectives: sums are the same bits at all processes, of any length, in both types") {
  for (int size = 2; size <= 5; ++size)
    for (const std::int64_t n : {1, 2, 3, 7, 64}) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        std::vector<Array> sums(static_cast<std::size_t>(size));
        run_as_processes(size, [&](Transport& all) {
          const ProcessGroup group(lent(all));
          const Function f =
              trace(TraceFn([&](const Tensors& t) { return Tensors{all_sum(own(t[0], group), group)}; }),
                    {Spec{dtype, {n}}});
          sums[static_cast<std::size_t>(all.rank())] =
              f({random(Spec{dtype, {n}}, static_cast<std::uint64_t>(all.rank()))})[0];
        });
        for (std::int64_t i = 0; i < n; ++i) {
          double sum = 0;
          for (int r = 0; r < size; ++r) sum += random(Spec{dtype, {n}}, static_cast<std::uint64_t>(r)).at(i);
          CHECK(sums[0].at(i) == doctest::Approx(sum).epsilon(dtype == DType::f32 ? 1e-6 : 1e-14).scale(1));
        }
        for (const Array& a : sums) CHECK(a.same_bits(sums[0]));
      }
    }
}

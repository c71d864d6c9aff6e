// The promise: a large op is shared by threads, and has the same bits for any number of them.
#include "tests/testing.h"
#include "tests/thread_count.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("large ops have the same bits for any number of threads, and those of small ones") {
  const std::vector<Spec> specs{f32({6, 130, 517}), f32({130, 1}), f32({517, 40}), f32({403020})};
  const Function f = trace(
      [](const std::vector<Tensor>& in) {
        const Tensor x = in[0];
        return std::vector<Tensor>{tanh(x * in[1]) + square(x),
                                   exp(in[3]),
                                   permute(x, {2, 0, 1}),
                                   concat({slice(x, 2, 3, 500), pad(x, 1, 0, 0)}, 2),
                                   pad(slice(x, 1, 1, 129), 1, 2, 3),
                                   broadcast_to(in[1], x.shape()),
                                   sum(x, {0}),
                                   sum(x, {1}),
                                   sum(x, {2}),
                                   sum(x, {0, 2}),
                                   sum(in[3]),
                                   max(x, std::vector<int>{1}),
                                   matmul(x, in[2]),
                                   matmul(x, x, {.a = true}),
                                   matmul(in[2], slice(x, 0, 0, 1), {.a = true, .b = true})};
      },
      specs);
  const Arrays in = random(specs, 3);
  const auto with_threads = [&](int n) {
    const Threads threads(n);
    return f.plan({.workers = n}).run(in);
  };
  const Arrays alone = with_threads(1);
  for (int n : {2, 3, 5}) {
    const Arrays shared = with_threads(n);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      CAPTURE(n);
      CAPTURE(i);
      CHECK(shared[i].same_bits(alone[i]));
    }
  }
  // A part of the whole.
  const Function part =
      trace([](const Tensors& t) { return Tensors{sum(tanh(slice(t[0], 0, 4, 5) * t[1]), {2})}; },
            {specs[0], specs[1]});
  const Function whole =
      trace([](const Tensors& t) { return Tensors{slice(sum(tanh(t[0] * t[1]), {2}), 0, 4, 5)}; },
            {specs[0], specs[1]});
  CHECK(same_bits(part({in[0], in[1]}), whole({in[0], in[1]})));
}

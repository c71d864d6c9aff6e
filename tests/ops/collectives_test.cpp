// The promises: collectives bring what their texts say, and with them a program on several processes has the value and the
// derivatives, up to order 3, of the same program on one; what would have a part of a gradient is refused.
#include "ops/collectives.h"

#include <doctest/doctest.h>

#include <mutex>

#include "engine/processes/threads.h"
#include "tests/lent_transport.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// What a collective makes of each process's own x, on several processes and on one that has them all.
struct Case {
  const char* name;
  Shape shape;  // of each one's own x, for so many processes
  std::function<Tensor(Tensor x, const ProcessGroup&)> here;
  std::function<Tensors(const Tensors& all)> whole;
};

Tensor part(Tensor x, int axis, int index, int parts) {
  const std::int64_t size = x.shape()[static_cast<std::size_t>(axis)] / parts;
  return slice(x, axis, index * size, (index + 1) * size);
}
Tensors on_each(std::size_t n, const std::function<Tensor(int)>& fn) {
  Tensors out;
  for (std::size_t r = 0; r < n; ++r) out.push_back(fn(static_cast<int>(r)));
  return out;
}

std::vector<Case> cases(int size) {
  const auto n = static_cast<std::size_t>(size);
  const auto sum_of = [](const Tensors& all) {
    Tensor out = all[0];
    for (std::size_t r = 1; r < all.size(); ++r) out = out + all[r];
    return out;
  };
  const auto transposed = [n, size](int split, int join) {
    return [=](const Tensors& all) {
      return on_each(n, [&](int r) {
        return concat(
            on_each(n, [&](int s) { return part(all[static_cast<std::size_t>(s)], split, r, size); }), join);
      });
    };
  };
  return {
      {"all_sum",
       {2, 3},
       [](Tensor x, const ProcessGroup& g) { return vary(all_sum(x, g), g); },
       [=](const Tensors& all) { return on_each(n, [&](int) { return sum_of(all); }); }},
      {"exchange", {size, 2}, exchange, transposed(0, 0)},
      {"all_to_all 1, 2",
       {2, 2 * size, 3},
       [](Tensor x, const ProcessGroup& g) { return all_to_all(x, 1, 2, g); },
       transposed(1, 2)},
      {"all_to_all 2, 0",
       {2, 1, 2 * size},
       [](Tensor x, const ProcessGroup& g) { return all_to_all(x, 2, 0, g); },
       transposed(2, 0)},
      {"all_to_all -1, -1",
       {2, 2 * size},
       [](Tensor x, const ProcessGroup& g) { return all_to_all(x, -1, -1, g); },
       transposed(1, 1)},
      {"all_gather 1",
       {2, 3},
       [](Tensor x, const ProcessGroup& g) { return all_gather(x, 1, g); },
       [=](const Tensors& all) { return on_each(n, [&](int) { return concat(all, 1); }); }},
      // With x itself, so that there is a derivative by each.
      {"rank_before",
       {2, 3},
       [](Tensor x, const ProcessGroup& g) { return x + 2.0 * rank_before(x, g); },
       [=](const Tensors& all) {
         return on_each(n, [&](int r) {
           const auto at = static_cast<std::size_t>(r);
           return r > 0 ? all[at] + 2.0 * all[at - 1] : all[at];
         });
       }},
      {"rank_after",
       {2, 3},
       [](Tensor x, const ProcessGroup& g) { return x + 2.0 * rank_after(x, g); },
       [=](const Tensors& all) {
         return on_each(n, [&](int r) {
           const auto at = static_cast<std::size_t>(r);
           return r + 1 < size ? all[at] + 2.0 * all[at + 1] : all[at];
         });
       }},
      {"own_part of a sum",
       {2, 2 * size},
       [](Tensor x, const ProcessGroup& g) { return own_part(all_sum(x, g), 1, g); },
       [=](const Tensors& all) { return on_each(n, [&](int r) { return part(sum_of(all), 1, r, size); }); }},
  };
}

// The loss, and gradients of squares of gradients, up to order 3: of w first, then of each x.
Tensors orders(Tensor loss, Tensor w, const Tensors& x, const std::function<Tensor(Tensor)>& over_all) {
  Tensors out{loss};
  for (int order = 1; order <= 3; ++order) {
    Tensors to{w};
    to.insert(to.end(), x.begin(), x.end());
    const Tensors g = grad(loss, to);
    out.insert(out.end(), g.begin(), g.end());
    Tensor own_squares = sum(square(g[1]));
    for (std::size_t i = 2; i < g.size(); ++i) own_squares = own_squares + sum(square(g[i]));
    loss = sum(square(g[0])) + over_all(own_squares);
  }
  return out;
}

}  // namespace

TEST_CASE("collectives: values and derivatives to order 3 are those of one process that has everything") {
  for (int size = 1; size <= 4; ++size)
    for (std::size_t number = 0; number < cases(size).size(); ++number) {
      const Case c = cases(size)[number];
      CAPTURE(size);
      CAPTURE(c.name);
      const auto n = static_cast<std::size_t>(size);
      std::vector<Spec> specs{f64()};
      for (std::size_t r = 0; r < n; ++r) specs.push_back(f64(c.shape));
      const Arrays in = random(specs, 7);
      const Function whole = trace(TraceFn([&](const Tensors& all) {
                                     const Tensors x{all.begin() + 1, all.end()};
                                     Tensors scaled;
                                     for (const Tensor& one : x) scaled.push_back(sin(one * all[0]));
                                     const Tensors made = c.whole(scaled);
                                     Tensor loss = sum(sin(made[0]) * 1.0);
                                     for (std::size_t r = 1; r < n; ++r)
                                       loss = loss + sum(sin(made[r]) * static_cast<double>(r + 1));
                                     return orders(loss, all[0], x, [](Tensor t) { return t; });
                                   }),
                                   specs);
      const Arrays expected = whole(in);
      std::vector<Arrays> got(n);
      run_as_processes(size, [&](Transport& all) {
        const ProcessGroup group(lent(all));
        const auto rank = static_cast<std::size_t>(all.rank());
        const Function mine =
            trace(TraceFn([&](const Tensors& t) {
                    const Tensor x = own(t[1], group);
                    const Tensor made = c.here(sin(x * vary(t[0], group)), group);
                    const Tensor loss = all_sum(sum(sin(made) * static_cast<double>(rank + 1)), group);
                    return orders(loss, t[0], {t[1]}, [&](Tensor s) { return all_sum(s, group); });
                  }),
                  {specs[0], specs[1]});
        got[rank] = mine({in[0], in[1 + rank]});
      });
      for (std::size_t r = 0; r < n; ++r) {
        // Of each order: the value of w, then of this process's x.
        Arrays wanted{expected[0]};
        for (std::size_t order = 0; order < 3; ++order) {
          wanted.push_back(expected[1 + order * (n + 1)]);
          wanted.push_back(expected[2 + order * (n + 1) + r]);
        }
        CHECK(max_error(got[r], wanted) < 1e-12);
        CHECK(got[r][0].same_bits(got[0][0]));
        CHECK(got[r][1].same_bits(got[0][1]));
      }
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

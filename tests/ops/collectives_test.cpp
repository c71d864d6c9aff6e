// The promises: collectives bring what their texts say, and with them a program on several processes has the value and the
// derivatives, up to order 3, of the same program on one; what would have a part of a gradient is refused.
#include "ops/collectives.h"

#include <doctest/doctest.h>

#include <thread>

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

namespace {

// What each of `size` processes has for x = 1, 2, .. of a program of its group, and its rank.
std::vector<Arrays> on_ranks(int size, std::int64_t n,
                             const std::function<Tensors(Tensor x, const ProcessGroup&, int rank)>& fn) {
  std::vector<Arrays> out(static_cast<std::size_t>(size));
  run_as_processes(
      size,
      [&](Transport& all) {
        const ProcessGroup group(lent(all));
        const Function f =
            trace(TraceFn([&](const Tensors& t) { return fn(t[0], group, all.rank()); }), {f64({n})});
        Array x(f64({n}));
        for (std::int64_t i = 0; i < n; ++i)
          x.as<double>()[static_cast<std::size_t>(i)] = static_cast<double>(i + 1);
        out[static_cast<std::size_t>(all.rank())] = f({x});
      },
      std::chrono::seconds(20));
  return out;
}

void check_each(const std::vector<Arrays>& got, const std::vector<std::vector<double>>& expected) {
  for (const Arrays& of_rank : got) {
    REQUIRE(of_rank.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(of_rank[i].to_vector() == expected[i]);
  }
}

}  // namespace

// At rank 0 own_part() is the first slice, at rank 1 the second: where equal collectives were one, each process waited for
// another one's bytes and took them for its own.
TEST_CASE("collectives: each call is one, whatever a process finds equal to it") {
  const auto halves = [](Tensor x, const ProcessGroup& g) {
    return Tensors{own_part(x, 0, g), slice(vary(x, g), 0, 0, 2), slice(vary(x, g), 0, 2, 4)};
  };
  check_each(on_ranks(2, 4,
                      [&](Tensor x, const ProcessGroup& g, int) {
                        Tensors out;
                        for (const Tensor& half : halves(x, g)) out.push_back(all_sum(half, g));
                        return out;
                      }),
             {{4, 6}, {2, 4}, {6, 8}});
  // Numbers of a rank, which simplification drops where they are 0 or 1.
  check_each(on_ranks(2, 2,
                      [](Tensor x, const ProcessGroup& g, int rank) {
                        const Tensor mine = own(x, g);
                        return Tensors{all_sum(mine + double(rank), g), all_sum(mine, g),
                                       all_sum(mine + double(1 - rank), g),
                                       all_sum(mine * double(1 + rank), g)};
                      }),
             {{3, 5}, {2, 4}, {3, 5}, {3, 6}});
  // Loops whose steps go over all processes.
  check_each(on_ranks(2, 4,
                      [&](Tensor x, const ProcessGroup& g, int) {
                        Tensors out;
                        for (const Tensor& half : halves(x, g)) {
                          const ScanResult r = scan(
                              [&](const Tensors& carry, const Tensors& h) -> StepOutput {
                                return {{carry[0] + all_sum(h[0], g)}, {}};
                              },
                              {zeros(DType::f64, {})}, {half});
                          out.push_back(r.carries[0]);
                        }
                        return out;
                      }),
             {{10}, {6}, {14}});
  // In the body of a loop, of what lies outside.
  check_each(on_ranks(2, 4,
                      [&](Tensor x, const ProcessGroup& g, int) {
                        const Tensors parts = halves(x, g);
                        const ScanResult r = scan(
                            [&](const Tensors& carry, const Tensors&) -> StepOutput {
                              Tensors next;
                              for (std::size_t i = 0; i < 3; ++i)
                                next.push_back(carry[i] + vary(all_sum(parts[i] + carry[i] * 0.0, g), g));
                              return {next, {}};
                            },
                            {zeros(DType::f64, {2}), zeros(DType::f64, {2}), zeros(DType::f64, {2})}, {},
                            {.steps = 2});
                        return r.carries;
                      }),
             {{8, 12}, {4, 8}, {12, 16}});
}

namespace {

// The steps of a loop, as a loop or written out.
Tensors along(bool unrolled, const StepFn& step, const Tensors& start, const Tensors& xs,
              std::int64_t steps) {
  if (!unrolled) {
    const ScanResult r = scan(step, start, xs);
    Tensors out = r.carries;
    out.insert(out.end(), r.ys.begin(), r.ys.end());
    return out;
  }
  Tensors carry = start;
  std::vector<Tensors> rows;
  for (std::int64_t t = 0; t < steps; ++t) {
    Tensors x;
    for (const Tensor& s : xs) {
      Shape row(s.shape().begin() + 1, s.shape().end());
      x.push_back(reshape(slice(s, 0, t, t + 1), row));
    }
    const StepOutput o = step(carry, x);
    carry = o.carries;
    rows.emplace_back();
    for (const Tensor& y : o.ys) {
      Shape one = y.shape();
      one.insert(one.begin(), 1);
      rows.back().push_back(reshape(y, one));
    }
  }
  for (std::size_t k = 0; k < rows[0].size(); ++k) {
    Tensors of_k;
    for (const Tensors& row : rows) of_k.push_back(row[k]);
    carry.push_back(concat(of_k, 0));
  }
  return carry;
}

}  // namespace

TEST_CASE("collectives: in a loop each carry, sequence and output has its own kind, and all derivatives") {
  // c = x sin(sum over all of c x) + c, which are each one's own; w, the same everywhere, goes along beside it.
  const auto program = [](bool unrolled) {
    return [unrolled](Tensor x, const ProcessGroup& g, int rank) {
      const Tensor w = sum(x) * 0.1, xs = own_part(x, 0, g) * (0.3 + 0.1 * rank);
      const StepFn step = [&](const Tensors& c, const Tensors& in) -> StepOutput {
        const Tensor total = all_sum(c[0] * in[0], g);
        return {{in[0] * sin(vary(total, g)) + c[0], c[1] * 0.5 + total * w, c[2] + in[0]},
                {total * c[1], c[0] * vary(c[1], g)}};
      };
      const Tensor c0 = vary(w, g) * (1.0 + rank);
      const Tensors out = along(unrolled, step, {c0, w, zeros(DType::f64, {})}, {xs}, 3);
      Tensor loss = all_sum(sin(out[0]) + out[2] + sum(square(out[4])), g) + square(out[1]) + sum(out[3]);
      Tensors all{loss};
      for (int order = 1; order <= 2; ++order) all.push_back(grad(loss, x)), loss = sum(square(all.back()));
      return all;
    };
  };
  const auto looped = on_ranks(2, 6, program(false)), unrolled = on_ranks(2, 6, program(true));
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(max_error(looped[r], unrolled[r]) < 1e-10);
    for (std::size_t i = 0; i < 3; ++i) CHECK(looped[r][i].same_bits(looped[0][i]));
  }
}

TEST_CASE(
    "collectives: what a loop makes of what is the same everywhere is followed, and refused where kinds meet") {
  const ProcessGroup alone(std::make_shared<OneProcess>());
  const auto refused = [&](const std::function<Tensor(Tensor x)>& fn) {
    return message_of<GraphError>([&] {
      trace(TraceFn([&](const Tensors& t) { return Tensors{fn(t[0])}; }),
            {f64({4, 2})})({Array::zeros(DType::f64, {4, 2})});
    });
  };
  const Tensors none;
  const auto looped = [&](Tensor x, Tensor start, const StepFn& step) { return scan(step, {start}, {x}); };
  // The output is each one's own, though all inputs are the same.
  CHECK(contains(refused([&](Tensor x) {
                   const auto r = looped(x, sum(x), [&](const Tensors& c, const Tensors& in) -> StepOutput {
                     return {{c[0]}, {own_part(in[0], 0, alone)}};
                   });
                   return sum(r.ys[0]) + sum(x);
                 }),
                 "joins"));
  CHECK(contains(refused([&](Tensor x) {
                   return looped(x, sum(x),
                                 [&](const Tensors& c, const Tensors& in) -> StepOutput {
                                   return {{sum(vary(c[0] * in[0], alone))}, {}};
                                 })
                       .carries[0];
                 }),
                 "begins as what is the same in all processes, and becomes by"));
  // From a number on a carry has the kind that the steps give it, and meets itself in the second.
  CHECK(contains(refused([&](Tensor x) {
                   return looped(x, zeros(DType::f64, {}),
                                 [&](const Tensors& c, const Tensors& in) -> StepOutput {
                                   return {{sum(own_part(in[0], 0, alone)) + c[0]}, {sum(in[0]) + c[0]}};
                                 })
                       .ys[0];
                 }),
                 "joins"));
  CHECK(contains(refused([&](Tensor x) {
                   return looped(x, sum(x),
                                 [&](const Tensors& c, const Tensors& in) -> StepOutput {
                                   return {{c[0]}, {own(in[0], alone)}};
                                 })
                       .ys[0];
                 }),
                 "is no input of the program"));
}

namespace {

// fn(x, w) and its derivative by w at each process of a mesh of 2 x 2, row by row, where w is 0.5; or what is said there.
struct OnMesh {
  std::vector<std::vector<double>> values;
  std::vector<std::string> said;
};
OnMesh on_mesh(
    const std::function<Tensor(Tensor x, Tensor w, const ProcessGroup& row, const ProcessGroup& column)>& fn,
    const std::function<double(int at)>& x_of = [](int at) { return 1.0 + at; }) {
  RankThreads rows[2]{{2, nullptr}, {2, nullptr}}, columns[2]{{2, nullptr}, {2, nullptr}};
  OnMesh out{std::vector<std::vector<double>>(4), std::vector<std::string>(4)};
  std::vector<std::jthread> threads;
  for (int at = 0; at < 4; ++at)
    threads.emplace_back([&, at, r = at / 2, c = at % 2] {
      const ProcessGroup row(rows[r].rank(c)), column(columns[c].rank(r));
      try {
        const Function f = trace(
            [&](Tensor x, Tensor w) {
              const Tensor loss = fn(x, w, row, column);
              return Tensors{loss, grad(loss, w)};
            },
            f64(), f64());
        for (const Array& a : f({Array::scalar(x_of(at), DType::f64), Array::scalar(0.5, DType::f64)}))
          out.values[static_cast<std::size_t>(at)].push_back(a.item());
      } catch (const Error& e) {
        out.said[static_cast<std::size_t>(at)] = e.what();
      }
    });
  threads.clear();
  return out;
}

}  // namespace

TEST_CASE(
    "collectives: over rows and columns a value is each process's own in a group, and joined with its like") {
  using Group = const ProcessGroup&;
  // The sum of (x w)^2 over all four, whose x differ in rows and columns.
  const OnMesh whole = on_mesh([](Tensor x, Tensor w, Group row, Group column) {
    const Tensor mine = own(own(x, row), column) * vary(vary(w, row), column);
    return all_sum(all_sum(sum(square(mine)), row), column);
  });
  for (const auto& values : whole.values) CHECK(values == std::vector<double>{7.5, 30});
  // Another group of the same processes is the same.
  const OnMesh again = on_mesh([](Tensor x, Tensor w, Group row, Group column) {
    const auto found = ProcessGroup::find(row.id());
    const ProcessGroup same(found);
    const Tensor mine = own(own(x, column), same) * vary(vary(w, row), column);
    return all_sum(all_sum(sum(square(mine)), row), column);
  });
  for (const auto& values : again.values) CHECK(values == std::vector<double>{7.5, 30});
  const auto said = [](const OnMesh& m, const std::string& text) {
    for (const std::string& s : m.said) CHECK_MESSAGE(contains(s, text), s);
  };
  said(on_mesh([](Tensor x, Tensor w, Group row, Group column) {
         return all_sum(sum(square(own(x, row) * vary(w, column))), row);
       }),
       "which is each process's own in group");
  said(on_mesh([](Tensor x, Tensor w, Group row, Group column) {
         return all_sum(sum(square(own(x, row) * vary(w, row))), column);
       }),
       "wants what is each process's own in group");
  said(on_mesh([](Tensor x, Tensor w, Group row, Group column) {
         return all_sum(all_sum(sum(square(own(x, row) * vary(w, row))), row), column);
       }),
       "wants what is each process's own");
  said(on_mesh([](Tensor x, Tensor w, Group row, Group column) {
         const Tensor mine = own(own(x, row), column);
         return all_sum(sum(vary(all_sum(mine, row), column) * vary(w, column)), column);
       }),
       "wants what is the same in all processes");
  // The columns' x differ, which is not said of them.
  said(on_mesh([](Tensor x, Tensor w, Group row, Group column) {
         const Tensor of_row = all_sum(sum(square(own(x, row) * vary(w, row))), row);
         return all_sum(vary(of_row, column), column);
       }),
       "of which no own() speaks in group");
  // Columns are said to differ, and what is in a row is the same.
  const OnMesh rows_alike = on_mesh(
      [](Tensor x, Tensor w, Group row, Group column) {
        const Tensor mine = vary(own(x, column), row) * vary(vary(w, row), column);
        return all_sum(all_sum(sum(square(mine)), row), column);
      },
      [](int at) { return 1.0 + at / 2; });
  for (const auto& values : rows_alike.values) CHECK(values == std::vector<double>{2.5, 10});
}

TEST_CASE("collectives: derivatives go over all processes once for each call of vary()") {
  // The slopes of sum(own part squared) + sum(first half) + 2 sum(second half).
  const auto got = on_ranks(2, 4, [](Tensor x, const ProcessGroup& g, int rank) {
    const Tensor y = x * 1.0, part = own_part(y, 0, g), first = slice(vary(y + double(rank), g), 0, 0, 2);
    const Tensor second = slice(vary(y + 1.0, g), 0, 2, 4);
    return Tensors{grad(all_sum(sum(square(part)) + sum(first) + 2.0 * sum(second), g), x)};
  });
  check_each(got, {{4, 6, 10, 12}});
}

TEST_CASE("collectives: processes whose plans have others are refused before anything is sent") {
  std::vector<std::string> said(3);
  run_as_processes(3, [&](Transport& all) {
    const ProcessGroup group(lent(all));
    const Function f = trace(TraceFn([&](const Tensors& t) {
                               const Tensor x = own(t[0], group);
                               return Tensors{all.rank() == 1 ? all_sum(rank_before(x, group), group)
                                                              : all_sum(rank_after(x, group), group)};
                             }),
                             {f64({3})});
    said[static_cast<std::size_t>(all.rank())] =
        message_of<ProcessError>([&] { f({Array::zeros(DType::f64, {3})}); });
  });
  for (const std::string& message : said) {
    CHECK(contains(message, "rank 1 has other collectives in a plan than rank 0"));
    CHECK(contains(message, "rank_before"));
  }
}

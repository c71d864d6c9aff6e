// Reductions and rearrangements against naive loops.
#include "autograd/scan.h"
#include "tests/ops/by_loops.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("sum, mean and max over any axes are the naive loops") {
  for (const Shape& shape : {Shape{4}, Shape{3, 5}, Shape{2, 3, 4}, Shape{2, 1, 3, 5}, Shape{1, 1},
                             Shape{300, 2}, Shape{2, 300}, Shape{3, 0, 2}})
    for (unsigned set = 1; set < 1U << shape.size(); ++set)
      for (const DType dtype : {DType::f32, DType::f64, DType::i32}) {
        std::vector<int> axes;
        Shape kept = shape, dropped;
        for (std::size_t d = 0; d < shape.size(); ++d)
          if (set >> d & 1)
            axes.push_back(static_cast<int>(d) - (d % 2 ? static_cast<int>(shape.size()) : 0)), kept[d] = 1;
          else dropped.push_back(shape[d]);
        const Array x = uniform({dtype, shape}, set, -9, 9);
        double count = 1;
        for (std::size_t d = 0; d < shape.size(); ++d)
          if (kept[d] != shape[d]) count *= static_cast<double>(shape[d]);
        const Array total = filled(DType::f64, kept, [&](const Index& i) {
          double s = 0;
          for (std::int64_t e = 0; e < x.size(); ++e) {
            Index j = unravel(e, shape);
            for (std::size_t d = 0; d < j.size(); ++d)
              if (kept[d] == 1) j[d] = 0;
            if (j == i) s += x.at(e);
          }
          return s;
        });
        CAPTURE(to_string(x.spec()));
        CAPTURE(set);
        const double tolerance = dtype == DType::f32 ? 8 * 0x1p-24 : 1e-14;  // ops/numerics/lane_sum.h
        const Array y = call1([&](Tensor t) { return sum(t, axes, kKeep); }, x);
        CHECK(y.shape() == kept);
        CHECK(difference(y.cast(DType::f64), total) <= tolerance);
        CHECK(call1([&](Tensor t) { return sum(t, axes); }, x).same_bits(y.reshaped(dropped)));
        if (is_float(dtype) && x.size() > 0) {
          Array average = total.clone();
          for (double& v : average.as<double>()) v /= count;
          // Two roundings: of the sum and of the quotient.
          CHECK(difference(call1([&](Tensor t) { return mean(t, axes, kKeep); }, x).cast(DType::f64),
                           average) <= 2 * tolerance);
        }
        if (x.size() == 0) continue;
        const Array top = filled(dtype, kept, [&](const Index& i) {
          double best = -std::numeric_limits<double>::infinity();
          for (std::int64_t e = 0; e < x.size(); ++e) {
            Index j = unravel(e, shape);
            for (std::size_t d = 0; d < j.size(); ++d)
              if (kept[d] == 1) j[d] = 0;
            if (j == i) best = std::max(best, x.at(e));
          }
          return best;
        });
        CHECK(call1([&](Tensor t) { return max(t, axes, kKeep); }, x).same_bits(top));
      }
}

TEST_CASE("f32 sums keep what is small beside what is large") {
  const std::int64_t n = 1000000;
  std::vector<double> values(uz(n + 8), 1.0);
  for (std::int64_t i = 0; i < 8; ++i) values[uz(n + i)] = 0.125;
  // Ones alone would stop growing at 2^24 in f32; a small part must survive next to them.
  for (const Shape& shape : {Shape{n + 8}, Shape{n + 8, 1}, Shape{(n + 8) / 8, 8}}) {
    const Array x = Array::of(values, shape, DType::f32);
    CHECK(call1([](Tensor t) { return sum(t); }, x).item() == n + 1);
  }
  const Array column = Array::of(values, {2, (n + 8) / 2}, DType::f32);  // two rows added up, then one row
  CHECK(call1([](Tensor t) { return sum(sum(t, {0})); }, column).item() == n + 1);
  const Array tenth = Array::full(DType::f32, {n}, 0.1);
  CHECK(call1([](Tensor t) { return sum(t); }, tenth).item() ==
        doctest::Approx(n * static_cast<double>(0.1f)).epsilon(8 * 0x1p-24));
  CHECK(call1([](Tensor t) { return mean(t); }, tenth).item() ==
        doctest::Approx(static_cast<double>(0.1f)).epsilon(9 * 0x1p-24));
  const Array running = call1([](Tensor t) { return cumsum(t, 0); }, tenth);
  CHECK(running.at(n - 1) == doctest::Approx(n * static_cast<double>(0.1f)).epsilon(6e-8));
}

TEST_CASE("where maxima are equal the derivative is shared, and NaN wins") {
  const auto slope = [](const std::vector<double>& values) {
    return call1([](Tensor x) { return grad(max(x, {0}, false), x); },
                 Array::of(values, {static_cast<std::int64_t>(values.size())}))
        .to_vector();
  };
  CHECK(slope({1, 3, 2}) == std::vector<double>{0, 1, 0});
  CHECK(slope({3, 3, 2}) == std::vector<double>{0.5, 0.5, 0});
  CHECK(slope({2, 2, 2, 2}) == std::vector<double>{0.25, 0.25, 0.25, 0.25});
  for (std::size_t at = 0; at < 3; ++at) {
    std::vector<double> values{1, 5, 2};
    values[at] = std::nan("");
    CHECK(std::isnan(call1([](Tensor x) { return max(x, {0}, false); }, Array::of(values, {3})).item()));
    CHECK(std::isnan(call1(
                         [](Tensor x) {
                           return max(x, {0, 1}, false);
                         },
                         Array::of(values, {3, 1}))
                         .item()));
    CHECK(std::isnan(call1([](Tensor x) { return max(x, {0}, false); },
                           Array::of({values[0], 0, values[1], 0, values[2], 0}, {3, 2}))
                         .at(0)));
  }
  CHECK_THROWS_WITH_AS(call1([](Tensor x) { return max(x, {0}, false); }, Array::zeros(DType::f64, {0, 2})),
                       doctest::Contains("no elements, so none is the largest or least"), ShapeError);
}

TEST_CASE("axes that do not exist, or are named twice, are refused by op") {
  Graph g;
  const Tensor x = g.input(Spec{DType::f64, {2, 3}});
  CHECK_THROWS_WITH_AS(sum(x, {2}), doctest::Contains("[sum] axis 2 does not exist, rank is 2"), ShapeError);
  CHECK_THROWS_WITH_AS(max(x, {-3}, false), doctest::Contains("[max] axis -3 does not exist"), ShapeError);
  CHECK_THROWS_WITH_AS(sum(x, {1, -1}), doctest::Contains("[sum] an axis is named twice"), ShapeError);
  CHECK_THROWS_WITH_AS(slice(x, 2, 0, 1), doctest::Contains("[slice] axis 2"), ShapeError);
  CHECK_THROWS_WITH_AS(concat({}, 0), doctest::Contains("[concat] needs at least one part"), ShapeError);
  CHECK_THROWS_WITH_AS(transpose(sum(x)), doctest::Contains("[transpose] needs two axes"), ShapeError);
  CHECK_THROWS_WITH_AS(scatter_add(g.input(Spec{DType::i32, {2}}), x, -1), doctest::Contains("[scatter_add]"),
                       ShapeError);
  CHECK_THROWS_WITH_AS(mean(g.input(Spec{DType::i32, {2}})), doctest::Contains("[mean]"), DTypeError);
}

TEST_CASE("gather reads rows, scatter_add adds them up in index order") {
  const Array table = uniform({DType::f32, {4, 2, 3}}, 5),
              index = Array::of({3, 0, 0, 2, 3, 3}, {2, 3}, DType::i32);
  const Array rows =
      call([](const auto& in) { return std::vector<Tensor>{gather(in[0], in[1])}; }, {table, index});
  CHECK(equal_arrays(rows, filled(DType::f32, {2, 3, 2, 3}, [&](const Index& i) {
                       return table.at(static_cast<std::int64_t>(index.at(i[0] * 3 + i[1])) * 6 + i[2] * 3 +
                                       i[3]);
                     })));
  const Array updates = uniform({DType::f32, {2, 3, 2}}, 6);
  const Array y = call([](const auto& in) { return std::vector<Tensor>{scatter_add(in[0], in[1], 5)}; },
                       {index, updates});
  Array naive = Array::zeros(DType::f32, {5, 2});
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t j = 0; j < 2; ++j)
      naive.as<float>()[uz(static_cast<std::int64_t>(index.at(i)) * 2 + j)] +=
          updates.as<float>()[uz(i * 2 + j)];
  CHECK(y.same_bits(naive));
}

TEST_CASE("index_add adds rows to a table in index order, in the table's place where nothing else reads it") {
  const Array table = uniform({DType::f32, {5, 2}}, 3),
              index = Array::of({3, 0, 0, 2, 3, 3}, {2, 3}, DType::i32),
              updates = uniform({DType::f32, {2, 3, 2}}, 6);
  const auto naive = [&](Array sum) {
    for (std::int64_t i = 0; i < 6; ++i)
      for (std::int64_t j = 0; j < 2; ++j)
        sum.as<float>()[uz(static_cast<std::int64_t>(index.at(i)) * 2 + j)] +=
            updates.as<float>()[uz(i * 2 + j)];
    return sum;
  };
  const auto added = [](const auto& in) { return std::vector<Tensor>{index_add(in[0], in[1], in[2])}; };
  CHECK(call(added, {table, index, updates}).same_bits(naive(table.clone())));
  // Over a value of its own, and over one that another reads after it.
  const auto in_place = [](const auto& in) {
    return std::vector<Tensor>{index_add(in[0] * 2.0, in[1], in[2])};
  };
  const auto beside = [](const auto& in) {
    const Tensor twice = in[0] * 2.0;
    return std::vector<Tensor>{index_add(twice, in[1], in[2]) - twice};
  };
  const Array twice = call([](const auto& in) { return std::vector<Tensor>{in[0] * 2.0}; }, {table});
  const Array sum = naive(twice.clone());
  CHECK(call(in_place, {table, index, updates}).same_bits(sum));
  CHECK(
      call(beside, {table, index, updates})
          .same_bits(call([](const auto& in) { return std::vector<Tensor>{in[0] - in[1]}; }, {sum, twice})));
  // The table's rows to the table itself.
  const Array rows = Array::of({4, 4, 1, 0, 4}, {5}, DType::i32);
  const auto to_itself = [](const auto& in) {
    const Tensor x = in[0] * 2.0;
    return std::vector<Tensor>{index_add(x, in[1], x)};
  };
  Array expected = twice.clone();
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 2; ++j)
      expected.as<float>()[uz(static_cast<std::int64_t>(rows.at(i)) * 2 + j)] +=
          twice.as<float>()[uz(i * 2 + j)];
  CHECK(call(to_itself, {table, rows}).same_bits(expected));
}

TEST_CASE("a loop that reads rows of a table, or adds to them, holds one table, and so does its gradient") {
  constexpr std::int64_t kRows = 500, kWidth = 8, kSteps = 40;
  const Spec table{DType::f64, {kRows, kWidth}}, at{DType::i32, {kSteps, 3}};
  const TraceFn loss = [&](const Tensors& in) {
    const StepFn step = [&](const Tensors& c, const Tensors& x) {
      const Tensor read = gather(in[0], x[0]), again = gather(in[0], x[0] * 3);
      return StepOutput{{tanh(c[0] + sum(read * square(again), {0}))}, {}};
    };
    return Tensors{sum(scan(step, {zeros(DType::f64, {kWidth})}, {in[1]}, {}).carries[0])};
  };
  const TraceFn both = [&](const Tensors& in) {
    const Tensor l = loss(in)[0];
    return Tensors{l, grad(l, in[0])};
  };
  const TraceFn updated = [&](const Tensors& in) {
    const StepFn step = [&](const Tensors& c, const Tensors& x) {
      return StepOutput{{c[0] + scatter_add(x[0], 0.5 * gather(c[0], x[0] * 2), kRows)}, {}};
    };
    return Tensors{scan(step, {in[0]}, {in[1]}, {}).carries[0]};
  };
  Array index{at};
  for (std::int64_t i = 0; i < index.size(); ++i)
    index.as<std::int32_t>()[uz(i)] = static_cast<std::int32_t>(i * 7 % 23);
  const std::vector<Array> args{uniform(table, 8), index};
  const std::size_t bytes = table.bytes();
  for (const TraceFn& fn : {both, updated}) {
    const Function f = trace(fn, std::vector<Spec>{table, at});
    Plan plan = f.plan({}), plain = f.plan({.simplify = false});
    CHECK(plan.stats().arena_bytes < bytes + bytes / 2);
    const std::vector<Array> with = plan.run(args), without = plain.run(args);
    for (std::size_t i = 0; i < with.size(); ++i) CHECK(difference(with[i], without[i]) < 1e-12);
  }
  // Against differences: rows that are read in both ways, in one, and not at all.
  const Function value = trace(loss, std::vector<Spec>{table, at});
  const Array gradient = trace(both, std::vector<Spec>{table, at})(args)[1];
  for (const std::int64_t element :
       {std::int64_t{0}, 7 * kWidth, 21 * kWidth + 3, 66 * kWidth + 7, 300 * kWidth}) {
    const auto moved = [&](double by) {
      Array t = args[0].clone();
      t.as<double>()[uz(element)] += by;
      return value(std::vector<Array>{t, index})[0].item();
    };
    CHECK(gradient.at(element) == doctest::Approx((moved(1e-5) - moved(-1e-5)) / 2e-5).epsilon(1e-7));
  }
}

TEST_CASE("an index outside of the table is an error that names op, index and line, in plan and eagerly") {
  for (const double bad : {-1.0, 4.0, 1e9}) {
    const Array table = Array::zeros(DType::f64, {4, 2}), index = Array::of({0, bad}, {2}, DType::i32),
                updates = Array::zeros(DType::f64, {2, 2});
    const std::string text = fmt::format("index {} is outside of the table's 4 rows", static_cast<long>(bad));
    for (const char* part : {"[gather] ", text.c_str(), "structured_test.cpp:"})
      CHECK_THROWS_WITH_AS(
          call([](const auto& in) { return std::vector<Tensor>{gather(in[0], in[1])}; }, {table, index}),
          doctest::Contains(part), ValueError);
    for (const char* part : {"[scatter_add] ", text.c_str(), "structured_test.cpp:"})
      CHECK_THROWS_WITH_AS(
          call([](const auto& in) { return std::vector<Tensor>{scatter_add(in[0], in[1], 4)}; },
               {index, updates}),
          doctest::Contains(part), ValueError);
    for (const char* part : {"[index_add] ", text.c_str(), "structured_test.cpp:"})
      CHECK_THROWS_WITH_AS(
          call([](const auto& in) { return std::vector<Tensor>{index_add(in[0], in[1], in[2])}; },
               {table, index, updates}),
          doctest::Contains(part), ValueError);
    Graph g(GraphMode::eager);
    CHECK_THROWS_WITH_AS(gather(g.input(table), g.input(index)), doctest::Contains(text.c_str()), ValueError);
  }
}

// The simplifier of plans: each rule fires, changes no number, and hides no NaN or infinity.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>

#include "ops/ops.h"
#include "tests/ops/sweep.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

using Tensors = std::vector<Tensor>;
constexpr double kInf = std::numeric_limits<double>::infinity();

// What a rule is for: x -> a longer way to write something simpler. `exact`: nothing but rearrangement, so
// equal bits.
struct Rule {
  std::string_view name;
  Tensor (*longer)(Tensor x);
  int nodes;     // how many nodes the simplifier must save, at least
  int rank = 0;  // of x, at least
  bool exact = true;
  int somewhere = 0;  // of some x; 0: as many as everywhere
};

// Any product with x from the right that needs x's last two axes only.
Tensor against(Tensor x) { return sin(transpose(slice(x, -2, 0, 1))); }  // [.., n, 1]

// Zeros, to which the cosines of x's rows are added.
Tensor rows_of(Tensor x) { return scatter_add(iota(DType::i32, {x.dim(0)}, 0), cos(x), x.dim(0)); }

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all{
      {"x * 1", [](Tensor x) { return x * 1.0; }, 1},
      {"1 * x", [](Tensor x) { return 1.0 * x; }, 1},
      {"x / 1", [](Tensor x) { return x / 1.0; }, 1},
      {"x + 0", [](Tensor x) { return x + 0.0; }, 1},
      {"0 + x", [](Tensor x) { return 0.0 + x; }, 1},
      {"x - 0", [](Tensor x) { return x - 0.0; }, 1},
      {"x^2", [](Tensor x) { return pow(x, 2.0); }, 1, 0, false},
      {"x^3", [](Tensor x) { return pow(x, 3.0); }, 0, 0, false},
      {"x^-1", [](Tensor x) { return pow(x + 2.0, -1.0); }, 1, 0, false},
      {"-(-x)", [](Tensor x) { return -(-x); }, 1},
      {"-(-(-x))", [](Tensor x) { return -(-(-x)); }, 2},
      {"reshape to its own shape", [](Tensor x) { return reshape(x, x.shape()); }, 1},
      {"reshape of reshape",
       [](Tensor x) {
         return reshape(reshape(reshape(x, {-1}), {1, -1}), x.shape());
       },
       3},
      {"permute of permute", [](Tensor x) { return transpose(transpose(x)); }, 2, 2},
      {"permute that moves nothing",
       [](Tensor x) {
         return permute(reshape(x, {1, -1, 1}), {1, 2, 0});
       },
       1},
      {"broadcast to its own shape", [](Tensor x) { return broadcast_to(x, x.shape()); }, 1},
      {"slice of everything", [](Tensor x) { return slice(x, 0, 0, x.dim(0)); }, 1, 1},
      {"pad by nothing", [](Tensor x) { return pad(x, -1, 0, 0); }, 1, 1},
      {"cast to its own type", [](Tensor x) { return cast(x, x.dtype()); }, 1},
      {"sum over extent 1",
       [](Tensor x) {
         return sum(reshape(x, {1, -1}), {0}, kKeep);
       },
       1},
      {"stop_gradient", [](Tensor x) { return stop_gradient(x); }, 1},
      {"probe", [](Tensor x) { return probe(x); }, 1},
      {"x + (-y)", [](Tensor x) { return x + -cos(x); }, 1},
      {"(-y) + x", [](Tensor x) { return -cos(x) + x; }, 1},
      {"x - (-y)", [](Tensor x) { return x - -cos(x); }, 1},
      {"-(x - y)", [](Tensor x) { return -(x - cos(x)); }, 1},
      {"(x * 2) * 4", [](Tensor x) { return (x * 2.0) * 4.0; }, 2},
      {"4 * (2 * x)", [](Tensor x) { return 4.0 * (2.0 * x); }, 2},
      {"(x * 2) * 1/2", [](Tensor x) { return (cos(x) * 2.0) * 0.5; }, 3},
      {"(-x) * 3", [](Tensor x) { return -x * 3.0; }, 1},
      {"-(x * 3)", [](Tensor x) { return -(x * 3.0); }, 1},
      {"two numbers", [](Tensor x) { return x * exp(constant(0.5, x.dtype()) + 1.0); }, 3},
      {"a number spread",
       [](Tensor x) { return x * (broadcast_to(constant(0.5, x.dtype()), x.shape()) * 3.0); }, 0, 1, true, 3},
      {"an operand spread in vain",
       [](Tensor x) {
         const Tensor row = sum(x, {0}, kKeep);
         return x + broadcast_to(row, x.shape()) * x;
       },
       0, 1, true, 2},
      {"a function of what is spread",
       [](Tensor x) { return exp(cos(broadcast_to(sum(x, {0}, kKeep), x.shape()))) * x; }, 0, 1, true, 2},
      {"sum of -x", [](Tensor x) { return broadcast_to(sum(-x, {-1}, kKeep), x.shape()); }, 0, 1, true, 2},
      {"sum of multiples",
       [](Tensor x) { return broadcast_to(sum(x * cos(sum(x, {-1}, kKeep)), {-1}, kKeep), x.shape()); }, -2,
       1, false, 3},
      {"rows added to a table", [](Tensor x) { return x + rows_of(x); }, 0, 1, true, 1},
      {"rows twice added to a table", [](Tensor x) { return (rows_of(x) + rows_of(sin(x))) + x; }, 0, 1,
       false, 2},
      {"transposed right factor", [](Tensor x) { return matmul(x, transpose(x)); }, 1, 2, false},
      {"transposed left factor", [](Tensor x) { return matmul(transpose(x), x); }, 1, 2, false},
      {"flagged and transposed",
       [](Tensor x) {
         return matmul(transpose(x), against(x), {true, false});
       },
       1, 2, false},
      {"both transposed",
       [](Tensor x) {
         return matmul(transpose(x), transpose(x), {true, false});
       },
       1, 2, false},
  };
  return all;
}

// A, A -> the sum of A'A over all leading axes.
Tensor stacked_product(Tensor x) {
  std::vector<int> batch;
  for (int d = 0; d < x.rank() - 2; ++d) batch.push_back(d);
  return sum(matmul(x, sin(x), {true, false}), batch);
}

struct Planned {
  Array with, without;
  std::int64_t saved;  // nodes
};

Planned both(const TraceFn& fn, const std::vector<Array>& x) {
  std::vector<Spec> specs;
  for (const Array& a : x) specs.push_back(a.spec());
  const Function f = trace(fn, specs);
  Plan with = f.plan({.simplify = true}), without = f.plan({.simplify = false});
  return {with.run(x)[0], without.run(x)[0],
          static_cast<std::int64_t>(without.stats().nodes) - static_cast<std::int64_t>(with.stats().nodes)};
}

// Equal numbers; zeros may differ in sign, as x + 0 turns -0 into 0 and x does not.
bool same_numbers(const Array& a, const Array& b) { return difference(a, b) == 0; }

}  // namespace

TEST_CASE("each simplification fires and changes no number, on the values of every op") {
  std::map<std::string_view, std::int64_t> most;
  for (const Op* op : op_table())
    for (const Case& c : positive_cases(*op)) {
      const std::vector<Array> x = c.draw(11);
      if (!is_float(c.out().dtype)) continue;
      const Planned bare = both(
          [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{sin(sin(c.fn()(in)[0]))}; }, x);
      for (const Rule& rule : rules()) {
        if (c.out().rank() < rule.rank) continue;
        CAPTURE(c.what);
        CAPTURE(rule.name);
        // sin keeps the op's own simplification out of the
        // count, and the outputs of the plan away from the rule.
        const auto wrapped = [&](const std::vector<Tensor>& in) {
          return std::vector<Tensor>{sin(rule.longer(sin(c.fn()(in)[0])))};
        };
        const Planned p = both(wrapped, x);
        if (rule.exact) CHECK(same_numbers(p.with, p.without));
        else CHECK(difference(p.with, p.without) <= 1e-13);
        // To swap an axis of extent 1 is a reshape, which costs nothing and hides the transpose.
        const Shape shape = c.out().shape;
        const bool hidden = rule.rank == 2 && (shape.end()[-1] == 1 || shape.end()[-2] == 1);
        CHECK(p.saved - bare.saved >= (hidden ? 0 : rule.nodes));
        most[rule.name] = std::max(most[rule.name], p.saved - bare.saved);
      }
    }
  for (const Rule& rule : rules()) {
    CAPTURE(rule.name);
    CHECK(most[rule.name] >= rule.somewhere);
  }
}

TEST_CASE("a sum of products A'B over leading axes is one product, the same number to rounding") {
  for (const Shape& shape : {Shape{5, 3, 4}, Shape{2, 3, 4, 2}, Shape{1, 3, 2}, Shape{2, 1, 3, 3}}) {
    CAPTURE(to_string(shape));
    const Array x = uniform({DType::f64, shape}, 3);
    const auto fn = [](const std::vector<Tensor>& in) { return std::vector<Tensor>{stacked_product(in[0])}; };
    const Planned p = both(fn, {x});
    CHECK(difference(p.with, p.without) <= 1e-14);
    const Plan plan = trace(fn, {x.spec()}).plan({});
    CHECK(plan.str().find("sum") == std::string::npos);
  }
  // Not for a sum over some of the leading axes, or where an operand is shared by the batch.
  const Array x = uniform({DType::f64, {2, 3, 4, 2}}, 4), y = uniform({DType::f64, {4, 2}}, 5);
  for (const Planned& p :
       {both(
            [](const auto& in) {
              return std::vector<Tensor>{sum(matmul(in[0], in[0], {true, false}), {0})};
            },
            {x}),
        both(
            [](const auto& in) {
              return std::vector<Tensor>{sum(matmul(in[0], in[1], {true, false}), {0, 1})};
            },
            {x, y}),
        both(
            [](const auto& in) {
              return std::vector<Tensor>{sum(matmul(in[0], in[0], {true, false}), {0, 1, 2})};
            },
            {x})})
    CHECK(difference(p.with, p.without) <= 1e-14);
}

TEST_CASE("products with a common factor that are added up are one product, the same number to rounding") {
  const Array a = uniform({DType::f64, {2, 4, 4}}, 6), b = uniform({DType::f64, {2, 4, 4}}, 7),
              x = uniform({DType::f64, {2, 4, 4}}, 8);
  const auto products = [](const TraceFn& fn, const std::vector<Array>& in) {
    const Planned p = both(fn, in);
    CHECK(difference(p.with, p.without) <= 1e-14);
    std::vector<Spec> specs;
    for (const Array& t : in) specs.push_back(t.spec());
    const std::string text = trace(fn, specs).plan({.fuse = false}).str();
    int count = 0;
    for (std::size_t at = 0; (at = text.find(" matmul ", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  using In = const std::vector<Tensor>&;
  for (const bool flag : {false, true}) {
    const MatmulOptions t{flag, !flag};
    CHECK(products([t](In in) { return Tensors{matmul(in[0], in[2], t) + matmul(in[1], in[2], t)}; },
                   {a, b, x}) == 1);
    CHECK(products([t](In in) { return Tensors{matmul(in[2], in[0], t) + matmul(in[2], in[1], t)}; },
                   {a, b, x}) == 1);
    CHECK(products(
              [t](In in) {
                return Tensors{(in[1] + matmul(in[0], in[2], t)) + sin(in[1]) + matmul(in[1], in[2], t)};
              },
              {a, b, x}) == 1);
  }
  // A X + A' X = (A + A') X.
  CHECK(products(
            [](In in) {
              return Tensors{matmul(in[0], in[2]) + matmul(in[0], in[2], {true, false})};
            },
            {a, b, x}) == 1);
  // The common factor enters otherwise, or the others differ in shape.
  CHECK(products(
            [](In in) {
              return Tensors{matmul(in[0], in[2]) + matmul(in[1], in[2], {false, true})};
            },
            {a, b, x}) == 2);
  CHECK(products([](In in) { return Tensors{matmul(in[0], in[2]) + matmul(in[1], in[2])}; },
                 {a, uniform({DType::f64, {4, 4}}, 9), x}) == 2);
}

TEST_CASE("a product of one number with a row or a column is elementwise, in every way to write it") {
  // Is it still a product? The numbers, NaN and infinities among them, stay.
  const auto is_product = [](const Shape& a, const Shape& b, MatmulOptions flags) {
    Array left = uniform({DType::f64, a}, 3), right = uniform({DType::f64, b}, 4);
    left.as<double>()[0] = kInf, right.as<double>().back() = 0;
    const TraceFn fn = [&](const Tensors& in) { return Tensors{matmul(in[0], in[1], flags)}; };
    const Planned p = both(fn, {left, right});
    CHECK(same_numbers(p.with, p.without));
    return contains(trace(fn, {left.spec(), right.spec()}).plan().str(), "matmul");
  };
  for (const bool of_a : {false, true})
    for (const bool of_b : {false, true}) {
      CAPTURE(of_a);
      CAPTURE(of_b);
      const auto shape = [](const Shape& batch, std::int64_t rows, std::int64_t columns, bool swap) {
        Shape out = batch;
        out.insert(out.end(), {swap ? columns : rows, swap ? rows : columns});
        return out;
      };
      const auto product = [&](std::int64_t m, std::int64_t k, std::int64_t n) {
        return is_product(shape({2, 3}, m, k, of_a), shape({3}, k, n, of_b), {of_a, of_b});
      };
      CHECK(!product(1, 1, 5));
      CHECK(!product(5, 1, 1));
      CHECK(!product(1, 1, 1));
      CHECK(product(5, 1, 4));
      CHECK(product(1, 2, 5));
    }
}

TEST_CASE("powers that products make are no powers in a plan, where it may round") {
  for (const auto& [exponent, is_product] :
       {std::pair{2.0, true}, {3.0, true}, {-1.0, true}, {0.5, false}, {2.5, false}}) {
    CAPTURE_BOUND(exponent);
    const Function f = trace([e = exponent](Tensor x) { return pow(x, e); }, Spec{DType::f64, {3}});
    CHECK(contains(f.plan().str(), " pow ") != is_product);
    CHECK(contains(f.plan({.simplify = false}).str(), " pow "));
  }
}

TEST_CASE("simplification hides no NaN and no infinity") {
  const Array x = Array::of({std::nan(""), kInf, -kInf, -0.0, 0.0, 1, -1, 1e308}, {2, 4});
  for (const Rule& rule : rules()) {
    CAPTURE(rule.name);
    const Planned p =
        both([&](const std::vector<Tensor>& in) { return std::vector<Tensor>{rule.longer(in[0])}; }, {x});
    CHECK(same_numbers(p.with, p.without));
  }
  // What looks like zero or one is not, if x is not finite.
  const auto keeps_nan = [&](Tensor (*fn)(Tensor)) {
    const Array y =
        both([&](const std::vector<Tensor>& in) { return std::vector<Tensor>{fn(in[0])}; }, {x}).with;
    return std::isnan(y.at(0)) && std::isnan(y.at(1)) && std::isnan(y.at(2));
  };
  CHECK(keeps_nan([](Tensor t) { return t * 0.0; }));
  CHECK(keeps_nan([](Tensor t) { return t - t; }));
  CHECK(keeps_nan([](Tensor t) { return t / t; }));
  const Array stacked = Array::of({1, kInf, 2, 3, std::nan(""), 5, 1, 1}, {2, 2, 2});
  const Planned p = both(
      [](const std::vector<Tensor>& in) { return std::vector<Tensor>{stacked_product(in[0])}; }, {stacked});
  CHECK(same_numbers(p.with, p.without));
}

TEST_CASE("simplification of empty arrays is harmless") {
  for (const Shape& shape : {Shape{0, 2, 3}, Shape{2, 0, 3}, Shape{2, 3, 0}}) {
    CAPTURE(to_string(shape));
    const Array x = Array::zeros(DType::f64, shape);
    for (const Rule& rule : rules()) {
      CAPTURE(rule.name);
      if (shape[1] == 0 && rule.name == "flagged and transposed") continue;  // slices a row
      const Planned p =
          both([&](const std::vector<Tensor>& in) { return std::vector<Tensor>{rule.longer(in[0])}; }, {x});
      CHECK(same_numbers(p.with, p.without));
    }
    const Planned p =
        both([](const std::vector<Tensor>& in) { return std::vector<Tensor>{stacked_product(in[0])}; }, {x});
    CHECK(same_numbers(p.with, p.without));
  }
  // An empty product of which only one factor is empty.
  const Planned p = both(
      [](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{sum(matmul(in[0], in[1], {true, false}), {0})};
      },
      {Array::zeros(DType::f64, {2, 3, 0}), Array::zeros(DType::f64, {2, 3, 5})});
  CHECK(same_numbers(p.with, p.without));
}

TEST_CASE("a factor of one that spreads a value is kept") {
  const Function f = trace(
      [](Tensor x) {
        return std::vector<Tensor>{x * full(x.dtype(), {2, 3}, 1), x * 1.0};
      },
      Spec{DType::f64, {1, 3}});
  const std::vector<Array> out = f({Array::of({1, 2, 3}, {1, 3})});
  CHECK(out[0].to_vector() == std::vector<double>{1, 2, 3, 1, 2, 3});
  CHECK(out[1].to_vector() == std::vector<double>{1, 2, 3});
}

TEST_CASE("factors are not multiplied with each other where that would leave the range of f32") {
  const Function f = trace(
      [](Tensor x) {
        return std::vector<Tensor>{x * 1e30 * 1e30, x * 1e-30 * 1e-30};
      },
      Spec{DType::f32, {2}});
  const std::vector<Array> out = f({Array::of({1e-30, 1e30}, {2}, DType::f32)});
  CHECK(out[0].at(0) == doctest::Approx(1e30));
  CHECK(out[1].at(1) / 1e-30 == doctest::Approx(1));
}

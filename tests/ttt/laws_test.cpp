// The promise: whatever linear step an optimiser makes, its law is read off
// its trace; the dual form, the primal form and the steps made by hand, one
// after the other, give the same numbers, as values and derivatives.
#include "tests/ttt/methods.h"
#include "ttt/claim.h"
#include "ttt/forms/law.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::gate;
using ttt::Per;

namespace {

const std::vector<FormChoice> kBoth{FormChoice::primal, FormChoice::dual};

std::string all_differing(const std::vector<Method>& methods, const NamedLearner& named, const Policy& policy,
                          const Sizes& sizes, int order, bool position = false) {
  std::string out;
  for (const Method& method : methods) {
    const LoopCase loop{named, method, policy, sizes, {{"rate"}}, position};
    const std::string bad = differing(loop, numbers(loop, by_hand(), order), order, kBoth);
    if (!bad.empty()) out += method.name + ": " + bad;
  }
  return out;
}

}  // namespace

TEST_CASE("linear steps: dual = primal = by hand to order 2, in chunks that leave a rest") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .mini_batch = 4};
  CHECK(all_differing(linear_methods(sizes), perceptron("x W + b", 2, {4, 4}, tanh), {.chunk = 4}, sizes,
                      2) == "");
  CHECK(all_differing(feature_methods(sizes), matrix_of(sizes), {.chunk = 4}, sizes, 2) == "");
}
TEST_CASE("linear steps: dual = primal = by hand to order 2, online") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 4, .dim = 4};
  CHECK(all_differing(linear_methods(sizes), perceptron("x W + b", 2, {4, 4}, tanh), {.chunk = 1}, sizes,
                      2) == "");
  CHECK(all_differing(feature_methods(sizes), matrix_of(sizes), {.chunk = 1}, sizes, 2) == "");
  CHECK(all_differing(moving_methods(), matrix_of(sizes), {.chunk = 1}, sizes, 2) == "");
}
TEST_CASE(
    "linear steps: dual = primal = by hand to order 1, deep learners, read before write, whole sequence" *
    doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 5, .dim = 4};
  const NamedLearner deep = perceptron("two layers", 2, {4, 6, 4}, gelu_tanh);
  using Read = Policy::Read;
  CHECK(all_differing(linear_methods(sizes), deep, {.chunk = 2, .read = Read::before_write}, sizes, 1) == "");
  CHECK(all_differing(linear_methods(sizes), deep, {.chunk = Policy::kWholeSequence}, sizes, 1) == "");
  CHECK(all_differing(linear_methods(sizes), deep, {.chunk = 8, .ascent = true}, sizes, 1) == "");
}
TEST_CASE("linear steps: dual = primal = by hand to order 1 with position rates" *
          doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 1, .heads = 3, .time = 10, .dim = 4};
  const NamedLearner named = perceptron("x W + b", 3, {4, 4}, tanh);
  using Read = Policy::Read;
  for (const Read read : {Read::after_write, Read::before_write}) {
    CHECK(all_differing(linear_methods(sizes), named, {.chunk = 4, .read = read}, sizes, 1, true) == "");
    CHECK(all_differing(feature_methods(sizes), matrix_of(sizes), {.chunk = 4, .read = read}, sizes, 1,
                        true) == "");
  }
  CHECK(all_differing(moving_methods(), matrix_of(sizes), {.chunk = 1}, sizes, 1, true) == "");
}
TEST_CASE("coefficients per feature belong to the input: other widths of values, one feature") {
  const Sizes wide{.batch = 1, .heads = 2, .time = 6, .dim = 4, .value_dim = 3};
  CHECK(all_differing(feature_methods(wide), matrix_of(wide), {.chunk = 4}, wide, 2) == "");
  const Sizes narrow{.batch = 2, .heads = 1, .time = 5, .dim = 1, .value_dim = 3};
  CHECK(all_differing(feature_methods(narrow), matrix_of(narrow), {.chunk = 2}, narrow, 2) == "");
}
TEST_SUITE("slow") {
  TEST_CASE("coefficients per feature belong to the input: W used transposed") {
    const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
    const NamedLearner turned = formula(
        "x W'",
        [](const Params& p) {
          return Weights{matrix("W", p("W", {2, 4, 4}))};
        },
        [](const Weights& w, Tensor x) { return matmul(x, w["W"], {.b = true}); });
    const NamedLearner tied = formula(
        "tanh(x W) W'",
        [](const Params& p) {
          return Weights{matrix("W", p("W", {2, 4, 4}))};
        },
        [](const Weights& w, Tensor x) { return matmul(tanh(matmul(x, w["W"])), w["W"], {.b = true}); });
    for (const NamedLearner& named : {turned, tied})
      for (const std::int64_t chunk : {1, 4}) {
        CHECK(all_differing(feature_methods(sizes), named, {.chunk = chunk}, sizes, 2) == "");
        CHECK(all_differing(linear_methods(sizes), named, {.chunk = chunk}, sizes, 1) == "");
      }
  }
}
TEST_CASE("rates of single weights, alone and beside the common rate") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 6, .dim = 4};
  const NamedLearner named = perceptron("two layers", 2, {4, 4, 4}, tanh);
  const std::vector<std::vector<GateInput>> rates{{{"rate.W1"}}, {{"rate.W2"}, {"rate"}, {"rate.b1"}}, {}};
  for (const auto& each : rates)
    for (const std::int64_t chunk : {1, 4}) {
      const LoopCase loop{named, linear_methods(sizes)[7], {.chunk = chunk}, sizes, each};
      CHECK(differing(loop, numbers(loop, by_hand(), 1), 1, kBoth) == "");
    }
}

namespace {

// A law's tables as numbers, on gates drawn at random: z [tokens, tokens], c of each state [tokens].
struct Tables {
  Arrays gates;
  Arrays z_after, z_before, end_z;
  std::vector<Arrays> c_after, c_before, end_c;  // [state][j]
};
// Tables of `optimizer` on one weight [1, 1, 3, 2] with gates "a", "b" of one number a token.
Tables tables(const InnerOptimizer& optimizer, std::int64_t tokens, bool position) {
  std::vector<std::size_t> c_counts;
  std::size_t states = 0;
  const Spec rows = f64({1, 1, tokens, 1});
  const Function f = trace(
      [&](const Tensors& in) {
        const ttt::Gates gates{{"a", in[0]}, {"b", in[1]}};
        const Weights w{matrix("W", in[2])};
        const ttt::State state{w, {optimizer.slots(w.at(0))}};
        const ttt::BlockLaw law = ttt::sum_up(ttt::StepLaw::of(optimizer, state, 0, gates), {1, 1}, tokens,
                                              DType::f64, position ? in[3] : Tensor());
        states = law.end.size();
        Tensors out;
        const auto see = [&](const ttt::Reads& r, std::int64_t n) {
          out.push_back(broadcast_to(r.z, {1, 1, n, tokens}));
          for (std::size_t j = 0; j < states; ++j) {
            const double kept = j == 0 ? 1.0 : 0.0;
            out.push_back(r.keeps ? full(DType::f64, {1, 1, n, 1}, kept)
                                  : broadcast_to(r.c[j], {1, 1, n, 1}));
          }
        };
        see(law.after, tokens), see(law.before, tokens);
        for (const ttt::Reads& r : law.end) see(r, 1);
        return out;
      },
      {rows, rows, f64({1, 1, 3, 2}), f64({tokens})});
  Tables t;
  t.gates = {random(rows, 1, 0.2, 0.9), random(rows, 2, 0.2, 0.9), random(f64({1, 1, 3, 2}), 3),
             random(f64({tokens}), 4, 0.1, 0.9)};
  const Arrays out = f(t.gates);
  std::size_t at = 0;
  const auto take = [&](Arrays& z, std::vector<Arrays>& c) {
    z.push_back(out[at++]);
    c.emplace_back();
    for (std::size_t j = 0; j < states; ++j) c.back().push_back(out[at++]);
  };
  take(t.z_after, t.c_after), take(t.z_before, t.c_before);
  for (std::size_t i = 0; i < states; ++i) take(t.end_z, t.end_c);
  return t;
}

double product(const Array& gate, std::int64_t from, std::int64_t to) {  // of from .. to - 1
  double p = 1;
  for (std::int64_t t = from; t < to; ++t) p *= gate.at(t);
  return p;
}

using Entry = std::function<double(std::int64_t t, std::int64_t s)>;
double worst(const Array& table, std::int64_t rows, std::int64_t columns, const Entry& entry) {
  double out = 0;
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t s = 0; s < columns; ++s)
      out = worse(out, std::abs(table.at(t * columns + s) - entry(t, s)));
  return out;
}

}  // namespace

TEST_CASE("the tables of a law are the sums of products that the steps add up to, position rates included") {
  constexpr std::int64_t n = 6;
  for (const bool position : {false, true}) {
    // Decay and momentum: m_t = b m + g, W_t = a W - m.
    const Tables t = tables(InnerOptimizer().momentum(gate("b")).keep(gate("a")), n, position);
    const Array &a = t.gates[0], &b = t.gates[1], &p = t.gates[3];
    const auto part = [&](std::int64_t i) { return !position ? 1.0 : i < 0 ? 0.0 : p.at(i); };
    const auto z = [&](std::int64_t i, std::int64_t s) {  // of W after token i
      double sum = 0;
      for (std::int64_t r = s; r <= i; ++r) sum -= product(a, r + 1, i + 1) * product(b, s + 1, r + 1);
      return sum;
    };
    const auto from_m = [&](std::int64_t i) {
      double sum = 0;
      for (std::int64_t r = 0; r <= i; ++r) sum -= product(a, r + 1, i + 1) * product(b, 0, r + 1);
      return sum;
    };
    CHECK(worst(t.z_after[0], n, n, [&](auto i, auto s) { return part(i) * z(i, s); }) < 1e-14);
    CHECK(worst(t.z_before[0], n, n, [&](auto i, auto s) { return part(i - 1) * z(i - 1, s); }) < 1e-14);
    CHECK(worst(t.c_after[0][0], n, 1,
                [&](auto i, auto) { return 1 + part(i) * (product(a, 0, i + 1) - 1); }) < 1e-14);
    CHECK(worst(t.c_before[0][0], n, 1,
                [&](auto i, auto) { return 1 + part(i - 1) * (product(a, 0, i) - 1); }) < 1e-14);
    CHECK(worst(t.c_after[0][1], n, 1, [&](auto i, auto) { return part(i) * from_m(i); }) < 1e-14);
    CHECK(worst(t.c_before[0][1], n, 1, [&](auto i, auto) { return part(i - 1) * from_m(i - 1); }) < 1e-14);
    // The end: the weight goes its part of the way, momentum does not.
    CHECK(worst(t.end_z[0], 1, n, [&](auto, auto s) { return part(n - 1) * z(n - 1, s); }) < 1e-14);
    CHECK(worst(t.end_c[0][0], 1, 1, [&](auto, auto) { return 1 + part(n - 1) * (product(a, 0, n) - 1); }) <
          1e-14);
    CHECK(worst(t.end_z[1], 1, n, [&](auto, auto s) { return product(b, s + 1, n); }) < 1e-14);
    CHECK(worst(t.end_c[1][0], 1, 1, [&](auto, auto) { return 0.0; }) < 1e-14);
    CHECK(worst(t.end_c[1][1], 1, 1, [&](auto, auto) { return product(b, 0, n); }) < 1e-14);

    // A sum: W_t = W - sum of a_s g_s.
    const Tables u = tables(InnerOptimizer().scale(gate("a")), n, position);
    CHECK(worst(u.z_after[0], n, n, [&](auto i, auto s) { return s <= i ? -part(i) * a.at(s) : 0.0; }) <
          1e-15);
    CHECK(worst(u.z_before[0], n, n, [&](auto i, auto s) { return s < i ? -part(i - 1) * a.at(s) : 0.0; }) <
          1e-15);
    CHECK(worst(u.end_z[0], 1, n, [&](auto, auto s) { return -part(n - 1) * a.at(s); }) < 1e-15);
    const Tables plain = tables(InnerOptimizer(), n, position);
    CHECK(worst(plain.z_after[0], n, n, [&](auto i, auto s) { return s <= i ? -part(i) : 0.0; }) == 0);
  }
}

TEST_CASE("a step that only adds up needs no scan over the tokens of a chunk") {
  const auto scans = [](const InnerOptimizer& optimizer) {
    return count_op(trace(
                        [&](Tensor w, Tensor a) {
                          const Weights weights{matrix("W", w)};
                          const ttt::State state{weights, {optimizer.slots(weights.at(0))}};
                          const ttt::StepLaw step = ttt::StepLaw::of(optimizer, state, 0, {{"a", a}});
                          return Tensors{ttt::sum_up(step, {1, 1}, 5, DType::f64, {}).after.z};
                        },
                        f64({1, 1, 3, 2}), f64({1, 1, 5, 1})),
                    "scan");
  };
  CHECK(scans(InnerOptimizer()) == 0);
  CHECK(scans(InnerOptimizer().scale(gate("a"))) == 0);
  CHECK(scans(InnerOptimizer().scale(0.1)) == 0);
  CHECK(scans(InnerOptimizer().keep(gate("a"))) == 1);
}

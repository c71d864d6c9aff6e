// The first value that is not finite is found, with where it was made.
#include "tests/engine/nonfinite_programs.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("A division by zero in the inner gradient is found at its step, level, scope and line") {
  for (const std::size_t k : {0U, 2U, 3U}) {
    const NonFinite found = found_in(distance_learner(), meeting_at(k));
    CHECK(found.op == "div");
    CHECK(found.level == 1);
    CHECK(found.steps == Steps{static_cast<std::int64_t>(k)});
    CHECK(found.within.size() == 1);
    CHECK(found.scope == "inner loss");
    CHECK(found.element == 0);
    CHECK(found.output.infs == 1);
    CHECK(found.output.nans == 0);
    CHECK(std::isnan(found.output.low));
    REQUIRE(found.inputs.size() == 2);
    CHECK(found.inputs[0].low == 0.5);
    CHECK(found.inputs[1].high == 0);
    CHECK(found.values[1].at(0) == 0);
    CHECK(std::isinf(found.value.at(0)));
    const std::string text = found.str();
    for (const std::string& part :
         {fmt::format("step {}", k), std::string("level 1"), std::string("in inner loss"),
          std::string("nonfinite_programs.h:"), std::string("is inf"), std::string("\n  input 1, "),
          std::string(", f64[1]: 0\n")})
      CHECK_MESSAGE(contains(text, part), text, " lacks ", part);
  }
  CHECK_FALSE(first_nonfinite(distance_learner(), {Array::of({0}, {1}), Array::of({1, 2, 3, 4}, {4, 1})}));
}

TEST_CASE("An eager graph that checks its values stops at the same op") {
  const Arrays at = meeting_at(2);
  const std::string why = message_of<ValueError>([&] {
    Graph eager(GraphOptions{.mode = GraphMode::eager, .check_finite = true});
    const GraphScope scope(eager);
    learn_distance({eager.input(at[0]), eager.input(at[1])}, unrolled);
  });
  CHECK(contains(why, "[" + found_in(distance_learner(), at).op + "]"));
  const NonFinite flat = found_in(distance_learner(unrolled), at);
  CHECK(flat.op == "div");
  CHECK(flat.level == 1);
  CHECK(flat.steps.empty());
  CHECK(contains(why, fmt::format("%{} ", flat.node)));
}

TEST_CASE("In a gradient's own scan, which runs from the last time, the last time is the first") {
  const Arrays at{Array::of({1, 0, 0, 4}, {4})};
  CHECK_FALSE(first_nonfinite(roots(false), at).has_value());
  const NonFinite found = found_in(roots(true), at);
  CHECK(found.op == "div");
  CHECK(found.level == 1);
  CHECK(found.steps == Steps{2});
}

TEST_CASE("In a scan within a scan the steps of both are told, outermost first") {
  const NonFinite found = found_in(reciprocals(), {Array::of({1, 2, 3, 4, 5, 0}, {2, 3})});
  CHECK(found.op == "reciprocal");
  CHECK(found.steps == Steps{1, 2});
  CHECK(found.within.size() == 2);
  CHECK(contains(found.str(), "steps 1, 2"));
}

TEST_CASE("Overflow of f32 is found, and is none in f64") {
  const auto raised = [](DType dtype) {
    return trace([](Tensor x) { return sum(log(exp(x))); }, Spec{dtype, {3}});
  };
  const Array at = Array::of({1, 100, 2}, {3}, DType::f32);
  const NonFinite found = found_in(raised(DType::f32), {at});
  CHECK(found.op == "exp");
  CHECK(found.element == 1);
  CHECK(found.output.infs == 1);
  CHECK(found.output.low == doctest::Approx(std::exp(1.0)));
  CHECK(found.output.high == doctest::Approx(std::exp(2.0)));
  CHECK(found.inputs[0].low == 1);
  CHECK(found.inputs[0].high == 100);
  CHECK_FALSE(first_nonfinite(raised(DType::f64), {at.cast(DType::f64)}).has_value());
}

TEST_CASE("An input that is not finite is reported as such, if it is used") {
  const Function f = trace([](Tensor x, Tensor) { return sum(1.0 / x); }, f64({3}), f64({3}));
  const Array good = Array::of({1, 2, 3}, {3}), bad = Array::of({0, kNan, -kInf}, {3});
  const NonFinite found = found_in(f, {bad, good});
  CHECK(found.op == "input");
  CHECK(found.element == 1);
  CHECK(found.output.nans == 1);
  CHECK(found.output.infs == 1);
  CHECK(found.output.low == 0);
  CHECK(found.inputs.empty());
  CHECK(contains(found.str(), "input[in0]"));
  CHECK_FALSE(first_nonfinite(f, {good, bad}).has_value());
}

TEST_CASE("Integers are always finite, and so are constants that are not") {
  const Function f = trace(
      [](Tensor table, Tensor indices) {
        return Tensors{max(gather(table, indices), constant(-kInf, DType::f64)), indices + 1};
      },
      f64({3}), i32({2}));
  const Array indices = Array::of({2, 0}, {2}, DType::i32);
  CHECK_FALSE(first_nonfinite(f, {Array::of({1, 2, 3}, {3}), indices}).has_value());
  CHECK(found_in(f, {Array::of({1, 2, kInf}, {3}), indices}).op == "input");
  const Function mask = trace([](Tensor x) { return x + constant(-kInf, DType::f64); }, f64({2}));
  const NonFinite found = found_in(mask, {Array::of({1, 2}, {2})});
  CHECK(found.op == "add");
  CHECK(found.inputs[1].infs == 1);
  const Function logs = trace([](Tensor i) { return log(cast(i, DType::f64)); }, i32({2}));
  CHECK(found_in(logs, {Array::of({3, 0}, {2}, DType::i32)}).op == "log");
}

TEST_CASE("What no output needs is not reported, inside of a scan either") {
  const auto two_carries = [](std::size_t wanted) {
    return trace(
        [=](Tensor x) {
          const ScanResult r = scan(
              [](const Tensors& c, const Tensors& now) -> StepOutput {
                return {{c[0] + now[0], c[1] + log(now[0])}, {c[0], log(now[0] * 2.0)}};
              },
              {constant(0.0, DType::f64), constant(0.0, DType::f64)}, {x});
          return wanted < 2 ? r.carries[wanted] : r.ys[wanted - 2];
        },
        f64({3}));
  };
  const Arrays at{Array::of({1, 0, 2}, {3})};
  CHECK_FALSE(first_nonfinite(two_carries(0), at).has_value());
  CHECK_FALSE(first_nonfinite(two_carries(2), at).has_value());
  CHECK(found_in(two_carries(1), at).steps == Steps{1});
  CHECK(found_in(two_carries(3), at).op == "log");
}

TEST_CASE("An op that is carried out as others is looked into") {
  const Function f = trace(
      [](Tensor x) {
        return scan(
                   [](const Tensors& c, const Tensors& now) -> StepOutput {
                     return {{halved_quotient({c[0], now[0]})}, {}};
                   },
                   {constant(1.0, DType::f64)}, {x})
            .carries[0];
      },
      f64({3}));
  const NonFinite found = found_in(f, {Array::of({1, 0, 2}, {3})});
  CHECK(found.op == "div");
  CHECK(found.steps == Steps{1});
  CHECK(found.within.size() == 2);  // the scan, and custom_vjp
}

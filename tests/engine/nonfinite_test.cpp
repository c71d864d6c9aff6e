// The first value that is not finite, the interpreter that finds it, and files that make it again.
#include "engine/nonfinite.h"

#include <cmath>
#include <limits>

#include "engine/interpreter.h"
#include "engine/io/safetensors.h"
#include "ops/attrs.h"
#include "tests/autograd/deriving.h"
#include "tests/engine/io_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

using Steps = std::vector<std::int64_t>;

NonFinite found_in(const Function& f, const Arrays& at) {
  const auto found = first_nonfinite(f, at);
  REQUIRE(found.has_value());
  return *found;
}

// A weight that learns to be x. The inner loss is |w - x| as a root of a square, which has no derivative
// where they meet; the weight stays where it is until then.
Tensor learn_distance(const Tensors& in, const Loop& loop) {
  return sum(loop(
                 [](const Tensors& w, const Tensors& x) -> Step {
                   const Scope scope("inner loss");
                   const Tensor loss = sum(sqrt(square(w[0] - x[0])));
                   return {{w[0] - 0.0 * grad(loss, {w[0]})[0]}, {}};
                 },
                 {in[0]}, {in[1]}, {})
                 .carries[0]);
}

Function distance_learner(const Loop& loop = as_scan) {
  return trace([&](const Tensors& in) -> Tensors { return {learn_distance(in, loop)}; },
               {f64({1}), f64({4, 1})});
}

Arrays meeting_at(std::size_t step) {
  std::vector<double> x{2, 3, 4, 5};
  x[step] = 1;
  return {Array::of({1}, {1}), Array::of(x, {4, 1})};
}

// sum_t sqrt(x_t): finite at zero, its derivative is not.
Function roots(bool derivative) {
  return trace(
      [=](Tensor x) {
        const Tensor y = scan(
                             [](const Tensors& c, const Tensors& now) -> Step {
                               return {{c[0] + sqrt(now[0])}, {}};
                             },
                             {constant(0.0, DType::f64)}, {x})
                             .carries[0];
        return derivative ? grad(y, {x})[0] : y;
      },
      f64({4}));
}

Function reciprocals() {
  return trace(
      [](Tensor x) {
        return scan(
                   [](const Tensors& c, const Tensors& row) -> Step {
                     return {{scan(
                                  [](const Tensors& d, const Tensors& now) -> Step {
                                    return {{d[0] + reciprocal(now[0])}, {}};
                                  },
                                  {c[0]}, {row[0]})
                                  .carries[0]},
                             {}};
                   },
                   {constant(0.0, DType::f64)}, {x})
            .carries[0];
      },
      f64({2, 3}));
}

Tensor halved_quotient(const Tensors& in) {
  return custom_vjp([](const Tensors& x) { return 0.5 * (x[0] / x[1]); },
                    [](const Tensors& x, Tensor, Tensor ct) -> Tensors {
                      return {ct / x[1], -(ct * x[0])};
                    },
                    in);
}

PlanOptions plain_plan() {
  return {.simplify = false, .reuse = false, .fuse = false, .rematerialize = false, .slice = false};
}

}  // namespace

TEST_CASE("The interpreter computes what a plan computes") {
  const auto agrees = [](const Function& f, std::uint64_t seed) {
    std::vector<Spec> specs;
    for (std::size_t i = 0; i < f.inputs().size(); ++i) specs.push_back(f.input_spec(i));
    const Arrays at = random(specs, seed, 0.2, 1);
    CHECK(max_error(interpret(f, at), f.plan(plain_plan()).run(at)) < 1e-12);
    CHECK(max_error(interpret(f, at), f(at)) < 1e-10);
    CHECK_FALSE(first_nonfinite(f, at).has_value());
  };
  for (int order = 0; order <= 2; ++order) {
    agrees(derivative([](const Tensors& in) { return learner(in, as_scan); }, learner_specs(4), order), 3);
    agrees(derivative([](const Tensors& in) { return learner(in, as_scan, {.reverse = true}); },
                      learner_specs(4), order),
           4);
    agrees(derivative([](const Tensors& in) { return nested_learner(in, as_scan, {}, 2); }, learner_specs(3),
                      order),
           5);
    agrees(
        derivative([](const Tensors& in) { return sum(halved_quotient(in)); }, {f64({3}), f64({3})}, order),
        6);
  }
  agrees(trace(
             [](Tensor x) {
               return Tensors{x, sum(checkpoint([&] { return Tensors{exp(x)}; })[0])};
             },
             f64({3})),
         7);
}

TEST_CASE("The interpreter shows each value once, in order, and stops when told to") {
  const Function f = trace([](Tensor x) { return sum(tanh(x) * 2.0); }, f64({3}));
  const Arrays at = random(std::vector{f64({3})}, 1);
  std::vector<std::string> seen;
  interpret(f, at, [&](const Visit& v) {
    seen.emplace_back(v.node.op->name);
    CHECK(v.output.spec() == v.node.spec);
    CHECK(v.inputs.size() == v.node.inputs.size());
    return true;
  });
  CHECK(seen.size() == f.live_nodes());
  CHECK(seen.front() == "input");
  int calls = 0;
  CHECK(interpret(f, at, [&](const Visit&) { return ++calls < 2; }).empty());
  CHECK(calls == 2);

  // Of a body, each node at each step.
  int reciprocals_seen = 0;
  std::vector<Steps> times;
  interpret(reciprocals(), random(std::vector{f64({2, 3})}, 1, 0.5, 1), [&](const Visit& v) {
    if (v.node.op->name != "reciprocal") return true;
    ++reciprocals_seen;
    times.push_back(v.steps);
    return true;
  });
  CHECK(reciprocals_seen == 6);
  CHECK(times == std::vector<Steps>{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}});
}

TEST_CASE("The interpreter refuses inputs that do not fit, and says where a kernel failed") {
  const Function f = reciprocals();
  CHECK(contains(message_of<ShapeError>([&] { interpret(f, {}); }), "0 inputs given, the function has 1"));
  CHECK(contains(message_of<ShapeError>([&] { interpret(f, {Array::scalar(1)}); }), "wants f64[2,3]"));
  CHECK(contains(message_of<ShapeError>([&] { interpret(f, {Array()}); }), "is empty"));
  const Function pick = trace(
      [](Tensor table, Tensor indices) {
        return scan(
                   [&](const Tensors& c, const Tensors& i) -> Step {
                     return {{c[0] + gather(table, i[0])}, {}};
                   },
                   {constant(0.0, DType::f64)}, {indices})
            .carries[0];
      },
      f64({2}), i32({3}));
  const std::string why = message_of<ValueError>([&] {
    interpret(pick, {Array::of({1, 2}, {2}), Array::of({0, 1, 5}, {3}, DType::i32)});
  });
  CHECK(contains(why, "index 5"));
  CHECK(contains(why, "nonfinite_test.cpp"));
  CHECK(contains(why, "step 2"));
}

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
          std::string("nonfinite_test.cpp:"), std::string("is inf"), std::string("input 1, f64[1]: 0\n")})
      CHECK_MESSAGE(contains(text, part), text, " lacks ", part);
  }
  CHECK_FALSE(first_nonfinite(distance_learner(), {Array::of({0}, {1}), Array::of({1, 2, 3, 4}, {4, 1})}));
}

TEST_CASE("An eager graph that checks its values stops at the same op") {
  const Arrays at = meeting_at(2);
  const std::string why = message_of<ValueError>([&] {
    Graph eager(GraphOptions{.mode = Mode::eager, .check_finite = true});
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
              [](const Tensors& c, const Tensors& now) -> Step {
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
                   [](const Tensors& c, const Tensors& now) -> Step {
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

TEST_CASE("A reproducer gives the same bits again") {
  const TemporaryFolder folder;
  const auto check = [&](const Function& f, const Arrays& at) {
    const NonFinite found = found_in(f, at);
    const std::string path = folder / "nan.safetensors";
    save_reproducer(found, path);
    const Reproduction again = replay_reproducer(path);
    CHECK(again.same_bits());
    CHECK(again.saved.same_bits(found.value));
    CHECK(again.report.value.same_bits(found.value));
    CHECK(again.report.op == found.op);
    CHECK(again.report.attrs == found.attrs);
    CHECK(again.report.element == found.element);
    CHECK(again.report.element >= 0);
    CHECK(again.report.steps == found.steps);
    CHECK(again.report.within == found.within);
    CHECK(again.report.node == found.node);
    CHECK(again.report.level == found.level);
    CHECK(again.report.scope == found.scope);
    CHECK(same_bits(again.report.values, found.values));
    CHECK(again.line == describe(found.loc));
    CHECK(contains(again.graph, fmt::format(" = {}", found.op)));
    CHECK(folder.files() == 1);
    return found.op;
  };
  CHECK(check(distance_learner(), meeting_at(2)) == "div");
  CHECK(check(roots(true), {Array::of({1, 0, 0, 4}, {4})}) == "div");
  CHECK(check(reciprocals(), {Array::of({1, 2, 3, 4, 5, 0}, {2, 3})}) == "reciprocal");
  CHECK(check(trace([](Tensor x) { return exp(x); }, f32({5})), {random(f32({5}), 1, 80, 120)}) == "exp");
  // Ops whose attributes matter: which axes, which operand is transposed, which type.
  const Array huge = random(f32({3, 2}), 2, 2e38, 3e38);
  CHECK(check(trace([](Tensor x) { return sum(x, {0}, kKeep); }, f32({3, 2})), {huge}) == "sum");
  CHECK(check(trace([](Tensor x) { return matmul(x, x, {.a = true}); }, f32({3, 2})), {huge}) == "matmul");
  CHECK(check(trace([](Tensor x) { return cast(x, DType::f32); }, f64({2})), {Array::of({1, 1e300}, {2})}) ==
        "cast");
  CHECK(check(trace([](Tensor x) { return cumsum(x, 0); }, f32({3, 2})), {huge}) == "cumsum");
  // An input is given again as it was, NaN payloads too.
  CHECK(check(trace([](Tensor x) { return -x; }, f32({9})), {odd_f32()}) == "input");
}

TEST_CASE("A reproducer with other numbers gives another result: the comparison can fail") {
  const TemporaryFolder folder;
  const std::string path = folder / "nan.safetensors";
  save_reproducer(found_in(distance_learner(), meeting_at(2)), path);
  SafeTensors file = read_safetensors(path);
  file.tensors["input1"] = Array::of({1}, {1});
  write_safetensors(path, file);
  const Reproduction again = replay_reproducer(path);
  CHECK_FALSE(again.same_bits());
  CHECK(again.report.value.at(0) == 0.5);
  CHECK(again.report.element == -1);
  CHECK(contains(again.report.str(), "is finite"));
}

TEST_CASE("Attributes survive exactly, and those of another op are refused") {
  const TemporaryFolder folder;
  const std::string path = folder / "nan.safetensors";
  NonFinite report = found_in(trace([](Tensor x) { return log(pad(x, 0, 2, 1)); }, f64({3})),
                              {Array::of({1, 2, kInf}, {3}, DType::f64)});
  REQUIRE(report.op == "input");
  report.attrs = InputAttrs{"any \"text\"\nat all"};
  save_reproducer(report, path);
  CHECK(replay_reproducer(path).report.attrs == report.attrs);

  report.op = "pad";
  report.attrs = PadAttrs{0, 2, 1};
  report.values = {Array::of({1, 2, kInf}, {3}, DType::f64)};
  save_reproducer(report, path);
  CHECK(replay_reproducer(path).report.attrs == report.attrs);
  for (const char* numbers : {"", "0 2", "0 2 1 0"}) {
    SafeTensors file = read_safetensors(path);
    file.metadata["ints"] = numbers;
    write_safetensors(path, file);
    check_contains(refusal([&] { replay_reproducer(path); }, path), "not what 'pad' needs");
  }
}

TEST_CASE("An op with a body is saved for people, and says that it cannot be run again") {
  const TemporaryFolder folder;
  const std::string path = folder / "nan.safetensors";
  const Function f =
      trace([](const Tensors& in) -> Tensors { return {halved_quotient(in)}; }, {f64(), f64()});
  NonFinite report;
  report.op = "custom_vjp";
  report.attrs = f.graph().node(f.outputs()[0]).attrs;
  report.values = {Array::scalar(1), Array::scalar(0)};
  report.value = Array::scalar(kInf);
  save_reproducer(report, path);
  CHECK(contains(read_safetensors(path).metadata.at("replay"), "body"));
  CHECK(read_safetensors(path).tensors.at("input1").item() == 0);
  check_contains(refusal([&] { replay_reproducer(path); }, path), "cannot be run");
}

TEST_CASE("A file that is no reproducer is refused, saying what is wrong") {
  const TemporaryFolder folder;
  const std::string path = folder / "nan.safetensors";
  save_reproducer(found_in(distance_learner(), meeting_at(1)), path);
  const SafeTensors good = read_safetensors(path);
  const auto damaged = [&](const std::function<void(SafeTensors&)>& damage) {
    SafeTensors file = good;
    damage(file);
    write_safetensors(path, file);
    return refusal([&] { replay_reproducer(path); }, path);
  };
  check_contains(damaged([](SafeTensors& f) { f.metadata.clear(); }), "no reproducer");
  check_contains(damaged([](SafeTensors& f) { f.metadata["op"] = "divide"; }), "no op 'divide'");
  check_contains(damaged([](SafeTensors& f) { f.metadata.erase("level"); }), "lack 'level'");
  check_contains(damaged([](SafeTensors& f) { f.metadata["level"] = "one"; }), "no list of numbers");
  check_contains(damaged([](SafeTensors& f) { f.metadata["level"] = "1 2"; }), "not one number");
  check_contains(damaged([](SafeTensors& f) { f.metadata["ints"] = "1,2"; }), "no list of numbers");
  check_contains(damaged([](SafeTensors& f) { f.tensors.erase("input1"); }), "'input1' is missing");
  check_contains(damaged([](SafeTensors& f) { f.tensors.erase("output"); }), "'output' is missing");
  refusal([&] { replay_reproducer(folder / "none"); }, "none");
  refusal([&] { save_reproducer(found_in(distance_learner(), meeting_at(1)), folder / "no" + "/where"); },
          "where");
}

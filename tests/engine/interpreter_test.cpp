// The interpreter computes what a plan computes, and shows every value on the way.
#include "tests/engine/nonfinite_programs.h"

using namespace nestgrad;
using namespace nestgrad::testing;

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
  CHECK(contains(message_of<ShapeError>([&] { interpret(f, {Array::scalar(1)}); }),
                 "the function wants %0 = input 'in0' f64[2,3]"));
  CHECK(contains(message_of<ShapeError>([&] { interpret(f, {Array()}); }), "is empty"));
  const Function pick = trace(
      [](Tensor table, Tensor indices) {
        return scan(
                   [&](const Tensors& c, const Tensors& i) -> StepOutput {
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
  CHECK(contains(why, "interpreter_test.cpp"));
  CHECK(contains(why, "step 2"));
}

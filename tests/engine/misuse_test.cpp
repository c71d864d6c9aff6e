// The promise: what is empty, moved from or outside of a graph is an error of ours that says so, and no crash.
#include "autograd/custom.h"
#include "autograd/scan.h"
#include "engine/core/threads.h"
#include "engine/processes/threads.h"
#include "tests/lent_transport.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("an empty function is refused wherever one is taken, by the name of what takes it") {
  const auto refused = [](const char* who, const auto& call) {
    CAPTURE(who);
    const std::string text = message_of<ConfigError>(call);
    CHECK(contains(text, std::string("[") + who + "]"));
    CHECK(contains(text, "is an empty function; give one"));
  };
  const auto refused_at = [&](const char* who, const auto& call) {
    refused(who, call);
    CHECK(contains(message_of<ConfigError>(call), "(at misuse_test.cpp:"));
  };
  const Spec row = f64({2});
  refused_at("trace", [&] { trace(TraceFn(), {row}); });
  refused_at("scan",
             [&] { trace([](Tensor x) { return scan(StepFn(), {x}, {}, {.steps = 2}).carries[0]; }, row); });
  refused("checkpoint", [&] { trace([](Tensor) { return checkpoint({})[0]; }, row); });
  const ForwardFn forward = [](const Tensors& in) { return sin(in[0]); };
  const RuleFn rule = [](const Tensors& in, Tensor, Tensor ct) { return Tensors{ct * cos(in[0])}; };
  refused_at("custom_vjp", [&] { trace([&](Tensor x) { return custom_vjp(ForwardFn(), rule, {x}); }, row); });
  refused_at("custom_vjp", [&] { trace([&](Tensor x) { return custom_vjp(forward, RuleFn(), {x}); }, row); });
  refused("threads", [] { in_parallel(3, 2, {}); });
  refused("processes", [] { run_as_processes(2, {}); });
  refused("processes", [] { RankThreads(2, nullptr).run({}); });
  refused("processes", [] { OneProcess().from_first({}); });
  refused("processes", [] { OneProcess().on_first({}); });
  refused("processes", [] { OneProcess().shared_out(1, {}); });
  // Of signatures of one's own, which trace() wraps.
  refused("trace", [&] { trace(std::function<Tensor(Tensor)>(), row); });
  refused("trace", [&] { trace(std::function<Tensor(const Tensors&)>(), std::vector<Spec>{row}); });
  refused("trace", [&] {
    const std::function<Tensors(Tensor, Tensor)> none;
    trace(none, row, row);
  });
}

TEST_CASE("a plan that was moved from says so, whatever it is asked") {
  const Function f = trace([](Tensor x) { return x + 1.0; }, f64({2}));
  Plan from = f.plan();
  const Plan to = std::move(from);
  const auto refused = [](const auto& call) {
    CHECK(contains(message_of<GraphError>(call), "this plan was moved from"));
  };
  refused([&] { static_cast<void>(from.device()); });
  refused([&] { static_cast<void>(from.input_specs()); });
  refused([&] { static_cast<void>(from.output_specs()); });
  refused([&] { static_cast<void>(from.stats()); });
  refused([&] { static_cast<void>(from.str()); });
  refused([&] { static_cast<void>(from.source()); });
  refused([&] { static_cast<void>(from.loops()); });
  refused([&] { static_cast<void>(from.buffers()); });
  refused([&] { static_cast<void>(from.profile({Array::zeros(DType::f64, {2})}, 1)); });
  CHECK(to.stats().nodes > 0);
}

TEST_CASE("a group of processes that was moved from is still one") {
  run_as_processes(2, [](Transport& all) {
    ProcessGroup from(lent(all));
    const ProcessGroup to = std::move(from);
    if (from.size() != 2 || from.rank() != to.rank() || from.id() != to.id()) throw ValueError("it is none");
  });
}

TEST_CASE("the version is the same as numbers and as text") {
  CHECK(std::string(NESTGRAD_VERSION) ==
        fmt::format("{}.{}.{}", NESTGRAD_VERSION_MAJOR, NESTGRAD_VERSION_MINOR, NESTGRAD_VERSION_PATCH));
}

TEST_CASE("loops and the same node twice are no inputs of a function") {
  const auto graph = std::make_shared<Graph>();
  const GraphScope scope(*graph);
  const Tensor x = graph->input(f64({2}), "x"), two = constant(Array::of({3, 4}, {2})), y = x * two;
  const Tensor last = scan(
                          [](const Tensors& c, const Tensors&) -> StepOutput {
                            return {{c[0] * 2.0}, {}};
                          },
                          {y}, {}, {.steps = 3})
                          .carries[0];
  const NodeId loop = graph->node(last.id()).inputs[0];
  const auto refusal = [&](std::vector<NodeId> in, std::vector<NodeId> out) {
    const std::string text = message_of<GraphError>([&] { Function(graph, in, out); });
    CHECK(contains(message_of<GraphError>([&] { Plan(graph->nodes(), in, out, {}); }),
                   text.substr(text.find(']'))));
    return text;
  };
  CHECK(contains(refusal({x.id(), x.id()}, {y.id()}), "inputs 0 and 1 are the same node, %"));
  CHECK(contains(refusal({loop}, {last.id()}), "a loop has no value of its own"));
  CHECK(contains(refusal({x.id()}, {loop}), "a loop has no value of its own"));
  // A plan may begin at what is computed; a function, which is also printed and interpreted, begins at inputs.
  CHECK(Plan(graph->nodes(), {y.id()}, {last.id()}, {}).run({Array::of({1, 2}, {2})})[0].to_vector() ==
        std::vector<double>{8, 16});
  CHECK(contains(message_of<GraphError>([&] { Function(graph, {y.id()}, {last.id()}); }), "it is computed"));
}

TEST_CASE("a constant without numbers, and nodes that a graph does not have, are refused") {
  CHECK(contains(message_of<ValueError>([] { static_cast<void>(eval(constant(Array()))); }),
                 "holds no numbers"));
  const auto graph = std::make_shared<Graph>();
  const Tensor x = graph->input(f64({2}), "x");
  for (const NodeId wrong : {-1, 1, 99}) {
    CAPTURE(wrong);
    CHECK(
        contains(message_of<GraphError>([&] { Function(graph, {x.id()}, {wrong}); }), "is to be an output"));
    CHECK(contains(message_of<GraphError>([&] { Function(graph, {wrong}, {x.id()}); }), "is to be an input"));
    CHECK(contains(message_of<GraphError>([&] { Plan(graph->nodes(), {x.id()}, {wrong}, {}); }),
                   "is to be an output"));
    CHECK(contains(message_of<GraphError>([&] { Plan(graph->nodes(), {wrong}, {x.id()}, {}); }),
                   "is to be an input"));
  }
  CHECK(contains(message_of<GraphError>([&] { Function(nullptr, {}, {}); }), "needs a graph"));
}

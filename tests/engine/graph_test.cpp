// Graphs: what is shared, what is refused, who owns what.
#include "engine/core/graph.h"

#include <functional>
#include <memory>

#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("Equal calls are one node, other attributes, operands and order make another") {
  Graph g;
  const GraphScope scope(g);
  const Tensor x = g.input(f64({2, 3})), y = g.input(f64({2, 3}));
  CHECK(x * y == x * y);
  CHECK_FALSE(x * y == y * x);
  CHECK(sum(x, {0}) == sum(x, {0}));
  CHECK_FALSE(sum(x, {0}) == sum(x, {1}));
  CHECK(x + 1.0 == x + 1.0);
  CHECK_FALSE(x + 1.0 == x + 2.0);
  CHECK(constant(Array::of({1, 2}, {2})) == constant(Array::of({1, 2}, {2})));
  CHECK_FALSE(constant(Array::of({1, 2}, {2})) == constant(Array::of({1, 2}, {2}, DType::f32)));
  CHECK_FALSE(constant(Array::of({1, 2}, {2})) == constant(Array::of({1, 2}, {2, 1})));
  const NodeId before = g.size();
  (void)(sum(x, {0}) + sum(x, {0}));
  CHECK(g.size() == before + 1);
}

TEST_CASE("Zero and minus zero are different numbers") {
  Graph g;
  const GraphScope scope(g);
  CHECK_FALSE(constant(Array::scalar(0.0)) == constant(Array::scalar(-0.0)));
}

TEST_CASE("Inputs and probes are never shared") {
  Graph g;
  const GraphScope scope(g);
  const Tensor x = g.input(f64({2}));
  CHECK_FALSE(g.input(f64({2})) == x);
  CHECK_FALSE(probe(x) == probe(x));
}

TEST_CASE("Sharing can be turned off") {
  Graph g(GraphOptions{.share = false});
  const Tensor x = g.input(f64({2}));
  CHECK_FALSE(sin(x) == sin(x));
}

TEST_CASE("A tensor of a destroyed graph is detected") {
  Tensor t;
  {
    Graph g;
    t = sin(g.input(f64({2})));
    CHECK(t.alive());
    CHECK(t.defined());
  }
  CHECK(t.defined());
  CHECK_FALSE(t.alive());
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { (void)t.spec(); }, [&] { (void)t.dim(0); }, [&] { sin(t); }, [&] { t + 1.0; },
           [&] { eval(t); }, [&] { grad(t, {t}); }, [&] { jvp({t}, {t}, {t}); },
           [&] {
             scan(
                 [](const Tensors& c, const Tensors&) -> StepOutput {
                   return {c, {}};
                 },
                 {t}, {}, {.steps = 1});
           },
           [&] {
             concat({t, t}, 0);
           },
           [&] {
             custom_vjp([](const Tensors& in) { return in[0]; },
                        [](const Tensors&, Tensor, Tensor ct) { return Tensors{ct}; }, {t});
           }})
    CHECK(contains(message_of<GraphError>(use), "gone"));
  CHECK(contains(describe(t), "closed graph"));
  // A new graph in the same place is another graph.
  for (int i = 0; i < 100; ++i) {
    const auto other = std::make_unique<Graph>();
    (void)other->input(f64({2}));
    CHECK_FALSE(t.alive());
  }
}

TEST_CASE("An undefined tensor is detected") {
  const Tensor nothing;
  CHECK_FALSE(nothing.defined());
  CHECK_FALSE(nothing.alive());
  CHECK(contains(message_of<GraphError>([&] { sin(nothing); }),
                 "this tensor names nothing: assign it the result of an op first (at graph_test.cpp:"));
  CHECK(contains(message_of<GraphError>([&] { square(1.0); }),
                 "1 is a number, and a tensor has to stand here"));
  CHECK(contains(message_of<GraphError>([&] { (void)nothing.shape(); }), "names nothing"));
}

TEST_CASE(
    "what a traced function returns has to be a tensor of it: the error names the output and the line") {
  const Spec row = f64({2});
  const auto refused = [&](const TraceFn& fn) { return message_of<GraphError>([&] { trace(fn, {row}); }); };
  CHECK(contains(refused([](const auto& in) {
                   return std::vector<Tensor>{in[0], Tensor()};
                 }),
                 "[trace] output 1 names nothing (at graph_test.cpp:"));
  Tensor escaped;
  trace(
      [&](Tensor x) {
        escaped = x;
        return x + 1.0;
      },
      row);
  CHECK(contains(refused([&](const auto&) { return std::vector<Tensor>{escaped}; }),
                 "[trace] the graph of output 0 is gone (at graph_test.cpp:"));
}

TEST_CASE("Tensors of unrelated graphs do not mix") {
  Graph g, h;
  const Tensor x = g.input(f64({2}), "x"), y = h.input(f64({2}), "y");
  CHECK(contains(message_of<GraphError>([&] { x + y; }), "another graph"));
  const GraphScope scope(g);
  CHECK(contains(message_of<GraphError>([&] { sin(y); }), "another graph"));
  CHECK(contains(message_of<GraphError>([&] { x + y; }), "input 'y' f64[2]"));
  CHECK_NOTHROW(x + h.constant(Array::scalar(1)));  // numbers may be copied anywhere
}

TEST_CASE("What is wrong with an operand's graph names the call and the user's line") {
  Graph g, h;
  const Tensor x = g.input(f64({2}), "x"), y = h.input(f64({2}), "y");
  const auto gone = [] {
    Graph short_lived;
    return short_lived.input(f64({2}));
  }();
  const std::vector<std::function<void()>> calls{[&] { add(x, y); }, [&] { add(x, gone); },
                                                 [&] { add(gone, 2.0); }, [&] { sum(gone); }};
  for (const auto& call : calls) {
    const std::string why = message_of<GraphError>(call);
    CAPTURE(why);
    CHECK(contains(why, "(at graph_test.cpp:"));
    CHECK((why.starts_with("[add] ") || why.starts_with("[operand] ")));
  }
}

TEST_CASE("Leaves need an open graph, other ops follow their operands") {
  CHECK(contains(message_of<GraphError>([] { constant(1.0, DType::f64); }), "no graph is open"));
  CHECK(contains(message_of<GraphError>([] { iota(DType::f64, {2}, 0); }), "no graph is open"));
  CHECK(contains(
      message_of<GraphError>([] {
        scan([](const Tensors& c, const Tensors&) -> StepOutput { return {c, {}}; }, {}, {}, {.steps = 1});
      }),
      "no graph is open"));
  Graph g;
  const Tensor x = g.input(f64({2}));
  CHECK(&(2.0 * x - 1.0).graph() == &g);
  CHECK(&sin(g.constant(Array::scalar(1))).graph() == &g);
}

TEST_CASE("A number beside a tensor takes the tensor's type") {
  Graph g;
  const GraphScope scope(g);
  const Tensor single = g.input(f32({2})), whole = g.input(i32({2}));
  CHECK((single * 0.5).dtype() == DType::f32);
  CHECK((2 + single).dtype() == DType::f32);
  CHECK((whole + 1).dtype() == DType::i32);
  CHECK(select(greater(single, 0), single, 1.0).dtype() == DType::f32);
  message_of<DTypeError>([&] { single + whole; });
  message_of<GraphError>([] { add(1.0, 2.0); });
}

TEST_CASE("Nodes know the user's line, a scope names them and gives the outermost line") {
  Graph g;
  const Tensor x = g.input(f64({2}));
  const std::uint32_t line = Loc::current().line() + 1;
  const Tensor plain = tanh(x);
  CHECK(g.node(plain.id()).loc.line() == line);
  CHECK(contains(describe(plain), "graph_test.cpp"));
  CHECK(g.node(plain.id()).scope.empty());
  const Scope outer("outer");
  const std::uint32_t outer_line = Loc::current().line() - 1;
  {
    const Scope inner("inner");
    const Tensor t = cos(x);
    CHECK(g.node(t.id()).scope.str() == "outer/inner");
    CHECK(g.node(t.id()).loc.line() == outer_line);
  }
  CHECK(g.node(sin(x).id()).scope.str() == "outer");
}

TEST_CASE("An error keeps the state of the thread: scopes close, graphs close") {
  Graph g;
  const Tensor x = g.input(f64({2}));
  try {
    const GraphScope open(g);
    const Scope scope("doomed");
    matmul(x, x);
  } catch (const ShapeError& e) {
    CHECK(contains(e.what(), "graph_test.cpp"));
  }
  CHECK(context().emit.graph == nullptr);
  CHECK(context().emit.scope.empty());
  CHECK(g.node(sin(x).id()).scope.empty());
}

TEST_CASE("Each of many graphs knows which of them are gone") {
  std::vector<std::unique_ptr<Graph>> graphs;
  Tensors tensors;
  for (int i = 0; i < 1000; ++i) {
    graphs.push_back(std::make_unique<Graph>());
    tensors.push_back(graphs.back()->input(f64({1})));
  }
  for (std::size_t i = 0; i < graphs.size(); i += 2) graphs[i].reset();
  for (std::size_t i = 0; i < graphs.size(); ++i) CHECK(tensors[i].alive() == (i % 2 == 1));
}

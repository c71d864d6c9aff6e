// Functions: traced, run, inlined, printed.
#include "engine/run/function.h"

#include <atomic>
#include <thread>

#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Function affine() {
  return trace([](Tensor w, Tensor x) { return sum(tanh(matmul(w, x) + 1.0)); }, f64({2, 3}), f64({3, 1}));
}

// The text without file positions, which change with this file.
std::string without_lines(std::string text) {
  const std::string file = "  function_test.cpp:";
  for (auto at = text.find(file); at != std::string::npos; at = text.find(file, at))
    text.erase(at, text.find_first_not_of("0123456789", at + file.size()) - at);
  return text;
}

}  // namespace

TEST_CASE("The text of a function is one line a node") {
  const Function f = trace(
      [](Tensor x, Tensor w) {
        const Scope scope("loss");
        const Tensor y = scan(
                             [&](const Tensors& c, const Tensors& now) -> StepOutput {
                               return {{c[0] * w + now[0]}, {}};
                             },
                             {w}, {x})
                             .carries[0];
        return grad(square(y), w);
      },
      f64({4}), f64());
  CHECK(without_lines(affine().str()) ==
        "%0 = input[in0] : f64[2,3]  level 0\n"
        "%1 = input[in1] : f64[3,1]  level 0\n"
        "%2 = matmul %0 %1 : f64[2,1]  level 0\n"
        "%3 = constant[1] : f64[]  level 0\n"
        "%4 = add %2 %3 : f64[2,1]  level 0\n"
        "%5 = tanh %4 : f64[2,1]  level 0\n"
        "%6 = sum[axes=0,1] %5 : f64[1,1]  level 0\n"
        "%7 = reshape %6 : f64[]  level 0\n"
        "return %7\n");
  const std::string text = f.str();
  CHECK(contains(text, "scan[steps=4] %1 %0 %1"));
  CHECK(contains(text, "scan[steps=4, reverse]"));
  CHECK(contains(text, "in loss"));
  CHECK(contains(text, "    next %"));
  CHECK(contains(text, "level 1"));
  CHECK(contains(text, "function_test.cpp:"));
}

TEST_CASE("Equal programs print equal text") {
  CHECK(affine().str() == affine().str());
  CHECK(affine().dot() == affine().dot());
  const auto learner_text = [](int order) {
    return derivative([](const Tensors& in) { return learner(in, as_scan); }, learner_specs(), order).str();
  };
  CHECK(learner_text(2) == learner_text(2));
  CHECK(learner_text(1) != learner_text(2));
}

TEST_CASE("DOT is well formed: balanced braces, escaped labels, declared nodes, levels coloured") {
  const Function f = trace(
      [](const Tensors&) -> Tensors {
        Graph& g = *context().emit.graph;
        const Tensor x = g.input(f64({4}), "say \"hi\" \\ {brace}");
        const Tensor y = scan(
                             [](const Tensors& c, const Tensors& now) -> StepOutput {
                               return {{sin(c[0]) * now[0]}, {}};
                             },
                             {sum(x)}, {x})
                             .carries[0];
        return {grad(grad(y, x).graph().tensor(y.id()), x)};
      },
      {});
  const std::string dot = f.dot();
  int depth = 0;
  bool quoted = false;
  std::size_t statements = 0;
  for (std::size_t i = 0; i < dot.size(); ++i) {
    if (quoted && dot[i] == '\\') ++i;
    else if (dot[i] == '"') quoted = !quoted;
    else if (!quoted && dot[i] == '{') ++depth;
    else if (!quoted && dot[i] == '}') CHECK(--depth >= 0);
    else if (!quoted && dot[i] == ';') ++statements;
    else if (quoted) CHECK(dot[i] != '\n');
  }
  CHECK(depth == 0);
  CHECK_FALSE(quoted);
  CHECK(statements > 10);
  CHECK(contains(dot, "say \\\"hi\\\" \\\\ {brace}"));
  CHECK(contains(dot, "#dbe9f6"));  // level 0
  CHECK(contains(dot, "#fde2c5"));  // level 1
  CHECK(count(dot, "subgraph") == 2);
  CHECK(contains(dot, "output 0"));
}

TEST_CASE("A function called with tensors is inlined, and shared with what is there") {
  const Function f = affine();
  Graph g;
  const GraphScope scope(g);
  const Tensor w = g.input(f64({2, 3})), x = g.input(f64({3, 1}));
  const Tensor once = f(std::vector{w, x})[0];
  CHECK(&once.graph() == &g);
  CHECK(f(std::vector{w, x})[0] == once);
  CHECK(sum(tanh(matmul(w, x) + 1.0)) == once);
  CHECK_NOTHROW(grad(once, {w}));
  CHECK(contains(message_of<GraphError>([&] { f(std::vector{w}); }), "1 inputs given, the function has 2"));
  CHECK(contains(message_of<ShapeError>([&] { f(std::vector{x, w}); }), "input 0 is " + describe(x)));
  const auto inner = std::make_shared<Graph>();
  const Function without(inner, {}, {[&] {
                           const GraphScope within(*inner);
                           return (inner->input(f64({2}), "a") * 2.0).id();
                         }()});
  CHECK(contains(message_of<GraphError>([&] { without(std::vector<Tensor>{}); }), "'a' f64[2]"));
}

TEST_CASE(
    "An inlined function with scans can be differentiated, also with one tensor in two places or a number") {
  const Function f = trace(
      [](Tensor a, Tensor b, Tensor x) {
        return scan(
                   [&](const Tensors& c, const Tensors& now) -> StepOutput {
                     return {{tanh(c[0] * a + b * now[0])}, {}};
                   },
                   {a}, {x})
            .carries[0];
      },
      f64(), f64(), f64({3}));
  const auto by_hand = [](Tensor a, Tensor b, Tensor x) {
    return unrolled(
               [&](const Tensors& c, const Tensors& now) -> StepOutput {
                 return {{tanh(c[0] * a + b * now[0])}, {}};
               },
               {a}, {x})
        .carries[0];
  };
  const std::vector<Spec> specs{f64(), f64({3})};
  for (int order = 1; order <= 3; ++order) {
    const Arrays at = random(specs, 3);
    const auto same = [&](const Scalar& inlined, const Scalar& expected) {
      CHECK(max_error(derivative(inlined, specs, order)(at), derivative(expected, specs, order)(at)) < 1e-13);
    };
    same(
        [&](const Tensors& in) {
          return f(std::vector{in[0], in[0], in[1]})[0];
        },
        [&](const Tensors& in) { return by_hand(in[0], in[0], in[1]); });
    same(
        [&](const Tensors& in) {
          return f(std::vector{in[0], constant(0.5, DType::f64), in[1]})[0];
        },
        [&](const Tensors& in) { return by_hand(in[0], constant(0.5, DType::f64), in[1]); });
  }
}

TEST_CASE("A trace may return anything of its graph, many things, or nothing") {
  const Function f = trace(
      [](const Tensors& in) -> Tensors {
        return {in[0], in[0], constant(2.0, DType::f64)};
      },
      {f64({2})});
  CHECK(f.inputs().size() == 1);
  CHECK(f.outputs().size() == 3);
  CHECK(f.input_spec(0) == f64({2}));
  CHECK(f.output_spec(2) == f64());
  CHECK(f(Arrays{Array::of({3, 4}, {2})})[1].to_vector() == std::vector<double>{3, 4});
  CHECK(trace([](const Tensors&) { return Tensors{}; }, {f64({2})})(Arrays{Array::zeros(DType::f64, {2})})
            .empty());
  Graph other;
  const Tensor stranger = other.input(f64());
  CHECK(
      contains(message_of<GraphError>([&] { trace([&](const Tensors&) { return Tensors{stranger}; }, {}); }),
               "another graph"));
  CHECK(context().emit.graph == nullptr);  // the trace that failed is closed
}

TEST_CASE("A trace over a list of specs may return one tensor") {
  const Function f = trace([](const Tensors& in) { return in[0] * in[1]; }, {f64({2}), f64({2})});
  CHECK(f(Array::of({2, 3}, {2}), Array::of({5, 7}, {2})).to_vector() == std::vector<double>{10, 21});
}

TEST_CASE("Inputs added while tracing follow the given ones") {
  const Function f = trace(
      [](Tensor x) {
        const Tensor weight = x.graph().input(f64({2}), "weight");
        return x * weight;
      },
      f64({2}));
  CHECK(f.inputs().size() == 2);
  CHECK(input_name(f.graph().node(f.inputs()[1])) == "weight");
  CHECK(f(Array::of({2, 3}, {2}), Array::of({5, 7}, {2})).to_vector() == std::vector<double>{10, 21});
}

TEST_CASE("A trace inside a trace is a function of its own") {
  const Function outer = trace(
      [](Tensor x) {
        const Function inner = trace([](Tensor y) { return square(y); }, f64());
        CHECK(&inner.graph() != &x.graph());
        message_of<GraphError>([&] { trace([&](Tensor y) { return y * x; }, f64()); });  // no captures
        return inner(std::vector{x})[0] + 1.0;
      },
      f64());
  CHECK(outer(Array::scalar(3)).item() == 10);
}

TEST_CASE("A function keeps its plan, and its copies share it") {
  const Function f = affine(), copy = f;
  const Arrays at = random(std::vector{f64({2, 3}), f64({3, 1})}, 1);
  const Array first = f(at)[0];
  CHECK(copy(at)[0].same_bits(first));
  const Array second = f(random(std::vector{f64({2, 3}), f64({3, 1})}, 7))[0];
  CHECK_FALSE(second.same_bits(first));  // and an earlier result is not written over
  CHECK(f(at)[0].same_bits(first));
  CHECK(contains(message_of<ShapeError>([&] { f(at[1], at[0]); }),
                 "input 0 is f64[3,1], the function wants %0 = input 'in0' f64[2,3]"));
}

TEST_CASE("A function may be called from several threads at once, through copies too") {
  const Function f = affine();
  std::vector<Arrays> inputs;
  std::vector<Array> expected;
  for (std::uint64_t i = 0; i < 8; ++i) {
    inputs.push_back(random(std::vector{f64({2, 3}), f64({3, 1})}, i));
    expected.push_back(trace([](Tensor w, Tensor x) { return sum(tanh(matmul(w, x) + 1.0)); }, f64({2, 3}),
                             f64({3, 1}))(inputs.back())[0]);
  }
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> callers;
  for (std::size_t caller = 0; caller < 4; ++caller)
    callers.emplace_back([&, copy = f, caller] {
      for (std::size_t i = 0; i < 300; ++i) {
        const std::size_t k = (i + caller) % inputs.size();
        wrong += !(caller % 2 ? copy : f)(inputs[k])[0].same_bits(expected[k]);
      }
    });
  callers.clear();
  CHECK(wrong == 0);
}

TEST_CASE("A function that is empty says so") {
  Function f = affine(), none;
  const Function moved = std::move(f);
  const Arrays at = random(std::vector{f64({2, 3}), f64({3, 1})}, 1);
  for (const Function* empty : {&none, &f}) {  // NOLINT(bugprone-use-after-move)
    CHECK(contains(message_of<GraphError>([&] { (*empty)(at); }), "empty"));
    message_of<GraphError>([&] { empty->plan(); });
    message_of<GraphError>([&] { empty->str(); });
    message_of<GraphError>([&] { empty->dot(); });
    message_of<GraphError>([&] { empty->live_nodes(); });
    message_of<GraphError>([&] { empty->to(Device::cpu()); });
  }
  CHECK(moved(at).size() == 1);
}

TEST_CASE("eval gives the numbers behind a tensor now") {
  Graph g;
  const GraphScope scope(g);
  const Tensor a = constant(Array::of({1, 2, 3}, {3})), b = square(a);
  CHECK(eval(b).to_vector() == std::vector<double>{1, 4, 9});
  CHECK(eval(a).to_vector() == std::vector<double>{1, 2, 3});
  const std::vector both{b, sum(b)};
  CHECK(eval(both)[1].item() == 14);
  CHECK(eval(std::span<const Tensor>{}).empty());
  const Tensor x = g.input(f64(), "unknown");
  CHECK(contains(message_of<GraphError>([&] { eval(x * 2.0); }), "'unknown'"));
}

TEST_CASE("eval in an eager graph reads the values that are there") {
  Graph eager(GraphMode::eager);
  const Tensor y = eager.input(Array::scalar(3)) * 2.0;
  CHECK(eval(y).item() == 6);
  CHECK(eval(square(y)).item() == 36);
  eval(y).as<double>()[0] = 7;  // the caller's own numbers
  CHECK(eval(y).item() == 6);
  // Of a scan's values some are there and some are not; each is asked for once and twice.
  const GraphScope scope(eager);
  const ScanResult r = scan(
      [](const Tensors& c, const Tensors&) {
        return StepOutput{{c[0] * 2.0}, {c[0]}};
      },
      {y}, {}, {.steps = 3});
  const std::vector all{y, r.carries[0], r.ys[0], y, r.carries[0]};
  const std::vector<Array> values = eval(all);
  CHECK(values[0].item() == 6);
  CHECK(values[1].item() == 48);
  CHECK(values[2].to_vector() == std::vector<double>{6, 12, 24});
  CHECK(values[3].item() == 6);
  CHECK(values[4].item() == 48);
  // What has been computed is not computed, nor planned, anew: minutes, if each call looked at all.
  Tensor x = y;
  for (int i = 0; i < 20'000; ++i) {
    x = x - 0.1 * square(x);
    eval(x);
  }
}

TEST_CASE("Dead nodes do not count as live") {
  const Function f = trace(
      [](Tensor x) {
        (void)exp(x);
        return sin(x);
      },
      f64());
  CHECK(f.graph().size() == 3);
  CHECK(f.live_nodes() == 2);
}

TEST_CASE("a function may be called on tensors of its own graph while that is open") {
  const auto graph = std::make_shared<Graph>();
  const GraphScope scope(*graph);
  const Tensor x = graph->input(f64({2}), "x");
  Tensor y = x;
  for (int i = 0; i < 1000; ++i) y = y + 1.0;
  const Function f(graph, {x.id()}, {y.id()});
  const Tensor twice = f(Tensors{y})[0];
  const Function both(graph, {x.id()}, {twice.id()});
  CHECK(both(Array::of({0, 5}, {2})).to_vector() == std::vector<double>{2000, 2005});
}

TEST_CASE("a function that was moved from says so, whatever it is called on") {
  Function f = trace([](Tensor x) { return x + 1.0; }, f64({2}));
  const Function to = std::move(f);
  CHECK(contains(message_of<GraphError>([&] { f(Array::zeros(DType::f64, {2})); }), "moved from"));
  trace(
      [&](Tensor x) {
        CHECK(contains(message_of<GraphError>([&] { f(Tensors{x}); }), "moved from"));
        return x;
      },
      f64({2}));
}

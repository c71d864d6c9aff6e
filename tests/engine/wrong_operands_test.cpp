// Every function of ops/ops.h and of autograd, called with what it cannot take at each operand: an error of the library
// that names the caller's line, or a value.
#include "autograd/custom.h"
#include "autograd/grad.h"
#include "ops/attrs.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

using Call = std::function<Tensor(Operand)>;

// Each function, one operand of which is left open.
std::vector<std::pair<std::string, Call>> calls(Tensor w, Tensor i) {
  std::vector<std::pair<std::string, Call>> out;
#define CALL(EXPRESSION) out.emplace_back(#EXPRESSION, [=](Operand x) -> Tensor { return EXPRESSION; })
#define UNARY(NAME, ...) CALL(NAME(x));
#define BINARY(NAME, ...) \
  CALL(NAME(x, w));       \
  CALL(NAME(w, x));
#define TERNARY(NAME, ...) \
  CALL(NAME(x, w, w));     \
  CALL(NAME(w, x, w));     \
  CALL(NAME(w, w, x));
#include "ops/elementwise.def"
  CALL(x + w);
  CALL(w + x);
  CALL(x - w);
  CALL(x * w);
  CALL(w / x);
  CALL(-x);
  CALL(x > w);
  CALL(w >= x);
  CALL(x < w);
  CALL(x <= w);
  CALL(where(x, w, w));
  CALL(where(w, x, w));
  CALL(where(w, w, x));
  CALL(clip(x, 0.0, 1.0));
  CALL(clip(w, x, 1.0));
  CALL(clip(w, 0.0, x));
  CALL(matmul(x, w));
  CALL(matmul(w, x));
  CALL(triangular_solve(x, w));
  CALL(triangular_solve(w, x));
  CALL(solve(x, w));
  CALL(solve(w, x));
  CALL(sum(x));
  CALL(sum(x, 0));
  CALL(mean(x));
  CALL(mean(x, 0));
  CALL(max(x));
  CALL(min(x));
  CALL(max(x, {0}));
  CALL(min(x, {0}));
  CALL(sum_to(x, {1}));
  CALL(reshape(x, {2, 2}));
  CALL(reshape(x, {-1}));
  CALL(permute(x, {1, 0}));
  CALL(transpose(x));
  CALL(broadcast_to(x, {4, 2, 3}));
  CALL(slice(x, 0, 0, 1));
  CALL(pad(x, 0, 1, 1));
  CALL(gather(x, i));
  CALL(gather(w, x));
  CALL(scatter_add(x, w, 3));
  CALL(scatter_add(i, x, 3));
  CALL(index_add(x, i, w));
  CALL(index_add(w, x, w));
  CALL(one_hot(x, 3, DType::f64));
  CALL(tril(x));
  CALL(cumsum(x, 0));
  CALL(cast(x, DType::f32));
  CALL(stop_gradient(x));
  CALL(probe(x));
  CALL(softmax(x, -1));
  CALL(log_softmax(x, -1));
  CALL(logsumexp(x, -1));
  CALL(cross_entropy(x, i));
  CALL(cross_entropy(w, x));
  CALL(layer_norm(x, w, w));
  CALL(layer_norm(w, x, w));
  CALL(layer_norm(w, w, x));
  CALL(rms_norm(x, w));
  CALL(rms_norm(w, x));
  CALL(l2_norm(x));
  CALL(norm(x, {0}));
  CALL(rope(x, i));
  CALL(rope(w, x));
  CALL(conv1d(x, w, {}));
  CALL(conv1d(w, x, {}));
  CALL(causal_conv1d(x, w, {}));
  CALL(causal_conv1d(w, x, {}));
  CALL(depthwise_conv3x3(x, w, {}));
  CALL(depthwise_conv3x3(w, x, {}));
#undef CALL
  return out;
}

// Does it say where the caller's line is, and name no line of the library?
bool names_the_caller_alone(std::string_view text) {
  const std::size_t here = count(text, "wrong_operands_test.cpp:");
  return here > 0 && here == count(text, ".cpp:") + count(text, ".h:");
}

TEST_CASE("whatever operand a function cannot take, the error names the caller's line") {
  Graph g, other;
  const GraphScope scope(g);
  const Tensor w = g.input(f64({2, 3}), "w"), i = g.input(i32({2}), "i"), s = g.input(f64({}), "s");
  const std::vector<std::pair<std::string, std::function<Operand()>>> wrong{
      {"undefined", [] { return Operand(Tensor()); }},
      {"a number", [] { return Operand(0.5); }},
      {"a scalar", [&] { return Operand(s); }},
      {"integers", [&] { return Operand(i); }},
      {"f32",
       [&] {
         return Operand(g.input(Spec{DType::f32, {2, 3}}, "single"));
       }},
      {"another graph's",
       [&] {
         return Operand(other.input(f64({2, 3}), "foreign"));
       }},
      {"five axes", [&] {
         return Operand(g.input(f64({2, 1, 3, 1, 5}), "five"));
       }}};
  int refusals = 0;
  for (const auto& each : wrong)
    for (const auto& use : calls(w, i)) {
      CAPTURE(each.first);
      CAPTURE(use.first);
      try {
        (void)use.second(each.second());
      } catch (const Error& e) {
        ++refusals;
        CHECK_MESSAGE(names_the_caller_alone(e.what()), std::string(e.what()));
        CHECK_MESSAGE(std::string_view(e.what()).starts_with("["), std::string(e.what()));
      }
    }
  CHECK(refusals > 200);
}

TEST_CASE("what autograd is given and cannot take is refused with the caller's line") {
  Graph g;
  const GraphScope scope(g);
  const Tensor w = g.input(f64({2, 3}), "w"), i = g.input(i32({2}), "i"), total = sum(w), none;
  const StepFn keep = [](const Tensors& c, const Tensors&) -> StepOutput { return {c, {}}; };
  const ForwardFn same = [](const Tensors& in) { return in[0]; };
  const RuleFn pass = [](const Tensors&, Tensor, Tensor ct) { return Tensors{ct}; };
  const std::vector<std::pair<std::string, std::function<void()>>> uses{
      {"GraphError", [&] { grad(none, {w}); }},
      {"GraphError", [&] { grad(total, {none}); }},
      {"GradError", [&] { grad(sum(i), {w}); }},
      {"GradError", [&] { grad(total, {i}); }},
      {"GradError", [&] { grad(total, {constant(1, DType::f64)}); }},
      {"GradError", [&] { grad(sum(w * 2.0), {total}); }},
      {"GraphError", [&] { vjp({none}, {w}, {w}); }},
      {"GraphError", [&] { vjp({w}, {none}, {w}); }},
      {"GraphError", [&] { vjp({w}, {w}, {none}); }},
      {"GraphError", [&] { jvp({total}, {w}, {none}); }},
      {"GradError", [&] { jvp({}, {}, {}); }},
      {"GraphError", [&] { hvp(none, {w}, {w}); }},
      {"GraphError", [&] { hvp(total, {w}, {none}); }},
      {"ShapeError", [&] { scan(keep, {}, {total}); }},
      {"ShapeError", [&] { scan(keep, {w}, {}); }},
      {"ShapeError", [&] { scan(keep, {}, {w}, {.steps = 3}); }},
      {"ConfigError", [&] { scan(keep, {w}, {}, {.checkpoint_every = -1, .steps = 2}); }},
      {"GraphError", [&] { scan(keep, {none}, {}, {.steps = 2}); }},
      {"GraphError", [&] { scan(keep, {w}, {none}); }},
      {"ShapeError",
       [&] { scan([](const Tensors&, const Tensors&) -> StepOutput { return {}; }, {w}, {}, {.steps = 2}); }},
      {"GraphError",
       [&] {
         scan(
             [&](const Tensors&, const Tensors&) -> StepOutput {
               return {{none}, {}};
             },
             {w}, {}, {.steps = 2});
       }},
      {"GraphError",
       [&] {
         scan(
             [&](const Tensors& c, const Tensors&) -> StepOutput {
               return {c, {none}};
             },
             {w}, {}, {.steps = 2});
       }},
      {"GraphError", [&] { custom_vjp(same, pass, {}); }},
      {"GraphError", [&] { custom_vjp(same, pass, {none}); }},
      {"GraphError", [&] { custom_vjp([&](const Tensors&) { return none; }, pass, {w}); }},
      {"GraphError", [&] { custom_vjp([&](const Tensors&) { return w; }, pass, {w}); }},
      {"GraphError",
       [&] { custom_vjp(same, [&](const Tensors&, Tensor, Tensor) { return Tensors{none}; }, {w}); }},
      {"GraphError",
       [&] { custom_vjp(same, [&](const Tensors&, Tensor, Tensor) { return Tensors{}; }, {w}); }},
      {"ShapeError",
       [&] { custom_vjp(same, [&](const Tensors&, Tensor, Tensor ct) { return Tensors{sum(ct)}; }, {w}); }},
      {"GraphError",
       [&] {
         concat({w, none}, 0);
       }},
      {"ShapeError", [&] { concat({w}, 7); }},
      {"ConfigError",
       [&] {
         rope(reshape(w, {3, 2}), cast(iota(DType::i32, {3}, 0), DType::f64), -1);
       }},
      {"DTypeError", [&] { cross_entropy(w, cast(i, DType::f32)); }},
      {"ShapeError",
       [&] {
         cross_entropy(w, reshape(i, {2, 1}));
       }},
      {"DTypeError", [&] { layer_norm(cast(w, DType::i32), 1.0, 0.0); }}};
  std::size_t number = 0;
  for (const auto& use : uses) {
    CAPTURE(number++);
    std::string found = "no error", text;
    try {
      use.second();
    } catch (const GraphError& e) {
      found = "GraphError", text = e.what();
    } catch (const GradError& e) {
      found = "GradError", text = e.what();
    } catch (const ShapeError& e) {
      found = "ShapeError", text = e.what();
    } catch (const DTypeError& e) {
      found = "DTypeError", text = e.what();
    } catch (const ConfigError& e) {
      found = "ConfigError", text = e.what();
    }
    CAPTURE(text);
    CHECK(found == use.first);
    CHECK(names_the_caller_alone(text));
  }
}

TEST_CASE("memory that the system does not have is an error that says for what") {
  if constexpr (kSanitized) return;  // its allocator ends the program
  constexpr std::int64_t kHuge = std::int64_t{1} << 44;
  const std::string text = message_of<DeviceError>([] { Array(DType::f32, {kHuge}); });
  CHECK(contains(text, "[array] out of memory: the system has no 67108864 MiB for f32[17592186044416]"));
  const Function f =
      trace([](Tensor i, Tensor u) { return scatter_add(i, u, kHuge); }, i32({1}), Spec{DType::f32, {1}});
  message_of<DeviceError>([&] { f(Array::zeros(DType::i32, {1}), Array::zeros(DType::f32, {1})); });
}

TEST_CASE("an op that is given by itself may read more values than its builder gives it") {
  constexpr int kMany = 100;
  const auto joined = [](const Tensors& parts) { return emit(*find_op("concat"), parts, ConcatAttrs{0}); };
  const std::vector<Spec> specs(std::size_t{kMany}, f64({1}));
  std::vector<Array> numbers;
  for (int i = 0; i < kMany; ++i) numbers.push_back(Array::of({static_cast<double>(i)}, {1}, DType::f64));
  const Array traced = trace([&](const Tensors& in) { return Tensors{joined(in)}; }, specs)(numbers)[0];
  Graph graph(GraphMode::eager);
  Tensors parts;
  for (const Array& x : numbers) parts.push_back(graph.input(x));
  const Array eager = eval(joined(parts));
  for (int i = 0; i < kMany; ++i)
    CHECK((traced.at(i) == static_cast<double>(i) && eager.at(i) == static_cast<double>(i)));
}

TEST_CASE("a function has only the inputs and outputs that it has") {
  const Function f = trace([](Tensor x) { return x + 1.0; }, f64({2}));
  CHECK(f.input_spec(0) == f64({2}));
  CHECK(contains(message_of<GraphError>([&] { (void)f.input_spec(3); }),
                 "[function] there is no input 3: the function has 1"));
  CHECK(contains(message_of<GraphError>([&] { (void)f.output_spec(1); }), "there is no output 1"));
  const Function nothing = trace([](Tensor) { return Tensors{}; }, f64({2}));
  CHECK(contains(message_of<GraphError>([&] { nothing(Array::zeros(DType::f64, {2})); }),
                 "there is no output 0"));
}

}  // namespace

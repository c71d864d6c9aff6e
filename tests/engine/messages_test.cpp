// Messages name inputs and parameters as the user does, with the line that made them.
#include "autograd/why.h"
#include "engine/look/nonfinite.h"
#include "engine/run/interpreter.h"
#include "tests/testing.h"
#include "ttt/params.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::string_view kHere = "messages_test.cpp:";

// What fn complains about, whichever error of the library it throws.
std::string complaint_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  FAIL("nothing was thrown");
  return {};
}

TEST_CASE("every error of every row of the op table names the inputs, and the line of each") {
  int errors = 0;
  for (const Op* op : op_table()) {
    if (!op->samples) continue;
    for (const OpSample& sample : op->samples()) {
      if (sample.error.empty()) continue;
      CAPTURE(op->name);
      Graph g;
      const GraphScope scope(g);
      Tensors in;
      for (const OpSample::Input& input : sample.inputs)
        in.push_back(g.input(Spec{input.dtype.value_or(DType::f64), input.shape},
                             fmt::format("operand {}", in.size())));
      const std::string message = complaint_of([&] { emit(*op, in, sample.attrs); });
      CHECK_MESSAGE(contains(message, sample.error), message);
      for (std::size_t i = 0; i < in.size(); ++i)
        CHECK_MESSAGE(contains(message, fmt::format("from input 'operand {}' ({}", i, kHere)), message);
      CHECK_MESSAGE(contains(message, fmt::format("(at {}", kHere)), message);
      ++errors;
    }
  }
  CHECK(errors > 20);
}

// A graph with inputs of a user's names.
struct Named {
  std::shared_ptr<Graph> g = std::make_shared<Graph>();
  Tensor w = g->input(f64({2, 3}), "layer.w"), i = g->input(i32({2}), "layer.i"),
         s = g->input(f64({}), "layer.s"), image = g->input(f64({1, 4, 4, 2}), "layer.image");
  Function function(const std::vector<Tensor>& in, Tensor out) const {
    std::vector<NodeId> inputs;
    for (const Tensor& t : in) inputs.push_back(t.id());
    return Function(g, inputs, {out.id()});
  }
};

// fn is refused with a message of all these parts, and of a line of this file.
void refused(const std::function<void()>& fn, const std::vector<std::string>& parts) {
  const std::string message = complaint_of(fn);
  for (const std::string& part : parts) CHECK_MESSAGE(contains(message, part), message, " lacks ", part);
  CHECK_MESSAGE(contains(message, kHere), message);
  CHECK_MESSAGE(!contains(message, "\n"), message);
}

TEST_CASE("what functions refuse before there is a node names the input too") {
  const Named n;
  const Tensor w = n.w, i = n.i, s = n.s, image = n.image;
  const std::vector<std::function<void()>> with_w{[&] { sum(w, {5}); },
                                                  [&] {
                                                    sum(w, {0, 0});
                                                  },
                                                  [&] { mean(w, {5}); },
                                                  [&] { max(w, {5}); },
                                                  [&] { min(w, {-3}); },
                                                  [&] { slice(w, 5, 0, 1); },
                                                  [&] { slice(w, 0, 0, 9); },
                                                  [&] { pad(w, 5, 0, 0); },
                                                  [&] { cumsum(w, 5); },
                                                  [&] {
                                                    concat({w, s}, 7);
                                                  },
                                                  [&] {
                                                    concat({reshape(s, {1, 1}), w}, 0);
                                                  },
                                                  [&] { reshape(w, {7}); },
                                                  [&] { broadcast_to(w, {5}); },
                                                  [&] {
                                                    permute(w, {0, 0});
                                                  },
                                                  [&] { rope(w, s); },
                                                  [&] { conv1d(w, s, {}); },
                                                  [&] { solve(w, w); },
                                                  [&] { depthwise_conv3x3(image, w, {}); },
                                                  [&] { softmax(w, 5); },
                                                  [&] { (void)(w + image); },
                                                  [&] { w.dim(5); },
                                                  [&] { where(w, i, w); },
                                                  [&] { matmul(w, w); },
                                                  [&] { gather(w, w); }};
  for (const auto& fn : with_w) refused(fn, {"input 'layer.w'"});
  refused([&] { mean(i); }, {"input 'layer.i'", "[mean]"});
  refused([&] { i + 0.5; }, {"input 'layer.i'", "rounded"});
  refused([&] { i * 1e12; }, {"input 'layer.i'", "too large"});
  refused([&] { transpose(s); }, {"input 'layer.s'", "[transpose]"});
  refused([&] { reshape(w, {-1, -1}); }, {"only one extent can be -1", "input 'layer.w'"});
  refused(
      [&] {
        reshape(w, {7, -1});
      },
      {"elements cannot be arranged as [7,-1], whatever", "input 'layer.w'"});
  refused([&] { sum_to(w, {1, 2, 3}); }, {"[sum_to] [1,2,3] does not broadcast", "input 'layer.w'"});
  refused([&] { sum_to(w, {2, 2}); }, {"[sum_to] [2,2] does not broadcast", "input 'layer.w'"});
  refused([&] { one_hot(w, 3, DType::f64); }, {"[one_hot] indices must be i32", "input 'layer.w'"});
  auto open = std::make_unique<GraphScope>(*n.g);  // for what has no operand
  const Tensor turned = rope(reshape(w, {3, 2}), iota(DType::f64, {3}, 0));
  CHECK(turned.shape() == Shape{3, 2});
  refused(
      [&] {
        rope(reshape(w, {3, 2}), s);
      },
      {"[rope] needs one position for each of 3 tokens", "'layer.s'"});
  const Tensor line = reshape(w, {1, 3, 2}), taps = zeros(DType::f64, {2, 1, 3});
  refused([&] { conv1d(line, taps, s); }, {"[conv1d] bias must be [2]", "input 'layer.s'"});
  refused([&] { causal_conv1d(line, taps, s); }, {"[causal_conv1d] bias must be [2]", "input 'layer.s'"});
  refused(
      [&] {
        depthwise_conv3x3(image, zeros(DType::f64, {2, 1, 3, 3}), s);
      },
      {"[depthwise_conv3x3] bias must be [2]", "input 'layer.s'"});
  const Tensor nothing = slice(w, 0, 0, 0);
  refused([&] { max(nothing, {0}); }, {"[max: max_over] no elements, so none is the largest or least"});
  refused([&] { full(DType::i32, {2}, 1.5); }, {"1.5 is no i32"});
  refused([&] { iota(DType::i32, {std::int64_t{1} << 32}, 0); },
          {"[iota] 4294967296 is more than the numbers of i32"});
  refused([&] { iota(DType::f32, {2, 3}, 3); }, {"[iota] axis 3 does not exist, the shape is [2,3] ("});
  refused([&] { concat({}, 0); }, {"[concat] needs at least one part"});
  CHECK(permute(image, {0, -1, 1, 2}).shape() == Shape{1, 2, 4, 4});
  refused([&] { permute(w, {0, -3}); }, {"[permute] axis -3", "input 'layer.w'"});
  open.reset();
  Graph other;
  refused([&] { other.constant(Array::scalar(1)) + other.input(f64(), "t") + w; }, {"input 'layer.w'"});
}

TEST_CASE("functions of several ops are named before the op that refuses") {
  const Named n;
  const Tensor w = n.w, s = n.s;
  const Tensor seven = broadcast_to(s, {7});
  refused([&] { softmax(w, 5); }, {"[softmax: max] axis 5", "input 'layer.w'"});
  refused([&] { where(w, seven, s); }, {"[where: select]", "input 'layer.w'"});
  refused([&] { clip(w, seven, 1.0); }, {"[clip: max]", "input 'layer.w'"});
  refused([&] { layer_norm(w, seven, s); }, {"[layer_norm: mul]", "from mul in layer_norm ("});
  refused([&] { rms_norm(w, seven); }, {"[rms_norm: mul]", "from mul in rms_norm ("});
  refused([&] { norm(w, {0, 0}); }, {"[norm: sum] an axis is named twice"});
  refused([&] { l2_norm(n.i); }, {"[l2_norm: operand]", "would be rounded"});
  // What is its own op, and what follows a composite, is not inside of anything.
  refused([&] { cross_entropy(w, w); }, {"[cross_entropy]", "input 'layer.w'"});
  refused([&] { min(w, {5}); }, {"[min] axis 5", "input 'layer.w'"});
  refused([&] { mean(w, {5}); }, {"[mean] axis 5", "input 'layer.w'"});
  refused([&] { matmul(w, w); }, {"[matmul]", "input 'layer.w'"});
  refused([&] { sum(w, 5); }, {"[sum] axis 5", "input 'layer.w'"});
}

TEST_CASE("a value is named by what the user called, and by the scope that it was made in") {
  const Named n;
  const Tensor total = sum(n.w, 1);
  refused([&] { total + broadcast_to(n.s, {7}); }, {"f64[2] from sum (", "f64[7] from broadcast_to ("});
  CHECK(contains(describe(total), "= sum f64[2] (messages_test.cpp:"));
  const Scope scope("head");
  const Tensor product = n.w * 2.0, flat = reshape(product, {6});
  CHECK(contains(describe(product), "= mul f64[2,3] in head (messages_test.cpp:"));
  CHECK(contains(describe(flat), "= reshape f64[6] in head (messages_test.cpp:"));
  CHECK(contains(describe(n.w), "= input 'layer.w' f64[2,3] (messages_test.cpp:"));
}

TEST_CASE("refused derivatives and loops name the inputs") {
  const Named n;
  const Tensor w = n.w, i = n.i, s = n.s;
  const StepFn keep = [](const Tensors& c, const Tensors&) -> StepOutput { return {c, {}}; };
  refused([&] { vjp({w}, {}, {w}); }, {"[vjp] needs one cotangent for each of 1 values, there are 0"});
  refused([&] { jvp({w}, {w}, {}); }, {"[jvp] needs one tangent"});
  refused([&] { vjp({w}, {s}, {w}); }, {"[vjp] cotangent 0 is", "input 'layer.s'", "input 'layer.w'"});
  refused([&] { grad(w, {w}); }, {"input 'layer.w'"});
  refused([&] { grad(sum(w), {i}); }, {"input 'layer.i'", "integer"});
  refused([&] { grad(sum(w), {s}); }, {"input 'layer.s'", "never meets"});
  refused([&] { grad(sum(sign(w)), {w}); }, {"x = %0 = input 'layer.w'", "the path is cut at"});
  refused([&] { vjp({w}, {s}, {w}); }, {"input 'layer.w'", "input 'layer.s'"});
  refused([&] { jvp({sum(w)}, {w}, {s}); }, {"input 'layer.w'", "input 'layer.s'"});
  refused([&] { hvp(sum(w), {w}, {s}); }, {"input 'layer.w'", "input 'layer.s'"});
  refused([&] { scan(keep, {}, {s}); }, {"input 'layer.s'", "no time axis"});
  refused([&] { scan(keep, {}, {w}, {.steps = 3}); }, {"input 'layer.w'", "2 steps"});
  refused(
      [&] {
        scan([&](const Tensors&, const Tensors&) -> StepOutput { return {{s}, {}}; }, {w}, {}, {.steps = 1});
      },
      {"input 'layer.w'", "input 'layer.s'"});
  refused(
      [&] {
        scan(
            [&](const Tensors& c, const Tensors& x) -> StepOutput {
              matmul(c[0], x[0]);
              return {c, {}};
            },
            {w}, {w});
      },
      {"input 'carry0'", "input 'x0'"});
  refused(
      [&] {
        custom_vjp([](const Tensors& in) { return in[0]; },
                   [](const Tensors&, Tensor, Tensor ct) { return Tensors{sum(ct)}; }, {w});
      },
      {"input 'input0'"});
  refused(
      [&] {
        custom_vjp([&](const Tensors&) { return w; },
                   [](const Tensors&, Tensor, Tensor ct) { return Tensors{ct}; }, {s});
      },
      {"input 'layer.w'"});
  CHECK(contains(why_disconnected(sum(w), s).str(), "x = %2 = input 'layer.s' f64[] (messages_test.cpp:"));
}

TEST_CASE("what goes wrong when a program runs names the inputs") {
  const Named n;
  const Function rows = n.function({n.w, n.i}, gather(n.w, n.i));
  const Arrays outside{Array::zeros(DType::f64, {2, 3}), Array::of({0, 2}, {2}, DType::i32)};
  const std::vector<std::string> both{"index 2 is outside", "a is f64[2,3] from input 'layer.w'",
                                      "b is i32[2] from input 'layer.i'"};
  refused([&] { rows(outside); }, both);
  refused([&] { interpret(rows, outside); }, both);
  refused(
      [&] {
        Graph eager(GraphMode::eager);
        gather(eager.input(outside[0], "layer.w"), eager.input(outside[1], "layer.i"));
      },
      both);
  const Function loss =
      trace([](Tensor x, Tensor labels) { return cross_entropy(x, labels); }, f64({2, 3}), i32({2}));
  refused(
      [&] {
        loss(Arrays{outside[0], Array::of({0, 3}, {2}, DType::i32)});
      },
      {"index 3 is outside", "in cross_entropy", "input 'in1'"});
  const Arrays misshapen{outside[0], outside[0]};
  refused([&] { rows(misshapen); }, {"the function wants %1 = input 'layer.i' i32[2]"});
  refused([&] { interpret(rows, misshapen); }, {"the function wants %1 = input 'layer.i' i32[2]"});
  refused([&] { rows(Tensors{n.w, n.s}); }, {"input 'layer.s'", "the function wants %1 = input 'layer.i'"});
  const Function without = n.function({n.i}, gather(n.w, n.i));
  refused([&] { without(Arrays{outside[1]}); }, {"input 'layer.w'", "was not given"});
  refused([&] { interpret(without, {outside[1]}); }, {"input 'layer.w'", "was not given"});

  const auto found = first_nonfinite(n.function({n.w, n.s}, n.w / n.s), {outside[0], Array::scalar(0)});
  REQUIRE(found);
  CHECK(contains(found->str(), "input 1, input 'layer.s' (messages_test.cpp:"));
}

TEST_CASE("a trace has no numbers: eval says so, by name and line, and what to do instead") {
  const Named n;
  const std::vector<std::string> advice{"has no numbers yet", "where(mask, a, b)", "select", "scan()"};
  refused([&] { eval(n.w); }, advice);
  refused([&] { eval(n.w); }, {"[eval] %0 = input 'layer.w' f64[2,3] (messages_test.cpp:"});
  refused([&] { eval(sum(n.w) > 0); }, advice);
  refused([&] { eval(sum(n.w) > 0); }, {"= greater f64[] (messages_test.cpp:", "input 'layer.w'"});
  refused([&] { trace([](Tensor x) { return x * eval(mean(x)).item(); }, f64({2})); }, {"input 'in0'"});
  refused(
      [&] {
        scan(
            [&](const Tensors& c, const Tensors&) -> StepOutput {
              eval(c[0]);
              return {c, {}};
            },
            {n.w}, {}, {.steps = 1});
      },
      {"input 'carry0'"});
  CHECK(eval(n.g->constant(Array::scalar(2)) + n.g->constant(Array::scalar(1))).item() ==
        3);                                               // these are numbers
  static_assert(!std::is_constructible_v<bool, Tensor>);  // `if (x > 0)` does not compile
}

constexpr int kAskedFor = __LINE__ + 1;
Tensor asked_for(const Params& params, std::int64_t n) { return params("v_proj.weight", {n, n}); }

TEST_CASE("a parameter has the name and the line with which the model asked for it") {
  Graph g;
  ParamTable table(g, DType::f64);
  const Params params = Params(table).at("layers.0");
  const Scope scope("block");  // its line is not the parameter's
  const Tensor v = asked_for(params, 2);
  const std::string name =
      fmt::format("input 'layers.0.v_proj.weight' f64[2,2] (messages_test.cpp:{})", kAskedFor);
  CHECK(contains(describe(v), name));
  refused([&] { sum(v, {2}); }, {name});
  refused([&] { asked_for(params, 3); }, {name, "asked for as [2,2] and as [3,3] (at messages_test.cpp:"});
}

}  // namespace

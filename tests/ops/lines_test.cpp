// The promise: every node that a function of the library makes has the line of the user who called it, also where it is made of
// several ops, and only the scopes that were open there.
#include "autograd/custom.h"
#include "autograd/jacobian.h"
#include "autograd/scan.h"
#include "ops/collectives.h"
#include "tests/fuzz/random_graph.h"
#include "tests/lent_transport.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

struct Call {
  const char* name;
  std::function<Tensors(Tensor x)> make;  // of x [4, 6]
};

std::vector<Call> calls(const ProcessGroup& group) {
  const auto numbers = [](Tensor x) { return cast(clip(x, 0.0, 3.0), DType::i32); };
  const auto cube = [](Tensor x) { return sum(x * x * x); };
  return {
      {"operators", [](Tensor x) { return Tensors{-x + 1.0, x - 2.0, 3.0 * x, x / 4.0, x > 0.0, x >= 0.0, x < 0.0, x <= 0.0}; }},
      {"assignments",
       [](Tensor x) {
         x += 1.0, x -= 2.0, x *= 3.0, x /= 4.0;
         return Tensors{x};
       }},
      {"choices", [](Tensor x) { return Tensors{where(x > 0.0, x, 0.0), clip(x, -1.0, 1.0), select(x, x, x)}; }},
      {"functions", [](Tensor x) { return Tensors{gelu_tanh(x), silu(x), sigmoid(x), pow(x, 3.0), pow(x, 0.0), pow(x, x)}; }},
      {"reductions",
       [](Tensor x) {
         return Tensors{sum(x), sum(x, 0), mean(x), mean(x, {0, 1}, kKeep), max(x), min(x), max(x, {0}), min(x, {1}), sum_to(x, {6})};
       }},
      {"shapes",
       [](Tensor x) {
         Tensors out{reshape(x, {-1}), permute(x, {1, 0}), transpose(x), broadcast_to(x, {2, 4, 6}), slice(x, 0, 1, 3),
                     pad(x, 1, 2, 0), concat({x, x}, 0), stack({x, x}, -1)};
         for (const Tensor& part : split(x, 1, {2, 4})) out.push_back(part);
         return out;
       }},
      {"indices",
       [=](Tensor x) {
         const Tensor at = reshape(slice(numbers(x), 1, 0, 1), {4});
         return Tensors{gather(x, at),
                        scatter_add(at, x, 5),
                        index_add(x, at, x),
                        iota(DType::f64, {3}, 0) + sum(x),
                        matmul(eye(DType::f64, 4), x),
                        one_hot(at, 4, DType::f64),
                        tril(x, 1),
                        cumsum(x, 0),
                        cumsum(x, 1, true)};
       }},
      {"products", [](Tensor x) {
         const Tensor square = matmul(x, x, {.b = true}) + eye(DType::f64, 4);
         return Tensors{square, solve(square, x), triangular_solve(square, x)};
       }},
      {"constants", [](Tensor x) { return Tensors{zeros(DType::f64, {4, 6}) + x, full(DType::f64, {6}, 2) + x, zero_like(x) + x, stop_gradient(x), probe(x)}; }},
      {"softmaxes",
       [=](Tensor x) {
         return Tensors{softmax(x, -1), log_softmax(x, 0), logsumexp(x, 1, true),
                        cross_entropy(x, reshape(slice(numbers(x), 1, 0, 1), {4}))};
       }},
      {"norms", [](Tensor x) { return Tensors{layer_norm(x, 1.0, 0.0), rms_norm(x, 1.0), l2_norm(x), norm(x, {0, 1})}; }},
      {"places",
       [](Tensor x) {
         const Tensor rows = reshape(x, {1, 4, 6}), image = reshape(x, {1, 2, 2, 6});
         const Tensor taps = broadcast_to(mean(x), {6, 1, 3}), grid = broadcast_to(mean(x), {6, 1, 3, 3});
         return Tensors{rope(x, iota(DType::f64, {4}, 0)), conv1d(rows, taps, {}), causal_conv1d(rows, taps, mean(x, 0)),
                        depthwise_conv3x3(image, grid, mean(x, 0))};
       }},
      {"derivatives",
       [=](Tensor x) {
         const Tensor y = cube(x), other = x + 1.0;
         return Tensors{grad(y, x), vjp({y}, {mean(x)}, {x})[0], jvp({y}, {x}, {x})[0], hvp(y, {x}, {x})[0],
                        jacobian(sum(x * x, 0), x), hessian(y, x), grad(y, other, {.allow_zero = true}),
                        jvp({other}, {y}, {y}, {.allow_zero = true})[0]};
       }},
      {"rules",
       [](Tensor x) {
         return Tensors{custom_vjp([](const Tensors& in) { return exp(in[0]); },
                                   [](const Tensors&, Tensor y, Tensor ct) { return Tensors{ct * y}; }, {x}),
                        checkpoint([&] { return Tensors{sin(x)}; })[0]};
       }},
      {"loops",
       [=](Tensor x) {
         const ScanResult r = scan(
             [](const Tensors& c, const Tensors& in) -> StepOutput {
               return {{c[0] + in[0]}, {c[0] * in[0]}};
             },
             {mean(x, 0)}, {x});
         return Tensors{r.carries[0], r.ys[0], grad(sum(r.ys[0]), x)};
       }},
      {"collectives",
       [&](Tensor x) {
         const Tensor mine = own(x, group);
         return Tensors{all_sum(mine, group), exchange(reshape(slice(mine, 0, 0, 2), {2, 6}), group), rank_before(mine, group), rank_after(mine, group),
                        all_to_all(mine, 0, 1, group), all_gather(mine, 1, group), own_part(x, 0, group)};
       }},
  };
}

}  // namespace

TEST_CASE("every node has the line of the user who called what made it") {
  run_as_processes(2, [](Transport& all) {
    const ProcessGroup group(lent(all));
    std::string strange;
    for (const Call& call : calls(group)) {
      const Function f = trace(TraceFn([&](const Tensors& in) { return call.make(in[0]); }), {f64({4, 6})});
      fuzz::for_each_node(f.graph().nodes(), [&](const GraphNode& n) {
        const std::string line = describe(n.loc);
        if (!line.starts_with("lines_test.cpp:") && n.op->kind != OpKind::input)
          strange += fmt::format("{}: {} in '{}' has {}\n", call.name, n.op->name, n.scope.str(), line);
      });
    }
    if (!strange.empty()) throw ValueError(strange);
  });
}

TEST_CASE("what is made again of a body has the scopes of its text, and those around it") {
  const Function f = trace(
      [](Tensor x) {
        const Scope around("around");
        return grad(sum(custom_vjp(
                        [](const Tensors& in) {
                          Tensor y = in[0];
                          {
                            const Scope inner("inner");
                            y = sin(y);
                          }
                          return exp(y);
                        },
                        [](const Tensors& in, Tensor y, Tensor ct) { return Tensors{ct * y * cos(in[0])}; }, {x})),
                    x);
      },
      f64({3}));
  const Function again = trace([&](Tensor x) { return f(Tensors{x})[0]; }, f64({3}));
  int inner = 0;
  for (const Function* each : {&f, &again})
    fuzz::for_each_node(each->graph().nodes(), [&](const GraphNode& n) {
      const std::string& scope = n.scope.str();
      CAPTURE(n.op->name);
      if (contains(scope, "inner")) {
        ++inner;
        CHECK(std::string_view(n.op->name) == "sin");
      }
    });
  CHECK(inner > 0);
}

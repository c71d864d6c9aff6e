// The promise: Titans' steps of several tokens are those of the published program, with gradients taken where a
// batch of steps began and each token reading what the steps before its end have left.
#include "ttt/learners/titans.h"

#include "ops/accumulate.h"
#include "tests/testing.h"
#include "ttt/inner_loop.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kBatch = 2, kHeads = 3, kDim = 4;

struct Case {
  std::int64_t time, tokens, batch;  // tokens of a step; of all steps whose gradients are taken at one place
};

// q, k, v; rate; eta and keep of each step; the weights.
std::vector<Spec> specs_of(const Case& c) {
  const Spec rows = f64({kBatch, kHeads, c.time, kDim}), steps = f64({kBatch, kHeads, c.time / c.tokens, 1});
  return {rows,
          rows,
          rows,
          f64({kBatch, kHeads, c.time, 1}),
          steps,
          steps,
          f64({kBatch, kHeads, kDim, 2 * kDim}),
          f64({kBatch, kHeads, 2 * kDim, kDim})};
}

Tensor perceptron(const Tensors& w, Tensor x) { return matmul(gelu(matmul(x, w[0])), w[1]); }
Tensor row(Tensor x, std::int64_t t) { return slice(x, 2, t, t + 1); }

// By step n: G_n = d/dW of its tokens' losses at the weights of the first step of its batch;
// S <- eta_n S - G_n; W <- keep_n W + S. Token t reads the weights after floor((t + 1) / tokens) steps.
Tensors as_published(const Tensors& in, const Case& c) {
  std::vector<Tensors> weights{{in[6], in[7]}};
  Tensors surprise;
  const std::int64_t steps = c.time / c.tokens;
  for (std::int64_t n = 0; n < steps; ++n) {
    const Tensors& at = weights[static_cast<std::size_t>(n * c.tokens / c.batch * c.batch / c.tokens)];
    Tensor loss;
    for (std::int64_t t = n * c.tokens; t < (n + 1) * c.tokens; ++t) {
      const Tensor each = sum(square(perceptron(at, row(in[1], t)) - row(in[2], t)) * row(in[3], t));
      accumulate(loss, each);
    }
    const Tensors g = grad(loss / static_cast<double>(kDim), at);
    Tensors next = weights.back();
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (n == 0) surprise.push_back(-g[i]);
      else surprise[i] = row(in[4], n) * surprise[i] - g[i];
      next[i] = row(in[5], n) * next[i] + surprise[i];
    }
    weights.push_back(next);
  }
  Tensors read;
  for (std::int64_t t = 0; t < c.time; ++t)
    read.push_back(perceptron(weights[static_cast<std::size_t>((t + 1) / c.tokens)], row(in[0], t)));
  Tensors out{concat(read, 2)};
  for (const Tensors& last : {weights.back(), surprise}) out.insert(out.end(), last.begin(), last.end());
  return out;
}

Tensors as_learner(const Tensors& in, const Case& c, ttt::FormChoice form) {
  Graph scratch;
  ParamTable unused(scratch, DType::f64);
  const ttt::Composed learner(
      ttt::mlp(
          Params(unused), kHeads, {kDim, 2 * kDim, kDim}, [](Tensor x) { return gelu(x); }, "gelu"),
      ttt::mean_squared_error(), ttt::titans_optimizer(c.tokens));
  const ttt::Views views{in[0], in[1], in[2], ttt::titans_gates(in[3], in[4], in[5], c.tokens), {}};
  const ttt::InnerLoopResult r = train_along(learner, learner.init().with({in[6], in[7]}), views,
                                             {.policy = {.chunk = c.batch}, .form = form});
  return {r.output, r.last().at(0).value, r.last().at(1).value, -r.state.of(0)[1], -r.state.of(1)[1]};
}

using Way = std::function<Tensors(const Tensors& in)>;

// Outputs, last weights and surprise, and the gradients of a mix of them with respect to every input.
Arrays run(const Case& c, const Way& way) {
  const std::vector<Spec> specs = specs_of(c);
  const Function f = trace(
      [&](const Tensors& in) {
        Tensors out = way(in);
        Tensor mix;
        for (std::size_t i = 0; i < out.size(); ++i) {
          const Tensor part = sum(out[i] * constant(random(out[i].spec(), 50 + i)));
          accumulate(mix, part);
        }
        const Tensors grads = grad(mix, in, {.allow_zero = true});
        out.insert(out.end(), grads.begin(), grads.end());
        return out;
      },
      specs);
  return f(random(specs, 9, 0.1, 0.9));
}

}  // namespace

TEST_CASE(
    "Titans: steps of one and of several tokens are those of the published program, with their gradients") {
  for (const Case& c :
       {Case{9, 1, 4}, Case{9, 2, 4}, Case{8, 4, 4}, Case{11, 4, 4}, Case{12, 2, 2}, Case{7, 3, 6}}) {
    CAPTURE(c.time);
    CAPTURE(c.tokens);
    CAPTURE(c.batch);
    const Arrays expected = run(c, [&](const Tensors& in) { return as_published(in, c); });
    for (const ttt::FormChoice form : {ttt::FormChoice::primal, ttt::FormChoice::dual})
      CHECK(max_error(run(c, [&](const Tensors& in) { return as_learner(in, c, form); }), expected) < 1e-12);
  }
}

TEST_CASE("Titans: a gate that is not one of each step is refused") {
  const std::string message = message_of<ShapeError>([] {
    trace([](const Tensors& in) { return Tensors{ttt::titans_gates(in[0], in[1], in[2], 4).at("rate")}; },
          {f64({2, 3, 9, 1}), f64({2, 3, 9, 1}), f64({2, 3, 2, 1})});
  });
  CHECK(contains(message, "it must be [2,3,2,1]"));
  for (const std::int64_t tokens : {0, -3})
    CHECK(contains(
        message_of<ConfigError>([&] {
          trace([&](Tensor x) { return ttt::titans_gates(x, x, x, tokens).at("rate"); }, f64({2, 3, 9, 1}));
        }),
        "it must be of 1 or more"));
}

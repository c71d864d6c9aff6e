// Titans' long-term memory (Behrouz et al. 2024, section 3.1), linear or a perceptron. Surprise, past and
// momentary (equation 10), and a memory that forgets (equation 13):
//
//   S_t = eta_t S_{t-1} - theta_t dloss/dM,   loss 1/dim |M(k) - v|^2
//   M_t = (1 - alpha_t) M_{t-1} + S_t
//
// Gradients are taken where the chunk began (section 3.2); a token reads what it has written, h_t = M_t(q_t). What
// the paper leaves open, the mean over features, the order of reading and writing, and the perceptron, with gelu and
// x + LN(..) around it, is as in the public program (github.com/lucidrains/titans-pytorch, commit cc016eb). Without
// x + LN(..) the perceptron's training is not finite after some hundred steps. That norm divides by the size of what
// the weights make: the smaller they are, the further a step turns them, and all gradients of a chunk are taken at its
// first weights. So the rates of its tokens add up to 0.1 at most, what one token's is where that program trains a
// language model (train_mac.py), and eta starts at 0.12, not one half. With rates of up to 0.1 for each token the outer
// gradient of a context of 256 has a norm of 3,500 at random weights (so: 2.1), and training stays at the loss of a bigram
// model (2.54 nats, so 2.33; with contexts of 64 2.04, so 1.97: docs/learners.md).
#include "ttt/learners/titans.h"

#include <fmt/format.h>

#include "ttt/learners/bounded_chunk.h"
#include "ttt/learners/catalogue.h"
#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

InnerOptimizer titans_optimizer(std::int64_t tokens_of_a_step) {
  InnerOptimizer out;
  out.momentum(gate("eta"));
  if (tokens_of_a_step > 1) out.scale(gate("write"));
  return out.keep(gate("keep"));
}

Gates titans_gates(Tensor rate, Tensor eta, Tensor keep, std::int64_t tokens) {
  if (tokens < 1)
    throw ConfigError(fmt::format("[titans] a step is of {} tokens; it must be of 1 or more", tokens));
  if (tokens == 1) return {{"rate", rate}, {"eta", eta}, {"keep", keep}};
  const Shape shape = rate.shape();
  const std::int64_t time = rate.dim(-2), steps = time / tokens, whole = steps * tokens;
  Shape by_step = shape;
  by_step[by_step.size() - 2] = steps;
  for (const Tensor& given : {eta, keep})
    if (given.shape() != by_step)
      throw ShapeError(fmt::format(
          "[titans] a gate of steps of {} tokens is {} for rates {}; it must be {} (floor(time / {}))",
          tokens, to_string(given.shape()), to_string(shape), to_string(by_step), tokens));
  // A number for `count` tokens beside each step.
  const auto beside = [&](double value, std::int64_t count) {
    Shape each = by_step;
    each.back() = count;
    return broadcast_to(constant(value, rate.dtype()), each);
  };
  // [.., steps, tokens] -> [.., time, 1], with `rest` for the tokens behind the last whole step.
  const auto by_token = [&](const std::vector<Tensor>& parts, double rest) {
    Shape flat = shape, behind = shape;
    flat[flat.size() - 2] = whole, behind[behind.size() - 2] = time - whole;
    const Tensor known = reshape(concat(parts, -1), flat);
    return time == whole ? known : concat({known, broadcast_to(constant(rest, rate.dtype()), behind)}, -2);
  };
  return {{"rate", rate * by_token({beside(1, tokens)}, 0)},
          {"eta", by_token({eta, beside(1, tokens - 1)}, 1)},
          {"write", by_token({beside(0, tokens - 1), beside(1, 1)}, 0)},
          {"keep", by_token({beside(1, tokens - 1), keep}, 1)}};
}

namespace {

System titans(std::string name, std::string title, GateSpec eta, decltype(System::learner) learner) {
  return {.name = std::move(name),
          .title = std::move(title),
          .source = "Behrouz et al. 2024, sections 3.1 and 3.2",
          .gates = {sigmoid_gate("rate", 0), std::move(eta),
                    // 1 - alpha, 0.98: half a memory a token (bias 0) would hold nothing
                    sigmoid_gate("keep", 4)},
          .learner = std::move(learner),
          .policy = [](const SystemSizes& s) { return Policy{.chunk = s.chunk}; },
          .prepare = [](Views& views) {  // section 4.4
            unit_lengths(views);
            views.v = silu(views.v);
          }};
}

constexpr double kMostOfChunk = 0.1;  // the rates of its tokens, together

}  // namespace

System titans_linear() {
  return titans("titans-linear", "Titans, linear memory", sigmoid_gate("eta", 0),
                [](const Params& p, const SystemSizes& s) {
                  return std::make_unique<Composed>(linear(p, {.heads = s.heads, .in = s.dim, .out = s.dim}),
                                                    mean_squared_error(), titans_optimizer());
                });
}

System titans_mlp() {
  System out = titans("titans-mlp", "Titans, deep memory", sigmoid_gate("eta", -2),
                      [](const Params& p, const SystemSizes& s) {
                        constexpr bool bias = false, residual_norm = true;
                        Model memory = mlp(
                            p, s.heads, {s.dim, 2 * s.dim, s.dim}, [](Tensor x) { return gelu(x); }, "gelu",
                            bias, residual_norm);
                        const auto tokens = static_cast<double>(bounded_chunk("titans-mlp", s));
                        return std::make_unique<Composed>(std::move(memory), mean_squared_error(),
                                                          titans_optimizer().scale(kMostOfChunk / tokens));
                      });
  out.why_not = why_not_of_any_length;
  return out;
}

}  // namespace nestgrad::ttt

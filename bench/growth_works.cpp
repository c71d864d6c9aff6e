#include "bench/growth_works.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

#include "autograd/custom.h"
#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/core/random.h"
#include "models/decoder.h"
#include "models/language_model.h"
#include "models/traced_model.h"
#include "ops/ops.h"
#include "programs/program.h"
#include "ttt/layer.h"

namespace nestgrad::growth {

void Account::line(std::string_view kind, std::string_view what, double value) {
  const std::string text = fmt::format("{}\t{}\t{:.9g}\n", kind, what, value);
  if (write(pipe_, text.data(), text.size()) < 0) _exit(1);  // nobody listens
}

namespace {

// Repeated for so long: the best time counts.
constexpr double kRepeatSeconds = 0.2;
constexpr int kMostRepeats = 10;

// Calls `fn` as often as the time for repetitions allows, once at least.
template <class Fn>
void repeatedly(Fn fn) {
  const auto start = Clock::now();
  for (int k = 0; k == 0 || (k < kMostRepeats && seconds_since(start) < kRepeatSeconds); ++k) fn(k);
}

}  // namespace

void measure_program(Make make, std::int64_t n, Account& account) {
  const double before = peak_memory_mb();
  repeatedly([&](int turn) {
    Function f;
    std::optional<Plan> plan;
    std::vector<Array> inputs, outputs;
    account.time("trace", [&] { f = make(n); });
    if (turn == 0) account.found("nodes", static_cast<double>(f.live_nodes()));
    account.time("plan", [&] { plan.emplace(f.plan()); });
    for (const Spec& spec : plan->input_specs())
      inputs.push_back(is_float(spec.dtype) ? random_uniform(spec, 0.1, 0.2, 1, inputs.size())
                                            : Array::zeros(spec.dtype, spec.shape));
    for (const Spec& spec : plan->output_specs()) outputs.emplace_back(spec);
    account.time("first call", [&] { plan->run(inputs, outputs); });
    repeatedly([&](int) { account.time("replay", [&] { plan->run(inputs, outputs); }); });
    if (turn == 0) account.found("memory", peak_memory_mb() - before);
  });
}

namespace {

const Spec kRow{DType::f32, {8}}, kNumber{DType::f32, {}};

// About so many ops, one after the other.
Tensor ops_in_a_row(Tensor x, Tensor w, std::int64_t ops) {
  for (std::int64_t i = 0; i < ops / 2; ++i) x = tanh(x * w);
  return x;
}

// A step of an inner model.
Tensor inner_step(Tensor w, Tensor x, Tensor y, Tensor rate) {
  return w - rate * grad(sum(square(w * x - y)), w);
}

Function unrolled(std::int64_t n) {
  return trace([n](Tensor x, Tensor w) { return sum(ops_in_a_row(x, w, n)); }, kRow, kRow);
}

Function unrolled_gradient(std::int64_t n) {
  return trace([n](Tensor x, Tensor w) { return grad(sum(ops_in_a_row(x, w, n / 5)), {x, w}); }, kRow, kRow);
}

Function unrolled_meta_gradient(std::int64_t n) {
  return trace(
      [n](Tensor w, Tensor x, Tensor y, Tensor rate) {
        Tensor now = w;
        for (std::int64_t i = 0; i < n / 16; ++i) now = inner_step(now, x, y, rate);
        return grad(sum(square(now * x - y)), {w, rate});
      },
      kRow, kRow, kRow, kNumber);
}

Function fan(std::int64_t n) {
  return trace(
      [n](Tensor x, Tensor w) {
        std::vector<Tensor> leaves;
        for (std::int64_t i = 0; i < n / 8; ++i)
          leaves.push_back(tanh(x * (1 + static_cast<double>(i) / static_cast<double>(n))));
        while (leaves.size() > 1) {  // pairs, from both ends: all of them wait for their turn
          for (std::size_t i = 0; i < leaves.size() / 2; ++i)
            leaves[i] = leaves[i] + leaves[leaves.size() - 1 - i];
          leaves.resize((leaves.size() + 1) / 2);
        }
        return grad(sum(leaves[0] * w), {x, w});
      },
      kRow, kRow);
}

Function parameters(std::int64_t n) {
  const std::vector<Spec> specs(static_cast<std::size_t>(n / 4), kRow);
  return trace(TraceFn([](const std::vector<Tensor>& params) {
                 std::vector<Tensor> sums;
                 for (const Tensor& p : params) sums.push_back(square(p));
                 Tensor loss = sums[0];
                 for (std::size_t i = 1; i < sums.size(); ++i) loss = loss + sums[i];
                 return grad(sum(loss), params);
               }),
               specs);
}

Function long_body(std::int64_t n) {
  return trace(
      [n](Tensor x, Tensor w) {
        const auto step = [&](const Tensors& carry, const Tensors&) -> StepOutput {
          return {{ops_in_a_row(carry[0], w, n / 5)}, {}};
        };
        return grad(sum(scan(step, {x}, {}, {.steps = 2}).carries[0]), {x, w});
      },
      kRow, kRow);
}

Function recomputed(std::int64_t n) {
  return trace(
      [n](Tensor x, Tensor w) {
        const Tensors y = checkpoint([&] { return Tensors{ops_in_a_row(x, w, n / 6)}; });
        return grad(sum(y[0]), {x, w});
      },
      kRow, kRow);
}

Function scan_steps(std::int64_t n) {
  return trace(
      [n](Tensor w, Tensor x, Tensor y, Tensor rate) {
        const auto step = [&](const Tensors& carry, const Tensors&) -> StepOutput {
          return {{inner_step(carry[0], x, y, rate)}, {}};
        };
        return grad(sum(scan(step, {w}, {}, {.steps = n}).carries[0]), {w, rate});
      },
      kRow, kRow, kRow, kNumber);
}

Function scans_in_a_row(std::int64_t n) {
  return trace(
      [n](Tensor x, Tensor w) {
        Tensor now = x;
        const auto step = [&](const Tensors& carry, const Tensors&) -> StepOutput {
          return {{tanh(carry[0] * w)}, {}};
        };
        for (std::int64_t i = 0; i < n / 20; ++i) now = scan(step, {now}, {}, {.steps = 2}).carries[0];
        return grad(sum(now), {x, w});
      },
      kRow, kRow);
}

constexpr std::int64_t kWidth = 64, kHeads = 2, kMiniBatch = 16;

Function layer(std::int64_t tokens) {
  return trace(
      [](Tensor x) {
        ParamTable table(x.graph(), DType::f32);
        const Params params(table);
        ttt::TTTLayerOptions options{.width = kWidth, .heads = kHeads};
        options.inner.policy.chunk = kMiniBatch;
        ttt::Stream stream;
        const ttt::TTTLayer layer(params, options, std::make_unique<ttt::ProjectedViews>(params, kWidth),
                                  learner_system("linear"), "layer");
        return grad(mean(layer(x, stream)), table.tensors());
      },
      Spec{DType::f32, {1, tokens, kWidth}});
}

LanguageModelConfig model_config() {
  return {.hidden_size = kWidth,
          .intermediate_size = 2 * kWidth,
          .num_attention_heads = kHeads,
          .mini_batch_size = kMiniBatch};
}

Function language_model(std::int64_t tokens) {
  return trace(
      [](Tensor text) {
        ParamTable table(text.graph(), DType::f32);
        ttt::Stream stream;
        return grad(mean(next_token_loss(model_config(), Params(table), text, stream)), table.tensors());
      },
      Spec{DType::i32, {1, tokens + 1}});
}

// The language model reads `tokens` tokens one by one; a replay is all of them.
void measure_decoding(Make, std::int64_t tokens, Account& account) {
  const double before = peak_memory_mb();
  const TracedModel model = trace_model(
      DType::f32, {Spec{DType::i32, {1, 2}}}, [](ParamTable& table, const std::vector<Tensor>& in) {
        ttt::Stream stream;
        return std::vector<Tensor>{mean(next_token_loss(model_config(), Params(table), in[0], stream))};
      });
  const StateDict params = initial_parameters(model.params, DType::f32, 1);
  std::optional<Decoder> decoder;
  account.time("plan", [&] { decoder.emplace(model_config(), params, DType::f32, 1); });
  const Array token = Array::zeros(DType::i32, {1});
  account.time("first call", [&] { decoder->step(token); });
  account.time("replay", [&] {
    for (std::int64_t i = 0; i < tokens; ++i) decoder->step(token);
  });
  account.found("memory", peak_memory_mb() - before);
}

}  // namespace

std::vector<std::int64_t> Work::sizes(std::int64_t most) const {
  std::vector<std::int64_t> out;
  most = std::min(most, largest);
  if (std::string_view(unit) == "tokens")
    for (std::int64_t n = 128; n <= most; n *= 2) out.push_back(n);
  else
    for (double n = 100; n < 1.01 * static_cast<double>(most); n *= std::sqrt(10.0))
      out.push_back(std::llround(n));
  return out;
}

std::span<const Work> works() {
  static constexpr std::array kWorks{
      Work{"unrolled loop", "nodes", kMillion, unrolled},
      Work{"unrolled loop, gradient", "nodes", kMillion, unrolled_gradient},
      Work{"unrolled loop, gradient in each step and through all", "nodes", kMillion, unrolled_meta_gradient},
      Work{"values that wait for each other, gradient", "nodes", kMillion, fan},
      Work{"many parameters, gradient", "nodes", kMillion, parameters},
      Work{"scan of one long step, gradient", "nodes", kMillion, long_body},
      Work{"checkpointed function, gradient", "nodes", kMillion, recomputed},
      Work{"many scans, gradient", "nodes", kMillion, scans_in_a_row},
      Work{"scan, gradient in each step and through all", "steps", kMillion, scan_steps},
      Work{"TTT-Linear layer, gradient", "tokens", 65536, layer},
      Work{"language model, gradient", "tokens", 65536, language_model},
      Work{"language model, token by token", "tokens", 65536, nullptr, measure_decoding},
  };
  return kWorks;
}

}  // namespace nestgrad::growth

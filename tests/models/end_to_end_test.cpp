// The promise: a transformer that trains while it reads is that program: its loss is each chunk's under the
// weights that the chunks before have left, and its gradient is the derivative of all of it.
#include "models/end_to_end.h"

#include <array>
#include <cmath>

#include "models/optimizer.h"
#include "ops/accumulate.h"
#include "tests/models/model_testing.h"
#include "tests/ops/check_grads.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr double kTolerance = 1e-11;

EndToEndConfig tiny() {
  return {.vocab_size = 7,
          .hidden_size = 4,
          .intermediate_size = 5,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .window = 3,
          .chunk = 4,
          .rate = 0.5,
          .clip = 0.4};
}

// tokens -> what fn makes of the model.
TracedModel traced(const EndToEndConfig& config, const Spec& tokens,
                   const std::function<Tensor(const EndToEndModel&, Tensor)>& fn, bool gradients) {
  return trace_model(DType::f64, {tokens}, [&](ParamTable& table, const Tensors& in) {
    const EndToEndModel model(config, Params(table));
    Tensors out{fn(model, in[0])};
    if (gradients)
      for (const Tensor& g : grad(mean(out[0]), table.tensors())) out.push_back(g);
    return out;
  });
}
Arrays run(const TracedModel& model, const Array& tokens) {
  const StateDict params = random_parameters(model, DType::f64);
  return model.function(model.bind({tokens}, {&params}));
}

Tensor learnt_loss(const EndToEndModel& model, Tensor tokens) { return model.loss(tokens); }

// The losses of each chunk by the whole ordinary transformer, and grad between them.
std::function<Tensor(const EndToEndModel&, Tensor)> by_hand(EndToEndConfig c, Tensor rate = {}) {
  return [c, rate](const EndToEndModel& model, Tensor tokens) {
    const std::int64_t batch = tokens.dim(0), time = tokens.dim(1) - 1;
    ttt::Weights w = ttt::for_batch(model.start(), batch);
    Tensors losses;
    for (std::int64_t begin = 0; begin < time; begin += c.chunk) {
      const std::int64_t end = std::min(begin + c.chunk, time);
      Tensors at = w.values();
      for (Tensor& each : at) each = probe(each);
      losses.push_back(slice(model.loss_at(w.with(at), tokens), 1, begin, end));
      if (end == time) break;
      const Tensors g = grad(sum(losses.back()) * (1.0 / static_cast<double>(c.chunk)), at);
      Tensor squares;  // of each sequence, [batch, 1, 1, 1]
      for (const Tensor& each : g) {
        const Tensor part = sum(square(each), {-2, -1}, kKeep);
        accumulate(squares, part);
      }
      const Tensor shrink = c.rate * (c.clip / max(sqrt(squares), c.clip));
      for (std::size_t i = 0; i < at.size(); ++i) at[i] = at[i] - shrink * g[i];
      w = w.with(at);
    }
    return losses.size() == 1 ? losses[0] : concat(losses, 1);
  };
}

}  // namespace

TEST_CASE("the loss is the one written by hand with grad between chunks: values and every gradient") {
  struct Case {
    std::int64_t time, window, layers, fast;
  };
  // whole chunks; a partial last one; one chunk; a window wider than a chunk and than the text; two blocks
  // that learn; all
  for (const Case& each : {Case{8, 3, 2, 0},
                           {10, 3, 2, 0},
                           {3, 3, 2, 0},
                           {10, 7, 2, 1},
                           {9, 30, 2, 1},
                           {10, 3, 3, 2},
                           {9, 2, 2, 2}}) {
    EndToEndConfig config = tiny();
    config.window = each.window;
    config.num_hidden_layers = each.layers;
    config.fast_layers = each.fast;
    config.learned_rate = false;
    CAPTURE(each.time);
    CAPTURE(each.window);
    const Array tokens = random_tokens(2, each.time + 1, config.vocab_size);
    const TracedModel found = traced(config, tokens.spec(), learnt_loss, true),
                      expected = traced(config, tokens.spec(), by_hand(config), true);
    const Arrays a = run(found, tokens), b = run(expected, tokens);
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(relative_error(a[i], b[i]) < kTolerance);
    config.clip = 1e9;  // the control: the steps were clipped
    if (each.time > config.chunk)
      CHECK(max_error(run(traced(config, tokens.spec(), learnt_loss, false), tokens),
                      {run(expected, tokens)[0]}) > 1e-5);
  }
}

TEST_CASE(
    "the outer gradient is the derivative: central differences and Taylor rates, learned rate included") {
  for (const double clip : {0.4, 100.0}) {
    EndToEndConfig config = tiny();
    config.clip = clip;
    const Array tokens = random_tokens(2, 10, config.vocab_size);
    const TracedModel model = traced(config, tokens.spec(), learnt_loss, false);
    const StateDict params = random_parameters(model, DType::f64);
    Subject s{.what = "end to end",
              .fn = [&](const Tensors& in) { return model.function(std::span<const Tensor>(in)); },
              .inputs = model.bind({tokens}, {&params}),
              .active = {},
              .orders = 1};
    CHECK(join(check_taylor(s)) == "");
    s.tolerance = 100;
    CHECK(join(check_grads(s)) == "");
  }
}

TEST_CASE("first-order meta-gradient: the same losses, another gradient") {
  EndToEndConfig config = tiny();
  const Array tokens = random_tokens(2, 13, config.vocab_size);
  const Arrays full = run(traced(config, tokens.spec(), learnt_loss, true), tokens);
  config.meta = ttt::Policy::Meta::first_order;
  const Arrays first = run(traced(config, tokens.spec(), learnt_loss, true), tokens);
  CHECK(max_error({first[0]}, {full[0]}) < kTolerance);
  CHECK(max_error(first, full) > 1e-4);
}

TEST_CASE("with rate zero it is the ordinary transformer, and that is the language model with attention") {
  EndToEndConfig config = tiny();
  config.rate = 0;
  config.learned_rate = false;
  const Array tokens = random_tokens(2, 11, config.vocab_size);
  const auto ordinary = [](const EndToEndModel& model, Tensor in) {
    return model.loss_at(ttt::for_batch(model.start(), in.dim(0)), in);
  };
  CHECK(max_error(run(traced(config, tokens.spec(), learnt_loss, true), tokens),
                  run(traced(config, tokens.spec(), ordinary, true), tokens)) < kTolerance);

  config.window = 11;  // it reads everything
  const TracedModel model = traced(config, tokens.spec(), learnt_loss, false);
  StateDict params = random_parameters(model, DType::f64);
  for (auto& [name, value] : params)
    if (name.ends_with("fast_mlp.W1"))
      value = Array::zeros(DType::f64, value.shape());  // the extra MLP says nothing
  LanguageModelConfig published = small_model("attention");
  published.vocab_size = config.vocab_size;
  published.hidden_size = config.hidden_size;
  published.intermediate_size = config.intermediate_size;
  const TracedModel language_model =
      trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const Tensors& in) {
        ttt::Stream stream;
        return Tensors{next_token_loss(published, Params(table), in[0], stream)};
      });
  CHECK(max_error(model.function(model.bind({tokens}, {&params})),
                  language_model.function(language_model.bind({tokens}, {&params}))) < kTolerance);
}

TEST_CASE("what a chunk teaches reaches the chunks after it and no token before") {
  const EndToEndConfig config = tiny();
  const Array tokens = random_tokens(1, 13, config.vocab_size);
  const TracedModel model = traced(config, tokens.spec(), learnt_loss, false);
  const Array before = run(model, tokens)[0];
  Array changed = tokens.clone();
  changed.as<std::int32_t>()[5] = (changed.as<std::int32_t>()[5] + 1) % 7;  // the label of token 4
  const Array after = run(model, changed)[0];
  for (std::int64_t t = 0; t < 4; ++t) CHECK(after.at(t) == before.at(t));
  CHECK(after.at(11) != before.at(11));  // windows of 3 in two blocks reach back four tokens only
}

TEST_CASE("an inner gradient of zero is clipped to zero, and its derivatives are finite") {
  const EndToEndConfig config = tiny();
  const Array tokens = random_tokens(2, 10, config.vocab_size);
  const TracedModel model = traced(config, tokens.spec(), learnt_loss, true);
  StateDict params = random_parameters(model, DType::f64);
  for (auto& [name, value] : params)  // logits of zero whatever the blocks say
    if (name == "model.norm.weight") value = Array::zeros(DType::f64, value.shape());
  const Arrays out = model.function(model.bind({tokens}, {&params}));
  for (const double l : out[0].to_vector()) CHECK(l == doctest::Approx(std::log(7.0)));
  for (const Array& g : out)
    for (const double x : g.to_vector()) CHECK(std::isfinite(x));
}

TEST_CASE("a checkpoint schedule changes no bit, and sizes that do not fit are named") {
  EndToEndConfig config = tiny();
  const Array tokens = random_tokens(2, 18, config.vocab_size);
  const Arrays stored = run(traced(config, tokens.spec(), learnt_loss, true), tokens);
  config.checkpoint_every = 2;
  CHECK(same_bits(run(traced(config, tokens.spec(), learnt_loss, true), tokens), stored));

  const auto refuses = [&](auto change) {
    EndToEndConfig bad = tiny();
    change(bad);
    return message_of<ConfigError>([&] { bad.check(); });
  };
  CHECK(contains(refuses([](auto& c) { c.fast_layers = 3; }), "3 of 2 blocks cannot have an extra MLP"));
  CHECK(contains(refuses([](auto& c) { c.rate = 0; }), "the rate must be positive if it is learned"));
  CHECK(contains(refuses([](auto& c) { c.window = 0; }), "window must be at least 1"));
  CHECK(contains(refuses([](auto& c) { c.num_attention_heads = 4; }), "an even dimension"));
}

namespace {

// Sequences over 8 letters with a hidden rule of their own: a random permutation says which letter follows
// which, apart from a letter in four that is drawn. A model learns the rule from the sequence or not at all.
Array permuted_text(std::int64_t batch, std::int64_t time, std::uint64_t seed) {
  Array out(DType::i32, {batch, time});
  std::uint64_t draw = 0;
  const auto below = [&](std::uint32_t n) {
    return static_cast<std::int32_t>(random_below(n, seed, 0, draw++));
  };
  auto at = out.as<std::int32_t>().begin();
  for (std::int64_t b = 0; b < batch; ++b) {
    std::array<std::int32_t, 8> next{0, 1, 2, 3, 4, 5, 6, 7};
    for (std::uint32_t i = 7; i > 0; --i) std::swap(next[i], next[static_cast<std::size_t>(below(i + 1))]);
    std::int32_t letter = below(8);
    for (std::int64_t t = 0; t < time; ++t) {
      *at++ = letter;
      letter = below(4) == 0 ? below(8) : next[static_cast<std::size_t>(letter)];
    }
  }
  return out;
}

// Validation loss after `steps` of AdamW on such text.
double trained(const EndToEndConfig& config, int steps) {
  const Spec tokens = i32({8, 49}), number{DType::f32, {}};
  const TracedModel step =
      trace_model(DType::f32, {tokens, number, number, number}, [&](ParamTable& table, const Tensors& in) {
        const Tensor loss = mean(EndToEndModel(config, Params(table)).loss(in[0]));
        const Tensors params = table.tensors();
        Tensors m, v, out{loss};
        for (const char* moment : {"m.", "v."})
          for (const ParamSpec& p : table.specs())
            (*moment == 'm' ? m : v)
                .push_back(loss.graph().input(Spec{DType::f32, p.shape}, moment + p.name));
        const AdamWResult r =
            adamw(table.specs(), params, grad(loss, params), m, v, {in[1], in[2], in[3]}, {});
        for (const Tensors& part : {r.params, r.m, r.v}) out.insert(out.end(), part.begin(), part.end());
        return out;
      });
  Plan plan = step.function.plan();
  StateDict state = initial_parameters(step.params, DType::f32, 1);
  for (const ParamSpec& p : step.params)
    for (const char* moment : {"m.", "v."}) state.emplace(moment + p.name, Array::zeros(DType::f32, p.shape));
  const auto number_of = [](double x) { return Array::scalar(x).cast(DType::f32); };
  Arrays in = step.bind({Array(tokens), Array(number), Array(number), Array(number)}, {&state});
  double loss = 0;
  for (int i = 0; i < steps + 4; ++i) {  // the last four are validation: their text is new, their rate zero
    in[0] = permuted_text(8, 49, 100 + static_cast<std::uint64_t>(i));
    in[1] = number_of(i < steps ? 1e-2 : 0);
    in[2] = number_of(1 / (1 - std::pow(0.9, i + 1)));
    in[3] = number_of(1 / (1 - std::pow(0.95, i + 1)));
    const Arrays out = plan.run(in);
    if (i >= steps) loss += out[0].at(0) / 4;
    for (std::size_t p = 1; p < out.size(); ++p) in[3 + p] = out[p];
  }
  return loss;
}

}  // namespace

TEST_SUITE("slow") {
  TEST_CASE("trained to learn while it reads, it predicts better than the same transformer that does not") {
    EndToEndConfig config{.vocab_size = 8,
                          .hidden_size = 16,
                          .intermediate_size = 24,
                          .num_hidden_layers = 1,
                          .num_attention_heads = 2,
                          .window = 4,
                          .chunk = 8,
                          .rate = 1.0,
                          .learned_rate = true};
    const double learning = trained(config, 80);
    config.rate = 0;
    config.learned_rate = false;
    const double fixed = trained(config, 80);
    CAPTURE(learning);
    CAPTURE(fixed);
    CHECK(learning < fixed - 0.03);
  }
}

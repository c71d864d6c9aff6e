// The promise: a transformer that trains while it reads is that program: its loss is each chunk's under the
// weights that the chunks before have left, and its gradient is the derivative of all of it.
#include "models/end_to_end.h"

#include <array>
#include <cmath>

#include "models/decoder.h"
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
std::function<Tensor(const EndToEndModel&, Tensor)> by_hand(EndToEndConfig c) {
  return [c](const EndToEndModel& model, Tensor tokens) {
    const std::int64_t batch = tokens.dim(0), time = tokens.dim(1) - 1;
    ttt::Weights w = model.start(batch);
    Tensors losses;
    for (std::int64_t begin = 0; begin < time; begin += c.chunk) {
      const std::int64_t end = std::min(begin + c.chunk, time);
      Tensors at = w.values();
      for (Tensor& each : at) each = probe(each);
      losses.push_back(slice(model.loss_at(w.with(at), tokens), 1, begin, end));
      if (end == time) break;
      const Tensors g = grad(sum(losses.back()) * (1.0 / static_cast<double>(c.chunk)), at);
      Tensor squares;  // of each sequence, [batch, 1, 1]
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
    std::int64_t time, window, layers;
  };
  // whole chunks; a partial last one; one chunk; a window wider than a chunk and than the text; of one token. With one
  // block that learns, keys and values do not depend on what is learnt: those of a cache are those computed anew.
  for (const Case& each :
       {Case{8, 3, 2}, {10, 3, 2}, {3, 3, 2}, {10, 7, 2}, {9, 30, 2}, {10, 3, 1}, {9, 1, 2}}) {
    EndToEndConfig config = tiny();
    config.window = each.window;
    config.num_hidden_layers = each.layers;
    config.suffix_len = 1;
    CAPTURE(each.time);
    CAPTURE(each.window);
    const Array tokens = random_tokens(2, each.time + 1, config.vocab_size);
    const TracedModel found = traced(config, tokens.spec(), learnt_loss, true),
                      expected = traced(config, tokens.spec(), by_hand(config), true);
    const Arrays a = run(found, tokens), b = run(expected, tokens);
    // A token that reads itself alone does so whatever queries and keys are: some gradients are rounding.
    const double floor = each.window == 1 ? 1e-4 : 1e-300;
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(relative_error(a[i], b[i], floor) < kTolerance);
    config.clip = 1e9;  // the control: the steps were clipped
    if (each.time > config.chunk)
      CHECK(max_error(run(traced(config, tokens.spec(), learnt_loss, false), tokens),
                      {run(expected, tokens)[0]}) > 1e-5);
  }
}

TEST_CASE("a token's own scores may be far below zero: nothing else is read in their place") {
  const EndToEndConfig config = tiny();
  const Array tokens = random_tokens(2, 11, config.vocab_size);
  const auto losses = [&](const std::function<Tensor(const EndToEndModel&, Tensor)>& fn) {
    const TracedModel model = traced(config, tokens.spec(), fn, false);
    StateDict params = random_parameters(model, DType::f64);
    for (auto& [name, value] : params)
      if (contains(name, "q_norm") || contains(name, "k_norm")) {
        value = value.clone();
        for (double& x : value.as<double>()) x *= 1e16;
      }
    return model.function(model.bind({tokens}, {&params}))[0];
  };
  CHECK(relative_error(losses(learnt_loss), losses(by_hand(config))) < kTolerance);
}

TEST_CASE("with two blocks that learn, keys and values stay as the weights of their own chunk made them") {
  EndToEndConfig config = tiny();
  config.num_hidden_layers = 3, config.suffix_len = 2;
  const auto losses = [&](std::int64_t window, const auto& fn) {
    config.window = window;
    const Array tokens = random_tokens(2, 13, config.vocab_size);
    return run(traced(config, tokens.spec(), fn(), false), tokens)[0];
  };
  const auto cached = [&] { return std::function(learnt_loss); };
  const auto anew = [&] { return by_hand(config); };
  CHECK(relative_error(losses(1, cached), losses(1, anew)) < kTolerance);  // nothing is kept
  const Array a = losses(3, cached), b = losses(3, anew);
  for (std::int64_t t = 0; t < 4; ++t)  // the first chunk
    for (const std::int64_t sequence : {0, 12})
      CHECK(std::abs(a.at(sequence + t) - b.at(sequence + t)) < kTolerance);
  CHECK(relative_error(a, b) > 1e-5);
}

TEST_CASE(
    "the outer gradient is the derivative: central differences and Taylor rates, learned rate included") {
  for (const double clip : {0.4, 100.0}) {
    EndToEndConfig config = tiny();
    config.clip = clip;
    config.learned_rate = true;
    config.num_hidden_layers = 3, config.suffix_len = 2;
    config.rms_norm_eps =
        0.1;  // rows of four and two numbers: smaller, and differences see curvature above all
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

TEST_CASE("chunk by chunk, laid open: the reading's losses, and of the first step what it is by hand") {
  EndToEndConfig config = tiny();
  config.num_hidden_layers = 3, config.suffix_len = 2;
  for (const double clip : {0.05, 100.0}) {
    CAPTURE(clip);
    config.clip = clip;
    const Array tokens = random_tokens(2, 13, config.vocab_size);
    const TracedModel model =
        trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const Tensors& in) {
          const EndToEndModel m(config, Params(table));
          const std::vector<EndToEndStep> steps = m.steps(in[0]);
          // The first step: nothing has been learnt, and no cache is there.
          const ttt::Weights start = m.start(2);
          Tensors at = start.values();
          for (Tensor& w : at) w = probe(w);
          const auto own = [&](const Tensors& w) { return slice(m.loss_at(start.with(w), in[0]), 1, 0, 4); };
          const Tensors g = grad(sum(own(at)) * 0.25, at);
          Tensor squares;
          for (const Tensor& each : g) {
            const Tensor part = sum(square(each), {-2, -1}, kKeep);
            accumulate(squares, part);
          }
          const Tensor size = sqrt(squares);
          Tensors next;
          for (std::size_t i = 0; i < at.size(); ++i)
            next.push_back(at[i] - config.rate * (clip / max(size, clip)) * g[i]);
          const Tensor norm = reshape(size, {2});
          return Tensors{m.loss(in[0]),
                         concat({steps[0].loss, steps[1].loss, steps[2].loss}, 1),
                         norm,
                         steps[0].norm,
                         min(norm, clip),
                         steps[0].clipped_norm,
                         own(next),
                         steps[0].loss_after};
        });
    const Arrays r = run(model, tokens);
    for (std::size_t i = 0; i < r.size(); i += 2) CHECK(relative_error(r[i + 1], r[i]) < kTolerance);
    for (std::int64_t b = 0; b < 2; ++b) CHECK((r[2].at(b) > clip) == (clip < 1));  // clipped, or not
    CHECK(max_error({r[6]}, {r[7]}) < kTolerance);
  }
  CHECK(contains(message_of<ShapeError>([&] {
                   traced(
                       config, Spec{DType::i32, {2, 12}},
                       [](const EndToEndModel& m, Tensor in) { return m.steps(in)[0].loss; }, false);
                 }),
                 "11 tokens are no whole chunks of 4"));
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

namespace {

// Loss and all gradients of the model in this training step; -1: after training.
Arrays in_step(const EndToEndConfig& config, double step, const Array& tokens) {
  const TracedModel model =
      trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const Tensors& in) {
        const Tensor now = step < 0 ? Tensor() : constant(step, DType::f64);
        const Tensor loss = EndToEndModel(config, Params(table), now).loss(in[0]);
        Tensors out{loss};
        for (const Tensor& g : grad(mean(loss), table.tensors())) out.push_back(g);
        return out;
      });
  return run(model, tokens);
}

}  // namespace

TEST_CASE("the inner rate rises over training steps as the official program has it, and stays") {
  EndToEndConfig ramp = tiny(), fixed = tiny();
  ramp.rate_init = 0.1, ramp.rate_warmup_steps = 10;  // to 0.5
  const Array tokens = random_tokens(2, 13, ramp.vocab_size);
  for (const auto& [step, rate] :
       {std::pair{0.0, 0.14}, {3.0, 0.26}, {8.0, 0.46}, {9.0, 0.5}, {1000.0, 0.5}, {-1.0, 0.5}}) {
    CAPTURE_BOUND(step);
    fixed.rate = rate;
    CHECK(max_error(in_step(ramp, step, tokens), in_step(fixed, -1, tokens)) < kTolerance);
  }
  CHECK(max_error(in_step(ramp, 3, tokens), in_step(ramp, 4, tokens)) > 1e-5);  // the control
}

TEST_CASE("a rate that is learned is where its ramp ends: the derivative has the ramp's share") {
  EndToEndConfig ramp = tiny(), plain = tiny();
  ramp.learned_rate = plain.learned_rate = true;
  ramp.rate_init = 0.1, ramp.rate_warmup_steps = 10;
  const Array tokens = random_tokens(2, 13, ramp.vocab_size);
  const auto traced_in = [&](const EndToEndConfig& config, double step) {
    return trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const Tensors& in) {
      const Tensor loss = EndToEndModel(config, Params(table), constant(step, DType::f64)).loss(in[0]);
      return Tensors{loss, grad(mean(loss), table.tensors().back())};
    });
  };
  const TracedModel rising = traced_in(ramp, 3), level = traced_in(plain, 3);
  REQUIRE(rising.params.back().name == "inner_log_rate");
  StateDict params = random_parameters(rising, DType::f64);
  const double learned = std::exp(params.at("inner_log_rate").item()), now = 0.1 + (learned - 0.1) * 0.4;
  const Arrays a = rising.function(rising.bind({tokens}, {&params}));
  params.at("inner_log_rate") = Array::scalar(std::log(now));
  const Arrays b = level.function(level.bind({tokens}, {&params}));
  CHECK(relative_error(a[0], b[0]) < kTolerance);
  CHECK(a[1].item() / (learned * 0.4) == doctest::Approx(b[1].item() / now).epsilon(1e-9));
}

TEST_CASE("a target that begins a text is left out: of the loss, of the inner mean, and of the gradient") {
  EndToEndConfig plain = tiny(), masked = tiny();
  masked.bos_token = 2;
  Array tokens = random_tokens(2, 14, plain.vocab_size);
  // In one sequence one target of the first chunk, and all of the second; in the other none at all.
  for (std::int32_t& t : tokens.as<std::int32_t>()) t = t == 2 ? 3 : t;
  for (const std::size_t place : {2, 5, 6, 7, 8}) tokens.as<std::int32_t>()[place] = 2;
  Array counts(DType::f64, {2, 13});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t t = 0; t < 13; ++t)
      counts.as<double>()[static_cast<std::size_t>(b * 13 + t)] = tokens.at(b * 14 + t + 1) == 2 ? 0 : 1;

  const auto by_hand_masked = [&](const EndToEndModel& model, Tensor in) {
    ttt::Weights w = model.start(2);
    Tensors losses;
    for (std::int64_t begin = 0; begin < 13; begin += plain.chunk) {
      const std::int64_t end = std::min<std::int64_t>(begin + plain.chunk, 13);
      Tensors at = w.values();
      for (Tensor& each : at) each = probe(each);
      const Tensor own = slice(constant(counts), 1, begin, end);
      losses.push_back(slice(model.loss_at(w.with(at), in), 1, begin, end) * own);
      if (end == 13) break;
      const Tensors g = grad(sum(sum(losses.back(), {-1}) / max(sum(own, {-1}), 1.0)), at);
      Tensor squares;
      for (const Tensor& each : g) {
        const Tensor part = sum(square(each), {-2, -1}, kKeep);
        accumulate(squares, part);
      }
      const Tensor shrink = plain.rate * (plain.clip / max(sqrt(squares + 1e-200), plain.clip));
      for (std::size_t i = 0; i < at.size(); ++i) at[i] = at[i] - shrink * g[i];
      w = w.with(at);
    }
    return concat(losses, 1);
  };
  const Arrays found = run(traced(masked, tokens.spec(), learnt_loss, true), tokens);
  CHECK(max_error(found, run(traced(plain, tokens.spec(), by_hand_masked, true), tokens)) < kTolerance);
  CHECK(max_error(found, run(traced(plain, tokens.spec(), learnt_loss, true), tokens)) >
        1e-3);  // the control

  // What is read besides: the mask, the mean over the others, and a chunk that teaches nothing.
  const TracedModel reading =
      trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const Tensors& in) {
        const EndToEndReading r = EndToEndModel(masked, Params(table)).read(in[0]);
        return Tensors{r.counts, r.mean_loss(), r.clipped_norm};
      });
  const Arrays r = run(reading, tokens);
  CHECK(r[0].same_bits(counts));
  double total = 0;
  for (const double l : found[0].to_vector()) total += l;
  CHECK(r[1].item() == doctest::Approx(total / 21));
  CHECK(r[2].at(0) > 0);
  CHECK(r[2].at(1) == 0);  // sequence 0, chunk 1
  CHECK(r[2].at(4) > 0);   // sequence 1, chunk 1
}

TEST_CASE("with a clip of 0 or less no gradient is clipped") {
  EndToEndConfig config = tiny();
  const Array tokens = random_tokens(2, 11, config.vocab_size);
  const auto numbers = [&](double clip) {
    config.clip = clip;
    return run(traced(config, tokens.spec(), learnt_loss, true), tokens);
  };
  const Arrays all = numbers(1e9);
  CHECK(max_error(numbers(0), all) < kTolerance);
  CHECK(max_error(numbers(-1), all) < kTolerance);
  CHECK(max_error(numbers(0.4), all) > 1e-4);  // the control: some would be
}

TEST_CASE("with rate zero it is the ordinary transformer") {
  EndToEndConfig config = tiny();
  config.rate = 0;
  config.num_hidden_layers = 3, config.suffix_len = 2;
  const Array tokens = random_tokens(2, 11, config.vocab_size);
  const auto ordinary = [](const EndToEndModel& model, Tensor in) {
    return model.loss_at(model.start(in.dim(0)), in);
  };
  CHECK(max_error(run(traced(config, tokens.spec(), learnt_loss, true), tokens),
                  run(traced(config, tokens.spec(), ordinary, true), tokens)) < kTolerance);
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
    if (name == "language_model.model.ln_f.weight") value = Array::zeros(DType::f64, value.shape());
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
  CHECK(contains(refuses([](auto& c) { c.suffix_len = 3; }), "3 of 2 blocks cannot have a prime MLP"));
  CHECK(contains(refuses([](auto& c) { c.rate = 0, c.learned_rate = true; }),
                 "the rate must be positive if it is learned"));
  CHECK(contains(refuses([](auto& c) { c.rate = -1; }), "finite and not negative"));
  CHECK(contains(refuses([](auto& c) { c.meta = ttt::Policy::Meta::truncated; }), "cannot be truncated"));
  CHECK(contains(refuses([](auto& c) { c.window = 0; }), "window must be at least 1"));
  CHECK(contains(refuses([](auto& c) { c.rate_init = -1; }), "rate_init must be finite and not negative"));
  CHECK(
      contains(refuses([](auto& c) { c.rate_warmup_steps = -1; }), "rate_warmup_steps must not be negative"));
  CHECK(contains(refuses([](auto& c) { c.bos_token = 7; }), "one of 7 tokens, or -1"));
  for (const double clip : {HUGE_VAL, std::nan("")})
    CHECK(contains(refuses([&](auto& c) { c.clip = clip; }), "clip must be finite"));
  CHECK(contains(refuses([](auto& c) { c.num_attention_heads = 4; }), "an even dimension"));
  CHECK(contains(refuses([](auto& c) { c.rms_norm_eps = -1e-6; }), "rms_norm_eps must be finite and not"));
  for (const double theta : {0.0, -1.0, HUGE_VAL})
    CHECK(
        contains(refuses([&](auto& c) { c.rope_theta = theta; }), "rope_theta must be finite and positive"));
}

namespace {

LanguageModelConfig decoded(std::int64_t layers, std::int64_t window) {
  LanguageModelConfig c = small_model(kEndToEnd);
  c.vocab_size = 7, c.num_hidden_layers = layers, c.attention_window = window, c.mini_batch_size = 4;
  return c;
}

// -log softmax(logits)[label] of each sequence.
std::vector<double> losses_of(const Array& logits, const Array& labels) {
  return trace([](const Tensors& in) { return Tensors{cross_entropy(in[0], in[1])}; },
               {logits.spec(), labels.spec()})({logits, labels})[0]
      .to_vector();
}

}  // namespace

TEST_CASE("decoding, token by token with an inner step behind each chunk, is reading the whole") {
  constexpr std::int64_t kTime = 15;
  for (const auto& [layers, window] : {std::pair{1, 3}, {2, 1}, {5, 3}, {8, 6}, {8, 20}}) {
    CAPTURE_BOUND(layers);  // of 8 the last two learn
    CAPTURE_BOUND(window);
    const LanguageModelConfig config = decoded(layers, window);
    const Array tokens = random_tokens(2, kTime + 1, config.vocab_size);
    const TracedModel whole = traced(end_to_end_config(config), tokens.spec(), learnt_loss, false);
    const StateDict params = random_parameters(whole, DType::f64);
    const Array expected = whole.function(whole.bind({tokens}, {&params}))[0];
    Decoder decoder(config, params, DType::f64, 2);
    std::vector<Array> logits;
    for (std::int64_t t = 0; t < kTime; ++t) {
      logits.push_back(decoder.step(column(tokens, t)));
      const std::vector<double> found = losses_of(logits.back(), column(tokens, t + 1));
      for (std::int64_t b = 0; b < 2; ++b)
        CHECK(found[static_cast<std::size_t>(b)] ==
              doctest::Approx(expected.at(b * kTime + t)).epsilon(1e-12));
    }
    // Stopped anywhere and gone on, also where a chunk has ended and its step is still to be made.
    for (const std::int64_t stop : {3, 4, 8, 9}) {
      CAPTURE(stop);
      decoder.reset();
      for (std::int64_t t = 0; t < stop; ++t) decoder.step(column(tokens, t));
      const StateDict state = decoder.state();
      Decoder other(config, params, DType::f64, 2);
      other.restore(state, stop);
      for (std::int64_t t = stop; t < kTime; ++t)
        CHECK(other.step(column(tokens, t)).same_bits(logits[static_cast<std::size_t>(t)]));
    }
  }
}

TEST_CASE("steps in one program, which never come to the end of a chunk, and packed documents are refused") {
  const LanguageModelConfig config = decoded(2, 3);
  const auto refusal = [](const std::function<void(const Params&)>& reads) {
    return message_of<ConfigError>([&] {
      trace_model(DType::f64, {}, [&](ParamTable& table, const Tensors&) {
        reads(Params(table));
        return Tensors{zeros(DType::f64, {1})};
      });
    });
  };
  CHECK(contains(refusal([&](const Params& params) {
                   ttt::Stream stream(std::map<std::string, Tensor>{});
                   decoding_model(config, 16)(params, zeros(DType::i32, {1, 1}), stream);
                 }),
                 "steps that stand in one program never come to it"));
  CHECK(contains(refusal([&](const Params& params) {
                   ttt::Stream stream;
                   stream.pack(zeros(DType::f64, {1, 8}), 4);
                   next_token_loss(config, params, zeros(DType::i32, {1, 9}), stream);
                 }),
                 "reads one document in each"));
}

TEST_CASE("a token outside of the vocabulary teaches nothing, and the decoder can go on") {
  const LanguageModelConfig config = decoded(2, 3);
  const Array tokens = random_tokens(2, 6, config.vocab_size);
  const TracedModel whole = traced(end_to_end_config(config), tokens.spec(), learnt_loss, false);
  const StateDict params = random_parameters(whole, DType::f64);
  Decoder straight(config, params, DType::f64, 2), disturbed(config, params, DType::f64, 2);
  for (std::int64_t t = 0; t < 6; ++t) {
    Array wrong = column(tokens, t);
    wrong.as<std::int32_t>()[1] = 7;
    CHECK_THROWS_AS(disturbed.step(wrong), ValueError);
    CHECK(disturbed.step(column(tokens, t)).same_bits(straight.step(column(tokens, t))));
  }
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

// The promise: whatever runs out of memory throws, and leaves an object that goes on with right numbers, or says that it cannot. Each
// allocation of a call is made to fail, one after another; then the object is asked what it knows. Ends with 0, or says what is wrong.
#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <utility>

#include "engine/core/random.h"
#include "engine/core/threads.h"
#include "engine/plan/native.h"
#include "models/adaptation.h"
#include "models/decoder.h"
#include "models/language_model.h"
#include "models/streams.h"
#include "models/traced_model.h"
#include "nestgrad.h"

namespace {

// Allocations of this thread until one fails; below 0 none does. Another thread is the compiler's alone, whose memory does not fail.
thread_local long until_failure = -1;
bool fails() { return until_failure >= 0 && until_failure-- == 0; }

void* memory(std::size_t bytes, std::size_t alignment) noexcept {
  return fails() ? nullptr : std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}
void* memory_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const at = memory(bytes, alignment)) return at;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t n) { return memory_or_throw(n, 16); }
void* operator new(std::size_t n, std::align_val_t a) { return memory_or_throw(n, static_cast<std::size_t>(a)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return memory(n, 16); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return memory(n, static_cast<std::size_t>(a));
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }

using namespace nestgrad;

namespace {

int wrong = 0;

// Has act()'s allocations 0, stride, 2 stride, .. fail, until it has none left. right(): is everything as it says?
void each_failure(const std::string& name, long stride, const std::function<void()>& act, const std::function<bool()>& right) {
  long failed = 0;
  for (long n = 0;; n += stride) {
    until_failure = n;
    try {
      act();
    } catch (const std::bad_alloc&) {
    } catch (const Error&) {
    }
    const bool reached = until_failure < 0;
    until_failure = -1;
    if (!reached) break;
    ++failed;
    std::string why = "it goes on with other numbers";
    try {
      if (right()) continue;
    } catch (const std::exception& e) {
      why = e.what();
    }
    if (++wrong < 20) fmt::print("{}: after allocation {} failed: {}\n", name, n, why);
  }
  fmt::print("{}: {} failures\n", name, failed);
  if (failed == 0) ++wrong, fmt::print("{}: nothing failed, which shows nothing\n", name);
}

// True where `go_on` refuses in words.
bool refuses_or(const std::function<bool()>& go_on) {
  try {
    return go_on();
  } catch (const ConfigError&) {
    return true;
  }
}

void functions() {
  const Spec spec{DType::f32, {6, 6}};
  const Array x = random_normal(spec, 0, 1, 1, 0);
  const auto made = [&] {
    return trace(
        [](Tensor a) {
          const ScanResult r = scan(
              [](const std::vector<Tensor>& c, const std::vector<Tensor>& in) -> StepOutput {
                return {{c[0] * 0.5 + tanh(in[0])}, {sin(c[0])}};
              },
              {sum(a, {0})}, {a});
          return grad(sum(square(softmax(matmul(a, a), -1))) + sum(r.ys[0]), a);
        },
        spec);
  };
  const Array expected = made()(x);
  each_failure("trace", 5, [&] { made(); }, [&] { return made()(x).same_bits(expected); });
  const Function f = made();
  each_failure("a first call", 5, [&] { made()(x); }, [&] { return made()(x).same_bits(expected); });
  each_failure("a call", 1, [&] { f(x); }, [&] { return f(x).same_bits(expected); });
  // Where there is no compiler, what it was to make is interpreted.
  for (const Compile compile : {Compile::now, Compile::background}) {
    const auto run = [&] { return made().plan({.compile = compile}).run({x})[0]; };
    each_failure("a plan to be compiled", 3, [&] { run(); }, [&] { return wait_for_compiler(), run().same_bits(expected); });
  }
}

LanguageModelConfig small_model() {
  return {.vocab_size = 11, .hidden_size = 8, .intermediate_size = 12, .num_hidden_layers = 1, .num_attention_heads = 2, .ttt_layer_type = "linear", .mini_batch_size = 4};
}

constexpr std::int64_t kTokens = 10;

void decoders(const LanguageModelConfig& config, const StateDict& params) {
  const auto token = [](std::int64_t t) { return Array::of({static_cast<double>((3 * t + 1) % 11)}, {1}, DType::i32); };
  std::vector<Array> expected;
  Decoder d(config, params, DType::f32, 1);
  StateDict of_four;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    if (t == 4) of_four = d.state();
    expected.push_back(d.step(token(t)));
  }
  const auto right = [&] {
    return refuses_or([&] {
      const std::int64_t at = d.position();
      return d.step(token(at)).same_bits(expected[static_cast<std::size_t>(at)]);
    });
  };
  for (const std::int64_t at : {4, 5})  // behind a chunk, and within one
    each_failure(fmt::format("Decoder::step {}", at), 1,
                 [&] {
                   const long n = std::exchange(until_failure, -1);
                   d.restore(of_four, 4);
                   if (at == 5) d.step(token(4));
                   until_failure = n;
                   d.step(token(at));
                 },
                 right);
  const auto from_seven = [&](const std::function<void()>& act) {
    return [&, act] {
      const long n = std::exchange(until_failure, -1);
      d.restore(of_four, 4);
      for (std::int64_t t = 4; t < 7; ++t) d.step(token(t));
      until_failure = n;
      act();
    };
  };
  each_failure("Decoder::restore", 1, from_seven([&] { d.restore(of_four, 4); }), right);
  each_failure("Decoder::reset", 1, from_seven([&] { d.reset(); }), right);

  // Streams at different places, each with the rows of expected.
  const auto next_of = [](const Streams& s) {
    std::vector<std::int32_t> next;
    for (const Streams::Id id : s.ids()) next.push_back(static_cast<std::int32_t>((3 * s.position(id) + 1) % 11));
    return next;
  };
  const auto all_right = [&](Streams& s) {
    return refuses_or([&] {
      std::vector<std::int64_t> places;
      for (const Streams::Id id : s.ids()) places.push_back(s.position(id));
      const Array out = s.step(next_of(s));
      for (std::size_t i = 0; i < places.size(); ++i)
        for (std::int64_t v = 0; v < 11; ++v)
          if (out.at(static_cast<std::int64_t>(i) * 11 + v) != expected[static_cast<std::size_t>(places[i])].at(v)) return false;
      return true;
    });
  };
  std::optional<Streams> s;
  std::vector<std::int32_t> next;
  const auto with_streams = [&](const std::function<void()>& act) {
    return [&, act] {
      const long n = std::exchange(until_failure, -1);
      s.emplace(config, params, DType::f32);
      s->join();
      all_right(*s);
      s->join();
      for (int i = 0; i < 3; ++i) all_right(*s);
      s->join();
      next = next_of(*s);
      until_failure = n;
      act();
    };
  };
  each_failure("Streams::join", 1, with_streams([&] { s->join(); }), [&] { return all_right(*s); });
  each_failure("Streams::leave", 1, with_streams([&] { s->leave(s->ids()[1]); }), [&] { return all_right(*s); });
  each_failure("Streams::step", 41, with_streams([&] { s->step(next); }), [&] { return all_right(*s); });
}

void scorers(const LanguageModelConfig& config, const StateDict& params) {
  const std::vector<std::int32_t> segment{1, 4, 7, 10, 2, 5};
  AdaptingScorer scorer(config, params, {.what = Adapted::lora});
  std::vector<std::vector<double>> expected;
  for (int i = 0; i < 6; ++i) expected.push_back(scorer.score(segment));
  const auto right = [&] {
    return refuses_or([&] { return scorer.score(segment) == expected.at(static_cast<std::size_t>(scorer.steps())); });
  };
  const auto after_three = [&](const std::function<void()>& act) {
    return [&, act] {
      const long n = std::exchange(until_failure, -1);
      scorer.reset();
      for (int i = 0; i < 3; ++i) scorer.score(segment);
      until_failure = n;
      act();
    };
  };
  each_failure("AdaptingScorer::reset", 1, after_three([&] { scorer.reset(); }), right);
  each_failure("AdaptingScorer::score", 1, after_three([&] { scorer.score(segment); }), right);
}

}  // namespace

int main() {
  setenv("NESTGRAD_CXX", "/there/is/none", 1);
  set_thread_count(1);
  functions();
  const LanguageModelConfig config = small_model();
  const TracedModel model = trace_model(DType::f32, {{DType::i32, {1, 4}}}, [&](ParamTable& table, const std::vector<Tensor>& in) {
    ttt::Stream stream;
    return std::vector<Tensor>{LanguageModel(config, Params(table)).logits(in[0], stream)};
  });
  const StateDict params = initial_parameters(model.params, DType::f32, 1);
  decoders(config, params);
  scorers(config, params);
  fmt::print("{}\n", wrong == 0 ? "all well" : "something is wrong");
  return wrong == 0 ? 0 : 1;
}

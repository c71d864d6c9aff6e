// The promise (theorems 5.1 to 5.3): a learner with a linear, bias-free last layer is linear attention with
// effective queries, keys and values; as numbers, for any learner of that kind.
#include "ttt/effective_attention.h"

#include "tests/ttt/named_learners.h"
#include "ttt/compose.h"
#include "ttt/system.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::gate;
using ttt::InnerOptimizer;
using ttt::Policy;

namespace {

constexpr std::int64_t kBatch = 2, kHeads = 2, kTime = 11, kDim = 4;

struct Case {
  std::string name;
  ttt::Model (*model)(const Params&);
  ttt::InnerLoss loss;
  InnerOptimizer optimizer;
  Policy policy;
  bool position = false;
  std::int64_t time = kTime;
  std::vector<std::int64_t> begins =
      {};  // of the documents in each sequence; of the second they begin a chunk later
  std::int64_t align = 1;
};

ttt::Model two_layers(const Params& p) {
  return ttt::mlp(
      p, kHeads, {kDim, 6, kDim}, [](Tensor x) { return silu(x); }, "silu");
}
ttt::Model three_layers(const Params& p) {
  return ttt::mlp(
      p, kHeads, {kDim, kDim, 5, kDim}, [](Tensor x) { return tanh(x); }, "tanh");
}
ttt::Model swiglu(const Params& p) { return ttt::swiglu(p, {kHeads, kDim, 6, kDim}); }
ttt::Model one_layer(const Params& p) { return ttt::linear(p, {kHeads, kDim, 0, kDim}); }

Tensor starts_of(const Case& c) {
  std::vector<double> begins(static_cast<std::size_t>(kBatch * c.time));
  for (std::int64_t b = 0; b < kBatch; ++b) {
    begins[static_cast<std::size_t>(b * c.time)] = 1;
    for (const std::int64_t t : c.begins)
      begins[static_cast<std::size_t>(b * c.time + std::min(c.time - 1, t + b * c.align))] = 1;
  }
  return constant(Array::of(begins, {kBatch, 1, c.time, 1}));
}

// Output of the inner loop, and of its effective attention; then the pieces, and derivatives of both outputs.
Arrays both(const Case& c, std::uint64_t seed) {
  const Spec rows = f64({kBatch, kHeads, c.time, kDim}), one = f64({kBatch, kHeads, c.time, 1});
  ParamTable* table_of = nullptr;
  const Function f = trace(
      [&](const Tensors& in) {
        ParamTable table(*context().emit.graph, DType::f64);
        table_of = &table;
        const ttt::Composed learner(c.model(Params(table)), c.loss, c.optimizer);
        ttt::Views views{in[0],
                         in[1],
                         in[2],
                         read_by(c.optimizer, {{"rate", 0.4 * sigmoid(in[3])},
                                               {"beta", sigmoid(in[4])},
                                               {"forget", sigmoid(in[5] + 2.0)},
                                               {"decay", sigmoid(in[6] + 2.0)}}),
                         {}};
        if (c.position) views.position = exp(in[7]);
        if (!c.begins.empty()) views.starts = starts_of(c), views.alignment = c.align;
        const Weights start = ttt::for_batch(learner.init(), kBatch);
        const ttt::EffectiveAttention e = ttt::effective_attention(learner, start, views, c.policy);
        Tensors out{
            ttt::train_along(learner, start, views, {.policy = c.policy, .form = FormChoice::primal}).output,
            e.output(), e.matrix, matmul(e.queries * e.decay, e.base)};
        Tensors inputs = in;
        inputs.insert(inputs.end(), table.tensors().begin(), table.tensors().end());
        for (int i = 0; i < 2; ++i)
          for (const Tensor& g :
               grad(sum(sin(out[static_cast<std::size_t>(i)])), inputs, {.allow_zero = true}))
            out.push_back(g);
        return out;
      },
      {rows, rows, rows, one, one, one, rows, f64({4})});
  Arrays in;
  for (std::size_t i = 0; i < f.inputs().size(); ++i) in.push_back(random(f.input_spec(i), seed + i));
  return f(in);
}

Policy with(Policy p, Policy::Meta meta, std::int64_t horizon = 1) {
  p.meta = meta, p.horizon = horizon;
  return p;
}

std::vector<Case> cases() {
  const Policy online{.chunk = 1}, chunks{.chunk = 4};
  const Policy lact{.chunk = 4, .update = Policy::Update::per_chunk, .read = Policy::Read::before_write};
  Policy before = chunks, after = lact, mean = lact, silent = lact;
  before.read = Policy::Read::before_write;
  after.read = Policy::Read::after_write;
  mean.average = true;
  silent.partial_chunk_writes = false;
  silent.read = Policy::Read::after_write;
  const InnerOptimizer plain, momentum = InnerOptimizer().momentum(gate("beta")),
                              titans = InnerOptimizer().momentum(gate("beta")).keep(gate("forget")),
                              nesterov = InnerOptimizer().momentum(0.7, true),
                              gla = InnerOptimizer().keep(gate("decay"));
  Policy last_only = chunks;
  last_only.trained = {"W2"};
  // Position rates as long as a sequence and weights as wide as a chunk: nothing can be told by size.
  const InnerOptimizer by_input = InnerOptimizer().scale(gate("decay"));
  Policy silent_before = silent;
  silent_before.read = Policy::Read::before_write;
  return {
      {"two layers, online", two_layers, ttt::half_squared_error(), plain, online},
      {"two layers, chunks", two_layers, ttt::inner_product(), plain, chunks},
      {"two layers, position rates", two_layers, ttt::half_squared_error(), plain, chunks, true},
      {"two layers, position rates, before", two_layers, ttt::half_squared_error(), plain, before, true},
      {"three layers, momentum by token", three_layers, ttt::half_squared_error(), momentum, chunks},
      {"three layers, Titans, read before write", three_layers, ttt::huber(), titans, before},
      {"SwiGLU, Nesterov", swiglu, ttt::inner_product(), nesterov, chunks},
      {"one layer, diagonal gates", one_layer, ttt::half_squared_error(), gla, chunks},
      {"only the last layer learns", two_layers, ttt::cosine(), momentum, last_only},
      {"a step per chunk, before", swiglu, ttt::inner_product(), plain, lact},
      {"a step per chunk, after, momentum", swiglu, ttt::inner_product(), momentum, after},
      {"a step per chunk, mean, Titans", two_layers, ttt::half_squared_error(), titans, mean},
      {"a step per chunk, the rest does not write", two_layers, ttt::half_squared_error(), momentum, silent},
      {"less than a chunk, which does not write", two_layers, ttt::half_squared_error(), momentum, silent,
       false, 3},
      {"the same, before", swiglu, ttt::inner_product(), plain, silent_before, false, 3},
      {"less than a chunk", two_layers, ttt::half_squared_error(), momentum, after, false, 3},
      {"less than a chunk, position rates", two_layers, ttt::half_squared_error(), plain, chunks, true, 3},
      {"position rates, a factor per input", one_layer, ttt::half_squared_error(), by_input, chunks, true},
      {"the same, of one chunk", one_layer, ttt::half_squared_error(), by_input, chunks, true, 4},
      {"the same, before", one_layer, ttt::half_squared_error(), by_input, before, true},
      {"an anchor", two_layers, ttt::half_squared_error(), InnerOptimizer().anchor(0.3), chunks},
      {"an anchor that follows", one_layer, ttt::half_squared_error(),
       InnerOptimizer().momentum(gate("beta")).keep(gate("decay")).anchor(gate("forget"), {.follow = 0.2}),
       before},
      {"an anchor, a step per chunk", swiglu, ttt::inner_product(),
       InnerOptimizer().anchor(gate("beta"), {.follow = 0.4}), silent},
      {"first-order", two_layers, ttt::half_squared_error(), momentum,
       with(chunks, Policy::Meta::first_order)},
      {"first-order, a step per chunk", swiglu, ttt::half_squared_error(), titans,
       with(lact, Policy::Meta::first_order)},
      {"first-order, online", one_layer, ttt::half_squared_error(), gla,
       with(online, Policy::Meta::first_order)},
      {"a horizon that no cut reaches", two_layers, ttt::half_squared_error(), plain,
       with(chunks, Policy::Meta::truncated, 3)},
      {"packed", two_layers, ttt::half_squared_error(), plain, chunks, false, kTime, {4}, 4},
      {"packed, online", three_layers, ttt::half_squared_error(), titans, online, false, kTime, {2, 5}, 1},
      {"packed, position rates", two_layers, ttt::half_squared_error(), plain, chunks, true, kTime, {4}, 4},
      {"packed, before, an anchor",
       one_layer,
       ttt::half_squared_error(),
       InnerOptimizer().keep(gate("decay")).anchor(0.2),
       before,
       false,
       kTime,
       {4},
       4},
      {"packed, a step per chunk", swiglu, ttt::inner_product(), momentum, silent, false, kTime, {4}, 4},
      {"packed, a step per chunk, before",
       two_layers,
       ttt::half_squared_error(),
       titans,
       mean,
       false,
       kTime,
       {4},
       4},
  };
}

}  // namespace

TEST_CASE(
    "what is left of the start has the shape of queries, or one feature, whatever the optimiser forgets by") {
  for (const auto& [name, features] :
       {std::pair{"linear-attention", 1}, {"mamba-2", 1}, {"gated-linear-attention", 4}}) {
    CAPTURE_BOUND(name);
    const ttt::System& system = ttt::system_named(name);
    const ttt::ProgramSizes sizes{.batch = 2, .heads = 3, .dim = 4, .time = 5};
    const Function f = ttt::trace_system(system, sizes, DType::f64, [](const ttt::SystemProgram& p) {
      return Tensors{ttt::effective_attention(*p.learner, p.start, p.views, p.policy).decay};
    });
    CHECK(f.output_spec(0).shape == Shape{2, 3, 5, features});
  }
}

TEST_CASE("effective attention is the learner: depth, momentum, decay, chunks, random numbers" *
          doctest::test_suite("slow")) {
  for (const Case& c : cases())
    for (std::uint64_t seed : {1, 20, 300}) {
      CAPTURE(c.name);
      const Arrays r = both(c, seed);
      CHECK(relative_error(r[1], r[0]) < 1e-12);
      for (std::size_t i = 4, half = (r.size() - 4) / 2; i < 4 + half; ++i) {
        CAPTURE(i);
        CHECK(relative_error(r[i + half], r[i], 1e-3) < 1e-10);
      }
      // Both parts matter, or nothing was tested.
      CHECK((relative_error(r[3], r[0]) > 1e-3) == c.policy.writes(std::min(c.time, c.policy.chunk), c.time));
    }
}

TEST_CASE(
    "KV binding is linear attention, though a bound of its rates reads the last layer's weight as well") {
  const ttt::System& system = ttt::system_named("kv-binding");
  for (const std::int64_t chunk : {1, 4}) {
    CAPTURE(chunk);
    const Function f = ttt::trace_system(
        system, {.time = kTime, .chunk = chunk}, DType::f64, [](const ttt::SystemProgram& p) {
          const ttt::EffectiveAttention e = ttt::effective_attention(*p.learner, p.start, p.views, p.policy);
          return Tensors{
              ttt::train_along(*p.learner, p.start, p.views, {.policy = p.policy, .form = FormChoice::primal})
                  .output,
              e.output(), matmul(e.queries * e.decay, e.base)};
        });
    const Arrays r = f(ttt::numbers_for(f, 3));
    CHECK(relative_error(r[1], r[0]) < 1e-12);
    CHECK(relative_error(r[2], r[0]) > 1e-3);  // what is learnt is part of it
  }
}

TEST_CASE("the matrix is zero where a token cannot have been read yet") {
  for (const Case& c : cases()) {
    if (!c.policy.causal()) continue;
    CAPTURE(c.name);
    const std::vector<double> m = both(c, 5)[2].to_vector();
    for (std::size_t i = 0; i < m.size(); ++i) {
      const auto time = static_cast<std::size_t>(c.time);
      const std::size_t t = i / time % time, s = i % time;
      if (s > t || (s == t && c.policy.read == Policy::Read::before_write)) CHECK(m[i] == 0);
    }
  }
}

TEST_CASE("effective attention: what a matrix over all tokens does not have is refused") {
  const auto refusal = [](const Policy& policy, std::int64_t align) {
    return message_of<FormError>([&] {
      both({"", one_layer, ttt::half_squared_error(), {}, policy, false, kTime, {4}, align}, 1);
    });
  };
  CHECK(contains(refusal(with({.chunk = 4}, Policy::Meta::truncated, 2), 4),
                 "the meta-gradient is cut every 2 chunks"));
  CHECK(contains(refusal({.chunk = 4}, 2), "packed documents begin at multiples of 2 tokens"));
}

TEST_CASE("a last layer that is not linear and bias-free, or a step that is not linear, is refused by name") {
  const auto message = [](const ttt::Learner& (*)(), const auto& make) {
    return message_of<FormError>([&] {
      trace(
          [&](const Tensors& in) {
            ParamTable table(*context().emit.graph, DType::f64);
            const std::unique_ptr<ttt::Learner> learner = make(Params(table));
            const ttt::Views views{in[0], in[0], in[0], {}, {}};
            return Tensors{ttt::effective_attention(*learner, ttt::for_batch(learner->init(), kBatch), views,
                                                    {.chunk = 4})
                               .matrix};
          },
          {f64({kBatch, kHeads, kTime, kDim})});
    });
  };
  CHECK(contains(
      message(nullptr, [](const Params& p) { return std::make_unique<ttt::Linear>(p, kHeads, kDim); }),
      "the last layer is not linear and bias-free"));
  CHECK(contains(message(nullptr,
                         [](const Params& p) {
                           return std::make_unique<ttt::Composed>(one_layer(p), ttt::half_squared_error(),
                                                                  InnerOptimizer().weight_norm());
                         }),
                 "the step is not linear"));
}

// The promise: a layer whose sequences are cut in time is the layer that reads them whole, also where its meta-gradient is cut and
// where slices are not whole chunks, to second order; a way that would not be is refused with the reason.
#include "ttt/slices.h"

#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "engine/processes/threads.h"
#include "ops/collectives.h"
#include "tests/lent_transport.h"
#include "tests/testing.h"
#include "ttt/layer.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::gate;
using ttt::InnerLoss;
using ttt::InnerOptimizer;
using ttt::Policy;
using ttt::SliceForm;

namespace {

constexpr std::int64_t kBatch = 2, kDim = 4;
using Meta = Policy::Meta;

struct Case {
  std::string name;
  Policy policy;
  std::int64_t tokens;  // of a slice
  int slices = 2;
  InnerLoss loss = ttt::half_squared_error();
  InnerOptimizer optimizer = {};
};

ttt::System system_of(const Case& c) {
  ttt::System s;
  s.name = s.title = "of a test";
  s.learner = [c](const Params& p, const ttt::SystemSizes& z) {
    return std::make_unique<ttt::Composed>(ttt::linear(p, {z.heads, z.dim, 0, z.dim}), c.loss, c.optimizer);
  };
  s.policy = [c](const ttt::SystemSizes&) { return c.policy; };
  s.gates.push_back({.name = "rate", .shape = [](Tensor raw) { return 0.3 * sigmoid(raw); }});
  for (const std::string& name : c.optimizer.gates())
    s.gates.push_back({.name = name, .shape = [](Tensor raw) { return sigmoid(raw); }});
  return s;
}

// A loss of a layer with one head, gradients of its parameters, and those of the sum of their squares.
TracedModel traced(const Case& c, std::int64_t tokens, SliceForm form, const ProcessGroup* ranks) {
  return trace_model(DType::f64, {f64({kBatch, tokens, kDim})}, [&](ParamTable& table, const Tensors& in) {
    Params params(table);
    ttt::Stream stream;
    Tensor x = in[0];
    if (ranks) {
      stream.cut(*ranks, form);
      x = own(x, *ranks);
      params = params.through(
          [whole = params, ranks](const Params::Request& r) { return vary(whole.get(r), *ranks); });
    }
    ttt::TTTLayerOptions options{.width = kDim, .heads = 1};
    const ttt::TTTLayer layer(params, options, std::make_unique<ttt::ProjectedViews>(params, kDim),
                              system_of(c), "layer");
    const Tensor y = layer(x, stream);
    Tensor loss = sum(square(y) * 0.5 + sin(3.0 * y));
    if (ranks) loss = all_sum(loss, *ranks);
    Tensors out{loss};
    for (int order = 1; order <= 2; ++order) {
      const Tensors g = grad(loss, table.tensors(), {.allow_zero = true});
      out.insert(out.end(), g.begin(), g.end());
      loss = sum(square(g[0]));
      for (std::size_t i = 1; i < g.size(); ++i) loss = loss + sum(square(g[i]));
    }
    return out;
  });
}

void check(const Case& c, SliceForm form) {
  CAPTURE(c.name);
  CAPTURE(name(form));
  const std::int64_t time = c.tokens * c.slices;
  const TracedModel whole = traced(c, time, form, nullptr);
  const StateDict params = initial_parameters(whole.params, DType::f64, 5);
  const Array x = random(f64({kBatch, time, kDim}), 3);
  const Arrays expected = whole.function(whole.bind({x}, {&params}));
  std::mutex mutex;
  run_as_processes(c.slices, [&](Transport& rank) {
    const ProcessGroup group(lent(rank));
    const TracedModel mine = traced(c, c.tokens, form, &group);
    const std::int64_t begin = rank.rank() * c.tokens;
    const Function part =
        trace(TraceFn([&](const Tensors& t) { return Tensors{slice(t[0], 1, begin, begin + c.tokens)}; }),
              {x.spec()});
    const Arrays got = mine.function(mine.bind({part({x})[0]}, {&params}));
    const std::lock_guard lock(mutex);
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double error = relative_error(got[i], expected[i], 1e-3);
      CHECK_MESSAGE(error < 1e-9, "output " << i << " of " << got.size() << ": " << error);
    }
  });
}

// Why a way is refused; empty if it is not.
std::string refused(const Case& c, SliceForm form) {
  std::string why;
  run_as_processes(c.slices, [&](Transport& rank) {
    const ProcessGroup group(lent(rank));
    try {
      traced(c, c.tokens, form, &group);
    } catch (const ConfigError& e) {
      if (rank.rank() == 0) why = e.what();
    }
  });
  return why;
}

Policy per_chunk(std::int64_t chunk) {
  return {.chunk = chunk, .update = Policy::Update::per_chunk, .read = Policy::Read::before_write};
}
Policy with(Policy p, Meta meta, std::int64_t horizon = 1) {
  p.meta = meta, p.horizon = horizon;
  return p;
}

}  // namespace

TEST_CASE("slices: a meta-gradient that is cut is that of the whole, and cut laws are not exchanged") {
  const InnerLoss linear = ttt::inner_product();
  for (const Case& c : {
           Case{"delta, cut within a slice", with({.chunk = 1}, Meta::truncated, 8), 12},
           Case{"delta, cuts at no border", with({.chunk = 1}, Meta::truncated, 4), 6, 3},
           Case{"delta, cut at every border", with({.chunk = 1}, Meta::truncated, 3), 6},
           Case{"delta, a horizon of two slices", with({.chunk = 1}, Meta::truncated, 6), 3, 4},
           Case{"linear, cuts at no border", with({.chunk = 1}, Meta::truncated, 4), 6, 2, linear},
           Case{"a chunk is a slice", with({.chunk = 3}, Meta::truncated, 2), 3, 4},
           Case{"chunks, cut at each", with({.chunk = 3}, Meta::truncated, 1), 6},
           Case{"a step per chunk", with(per_chunk(2), Meta::truncated, 3), 4, 3},
           Case{"momentum", with({.chunk = 2}, Meta::truncated, 3), 4, 2, linear,
                InnerOptimizer().keep(gate("forget")).momentum(0.5)},
       }) {
    check(c, SliceForm::pipeline);
    const std::string why = refused(c, SliceForm::exchange);
    CHECK_MESSAGE(contains(why, "exchange: its meta-gradient is cut every"), why);
  }
  check({"automatic", with({.chunk = 1}, Meta::truncated, 4), 4, 6, linear}, SliceForm::automatic);

  const Case first{"first-order", with({.chunk = 3}, Meta::first_order), 6};
  check(first, SliceForm::pipeline);
  CHECK(contains(refused(first, SliceForm::exchange), "exchange: its meta-gradient is first-order"));
  const Case linear_first{"first-order, linear", with({.chunk = 3}, Meta::first_order), 6, 2, linear};
  for (const SliceForm form : {SliceForm::pipeline, SliceForm::exchange}) check(linear_first, form);
}

TEST_CASE("slices that are not whole chunks are refused, unless the learner knows of no chunks") {
  const InnerLoss linear = ttt::inner_product();
  for (const auto& [c, why] : {
           std::pair{Case{"delta", {.chunk = 3}, 8}, "slices of 8 tokens are not whole chunks of 3"},
           std::pair{Case{"delta, shorter than a chunk", {.chunk = 8}, 6},
                     "slices of 6 tokens are not whole"},
           std::pair{Case{"delta, the whole", {.chunk = Policy::kWholeSequence}, 6},
                     "it learns from the whole"},
           std::pair{Case{"a step per chunk", per_chunk(3), 4, 2, linear},
                     "slices of 4 tokens are not whole"},
           std::pair{Case{"cut", with({.chunk = 3}, Meta::truncated), 4, 2, linear},
                     "slices of 4 tokens are not whole"},
       }) {
    CAPTURE_BOUND(c.name);
    for (const SliceForm form : {SliceForm::pipeline, SliceForm::exchange, SliceForm::automatic}) {
      const std::string text = refused(c, form);
      CHECK_MESSAGE(contains(text, why), text);
    }
  }
  const InnerOptimizer gla = InnerOptimizer().keep(gate("forget")).momentum(0.5);
  for (const Case& c :
       {Case{"linear", {.chunk = 3}, 8, 2, linear}, Case{"longer", {.chunk = 8}, 5, 2, linear},
        Case{"gates", {.chunk = 3}, 4, 4, linear, gla},
        Case{"the whole", {.chunk = Policy::kWholeSequence}, 5, 2, linear},
        Case{"first-order", with({.chunk = 3}, Meta::first_order), 4, 2, linear}})
    for (const SliceForm form : {SliceForm::pipeline, SliceForm::exchange}) check(c, form);
}

TEST_CASE("slices: laws are held against numbers of the caller's own policy and the learner's own size") {
  // Affine, and columns do not meet; but the derivative is not that of what is computed.
  const InnerLoss stopped{"1/2 |p - v + 1/2 stop(p)|^2", [](Tensor p, Tensor v) {
                            return 0.5 * sum(square(p - v + 0.5 * stop_gradient(p)), {-1}, true);
                          }};
  const Case c{"stopped", {.chunk = 1}, 4, 2, stopped};
  const std::string why = refused(c, SliceForm::exchange);
  CHECK_MESSAGE(contains(why, "its derivative depends on it, or does not know all that does"), why);
  check(c, SliceForm::pipeline);
}

TEST_CASE("slices: laws are not exchanged where a token's step goes by the side of a kink that it is on") {
  // The derivative by the weights is that of the identity on both sides; which one it is depends on them.
  for (const InnerLoss& loss :
       {InnerLoss{"max(v - p, 0)", [](Tensor p, Tensor v) { return sum(max(v - p, 0.0), {-1}, true); }},
        InnerLoss{"|p - v|", [](Tensor p, Tensor v) { return sum(abs(p - v), {-1}, true); }}}) {
    for (const std::int64_t tokens : {1, 4}) {
      const Case c{loss.text, {.chunk = 1}, tokens, 2, loss};
      const std::string why = refused(c, SliceForm::exchange);
      CHECK_MESSAGE(contains(why, "does not know all that does (a comparison, stop_gradient)"), why);
      check(c, SliceForm::pipeline);
      check(c, SliceForm::automatic);
    }
  }
}

TEST_CASE("parts of a sequence, one after the other, have the truncated meta-gradient of the whole") {
  constexpr std::int64_t kTime = 12, kChunk = 2;
  const ttt::InnerLoopOptions options{.policy = with({.chunk = kChunk}, Meta::truncated, 2)};
  for (const std::int64_t cut : {2, 6, 8}) {
    CAPTURE(cut);
    const Function f = trace(
        TraceFn([&](const Tensors& in) {
          const ttt::Composed learner({"x W", ttt::Weights({ttt::matrix("W", in[3])}),
                                       [](const ttt::Weights& w, Tensor x) { return matmul(x, w["W"]); }},
                                      ttt::half_squared_error());
          const ttt::Weights start = ttt::for_batch(learner.init(), kBatch);
          const ttt::Views all{in[0], in[1], in[2], {{"rate", 0.3 * sigmoid(in[4])}}};
          ttt::InnerLoopOptions later = options;
          later.chunks_before = constant(Array::of({static_cast<double>(cut / kChunk)}, {1}));
          const ttt::InnerLoopResult first =
              ttt::train_along(learner, start, ttt::part(all, 0, cut), options);
          const Tensor whole = ttt::train_along(learner, start, all, options).output;
          Tensors out;
          const ttt::InnerLoopResult second =
              ttt::train_along(learner, first.state, ttt::part(all, cut, kTime), later);
          for (const Tensor& y : {whole, concat({first.output, second.output}, 2)}) {
            out.push_back(y);
            for (const Tensor& g : grad(sum(sin(y)), in)) out.push_back(g);
          }
          return out;
        }),
        {f64({kBatch, 1, kTime, kDim}), f64({kBatch, 1, kTime, kDim}), f64({kBatch, 1, kTime, kDim}),
         f64({1, kDim, kDim}), f64({kBatch, 1, kTime, 1})});
    Arrays in;
    for (std::size_t i = 0; i < f.inputs().size(); ++i) in.push_back(random(f.input_spec(i), 5 + i));
    const Arrays r = f(in);
    for (std::size_t i = 0; i < r.size() / 2; ++i)
      CHECK(relative_error(r[i + r.size() / 2], r[i], 1e-3) < 1e-10);
  }
}

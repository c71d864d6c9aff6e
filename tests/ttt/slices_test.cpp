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
#include "ttt/attention.h"
#include "ttt/explain.h"
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
  std::function<std::unique_ptr<ttt::Learner>(const Params&, const ttt::SystemSizes&)> learner = {};
  std::int64_t heads = 1;
  double largest = 1;  // of the layer's inputs
  std::int64_t width() const { return heads * kDim; }
};

// x W, with a loss as a test writes it.
class OwnLoss : public ttt::Learner {
 public:
  using Loss = std::function<Tensor(const ttt::Weights&, Tensor k, Tensor v)>;
  OwnLoss(Tensor w, Loss loss) : w_(w), loss_(std::move(loss)) {}
  ttt::Weights init() const override { return ttt::Weights({ttt::matrix("W", w_)}); }
  Tensor predict(const ttt::Weights& w, Tensor x) const override { return matmul(x, w["W"]); }
  Tensor loss(const ttt::Weights& w, Tensor k, Tensor v) const override { return loss_(w, k, v); }
  Description describe() const override { return {"x W", "of a test"}; }

 private:
  Tensor w_;
  Loss loss_;
};
auto own_loss(OwnLoss::Loss loss) {
  return [loss = std::move(loss)](const Params& p, const ttt::SystemSizes& z) {
    return std::make_unique<OwnLoss>(p("W", {z.heads, z.dim, z.dim}, Init::normal(0.3)), loss);
  };
}
ttt::System system_of(const Case& c) {
  ttt::System s;
  s.name = s.title = "of a test";
  s.learner = [c](const Params& p, const ttt::SystemSizes& z) -> std::unique_ptr<ttt::Learner> {
    if (c.learner) return c.learner(p, z);
    return std::make_unique<ttt::Composed>(ttt::linear(p, {z.heads, z.dim, 0, z.dim}), c.loss, c.optimizer);
  };
  s.policy = [c](const ttt::SystemSizes&) { return c.policy; };
  s.gates.push_back({.name = "rate", .shape = [](Tensor raw) { return 0.3 * sigmoid(raw); }});
  for (const std::string& name : c.optimizer.gates())
    s.gates.push_back({.name = name, .shape = [](Tensor raw) { return sigmoid(raw); }});
  return s;
}

// A loss of a layer, gradients of its parameters, and those of the sum of their squares.
TracedModel traced(const Case& c, std::int64_t tokens, SliceForm form, const ProcessGroup* ranks) {
  return trace_model(
      DType::f64, {f64({kBatch, tokens, c.width()})}, [&](ParamTable& table, const Tensors& in) {
        Params params(table);
        ttt::Stream stream;
        Tensor x = in[0];
        if (ranks) {
          stream.cut(*ranks, form);
          x = own(x, *ranks);
          params = params.through(
              [whole = params, ranks](const Params::Request& r) { return vary(whole.get(r), *ranks); });
        }
        ttt::TTTLayerOptions options{.width = c.width(), .heads = c.heads};
        const ttt::TTTLayer layer(params, options, std::make_unique<ttt::ProjectedViews>(params, c.width()),
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
  const Array x = random(f64({kBatch, time, c.width()}), 3, -c.largest, c.largest);
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

TEST_CASE("slices: laws are not exchanged whose derivative is not that of what is computed") {
  const InnerLoss stopped{"1/2 |p - v + 1/2 stop(p)|^2", [](Tensor p, Tensor v) {
                            return 0.5 * sum(square(p - v + 0.5 * stop_gradient(p)), {-1}, true);
                          }};
  const Case c{"stopped", {.chunk = 1}, 4, 2, stopped};
  const std::string why = refused(c, SliceForm::exchange);
  CHECK_MESSAGE(contains(why, "its derivative depends on it, or does not know all that does"), why);
  check(c, SliceForm::pipeline);
}

TEST_CASE("slices: laws are not exchanged where a function has a rule of its own") {
  // Of small predictions the rule is the derivative; of large ones it is not, and knows nothing of the state.
  const InnerLoss ruled{
      "1/2 |bend(p) - v|^2", [](Tensor p, Tensor v) {
        const Tensor bent =
            custom_vjp([](const Tensors& in) { return in[0] + 1e-3 * square(max(abs(in[0]) - 50.0, 0.0)); },
                       [](const Tensors&, Tensor, Tensor ct) { return Tensors{ct}; }, {p});
        return 0.5 * sum(square(bent - v), {-1}, true);
      }};
  const Case c{"ruled", {.chunk = 1}, 4, 2, ruled};
  const std::string why = refused(c, SliceForm::exchange);
  CHECK_MESSAGE(contains(why, "exchange: a function has a rule of its own (custom_vjp)"), why);
  check(c, SliceForm::automatic);
}

TEST_CASE("slices: that columns of a state do not meet is seen on the trace, whatever numbers there are") {
  // They meet for long keys alone, which no small numbers say. The state stays affine in the first.
  const Case far{.name = "columns meet for long keys",
                 .policy = {.chunk = 2},
                 .tokens = 4,
                 .slices = 4,
                 .learner = own_loss([](const ttt::Weights& w, Tensor k, Tensor v) {
                   const Tensor p = matmul(k, w["W"]);
                   const Tensor is_far = max(sum(square(k), {-1}, kKeep) - 30.0, 0.0);
                   return 0.5 * sum(square(p - v), {-1}, kKeep) +
                          0.001 * is_far * square(sum(p, {-1}, kKeep));
                 }),
                 .largest = 200};
  std::string why = refused(far, SliceForm::exchange);
  CHECK_MESSAGE(contains(why, "exchange: columns of a state meet"), why);
  check(far, SliceForm::automatic);
  // Each column forgets as fast as its own value says: no one matrix moves them all.
  const Case columns{.name = "columns are moved each by its own value",
                     .policy = {.chunk = 1},
                     .tokens = 4,
                     .learner = own_loss([](const ttt::Weights& w, Tensor k, Tensor v) {
                       return 0.5 * sum(square((matmul(k, w["W"]) - v) * v), {-1}, kKeep);
                     })};
  why = refused(columns, SliceForm::exchange);
  CHECK_MESSAGE(contains(why, "columns of a state meet, or are not moved alike"), why);
  check(columns, SliceForm::automatic);
}

TEST_CASE("slices by heads: a learner of some heads that is not their part of the whole one's is not taken") {
  const auto forgetting = [](const Params& p, const ttt::SystemSizes& z) {
    std::vector<double> gamma;
    for (int h = 0; h < z.heads; ++h) gamma.push_back(1 - std::pow(2, -1 - h));
    const Tensor kept = constant(Array::of(gamma, {z.heads, 1, 1}, p.dtype()));
    return std::make_unique<ttt::Composed>(ttt::linear(p, {z.heads, z.dim, 0, z.dim}), ttt::inner_product(),
                                           InnerOptimizer().keep(ttt::Hyper(kept)));
  };
  // x W that starts with what is made of the parameter.
  const auto starting_with = [](const std::function<Tensor(Tensor w, const ttt::SystemSizes&)>& made) {
    return [made](const Params& p, const ttt::SystemSizes& z) {
      const Tensor start = made(p("W", {z.heads, z.dim, z.dim}, Init::normal(0.3)), z);
      return std::make_unique<ttt::Composed>(
          ttt::Model{"x W", ttt::Weights({ttt::matrix("W", start)}),
                     [](const ttt::Weights& w, Tensor x) { return matmul(x, w["W"]); }},
          ttt::half_squared_error());
    };
  };
  Case c{.policy = {.chunk = 2}, .tokens = 4, .heads = 4};
  for (const auto& [name, learner, wanted] : {
           std::tuple{"RetNet's forgetting", decltype(Case::learner)(forgetting),
                      "one is told from another by its place"},
           {"a start by the number of heads", starting_with([](Tensor w, const ttt::SystemSizes&z) {
              return w * (1.0 / static_cast<double>(z.heads));
            }),
            "a learner of fewer heads is not that part"},
           {"starts of which the mean is none",
            starting_with([](Tensor w, const ttt::SystemSizes&) { return w - mean(w, {0}, kKeep); }),
            "heads meet"},
       }) {
    for (const int slices : {2, 4}) {
      CAPTURE(slices);
      c.name = name, c.learner = learner, c.slices = slices;
      const std::string why = refused(c, SliceForm::heads);
      CHECK_MESSAGE(contains(why, "heads: "), why);
      CHECK_MESSAGE(contains(why, wanted), why);
      check(c, SliceForm::automatic);
    }
  }
}

TEST_CASE(
    "slices by heads: every published learner of some heads is proved to be their part of the whole one's") {
  for (const ttt::System& system : ttt::systems())
    for (const std::int64_t heads : {2, 4}) {
      CAPTURE(system.name);
      CAPTURE(heads);
      const ttt::ProgramSizes sizes{.batch = 2, .heads = heads, .dim = 4, .time = 16, .chunk = 4};
      const ttt::Explanation found = ttt::explain(system, sizes, ttt::FormChoice::automatic, 2);
      REQUIRE(found.slices);
      CHECK_MESSAGE(found.slices->form == SliceForm::heads, found.slices->str());
    }
}

TEST_CASE("slices: each sequence of a batch begins with a start of its own") {
  constexpr std::int64_t kTokens = 4;
  const ttt::InnerLoopOptions options{.policy = {.chunk = 2}};
  const auto answers = [&](std::int64_t tokens, const ProcessGroup* ranks, SliceForm form) {
    std::vector<Spec> specs(3, f64({kBatch, 1, tokens, kDim}));
    specs.push_back(f64({kBatch, 1, kDim, kDim}));
    return trace(
        TraceFn([&](const Tensors& given) {
          Tensors in = given;
          if (ranks)
            for (std::size_t i = 0; i < in.size(); ++i)
              in[i] = i < 3 ? own(in[i], *ranks) : vary(in[i], *ranks);
          const ttt::Composed learner({"x W", ttt::Weights({ttt::matrix("W", slice(in[3], 0, 0, 1))}),
                                       [](const ttt::Weights& w, Tensor x) { return matmul(x, w["W"]); }},
                                      ttt::half_squared_error());
          const ttt::Weights start({ttt::matrix("W", in[3])});
          const ttt::Views views{
              in[0], in[1], in[2], {{"rate", full(DType::f64, {kBatch, 1, tokens, 1}, 0.2)}}};
          const Tensor y = ranks ? ttt::train_along_slices(learner, start, views, options, *ranks, form)
                                 : ttt::train_along(learner, start, views, options).output;
          const Tensor loss = sum(sin(y));
          return Tensors{y, grad(ranks ? all_sum(loss, *ranks) : loss, given[3])};
        }),
        specs);
  };
  const Function whole = answers(2 * kTokens, nullptr, {});
  Arrays in;
  for (std::size_t i = 0; i < 4; ++i) in.push_back(random(whole.input_spec(i), 5 + i));
  const Arrays expected = whole(in);
  const auto tokens_of = [&](const Array& a, int rank) {
    const std::int64_t begin = rank * kTokens;
    return trace(TraceFn([&](const Tensors& t) { return Tensors{slice(t[0], 2, begin, begin + kTokens)}; }),
                 {a.spec()})({a})[0];
  };
  for (const SliceForm form : {SliceForm::pipeline, SliceForm::exchange}) {
    CAPTURE(name(form));
    std::mutex mutex;
    run_as_processes(2, [&](Transport& rank) {
      const ProcessGroup group(lent(rank));
      Arrays own_tokens;
      for (std::size_t i = 0; i < 3; ++i) own_tokens.push_back(tokens_of(in[i], rank.rank()));
      own_tokens.push_back(in[3]);
      const Arrays got = answers(kTokens, &group, form)(own_tokens);
      const std::lock_guard lock(mutex);
      CHECK(max_error({got[0]}, {tokens_of(expected[0], rank.rank())}) < 1e-10);
      CHECK(max_error({got[1]}, {expected[1]}) < 1e-10);
    });
  }
}

TEST_CASE("slices: attention whose heads or groups they do not divide says so of both") {
  const auto why = [](std::int64_t heads, std::int64_t groups) {
    std::string text;
    run_as_processes(2, [&](Transport& rank) {
      const ProcessGroup group(lent(rank));
      const Spec q = f64({1, heads, 4, kDim}), k = f64({1, groups, 4, kDim});
      const std::string refusal = message_of<ConfigError>([&] {
        trace(TraceFn([&](const Tensors& in) {
                ttt::Stream stream;
                stream.cut(group);
                return Tensors{ttt::attention_along(own(in[0], group), own(in[1], group), own(in[2], group),
                                                    {}, stream, "block 3")};
              }),
              {q, k, k});
      });
      if (rank.rank() == 0) text = refusal;
    });
    return text;
  };
  for (const auto& [heads, groups] : {std::pair{4, 1}, std::pair{3, 3}}) {
    const std::string text = why(heads, groups), wanted = fmt::format(
                                                     "'block 3' has {} heads, and {} groups of "
                                                     "keys and values, which 2 slices of a sequence "
                                                     "cannot share equally",
                                                     heads, groups);
    CHECK_MESSAGE(contains(text, wanted), text);
  }
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

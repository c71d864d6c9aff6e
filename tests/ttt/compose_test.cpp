// The promise: the pieces of a learner are their formulas, differentiable wherever the inner loop takes them;
// and what does not fit together is refused in words.
#include "ttt/compose.h"

#include "autograd/grad.h"
#include "tests/ops/check_grads.h"
#include "tests/ttt/methods.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::gate;
using ttt::InnerLoss;
using ttt::Model;
using Read = Policy::Read;
using Update = Policy::Update;

namespace {

struct Named {
  InnerLoss loss;
  std::function<double(const std::vector<double>& p, const std::vector<double>& v)> number;  // of one token
};
double sum_of(const std::vector<double>& p, const std::vector<double>& v,
              const std::function<double(double p, double v)>& f) {
  double out = 0;
  for (std::size_t i = 0; i < p.size(); ++i) out += f(p[i], v[i]);
  return out;
}
std::vector<Named> losses() {
  const auto each = [](std::function<double(double, double)> f) {
    return [f](const std::vector<double>& p, const std::vector<double>& v) { return sum_of(p, v, f); };
  };
  const auto sq = [](double x) { return x * x; };
  return {
      {ttt::half_squared_error(), each([=](double p, double v) { return 0.5 * sq(p - v); })},
      {ttt::squared_error(), each([=](double p, double v) { return sq(p - v); })},
      {ttt::mean_squared_error(),
       [=](const auto& p, const auto& v) {
         return sum_of(p, v, [=](double a, double b) { return sq(a - b); }) / static_cast<double>(p.size());
       }},
      {ttt::inner_product(), each([](double p, double v) { return -p * v; })},
      {ttt::inner_product(0.25), each([](double p, double v) { return -0.25 * p * v; })},
      {ttt::huber(), each([=](double p, double v) {
         const double d = std::abs(p - v);
         return d <= 1 ? 0.5 * d * d : d - 0.5;
       })},
      {ttt::huber(0.3), each([=](double p, double v) {
         const double d = std::abs(p - v);
         return d <= 0.3 ? 0.5 * d * d : 0.3 * (d - 0.15);
       })},
      {ttt::lp(1.5), each([](double p, double v) { return std::pow(std::abs(p - v), 1.5); })},
      {ttt::lp(2), each([=](double p, double v) { return sq(p - v); })},
      {ttt::lp(3), each([](double p, double v) { return std::pow(std::abs(p - v), 3); })},
      {ttt::lp(4), each([](double p, double v) { return std::pow(p - v, 4); })},
      {ttt::cosine(),
       [](const auto& p, const auto& v) {
         const double pp = sum_of(p, p, std::multiplies<>()), vv = sum_of(v, v, std::multiplies<>());
         return 1 - sum_of(p, v, std::multiplies<>()) / std::sqrt((pp + 1e-6) * (vv + 1e-6));
       }},
      {ttt::cross_entropy_with(),
       [](const auto& p, const auto& v) {
         double total = 0;
         for (double x : p) total += std::exp(x);
         return -sum_of(p, v, [=](double a, double b) { return b * (a - std::log(total)); });
       }},
  };
}

}  // namespace

TEST_CASE("inner losses are their formulas, one number a token, and so are their derivatives to order 2") {
  const Spec rows = f64({2, 3, 4});
  for (const Named& named : losses()) {
    CAPTURE(named.loss.text);
    const Arrays in{random(rows, 1), random(rows, 2)};
    const Function f = trace([&](Tensor p, Tensor v) { return named.loss.f(p, v); }, rows, rows);
    const Array out = f(in)[0];
    CHECK(out.shape() == Shape{2, 3, 1});
    for (std::int64_t t = 0; t < 6; ++t) {
      std::vector<double> p, v;
      for (std::int64_t d = 0; d < 4; ++d) p.push_back(in[0].at(4 * t + d)), v.push_back(in[1].at(4 * t + d));
      CHECK(std::abs(out.at(t) - named.number(p, v)) < 1e-14);
    }
    const bool kinked = contains(named.loss.text, "1.5") || contains(named.loss.text, "Huber") ||
                        contains(named.loss.text, "^3");
    const Subject s{.what = named.loss.text,
                    .fn = [&](const Tensors& x) { return Tensors{named.loss.f(x[0], x[1])}; },
                    .inputs = in,
                    .active = {},
                    .tolerance = kinked ? 1e3 : 1,
                    .orders = 2};
    CHECK(join(check_grads(s)) == "");
    CHECK(join(check_products(s)) == "");
  }
}
TEST_CASE(
    "where a prediction is the target, the second derivatives of inner losses are those of their formulas") {
  const Spec rows = f64({2, 3, 4});
  for (const Named& named : losses()) {
    if (contains(named.loss.text, "1.5") || contains(named.loss.text, "^3"))
      continue;  // none, and one with a kink
    CAPTURE(named.loss.text);
    Array target = random(rows, 4), near = target.clone();  // some features are met, the others missed
    for (std::int64_t i = 0; i < near.spec().size(); i += 2)
      near.as<double>()[static_cast<std::size_t>(i)] += 0.1;
    const Subject s{.what = named.loss.text,
                    .fn = [&](const Tensors& x) { return Tensors{named.loss.f(x[0], x[1])}; },
                    .inputs = {near, target},
                    .active = {},
                    .orders = 2};
    CHECK(join(check_grads(s)) == "");
    CHECK(join(check_products(s)) == "");
  }
}
TEST_CASE(
    "inner losses of nothing: zero differences and zero rows have finite values and derivatives to order 3") {
  const Spec rows = f64({2, 3, 4});
  for (const Named& named : losses()) {
    CAPTURE(named.loss.text);
    const Function f = trace(
        [&](Tensor p, Tensor v) {
          Tensors out{named.loss.f(p, v)};
          Tensor y = sum(out[0] * out[0]) + sum(out[0]);
          for (int n = 0; n < 3; ++n) {
            const Tensors g = grad(y, {p, v}, {.allow_zero = true});
            out.insert(out.end(), g.begin(), g.end());
            y = sum(square(g[0])) + sum(g[1]);
          }
          return out;
        },
        rows, rows);
    const Array zero = Array::zeros(DType::f64, rows.shape), some = random(rows, 3);
    for (const Arrays& in : {Arrays{some, some}, Arrays{zero, zero}, Arrays{zero, some}, Arrays{some, zero}})
      for (const Array& a : f(in))
        for (const double x : a.to_vector()) CHECK(std::isfinite(x));
    if (!contains(named.loss.text, "^") && !contains(named.loss.text, "Huber")) continue;
    for (const double x : f({some, some})[1].to_vector()) CHECK(x == 0);  // the slope at its minimum
  }
}
TEST_CASE("losses that make no sense are refused") {
  CHECK(contains(message_of<ConfigError>([] { ttt::huber(0); }), "delta must be positive, it is 0"));
  CHECK(contains(message_of<ConfigError>([] { ttt::lp(1); }), "the power must be above 1, it is 1"));
  CHECK(contains(message_of<ConfigError>([] { InnerOptimizer().clip(ttt::Per::matrix, 0); }),
                 "clip needs a positive, finite norm"));
  CHECK(contains(message_of<ConfigError>([] { ttt::side_by_side({}, {}); }), "models need as many widths"));
}

namespace {

// A model with a loss, as a learner.
NamedLearner composed(const std::string& name, const std::function<Model(const Params&)>& model,
                      const InnerLoss& loss) {
  return {name, [=](const Params& p) -> std::unique_ptr<ttt::Learner> {
            return std::make_unique<ttt::Composed>(model(p), loss);
          }};
}
std::vector<std::pair<std::string, std::function<Model(const Params&)>>> models() {
  const ttt::ModelSizes s{.heads = 2, .in = 4, .hidden = 6, .out = 4};
  const auto act = [](Tensor x) { return gelu_tanh(x); };
  return {
      {"linear", [=](const Params& p) { return ttt::linear(p, s); }},
      {"linear, bias", [=](const Params& p) { return ttt::linear(p, s, {.bias = true}); }},
      {"linear, bias, norm",
       [=](const Params& p) { return ttt::linear(p, s, {.bias = true, .residual_norm = true}); }},
      {"mlp",
       [=](const Params& p) {
         return ttt::mlp(p, 2, {4, 6, 5, 4}, act, "gelu");
       }},
      {"mlp, bias, norm",
       [=](const Params& p) {
         return ttt::mlp(p, 2, {4, 6, 4}, act, "gelu", true, true);
       }},
      {"swiglu", [=](const Params& p) { return ttt::swiglu(p, s); }},
      {"glu", [=](const Params& p) { return ttt::glu(p, s); }},
      {"gated", [=](const Params& p) { return ttt::gated(p, s); }},
      {"side by side",
       [=](const Params& p) {
         return ttt::side_by_side(
             {ttt::linear(p.at("a"), {2, 1, 0, 1}, {.bias = true}), ttt::glu(p.at("b"), {2, 3, 0, 3})},
             {1, 3});
       }},
  };
}

}  // namespace

TEST_CASE("every model with a loss, every loss with a model: dual = primal = by hand, to order 1") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4};
  const auto all_models = models();
  const auto all_losses = losses();
  for (std::size_t i = 0; i < std::max(all_models.size(), all_losses.size()); ++i) {
    const auto& pair = all_models[i % all_models.size()];
    const auto& name = pair.first;
    const auto& model = pair.second;
    const InnerLoss& loss = all_losses[i % all_losses.size()].loss;
    CAPTURE(name);
    CAPTURE(loss.text);
    const LoopCase loop{composed(name, model, loss), linear_methods(sizes)[3], {.chunk = 3}, sizes};
    CHECK(differing(loop, numbers(loop, by_hand(), 1, true), 1, {FormChoice::primal, FormChoice::dual}) ==
          "");
  }
}

TEST_SUITE("slow") {
  TEST_CASE(
      "every model with every loss: dual = primal = by hand, "
      "to order 1; and to order 2 with the squared loss") {
    const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4};
    for (const auto& pair : models()) {
      const auto& name = pair.first;
      const auto& model = pair.second;
      for (const Named& named : losses()) {
        const LoopCase loop{composed(name, model, named.loss), linear_methods(sizes)[3], {.chunk = 3}, sizes};
        CAPTURE(name);
        CAPTURE(named.loss.text);
        CHECK(differing(loop, numbers(loop, by_hand(), 1, true), 1, {FormChoice::primal, FormChoice::dual}) ==
              "");
      }
      const LoopCase loop{
          composed(name, model, ttt::half_squared_error()), linear_methods(sizes)[3], {.chunk = 3}, sizes};
      CHECK(differing(loop, numbers(loop, by_hand(), 2), 2, {FormChoice::primal, FormChoice::dual}) == "");
    }
  }
}

TEST_CASE("side by side is two learners that do not see each other") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 7, .dim = 4};
  const auto left = [](const Params& p) { return ttt::linear(p.at("a"), {2, 1, 0, 1}, {.bias = true}); };
  const auto right = [](const Params& p) { return ttt::glu(p.at("b"), {2, 3, 0, 3}); };
  for (const Policy& policy : {Policy{.chunk = 3}, Policy{.chunk = 3, .update = Update::per_chunk}}) {
    const LoopCase loop{composed(
                            "both",
                            [=](const Params& p) {
                              return ttt::side_by_side({left(p), right(p)}, {1, 3});
                            },
                            ttt::half_squared_error()),
                        linear_methods(sizes)[7], policy, sizes};
    const Arrays expected = numbers(
        loop,
        [&](const TracedCase& c) {
          const auto part = [&](std::int64_t from, std::int64_t to,
                                const std::function<Model(const Params&)>& model, std::size_t first_weight) {
            const auto cut = [&](Tensor x) { return slice(x, 3, from, to); };
            Graph scratch;
            ParamTable unused(scratch, DType::f64);
            Model m = model(Params(unused));
            Tensors start;
            for (std::size_t i = 0; i < m.start.size(); ++i)
              start.push_back(c.start.at(first_weight + i).value);
            m.start = m.start.with(start);
            const Equipped learner(std::make_unique<ttt::Composed>(m, ttt::half_squared_error()),
                                   c.learner.optimizer());
            return ttt::train_along(learner, m.start,
                                    {cut(c.views.q), cut(c.views.k), cut(c.views.v), c.views.gates, {}},
                                    {.policy = policy, .form = FormChoice::primal});
          };
          const InnerLoopResult a = part(0, 1, left, 0), b = part(1, 4, right, 2);
          Tensors out{concat({a.output, b.output}, 3)};
          for (const InnerLoopResult* r : {&a, &b})
            for (const Tensor& t : r->state.flat()) out.push_back(t);
          return out;
        },
        2);
    CHECK(differing(loop, expected, 2, {FormChoice::primal, FormChoice::dual}) == "");
  }
}

TEST_CASE(
    "the 3x3 convolution is the op, tokens being the rows of an image; it learns from whole images only") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 12, .dim = 4};  // 3 x 4
  const LoopCase loop{
      composed(
          "3x3", [](const Params& p) { return ttt::depthwise3x3(p, 2, 4, 3, 4); }, ttt::half_squared_error()),
      sgd(),
      {.chunk = Policy::kWholeSequence, .update = Update::per_chunk},
      sizes};
  const Arrays expected = numbers(
      loop,
      [](const TracedCase& c) {
        // All (sequence, head) in turn, each with its kernel [9, dim] as weight [dim, 1, 3, 3].
        const auto convolved = [](Tensor kernel, Tensor x) {
          Tensors out;
          for (std::int64_t b = 0; b < 2; ++b)
            for (std::int64_t h = 0; h < 2; ++h) {
              const auto one = [&](Tensor t) { return slice(slice(t, 0, b, b + 1), 1, h, h + 1); };
              const Tensor weight = reshape(transpose(reshape(one(kernel), {9, 4})), {4, 1, 3, 3});
              out.push_back(
                  reshape(depthwise_conv3x3(reshape(one(x), {1, 3, 4, 4}), weight, {}), {1, 1, 12, 4}));
            }
          return concat({concat({out[0], out[1]}, 1), concat({out[2], out[3]}, 1)}, 0);
        };
        const Tensor named = probe(c.start.at(0).value);
        const Tensor g =
            grad(sum(0.5 * c.views.gates.at("rate") * square(convolved(named, c.views.k) - c.views.v)),
                 {named})[0];
        const Tensor w = c.start.at(0).value - g;
        return Tensors{convolved(w, c.views.q), w};
      },
      2);
  CHECK(differing(loop, expected, 2, {FormChoice::primal}) == "");
  CHECK(widest_form(loop) == FormChoice::primal);
  CHECK(contains(refusal(loop, FormChoice::dual), "tokens are not independent"));
  LoopCase by_token = loop;
  by_token.policy = {.chunk = 12};
  CHECK(contains(refusal(by_token, FormChoice::automatic), "tokens are not independent"));
  by_token.policy = {.chunk = 6, .update = Update::per_chunk};
  CHECK(contains(message_of<ShapeError>([&] { trace_case(by_token, in_form(FormChoice::automatic)); }),
                 "tokens are no image of 3 x 4"));
}

// ---- wrong use ----

namespace {

template <class E>
std::string complaint(LoopCase loop, const std::function<void(Views&)>& spoil = {},
                      FormChoice form = FormChoice::automatic) {
  return message_of<E>([&] {
    trace_case(loop, [&](const TracedCase& c) {
      Views views = c.views;
      if (spoil) spoil(views);
      return Tensors{
          ttt::train_along(c.learner, c.start, views, {.policy = loop.policy, .form = form}).output};
    });
  });
}

}  // namespace

TEST_CASE("wrong use: gates that are missing or misshapen") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 6, .dim = 4};
  const Method titans = linear_methods(sizes)[7];
  for (const Update update : {Update::per_token, Update::per_chunk}) {
    const LoopCase loop{
        perceptron("x W + b", 2, {4, 4}, tanh), titans, {.chunk = 3, .update = update}, sizes};
    CHECK(contains(complaint<ConfigError>(loop, [](Views& v) { v.gates.erase("beta"); }),
                   "needs the gate 'beta'"));
    const auto shaped = [&](const std::string& name, Shape shape) {
      return complaint<ShapeError>(loop, [&](Views& v) { v.gates[name] = constant(random(f64(shape), 1)); });
    };
    for (const std::string name : {"beta", "rate", "unused"}) {
      CAPTURE(name);
      CHECK(contains(shaped(name, {2, 2, 6}), fmt::format("the gate '{}' is f64[2,2,6]", name)));
      CHECK(contains(shaped(name, {2, 2, 5, 1}), fmt::format("the gate '{}' is f64[2,2,5,1]", name)));
      CHECK(contains(shaped(name, {1, 2, 6, 1}), fmt::format("the gate '{}' is f64[1,2,6,1]", name)));
    }
    CHECK(contains(shaped("beta", {2, 2, 6, 7}), "the gate 'beta' is f64[2,2,6,7]"));
    CHECK(contains(shaped("rate", {2, 2, 6, 4}), "the gate 'rate' is f64[2,2,6,4]"));
    CHECK(contains(shaped("rate.W1", {2, 2, 6, 4}), "the gate 'rate.W1' is f64[2,2,6,4]"));
    // Numbers per input feature mean nothing to a bias.
    CHECK(contains(complaint<ShapeError>(loop,
                                         [](Views& v) {
                                           v.gates["keep"] = constant(random(f64({2, 2, 6, 4}), 1));
                                         }),
                   "the gate 'keep' is f64[2,2,6,4]"));
  }
}
TEST_CASE("wrong use: policies and forms that do not go together") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
  const NamedLearner plain = matrix_of(sizes);
  CHECK(contains(complaint<FormError>({ttt_linear(sizes), sgd(), {.chunk = 1}, sizes}, {}, FormChoice::wy),
                 "wy is impossible: [wy] "));
  CHECK(contains(complaint<FormError>({plain, sgd(), {.chunk = 3, .trained = {"V"}}, sizes}),
                 "there is no fast weight 'V'; init() declares W"));
  CHECK(contains(complaint<ConfigError>({plain, sgd(), {.chunk = 3, .trained = {"W", "W"}}, sizes}),
                 "'W' is named twice"));
  for (const FormChoice form : {FormChoice::automatic, FormChoice::primal, FormChoice::dual})
    CHECK(contains(complaint<ConfigError>({plain, moving_methods()[0], {.chunk = 3}, sizes}, {}, form),
                   "use chunk = 1"));
  CHECK(contains(complaint<ConfigError>({plain, sgd(), {.chunk = 3, .steps = 2}, sizes}),
                 "several steps a chunk need update = per_chunk"));
  CHECK(contains(complaint<ConfigError>({plain, sgd(), {.chunk = 3, .average = true}, sizes}),
                 "average is for update = per_chunk"));
  CHECK(contains(
      complaint<ConfigError>({plain, sgd(), {.chunk = 3, .update = Update::per_chunk, .steps = 0}, sizes}),
      "at least 1 step"));
  CHECK(contains(complaint<ConfigError>(
                     {plain, sgd(), {.chunk = 3, .meta = Policy::Meta::truncated, .horizon = 0}, sizes}),
                 "horizon must be at least 1"));
  LoopCase placed{plain, sgd(), {.chunk = 3, .update = Update::per_chunk}, sizes};
  placed.position = true;
  for (const FormChoice form :
       {FormChoice::automatic, FormChoice::primal, FormChoice::dual, FormChoice::parallel})
    CHECK(contains(complaint<ConfigError>(placed, {}, form), "position rates"));
  CHECK(contains(complaint<FormError>({plain, sgd(), {.chunk = 3}, sizes}, {}, FormChoice::chunk_parallel),
                 "chunk-parallel is for a step per chunk"));
  CHECK(contains(complaint<FormError>({plain, sgd(), {.chunk = 3, .update = Update::per_chunk}, sizes}, {},
                                      FormChoice::wy),
                 "wy is for a step per token"));
  CHECK(
      contains(complaint<FormError>({hebbian(sizes), sgd(), {.chunk = 0, .update = Update::per_chunk}, sizes},
                                    {}, FormChoice::parallel),
               "the whole sequence is one chunk"));
  CHECK(contains(complaint<FormError>(
                     {hebbian(sizes), sgd(), {.chunk = 3, .update = Update::per_chunk, .steps = 2}, sizes},
                     {}, FormChoice::chunk_parallel),
                 "several steps"));
  CHECK(contains(message_of<ConfigError>([] { ttt::form_named("fast"); }),
                 "there is no form 'fast'; there are automatic"));
}
TEST_CASE("wrong use: offsets and points in a form without chunks") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
  for (const auto& [named, form] :
       {std::pair(hebbian(sizes), FormChoice::parallel), {matrix_of(sizes), FormChoice::wy}}) {
    const LoopCase loop{named, sgd(), {.chunk = 1}, sizes};
    const std::string why = message_of<ConfigError>([&, form = form] {
      trace_case(loop, [&](const TracedCase& c) {
        return Tensors{ttt::train_along(c.learner, c.start, c.views,
                                        {.policy = loop.policy, .form = form, .keep_points = true})
                           .output};
      });
    });
    CHECK(contains(why, "ask for the dual or the primal form"));
    // Left to choose, it takes the form that has them.
    trace_case(loop, [&](const TracedCase& c) {
      const ttt::InnerLoopResult r =
          ttt::train_along(c.learner, c.start, c.views, {.policy = loop.policy, .keep_points = true});
      CHECK(r.plan.form == FormChoice::dual);
      CHECK(r.points.size() == 1);
      return Tensors{r.output};
    });
  }
}

TEST_CASE("a model that stands beside others holds weights as it does alone") {
  // x W + x held(W): learning goes through the first use alone.
  const auto half_held = [](const Params& p) {
    return Model{"x W + x held(W)", {matrix("W", p("W", {2, 4, 4}))}, [](const Weights& w, Tensor x) {
                   return matmul(x, w["W"]) + matmul(x, w.held("W"));
                 }};
  };
  const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4};
  const auto numbers_of = [&](const std::function<Model(const Params&)>& model) {
    const LoopCase loop{composed("half held", model, ttt::half_squared_error()),
                        linear_methods(sizes)[3],
                        {.chunk = 2, .update = Update::per_chunk},
                        sizes};
    return numbers(loop, in_form(FormChoice::primal), 1);
  };
  const Arrays alone = numbers_of(half_held),
               beside = numbers_of([&](const Params&p) { return ttt::side_by_side({half_held(p)}, {4}); });
  const Arrays twice = numbers_of([&](const Params& p) {
    Model both = half_held(p);
    both.f = [](const Weights& w, Tensor x) { return 2.0 * matmul(x, w["W"]); };
    return both;
  });
  CHECK(max_error(beside, alone) == 0);
  CHECK(max_error(twice, alone) > 1e-3);
}

TEST_CASE("a model starts from as many weights as it has") {
  const auto make = [](const Params& p) {
    return ttt::mlp(
        p, 1, {2, 3, 2}, [](Tensor x) { return sin(x); }, "sin");
  };
  trace(
      [&](Tensor a, Tensor b) {
        for (const Tensors& given : {Tensors{a}, Tensors{a, b, b}})
          CHECK(contains(message_of<ConfigError>([&] { ttt::starting_from(given, make); }),
                         fmt::format("has 2 weights, and is to start from {}", given.size())));
        CHECK(contains(message_of<ConfigError>([&] {
                         ttt::starting_from({a, b}, make).start.with({a});
                       }),
                       "1 values are given to 2 fast weights"));
        return ttt::starting_from({a, b}, make).start.at(1).value;
      },
      f64({1, 2, 3}), f64({1, 3, 2}));
}

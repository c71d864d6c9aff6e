// The promise: a policy is what it says, in every form: what is read, when, after how many steps, on which
// gradient; and how far the outer gradient follows. The forms that take all chunks at once are those that the
// proofs allow, no others.
#include "autograd/grad.h"
#include "tests/ops/check_grads.h"
#include "tests/ttt/policy_cases.h"
#include "ttt/compose.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// Nonlinear in the gradient, affine in the weight.
std::vector<Method> split_methods(const Sizes& s) {
  std::vector<Method> out;
  for (const Method& method : nonlinear_methods(s))
    if (!contains(method.name, "norm of") && !contains(method.name, "weight")) out.push_back(method);
  Method forgetful{"Muon of momentum, per column, forgetting", {{"beta"}, {"keep"}}, [](const Params&) {
                     Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
                     hand.step = [](Tensors& w, Tensor g, const Now& now) {
                       w[1] = now("beta") * w[1] + g;
                       const Tensor n = newton_schulz(w[1], {{3.4445, -4.7750, 2.0315}}, 1e-3);
                       w[0] = now("keep") * w[0] - n / (column_norm(n) + 0.1);
                     };
                     return std::pair(InnerOptimizer()
                                          .momentum(gate("beta"))
                                          .muon(ttt::muon_published(1), 1e-3)
                                          .normalize(Per::column, 0.1)
                                          .keep(gate("keep")),
                                      hand);
                   }};
  out.push_back(forgetful);
  return out;
}

}  // namespace

// ---- one step a chunk ----

TEST_CASE("one step a chunk: every choice of the policy, by hand and in both recurrent forms") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 7, .dim = 4};
  const NamedLearner deep = perceptron("two layers", 2, {4, 4, 4}, tanh);
  for (const Read read : {Read::before_write, Read::after_write})
    for (const bool partial : {true, false})
      for (const int steps : {1, 2}) {
        Policy policy{.chunk = 4,
                      .update = Update::per_chunk,
                      .read = read,
                      .steps = steps,
                      .partial_chunk_writes = partial};
        CHECK(wrong({deep, with_gates(), policy, sizes}, kRecurrent, 1) == "");
        policy.average = policy.ascent = true;
        CHECK(wrong({deep, with_gates(), policy, sizes}, kRecurrent, 1) == "");
        policy.query_is_key = true;
        policy.chunk = 3;
        CHECK(wrong({deep, with_gates(), policy, sizes}, kRecurrent, 1) == "");
      }
  for (const std::int64_t chunk : {1, 7, 9, 0})
    CHECK(wrong({deep, with_gates(), {.chunk = chunk, .update = Update::per_chunk}, sizes}, kRecurrent, 1) ==
          "");
}
TEST_CASE("one step a chunk, to order 2, for every learner") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4};
  for (const NamedLearner& named : named_learners(sizes)) {
    CAPTURE(named.name);
    CHECK(wrong({named,
                 with_gates(),
                 {.chunk = 2, .update = Update::per_chunk, .read = Read::before_write},
                 sizes},
                kRecurrent, 2) == "");
  }
}
TEST_CASE("only some weights learn, with rates of their own") {
  const Sizes sizes{.batch = 1, .heads = 3, .time = 7, .dim = 4};
  const std::vector<GateInput> rates{{"rate.W0"}, {"rate.W1"}, {"rate.W2"}};
  for (const Update update : {Update::per_chunk, Update::per_token}) {
    CHECK(wrong({swiglu(sizes), with_gates(), {.chunk = 4, .update = update}, sizes, rates}, kRecurrent, 1) ==
          "");
    CHECK(wrong({swiglu(sizes),
                 with_gates(),
                 {.chunk = 4, .update = update, .trained = {"W2", "W0"}},
                 sizes,
                 {{"rate.W0"}, {"rate.W2"}}},
                kRecurrent, 1) == "");
    const NamedLearner biased = perceptron("two layers", 3, {4, 6, 4}, tanh);
    for (const std::vector<std::string>& trained :
         std::vector<std::vector<std::string>>{{"W2"}, {"b1"}, {"b2", "W1"}})
      CHECK(wrong({biased, with_gates(), {.chunk = 3, .update = update, .trained = trained}, sizes},
                  kRecurrent, 2) == "");
  }
}
TEST_CASE(
    "only some weights learn: the others' slots and values stay, and the last state can be gone on from") {
  const Sizes sizes{.batch = 1, .heads = 3, .time = 8, .dim = 4};
  const LoopCase loop{perceptron("two layers", 3, {4, 6, 4}, tanh),
                      with_gates(),
                      {.chunk = 4, .update = Update::per_chunk, .trained = {"W2", "b1"}},
                      sizes};
  const Function f = trace_case(loop, [&](const TracedCase& c) {
    const auto part = [&](std::int64_t from, std::int64_t to) {
      const auto cut = [&](Tensor x) { return slice(x, 2, from, to); };
      Views out{cut(c.views.q), cut(c.views.k), cut(c.views.v), {}, {}};
      for (const auto& [name, value] : c.views.gates) out.gates[name] = cut(value);
      return out;
    };
    const ttt::InnerLoopOptions options{.policy = loop.policy};
    const InnerLoopResult whole = ttt::train_along(c.learner, c.start, c.views, options),
                          first = ttt::train_along(c.learner, c.start, part(0, 4), options),
                          second = ttt::train_along(c.learner, first.state, part(4, 8), options);
    Policy carried = loop.policy;
    carried.carry = true;
    const auto each =
        ttt::train_along_each(c.learner, c.start, {part(0, 4), part(4, 8)}, {.policy = carried});
    Tensors out{whole.output, concat({first.output, second.output}, 2),
                concat({each[0].output, each[1].output}, 2)};
    for (const ttt::State& s : {whole.state, second.state, each[1].state})
      for (const Tensor& t : s.flat()) out.push_back(t);
    for (const Tensor& t : ttt::State::start(c.learner, c.start).flat()) out.push_back(t);
    return out;
  });
  const Arrays out = f(inputs_of(f));
  CHECK(relative_error(out[1], out[0]) < 1e-12);
  CHECK(relative_error(out[2], out[0]) < 1e-12);
  const std::size_t n = 8;  // weights W1 b1 W2 b2 with a slot each
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(relative_error(out[3 + n + i], out[3 + i]) < 1e-12);
    CHECK(relative_error(out[3 + 2 * n + i], out[3 + i]) < 1e-12);
    const bool learns = (i / 2 == 1 || i / 2 == 2);
    CHECK(out[3 + i].same_bits(out[3 + 3 * n + i]) == !learns);
  }
}
TEST_CASE("carried: a truncated meta-gradient is cut where that of the whole sequence is") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 8, .dim = 4};
  const auto errors = [&](std::int64_t horizon) {
    const LoopCase loop{perceptron("two layers", 2, {4, 6, 4}, tanh),
                        with_gates(),
                        {.chunk = 2, .meta = Policy::Meta::truncated, .horizon = horizon},
                        sizes};
    const Function f = trace_case(loop, [&](const TracedCase& c) {
      Policy carried = loop.policy, full = loop.policy;
      carried.carry = true;
      full.meta = Policy::Meta::full;
      Tensors parts;
      for (const InnerLoopResult& r :
           ttt::train_along_each(c.learner, c.start, {ttt::part(c.views, 0, 2), ttt::part(c.views, 2, 6), ttt::part(c.views, 6, 8)},
                                 {.policy = carried}))
        parts.push_back(r.output);
      Tensors out;
      for (const Tensor& answers : {ttt::train_along(c.learner, c.start, c.views, {.policy = loop.policy}).output,
                                    concat(parts, 2), ttt::train_along(c.learner, c.start, c.views, {.policy = full}).output}) {
        Tensors of = c.start.values();
        of.push_back(c.views.k);
        Tensor squares;
        for (const Tensor& g : grad(sum(square(answers)), of)) squares = squares.defined() ? squares + sum(square(g)) : sum(square(g));
        out.push_back(squares);
      }
      return out;
    });
    const Arrays out = f(inputs_of(f));
    return std::pair(std::abs(out[1].item() / out[0].item() - 1), std::abs(out[2].item() / out[0].item() - 1));
  };
  for (const std::int64_t horizon : {1, 2, 3}) {
    CAPTURE(horizon);
    const auto found = errors(horizon);
    CHECK(found.first < 1e-12);
    CHECK(found.second > 1e-6);  // and it is cut
  }
}

TEST_CASE("the whole sequence in one step may be asked more or fewer tokens than it learnt from") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 5, .dim = 4};
  const NamedLearner deep = perceptron("two layers", 2, {4, 4, 4}, tanh);
  for (const std::int64_t asked : {1, 4, 9})
    for (const std::int64_t chunk : {0, 5, 8}) {
      LoopCase loop{deep, with_gates(), {.chunk = chunk, .update = Update::per_chunk}, sizes};
      loop.asked = asked;
      if (chunk != 8) CHECK(wrong(loop, kRecurrent, 1) == "");
      loop.policy.partial_chunk_writes = false;
      CHECK(trace_case(loop, in_form(FormChoice::dual)).outputs().size() > 1);
    }
  LoopCase loop{deep, with_gates(), {.chunk = 2, .update = Update::per_chunk}, sizes};
  loop.asked = 9;
  CHECK(contains(message_of<ShapeError>([&] { trace_case(loop, in_form(FormChoice::primal)); }),
                 "may ask more or fewer tokens"));
}

TEST_CASE("tokens that mix can be learnt from as whole chunks only, each weight at its own rate") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 8, .dim = 4};
  const auto attend = [](const Weights& w, Tensor x) {
    return matmul(softmax(matmul(matmul(x, w["A"]), x, {.b = true}), -1), matmul(x, w["B"])) + w["c"];
  };
  const NamedLearner mixing = formula(
      "softmax(x A x') x B + c",
      [](const Params& p) {
        return Weights{matrix("A", p("A", {2, 4, 4})), matrix("B", p("B", {2, 4, 4})),
                       row("c", p("c", {2, 1, 4}))};
      },
      attend);
  const LoopCase loop{mixing,
                      sgd(),
                      {.chunk = 4, .update = Update::per_chunk, .read = Read::before_write},
                      sizes,
                      {{"rate"}, {"rate.A"}}};
  const Arrays expected = numbers(
      loop,
      [&](const TracedCase& c) {
        Tensors w = c.start.values(), outputs;
        for (std::int64_t begin = 0; begin < 8; begin += 4) {
          const auto cut = [&](Tensor x) { return slice(x, 2, begin, begin + 4); };
          Tensors probes = w, next;
          for (Tensor& t : probes) t = probe(t);
          const auto spread = [](Tensors t) {
            t[2] = broadcast_to(t[2], {2, 2, 4, 4});
            return t;
          };
          outputs.push_back(attend(c.start.with(spread(w)), cut(c.views.q)));
          const Tensor loss =
              0.5 *
              sum(square(attend(c.start.with(spread(probes)), cut(c.views.k)) - cut(c.views.v)), {-1}, kKeep);
          for (std::size_t i = 0; i < 3; ++i) {
            Tensor rate = cut(c.views.gates.at("rate"));
            if (i == 0) rate = rate * cut(c.views.gates.at("rate.A"));
            next.push_back(w[i] - grad(sum(rate * loss), {probes[i]})[0]);
          }
          w = next;
        }
        Tensors out{concat(outputs, 2)};
        out.insert(out.end(), w.begin(), w.end());
        return out;
      },
      2);
  CHECK(differing(loop, expected, 2, {FormChoice::primal}) == "");
  CHECK(widest_form(loop) == FormChoice::primal);
  for (const FormChoice form : {FormChoice::dual, FormChoice::parallel, FormChoice::chunk_parallel})
    CHECK(contains(refusal(loop, form), "tokens are not independent"));
  LoopCase by_token = loop;
  by_token.policy.update = Update::per_token;
  CHECK(contains(refusal(by_token, FormChoice::automatic), "tokens are not independent"));
}

TEST_CASE(
    "tokens that meet over a distance are learnt from chunk by chunk, though inside of a chunk none meet") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 12, .dim = 3};
  for (const std::int64_t chunk : {1, 4}) {
    CAPTURE(chunk);
    const auto with_earlier = [chunk](const Weights& w, Tensor x) {
      const std::int64_t time = x.dim(-2);
      if (time > chunk) x = x + 0.5 * slice(pad(x, -2, chunk, 0), -2, 0, time);
      return matmul(x, w["W"]);
    };
    const NamedLearner named = formula(
        "(x + half of the token a chunk before) W",
        [](const Params& p) {
          return Weights{matrix("W", p("W", {2, 3, 3}))};
        },
        with_earlier, against(with_earlier));
    for (const Read read : {Read::before_write, Read::after_write}) {
      const LoopCase loop{named, sgd(), {.chunk = chunk, .update = Update::per_chunk, .read = read}, sizes};
      // Inside of a chunk none meet, so it is f(x) = x W chunk by chunk.
      const NamedLearner alone = formula(
          "x W",
          [](const Params& p) {
            return Weights{matrix("W", p("W", {2, 3, 3}))};
          },
          [](const Weights& w, Tensor x) { return matmul(x, w["W"]); },
          against([](const Weights& w, Tensor x) { return matmul(x, w["W"]); }));
      const Arrays expected = numbers(LoopCase{alone, sgd(), loop.policy, sizes}, by_hand(), 1);
      CHECK(differing(loop, expected, 1, {FormChoice::primal, FormChoice::automatic, FormChoice::dual}) ==
            "");
      for (const FormChoice form : {FormChoice::parallel, FormChoice::chunk_parallel}) {
        const std::string why = refusal(loop, form);
        CAPTURE(why);
        CHECK(contains(why, "tokens are not independent"));
      }
    }
  }
}

// ---- all chunks at once ----

TEST_CASE(
    "chunk-parallel = dual = primal = by hand to order 2: "
    "steps nonlinear in the gradient and affine in the weight") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  for (const Method& method : split_methods(sizes)) {
    const LoopCase loop{hebbian(sizes), method, {.chunk = 2, .update = Update::per_chunk}, sizes};
    CHECK(wrong(loop, {FormChoice::primal, FormChoice::dual, FormChoice::chunk_parallel}, 2) == "");
    CHECK(widest_form(loop) == FormChoice::chunk_parallel);
    CHECK(contains(refusal(loop, FormChoice::parallel), "[update] the step is not linear"));
  }
  std::vector<Method> linear = linear_methods(sizes);  // those too, with numbers of each feature as well
  for (const Method& method : feature_methods(sizes)) linear.push_back(method);
  for (const Method& method : linear)
    CHECK(wrong({hebbian(sizes), method, {.chunk = 2, .update = Update::per_chunk}, sizes},
                {FormChoice::chunk_parallel}, 2) == "");
}
TEST_CASE(
    "chunk-parallel: read before write, mean, ascent, a "
    "last chunk that only reads, the last layer of SwiGLU") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 8, .dim = 4};
  const std::vector<FormChoice> all{FormChoice::primal, FormChoice::dual, FormChoice::chunk_parallel};
  for (const Method& method : split_methods(sizes)) {
    if (contains(method.name, "each element")) continue;  // of weights of one shape only
    for (const Read read : {Read::after_write, Read::before_write}) {
      const Policy policy{.chunk = 3,
                          .update = Update::per_chunk,
                          .read = read,
                          .average = true,
                          .ascent = true,
                          .partial_chunk_writes = false,
                          .trained = {"W1"}};
      CHECK(wrong({swiglu(sizes), method, policy, sizes, {{"rate.W1"}}}, all, 1) == "");
      CHECK(wrong({hebbian(sizes),
                   method,
                   {.chunk = 4, .update = Update::per_chunk, .read = read, .query_is_key = true},
                   sizes},
                  all, 1) == "");
    }
  }
}
TEST_CASE(
    "parallel, a step a chunk: the running sum of whole "
    "chunks, for any length of block, = by hand to order 2" *
    doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  std::vector<Method> methods = linear_methods(sizes);
  for (const Method& method : feature_methods(sizes)) methods.push_back(method);
  for (const Method& method : methods)
    for (const Read read : {Read::after_write, Read::before_write}) {
      const LoopCase loop{
          hebbian(sizes),
          method,
          {.chunk = 2, .update = Update::per_chunk, .read = read, .average = read == Read::after_write},
          sizes};
      const Arrays expected = numbers(loop, by_hand(), 2);
      for (const std::int64_t block : {1, 2, 3, 4, 6, 64})
        CHECK(differing(loop, expected, 2, {FormChoice::parallel}, block) == "");
      CHECK(widest_form(loop) == FormChoice::parallel);
      CHECK(differing(loop, expected, 2, kRecurrent) == "");
    }
  CHECK(wrong({swiglu({}),
               with_gates(),
               {.chunk = 3, .update = Update::per_chunk, .partial_chunk_writes = false, .trained = {"W1"}},
               {}},
              {FormChoice::parallel}, 1, 6) == "");
}

TEST_CASE("one step a chunk, its gradient taken after forgetting: the chunk's mean gate moves the point") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  for (const Method& method : moving_methods())
    for (const std::int64_t chunk : {1, 3}) {
      const Policy policy{.chunk = chunk, .update = Update::per_chunk, .read = Read::before_write};
      CHECK(wrong({matrix_of(sizes), method, policy, sizes}, kRecurrent, 2) == "");
      CHECK(wrong({hebbian(sizes), method, policy, sizes},
                  {FormChoice::primal, FormChoice::dual, FormChoice::parallel, FormChoice::chunk_parallel},
                  1) == "");
    }
}
TEST_CASE("a master copy that is read through its norm has no running sum") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  for (const Method& method : nonlinear_methods(sizes)) {
    if (!contains(method.name, "master")) continue;
    const LoopCase loop{hebbian(sizes), method, {.chunk = 2, .update = Update::per_chunk}, sizes};
    CHECK(contains(refusal(loop, FormChoice::chunk_parallel), "not affine in the weight"));
    CHECK(widest_form(loop) == FormChoice::dual);
    CHECK(wrong(loop, kRecurrent, 2) == "");
  }
}

// The promise: a policy is what it says, in every form: what is read, when, after how many steps, on which
// gradient; and how far the outer gradient follows. The forms that take all chunks at once are those that the
// proofs allow, no others.
#include "autograd/grad.h"
#include "tests/ops/check_grads.h"
#include "tests/ttt/by_hand.h"
#include "ttt/compose.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::gate;
using ttt::Per;
using Read = Policy::Read;
using Update = Policy::Update;
using Meta = Policy::Meta;

namespace {

const std::vector<FormChoice> kRecurrent{FormChoice::primal, FormChoice::dual};

std::string wrong(const Lesson& lesson, const std::vector<FormChoice>& forms, int order,
                  std::int64_t block = 4) {
  const std::string bad = differing(lesson, numbers(lesson, by_hand(), order), order, forms, block);
  return bad.empty() ? bad : lesson.method.name + ", " + lesson.policy.str() + ": " + bad;
}

Pupil swiglu(const Sizes& s) {
  for (const Pupil& pupil : pupils(s))
    if (contains(pupil.name, "SwiGLU")) return pupil;
  return {};
}
Method with_gates() {  // momentum and forgetting, averaged over each chunk
  for (const Method& method : linear_methods({}))
    if (method.name == "Titans") return method;
  return {};
}
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
  const Pupil deep = perceptron("two layers", 2, {4, 4, 4}, tanh);
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
TEST_CASE("one step a chunk, to order 2, for every pupil") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4};
  for (const Pupil& pupil : pupils(sizes)) {
    CAPTURE(pupil.name);
    CHECK(wrong({pupil,
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
    const Pupil biased = perceptron("two layers", 3, {4, 6, 4}, tanh);
    for (const std::vector<std::string>& trained :
         std::vector<std::vector<std::string>>{{"W2"}, {"b1"}, {"b2", "W1"}})
      CHECK(wrong({biased, with_gates(), {.chunk = 3, .update = update, .trained = trained}, sizes},
                  kRecurrent, 2) == "");
  }
}
TEST_CASE(
    "only some weights learn: the others' slots and values stay, and the last state can be gone on from") {
  const Sizes sizes{.batch = 1, .heads = 3, .time = 8, .dim = 4};
  const Lesson lesson{perceptron("two layers", 3, {4, 6, 4}, tanh),
                      with_gates(),
                      {.chunk = 4, .update = Update::per_chunk, .trained = {"W2", "b1"}},
                      sizes};
  const Function f = in_class(lesson, [&](const Class& c) {
    const auto part = [&](std::int64_t from, std::int64_t to) {
      const auto cut = [&](Tensor x) { return slice(x, 2, from, to); };
      Views out{cut(c.views.q), cut(c.views.k), cut(c.views.v), {}, {}};
      for (const auto& [name, value] : c.views.gates) out.gates[name] = cut(value);
      return out;
    };
    const ttt::InnerLoopOptions options{.policy = lesson.policy};
    const InnerLoopResult whole = ttt::train_along(c.learner, c.start, c.views, options),
                          first = ttt::train_along(c.learner, c.start, part(0, 4), options),
                          second = ttt::train_along(c.learner, first.state, part(4, 8), options);
    Policy carried = lesson.policy;
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
TEST_CASE("the whole sequence in one step may be asked more or fewer tokens than it learnt from") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 5, .dim = 4};
  const Pupil deep = perceptron("two layers", 2, {4, 4, 4}, tanh);
  for (const std::int64_t asked : {1, 4, 9})
    for (const std::int64_t chunk : {0, 5, 8}) {
      Lesson lesson{deep, with_gates(), {.chunk = chunk, .update = Update::per_chunk}, sizes};
      lesson.asked = asked;
      if (chunk != 8) CHECK(wrong(lesson, kRecurrent, 1) == "");
      lesson.policy.partial_chunk_writes = false;
      CHECK(in_class(lesson, in_form(FormChoice::dual)).outputs().size() > 1);
    }
  Lesson lesson{deep, with_gates(), {.chunk = 2, .update = Update::per_chunk}, sizes};
  lesson.asked = 9;
  CHECK(contains(message_of<ShapeError>([&] { in_class(lesson, in_form(FormChoice::primal)); }),
                 "may ask more or fewer tokens"));
}

TEST_CASE("tokens that mix can be learnt from as whole chunks only, each weight at its own rate") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 8, .dim = 4};
  const auto attend = [](const Weights& w, Tensor x) {
    return matmul(softmax(matmul(matmul(x, w["A"]), x, {.b = true}), -1), matmul(x, w["B"])) + w["c"];
  };
  const Pupil mixing = formula(
      "softmax(x A x') x B + c",
      [](const Params& p) {
        return Weights{matrix("A", p("A", {2, 4, 4})), matrix("B", p("B", {2, 4, 4})),
                       row("c", p("c", {2, 1, 4}))};
      },
      attend);
  const Lesson lesson{mixing,
                      sgd(),
                      {.chunk = 4, .update = Update::per_chunk, .read = Read::before_write},
                      sizes,
                      {{"rate"}, {"rate.A"}}};
  const Arrays expected = numbers(
      lesson,
      [&](const Class& c) {
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
  CHECK(differing(lesson, expected, 2, {FormChoice::primal}) == "");
  CHECK(widest_form(lesson) == FormChoice::primal);
  for (const FormChoice form : {FormChoice::dual, FormChoice::parallel, FormChoice::chunk_parallel})
    CHECK(contains(refusal(lesson, form), "tokens are not independent"));
  Lesson by_token = lesson;
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
    const Pupil pupil = formula(
        "(x + half of the token a chunk before) W",
        [](const Params& p) {
          return Weights{matrix("W", p("W", {2, 3, 3}))};
        },
        with_earlier, against(with_earlier));
    for (const Read read : {Read::before_write, Read::after_write}) {
      const Lesson lesson{pupil, sgd(), {.chunk = chunk, .update = Update::per_chunk, .read = read}, sizes};
      CHECK(differing(lesson, numbers(lesson, in_form(FormChoice::primal), 1), 1,
                      {FormChoice::automatic, FormChoice::dual}) == "");
      for (const FormChoice form : {FormChoice::parallel, FormChoice::chunk_parallel}) {
        const std::string why = refusal(lesson, form);
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
    const Lesson lesson{hebbian(sizes), method, {.chunk = 2, .update = Update::per_chunk}, sizes};
    CHECK(wrong(lesson, {FormChoice::primal, FormChoice::dual, FormChoice::chunk_parallel}, 2) == "");
    CHECK(widest_form(lesson) == FormChoice::chunk_parallel);
    CHECK(contains(refusal(lesson, FormChoice::parallel), "[update] the step is not linear"));
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
    "chunks, for any length of block, = by hand to order 2") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  std::vector<Method> methods = linear_methods(sizes);
  for (const Method& method : feature_methods(sizes)) methods.push_back(method);
  for (const Method& method : methods)
    for (const Read read : {Read::after_write, Read::before_write}) {
      const Lesson lesson{
          hebbian(sizes),
          method,
          {.chunk = 2, .update = Update::per_chunk, .read = read, .average = read == Read::after_write},
          sizes};
      const Arrays expected = numbers(lesson, by_hand(), 2);
      for (const std::int64_t block : {1, 2, 3, 4, 6, 64})
        CHECK(differing(lesson, expected, 2, {FormChoice::parallel}, block) == "");
      CHECK(widest_form(lesson) == FormChoice::parallel);
      CHECK(differing(lesson, expected, 2, kRecurrent) == "");
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
    const Lesson lesson{hebbian(sizes), method, {.chunk = 2, .update = Update::per_chunk}, sizes};
    CHECK(contains(refusal(lesson, FormChoice::chunk_parallel), "not affine in the weight"));
    CHECK(widest_form(lesson) == FormChoice::dual);
    CHECK(wrong(lesson, kRecurrent, 2) == "");
  }
}

// ---- the ladder of LaCT ----

namespace {

// Optimisers of the rungs; the weight norm, Muon and momentum as asked for.
Method rung(bool norm, bool muon, bool momentum) {
  Method out{"rung", {}, {}};
  if (momentum) out.gates.push_back({"momentum"});
  out.make = [=](const Params&) {
    InnerOptimizer optimizer;
    if (momentum) optimizer.momentum(gate("momentum"));
    if (muon) optimizer.muon(ttt::muon_published(2), 1e-3);
    if (norm) optimizer.weight_norm();
    Hand hand{.start = [=](Tensor w) {
      Tensors out_{w};
      if (momentum) out_.push_back(nothing(w));
      if (norm && w.dim(-2) > 1) out_.push_back(column_norm(w));
      return out_;
    }};
    hand.step = [=](Tensors& w, Tensor g, const Now& now) {
      if (momentum) g = w[1] = now("momentum") * w[1] + g;
      const bool is_matrix = w[0].dim(-2) > 1;
      if (muon && is_matrix)
        g = newton_schulz(g, {{3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}}, 1e-3);
      const Tensor next = w[0] - g;
      w[0] = norm && is_matrix ? next / (column_norm(next) + 1e-5) * w.back() : next;
    };
    return std::pair(optimizer, hand);
  };
  return out;
}

}  // namespace

TEST_CASE(
    "the ladder from LaCT to linear attention: each rung has the forms that it allows, and they agree") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  const Policy lact{.chunk = 2, .update = Update::per_chunk, .read = Read::before_write};
  Policy last = lact;
  last.trained = {"W1"};
  const std::vector<GateInput> own{{"rate.W0"}, {"rate.W1"}, {"rate.W2"}}, one{{"rate.W1"}}, common{{"rate"}};
  using F = FormChoice;

  const Lesson baseline{swiglu(sizes), rung(true, true, true), lact, sizes, own};
  CHECK(contains(refusal(baseline, F::chunk_parallel),
                 "chunk-parallel is impossible: the gradient of 'W0' depends on 'W0'"));
  CHECK(contains(refusal(baseline, F::parallel),
                 "parallel is impossible: the gradient of 'W0' depends on 'W0'"));
  CHECK(widest_form(baseline) == F::dual);
  CHECK(wrong(baseline, kRecurrent, 1) == "");

  const Lesson last_layer{swiglu(sizes), rung(true, true, true), last, sizes, one};  // 1
  CHECK(contains(refusal(last_layer, F::chunk_parallel), "the step of 'W1' is not affine in the weight"));
  CHECK(contains(refusal(last_layer, F::chunk_parallel), "in 'weight norm'"));
  CHECK(widest_form(last_layer) == F::dual);
  CHECK(wrong(last_layer, kRecurrent, 1) == "");

  const std::vector<F> at_once{F::primal, F::dual, F::chunk_parallel};
  const Lesson no_norm{swiglu(sizes), rung(false, true, true), last, sizes, one};              // 2
  const Lesson one_layer{hebbian(sizes), rung(false, true, true), lact, sizes, {{"rate.W"}}};  // 3
  const Lesson no_rate{hebbian(sizes), rung(false, true, true), lact, sizes, {}};              // 4
  const Lesson no_momentum{hebbian(sizes), rung(false, true, false), lact, sizes, {}};         // 5
  for (const Lesson& lesson : {no_norm, one_layer, no_rate, no_momentum}) {
    CHECK(widest_form(lesson) == F::chunk_parallel);
    CHECK(contains(refusal(lesson, F::parallel), "in 'Muon'"));
    CHECK(wrong(lesson, at_once, 2) == "");
  }
  const Lesson linear_attention{hebbian(sizes), rung(false, false, false), lact, sizes, {}};  // 6
  CHECK(widest_form(linear_attention) == F::parallel);
  CHECK(wrong(linear_attention, {F::primal, F::dual, F::chunk_parallel, F::parallel}, 2) == "");
}

namespace {

// By hand, but with every gradient taken at the first
// weights: what a form for all chunks at once would compute.
Arrays at_first_weights(const Lesson& lesson) {
  return numbers(
      lesson,
      [](const Class& c) {
        const Policy& p = c.lesson.policy;
        std::vector<Tensors> state;
        for (const Tensor& w : c.start.values()) state.push_back(c.hand.start(w));
        const auto now = [&] {
          Tensors w;
          for (const Tensors& s : state) w.push_back(s[0]);
          return c.start.with(w);
        };
        Tensors outputs;
        for (std::int64_t begin = 0; begin < c.views.k.dim(2); begin += p.chunk) {
          for (std::int64_t t = begin; t < begin + p.chunk; ++t)
            outputs.push_back(c.learner.predict(now(), row_at(c.views.q, t)));
          Tensors g = token_gradient(c, c.start, begin);
          for (std::int64_t t = begin + 1; t < begin + p.chunk; ++t) {
            const Tensors more = token_gradient(c, c.start, t);
            for (std::size_t i = 0; i < g.size(); ++i) g[i] = g[i] + more[i];
          }
          for (std::size_t i = 0; i < g.size(); ++i)
            c.hand.step(state[i], g[i], [&](const std::string& name) {
              return transpose(mean(slice(c.views.gates.at(name), 2, begin, begin + p.chunk), {-2}, kKeep));
            });
        }
        Tensors out{concat(outputs, 2)};
        for (const Tensors& s : state) out.insert(out.end(), s.begin(), s.end());
        return out;
      },
      0);
}

}  // namespace

TEST_CASE("counterexamples: what is refused would give other numbers") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 8, .dim = 4};
  const Policy lact{.chunk = 2, .update = Update::per_chunk, .read = Read::before_write};
  const auto outputs_apart = [](const Lesson& a, const Lesson& b, FormChoice form = FormChoice::primal) {
    return relative_error(numbers(a, in_form(form), 0)[0], numbers(b, in_form(form), 0)[0]);
  };
  // All gradients at the first weights: right where no factor
  // depends on a learning weight, wrong for the baseline.
  const Lesson baseline{swiglu(sizes), rung(true, true, true), lact, sizes};
  CHECK(relative_error(at_first_weights(baseline)[0], numbers(baseline, in_form(FormChoice::primal), 0)[0]) >
        0.01);
  const Lesson allowed{hebbian(sizes), rung(false, true, true), lact, sizes};
  CHECK(relative_error(at_first_weights(allowed)[0], numbers(allowed, in_form(FormChoice::primal), 0)[0]) <
        1e-12);
  // Muon of a sum is no sum of Muons; the same for norms, clipping and Adam.
  Policy each = lact;
  each.update = Update::per_token;
  each.read = Read::after_write;
  Policy summed = lact;
  summed.read = Read::after_write;
  for (const Method& method : nonlinear_methods(sizes)) {
    if (contains(method.name, "each element") || contains(method.name, "all weights")) continue;
    CAPTURE(method.name);
    const Lesson one{hebbian(sizes), method, each, sizes}, sum{hebbian(sizes), method, summed, sizes};
    const Arrays a = numbers(one, in_form(FormChoice::primal), 0),
                 b = numbers(sum, in_form(FormChoice::primal), 0);
    CHECK(relative_error(a[1], b[1]) > 1e-3);
  }
  // The sum of plain steps is the step of the sum: there it makes no difference to the weights.
  const Lesson one{hebbian(sizes), sgd(), each, sizes}, sum{hebbian(sizes), sgd(), summed, sizes};
  CHECK(relative_error(numbers(one, in_form(FormChoice::primal), 0)[1],
                       numbers(sum, in_form(FormChoice::primal), 0)[1]) < 1e-12);
  // Weight norm after every chunk is not one at the end.
  Policy whole = summed;
  whole.chunk = Policy::kWholeSequence;
  CHECK(relative_error(numbers({hebbian(sizes), rung(true, false, false), summed, sizes},
                               in_form(FormChoice::primal), 0)[1],
                       numbers({hebbian(sizes), rung(true, false, false), whole, sizes},
                               in_form(FormChoice::primal), 0)[1]) > 1e-3);
  // Choices of the policy that would be silent no-ops if they were ignored.
  const Pupil deep = perceptron("two layers", 2, {4, 4, 4}, tanh);
  const Lesson plain{deep, with_gates(), summed, sizes};
  const auto changed = [&](const std::function<void(Policy&)>& change) {
    Lesson other = plain;
    change(other.policy);
    return std::min(outputs_apart(plain, other), outputs_apart(plain, other, FormChoice::dual));
  };
  CHECK(changed([](Policy& p) { p.steps = 2; }) > 0.01);
  CHECK(changed([](Policy& p) { p.average = true; }) > 0.01);
  CHECK(changed([](Policy& p) { p.ascent = true; }) > 0.01);
  CHECK(changed([](Policy& p) { p.query_is_key = true; }) > 0.01);
  CHECK(changed([](Policy& p) { p.read = Read::before_write; }) > 0.01);
  CHECK(changed([](Policy& p) { p.trained = {"W1"}; }) > 0.01);
  CHECK(changed([](Policy& p) { p.chunk = 3; }) > 0.01);
}

// ---- how far the outer gradient follows ----

namespace {

std::vector<Lesson> meta_lessons(const Sizes& sizes) {
  const Pupil deep = perceptron("two layers", sizes.heads, {4, 4, 4}, tanh);
  const Policy tokens{.chunk = 2, .read = Read::before_write}, online{.chunk = 1},
      chunks{.chunk = 2, .update = Update::per_chunk, .steps = 2},
      lact{.chunk = 2, .update = Update::per_chunk, .read = Read::before_write};
  return {{deep, with_gates(), tokens, sizes},
          {deep, with_gates(), chunks, sizes},
          {matrix_of(sizes), with_gates(), online, sizes},
          {deep, rung(true, false, true), tokens, sizes},
          {matrix_of(sizes), rung(true, true, true), lact, sizes},
          {deep, sgd(), tokens, sizes}};
}
std::vector<FormChoice> forms_of(const Lesson& lesson) {
  std::vector<FormChoice> out{FormChoice::primal};
  if (refusal(lesson, FormChoice::dual).empty()) out.push_back(FormChoice::dual);
  return out;
}

}  // namespace

TEST_CASE(
    "first-order and truncated meta-gradients are those of the "
    "programs with stop_gradient written by hand, to order 2") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  for (Lesson lesson : meta_lessons(sizes)) {
    const Arrays full = numbers(lesson, by_hand(), 1);
    const std::vector<FormChoice> forms = forms_of(lesson);
    CAPTURE(lesson.method.name);
    CAPTURE(lesson.policy.str());
    const auto check = [&](bool differs) {
      const Arrays expected = numbers(lesson, by_hand(), 2, true);
      for (const FormChoice form : forms) {
        const double error = error_of(numbers(lesson, in_form(form), 2, true), expected);
        CAPTURE(ttt::name(form));
        CAPTURE(lesson.policy.str());
        CHECK(error < 1e-12);
      }
      bool apart = false;
      for (std::size_t i = 0; i < full.size(); ++i)
        apart = apart || relative_error(expected[i], full[i]) > 1e-3;
      CHECK(apart == differs);
    };
    lesson.policy.meta = Meta::first_order;
    check(true);
    lesson.policy.meta = Meta::truncated;
    for (const std::int64_t horizon : {1, 2, 3, 100}) {
      lesson.policy.horizon = horizon;
      check(horizon != 100);
    }
  }
}
TEST_CASE(
    "first-order: where no gradient depends on the weights it is the full meta-gradient, in every form") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  Lesson lesson{hebbian(sizes), with_gates(), {.chunk = 2, .update = Update::per_chunk}, sizes};
  const Arrays full = numbers(lesson, by_hand(), 2);
  lesson.policy.meta = Meta::first_order;
  CHECK(differing(lesson, full, 2,
                  {FormChoice::primal, FormChoice::dual, FormChoice::chunk_parallel, FormChoice::parallel}) ==
        "");
  lesson.policy.meta = Meta::truncated;
  for (const FormChoice form : {FormChoice::chunk_parallel, FormChoice::parallel})
    CHECK(contains(refusal(lesson, form), "the meta-gradient is cut between chunks"));
}

TEST_CASE("the full meta-gradient is the first-order one and what each step's gradient adds to it") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  const Pupil deep = perceptron("two layers", 2, {4, 4, 4}, tanh);
  std::vector<Method> methods{sgd(), linear_methods(sizes)[3], linear_methods(sizes)[4],
                              rung(false, true, true)};
  for (const Method& method : nonlinear_methods(sizes))
    if (method.name == "Adam") methods.push_back(method);  // weights that are carried as they are
  for (const Method& method : methods)
    for (const Policy& policy : {Policy{.chunk = 2}, Policy{.chunk = 3, .read = Read::before_write},
                                 Policy{.chunk = 1}, Policy{.chunk = 2, .update = Update::per_chunk},
                                 Policy{.chunk = 3, .update = Update::per_chunk, .steps = 2}})
      for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
        const Lesson lesson{deep, method, policy, sizes};
        if (!refusal(lesson, form).empty()) continue;
        const Function f = in_class(lesson, [&](const Class& c) {
          const std::int64_t chunks = (sizes.time + policy.chunk - 1) / policy.chunk;
          std::vector<Tensor> offsets;
          for (const Tensor& w : c.start.values()) {
            Shape shape = w.shape();
            shape.insert(shape.begin(), chunks);
            offsets.push_back(probe(zeros(DType::f64, shape)));
          }
          Tensors start = c.start.values();
          for (Tensor& w : start) w = probe(w);
          Policy first = policy;
          first.meta = Meta::first_order;
          const Weights from = c.start.with(start);
          const InnerLoopResult
              with_offsets = ttt::train_along(
                  c.learner, from, c.views,
                  {.policy = policy, .form = form, .gradient_offset = offsets, .keep_points = true}),
              without = ttt::train_along(c.learner, from, c.views, {.policy = policy, .form = form}),
              cut = ttt::train_along(c.learner, from, c.views, {.policy = first, .form = form});
          const Tensors full = grad(outer_loss(values_of(without)), start),
                        direct = grad(outer_loss(values_of(cut)), start),
                        added = grad(outer_loss(values_of(with_offsets)), offsets);
          Tensors out;
          for (std::size_t i = 0; i < start.size(); ++i) {
            out.push_back(full[i]);
            out.push_back(direct[i] + sum(added[i], {0}));
            out.push_back(added[i]);
            out.push_back(slice(with_offsets.points[i], 0, 0, 1) -
                          reshape(start[i], slice(with_offsets.points[i], 0, 0, 1).shape()));
          }
          out.push_back(with_offsets.output - without.output);
          return out;
        });
        const Arrays out = f(inputs_of(f));
        CAPTURE(method.name);
        CAPTURE(policy.str());
        for (std::size_t i = 0; i + 1 < out.size(); i += 4) {
          CHECK(relative_error(out[i + 1], out[i]) < 1e-12);
          CHECK(relative_error(out[i + 2], Array::zeros(out[i + 2].dtype(), out[i + 2].shape()), 1) > 1e-3);
          for (const double x : out[i + 3].to_vector()) CHECK(x == 0);
        }
        for (const double x : out.back().to_vector()) CHECK(std::abs(x) < 1e-14);
      }
}

// ---- token by token ----

namespace {

// The same tokens one after the other, all steps in one program.
Taught stepping(FormChoice form) {
  return [form](const Class& c) {
    std::map<std::string, Tensor> carried;
    Tensors outputs;
    for (std::int64_t t = 0; t < c.views.k.dim(2); ++t) {
      Views now{row_at(c.views.q, t), row_at(c.views.k, t), row_at(c.views.v, t), {}, c.views.position};
      for (const auto& [name, rows] : c.views.gates) now.gates[name] = row_at(rows, t);
      ttt::Stream stream(carried);
      const Tensor slot =
          constant(Array::full(DType::f64, {1}, static_cast<double>(t % c.lesson.policy.chunk)));
      outputs.push_back(ttt::train_step(c.learner, c.start, now, slot,
                                        {.policy = c.lesson.policy, .form = form}, stream, "layer"));
      carried = stream.carried();
    }
    return Tensors{concat(outputs, 2)};
  };
}
Taught only_outputs(const Taught& run) {
  return [run](const Class& c) { return Tensors{run(c)[0]}; };
}
std::string stepping_wrong(const Lesson& lesson) {
  const Arrays expected = numbers(lesson, only_outputs(by_hand()), 1, true);
  std::string out;
  for (const FormChoice form : {FormChoice::automatic, FormChoice::primal}) {
    const double error = error_of(numbers(lesson, stepping(form), 1, true), expected);
    if (!(error < 1e-11))
      out += fmt::format("{}, {}, {}: {:.2g}; ", lesson.method.name, lesson.policy.str(), ttt::name(form),
                         error);
  }
  const double whole =
      error_of(numbers(lesson, only_outputs(in_form(FormChoice::automatic)), 1, true), expected);
  if (!(whole < 1e-11))
    out += fmt::format("{}, {}, whole: {:.2g}; ", lesson.method.name, lesson.policy.str(), whole);
  return out;
}

// Every `step`th choice of optimiser, chunk, moment of reading and position rates, token by token.
void check_stepping(std::size_t step) {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  const Pupil biased = perceptron("x W + b", 2, {4, 4}, tanh);
  std::vector<Method> methods = linear_methods(sizes);
  for (const Method& method : nonlinear_methods(sizes)) methods.push_back(method);
  std::size_t i = 0;
  for (const Method& method : methods)
    for (const std::int64_t chunk : {1, 3})
      for (const Read read : {Read::after_write, Read::before_write})
        for (const bool position : {false, true})
          if (i++ % step == 0)
            CHECK(stepping_wrong(
                      {biased, method, {.chunk = chunk, .read = read}, sizes, {{"rate"}}, position}) == "");
}

}  // namespace

TEST_CASE("token by token = the whole sequence = by hand: steps per token, linear or not") {
  check_stepping(7);  // seven and the eight policies have no factor in common: every optimiser, every policy
}
TEST_SUITE("slow") {
  TEST_CASE(
      "token by token = the whole sequence = by hand: steps per "
      "token, linear or not, with position rates or without") {
    check_stepping(1);
  }
}
TEST_CASE(
    "token by token: gates per feature, gates before the gradient, "
    "gradients that depend on no weight, some weights only") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 6, .dim = 4};
  for (const Read read : {Read::after_write, Read::before_write}) {
    for (const Method& method : feature_methods(sizes))
      for (const std::int64_t chunk : {1, 4})
        for (const Pupil& pupil : {matrix_of(sizes), hebbian(sizes)})
          CHECK(stepping_wrong(
                    {pupil, method, {.chunk = chunk, .read = read}, sizes, {{"rate"}}, chunk == 4}) == "");
    for (const Method& method : moving_methods())
      CHECK(stepping_wrong({matrix_of(sizes), method, {.chunk = 1, .read = read}, sizes}) == "");
    CHECK(stepping_wrong(
              {swiglu(sizes),
               with_gates(),
               {.chunk = 4, .read = read, .ascent = true, .query_is_key = true, .trained = {"W2", "W1"}},
               sizes,
               {{"rate.W1"}}}) == "");
    CHECK(stepping_wrong(
              {ttt_mlp(sizes), with_gates(), {.chunk = 4, .read = read}, sizes, {{"rate"}}, true}) == "");
  }
}
TEST_CASE("token by token: a step a chunk, read before write (LaCT)") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 8, .dim = 4};
  const std::vector<GateInput> own{{"rate.W0"}, {"rate.W1"}, {"rate.W2"}};
  for (const std::int64_t chunk : {1, 3, 4, 9}) {
    Policy policy{.chunk = chunk, .update = Update::per_chunk, .read = Read::before_write};
    CHECK(stepping_wrong({swiglu(sizes), rung(true, true, true), policy, sizes, own}) == "");
    CHECK(stepping_wrong({hebbian(sizes), rung(false, true, true), policy, sizes}) == "");
    CHECK(stepping_wrong({hebbian(sizes), with_gates(), policy, sizes}) == "");
    policy.steps = 2;
    policy.average = policy.ascent = true;
    policy.trained = {"W1"};
    CHECK(stepping_wrong({swiglu(sizes), with_gates(), policy, sizes}) == "");
  }
}
TEST_CASE("token by token: weights and slots may be called as anything that is carried beside them") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 8, .dim = 4};
  for (const std::string weight : {"k", "v", "slot", "gate.rate", "gradient0.a"}) {
    CAPTURE(weight);
    const Pupil pupil = formula(
        "tanh(x W)",
        [=](const Params& p) {
          return Weights{matrix(weight, p("W", {sizes.heads, sizes.dim, sizes.dim}))};
        },
        [weight](const Weights& w, Tensor x) { return tanh(matmul(x, w[weight])); });
    CHECK(stepping_wrong({pupil, sgd(), {.chunk = 3}, sizes}) == "");
    CHECK(stepping_wrong(
              {pupil, sgd(), {.chunk = 3, .update = Update::per_chunk, .read = Read::before_write}, sizes}) ==
          "");
  }
  const Method running{"a slot named running", {}, [](const Params&) {
                         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
                         hand.step = [](Tensors& w, Tensor g, const Now&) {
                           w[1] = 0.5 * w[1] + tanh(g);
                           w[0] = w[0] - w[1];
                         };
                         const auto fn = [](Tensor g, std::span<Tensor> slots, const ttt::Gates&) {
                           return slots[0] = 0.5 * slots[0] + tanh(g);
                         };
                         return std::pair(InnerOptimizer().piece("soft momentum", fn, {"running"}), hand);
                       }};
  CHECK(stepping_wrong({matrix_of(sizes), running, {.chunk = 3}, sizes}) == "");
}
TEST_CASE("token by token: what is not causal, or has no chunks, is refused") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 4, .dim = 4};
  const auto why = [&](const Policy& policy) {
    return message_of<ConfigError>([&] {
      in_class({matrix_of(sizes), sgd(), policy, sizes}, [&](const Class& c) {
        ttt::Stream stream(std::map<std::string, Tensor>{});
        Views now{row_at(c.views.q, 0),
                  row_at(c.views.k, 0),
                  row_at(c.views.v, 0),
                  {{"rate", row_at(c.views.gates.at("rate"), 0)}},
                  {}};
        return Tensors{ttt::train_step(c.learner, c.start, now, constant(Array::full(DType::f64, {1}, 0)),
                                       {.policy = policy}, stream, "layer")};
      });
    });
  };
  CHECK(contains(why({.chunk = 2, .update = Update::per_chunk}), "cannot answer token by token"));
  CHECK(contains(why({.chunk = 0, .update = Update::per_chunk, .read = Read::before_write}), "token"));
  CHECK(contains(why({.chunk = 0}), "token"));
}
TEST_CASE("token by token: a prediction in which tokens meet is refused") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
  const Policy policy{.chunk = 3, .update = Update::per_chunk, .read = Read::before_write};
  const auto of = [&](const Formula::Predict& f) {
    return formula(
        "mixing",
        [&](const Params& p) {
          return Weights{matrix("W", p("W", {sizes.heads, 4, 4}))};
        },
        f);
  };
  const Pupil mean_taken =
                  of([](const Weights&w, Tensor x) { return matmul(x - mean(x, {-2}, kKeep), w["W"]); }),
              causal_sum = of([](const Weights&w, Tensor x) { return matmul(cumsum(x, -2), w["W"]); });
  for (const Pupil& pupil : {mean_taken, causal_sum}) {
    const std::string why = message_of<ConfigError>([&] {
      stepping_wrong({pupil, with_gates(), policy, sizes});
    });
    CHECK(contains(why, "tokens are not independent"));
    CHECK(contains(why, "let tokens meet in the layer's Task"));
  }
  Policy online = policy;
  online.chunk = 1;  // a token is alone
  CHECK(stepping_wrong({causal_sum, with_gates(), online, sizes}) == "");
}

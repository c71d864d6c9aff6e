// The promise: each rung of the ladder from LaCT to linear attention is what its name says, and what is
// refused on the way would give other numbers.
#include "autograd/grad.h"
#include "tests/ops/check_grads.h"
#include "tests/ttt/policy_cases.h"
#include "ttt/compose.h"
#include "ttt/system.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE(
    "the ladder from LaCT to linear attention: each rung has the forms that it allows, and they agree") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  const Policy lact{.chunk = 2, .update = Update::per_chunk, .read = Read::before_write};
  Policy last = lact;
  last.trained = {"W1"};
  const std::vector<GateInput> own{{"rate.W0"}, {"rate.W1"}, {"rate.W2"}}, one{{"rate.W1"}}, common{{"rate"}};
  using F = FormChoice;

  const LoopCase baseline{swiglu(sizes), rung(true, true, true), lact, sizes, own};
  CHECK(contains(refusal(baseline, F::chunk_parallel),
                 "chunk-parallel is impossible: the gradient of 'W0' depends on 'W0'"));
  CHECK(contains(refusal(baseline, F::parallel),
                 "parallel is impossible: the gradient of 'W0' depends on 'W0'"));
  CHECK(widest_form(baseline) == F::dual);
  CHECK(wrong(baseline, kRecurrent, 1) == "");

  const LoopCase last_layer{swiglu(sizes), rung(true, true, true), last, sizes, one};  // 1
  CHECK(contains(refusal(last_layer, F::chunk_parallel), "the step of 'W1' is not affine in the weight"));
  CHECK(contains(refusal(last_layer, F::chunk_parallel), "in 'weight norm'"));
  CHECK(widest_form(last_layer) == F::dual);
  CHECK(wrong(last_layer, kRecurrent, 1) == "");

  const std::vector<F> at_once{F::primal, F::dual, F::chunk_parallel};
  const LoopCase no_norm{swiglu(sizes), rung(false, true, true), last, sizes, one};              // 2
  const LoopCase one_layer{hebbian(sizes), rung(false, true, true), lact, sizes, {{"rate.W"}}};  // 3
  const LoopCase no_rate{hebbian(sizes), rung(false, true, true), lact, sizes, {}};              // 4
  const LoopCase no_momentum{hebbian(sizes), rung(false, true, false), lact, sizes, {}};         // 5
  for (const LoopCase& loop : {no_norm, one_layer, no_rate, no_momentum}) {
    CHECK(widest_form(loop) == F::chunk_parallel);
    CHECK(contains(refusal(loop, F::parallel), "in 'Muon'"));
    CHECK(wrong(loop, at_once, 2) == "");
  }
  const LoopCase linear_attention{hebbian(sizes), rung(false, false, false), lact, sizes, {}};  // 6
  CHECK(widest_form(linear_attention) == F::parallel);
  CHECK(wrong(linear_attention, {F::primal, F::dual, F::chunk_parallel, F::parallel}, 2) == "");
}

TEST_CASE("with few large chunks, what the last one makes of the weights costs nothing unless it is read" *
          doctest::test_suite("slow")) {
  const Policy lact{.chunk = 128, .update = Update::per_chunk, .read = Read::before_write};
  for (const std::int64_t time : {256, 300, 512}) {
    if (kSanitized && time > 300) continue;
    CAPTURE(time);
    const Sizes sizes{.batch = 1, .heads = 2, .time = time, .dim = 2};
    const LoopCase loop{
        swiglu(sizes), rung(true, true, true), lact, sizes, {{"rate.W0"}, {"rate.W1"}, {"rate.W2"}}};
    CHECK(wrong(loop, kRecurrent, 1) == "");
    const LoopCase one_layer{hebbian(sizes), rung(false, true, true), lact, sizes, {{"rate.W"}}};
    CHECK(wrong(one_layer, {FormChoice::primal, FormChoice::dual, FormChoice::chunk_parallel}, 1) == "");
  }
  std::string system;
  FormChoice form;
  const auto flops = [&](std::int64_t time, bool with_state) {
    const Function f = ttt::trace_system(
        ttt::system_named(system), {.batch = 1, .heads = 1, .dim = 32, .time = time, .chunk = 128},
        DType::f32, [&](const ttt::SystemProgram& p) {
          const InnerLoopResult r =
              ttt::train_along(*p.learner, p.start, p.views, {.policy = p.policy, .form = form});
          std::vector<Tensor> out{r.output};
          if (with_state)
            for (const Tensor& t : r.state.flat()) out.push_back(t);
          return out;
        });
    return f.plan().stats().flops;
  };
  // A chunk more costs what a chunk costs that somebody learns from.
  for (const auto& [name, how] : {std::pair{"lact", FormChoice::dual},
                                  {"lact-v3", FormChoice::dual},
                                  {"lact-v3", FormChoice::chunk_parallel}}) {
    system = name, form = how;
    CAPTURE(system);
    const double chunk = flops(640, true) - flops(512, true);
    CHECK(flops(512, true) - flops(512, false) > 0.5 * chunk);
    CHECK(flops(640, false) - flops(512, false) == doctest::Approx(chunk).epsilon(0.01));
  }
}

namespace {

// By hand, but with every gradient taken at the first
// weights: what a form for all chunks at once would compute.
Arrays at_first_weights(const LoopCase& loop) {
  return numbers(
      loop,
      [](const TracedCase& c) {
        const Policy& p = c.loop.policy;
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
  const auto outputs_apart = [](const LoopCase& a, const LoopCase& b, FormChoice form = FormChoice::primal) {
    return relative_error(numbers(a, in_form(form), 0)[0], numbers(b, in_form(form), 0)[0]);
  };
  // All gradients at the first weights: right where no factor
  // depends on a learning weight, wrong for the baseline.
  const LoopCase baseline{swiglu(sizes), rung(true, true, true), lact, sizes};
  CHECK(relative_error(at_first_weights(baseline)[0], numbers(baseline, in_form(FormChoice::primal), 0)[0]) >
        0.01);
  const LoopCase allowed{hebbian(sizes), rung(false, true, true), lact, sizes};
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
    const LoopCase one{hebbian(sizes), method, each, sizes}, sum{hebbian(sizes), method, summed, sizes};
    const Arrays a = numbers(one, in_form(FormChoice::primal), 0),
                 b = numbers(sum, in_form(FormChoice::primal), 0);
    CHECK(relative_error(a[1], b[1]) > 1e-3);
  }
  // The sum of plain steps is the step of the sum: there it makes no difference to the weights.
  const LoopCase one{hebbian(sizes), sgd(), each, sizes}, sum{hebbian(sizes), sgd(), summed, sizes};
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
  const NamedLearner deep = perceptron("two layers", 2, {4, 4, 4}, tanh);
  const LoopCase plain{deep, with_gates(), summed, sizes};
  const auto changed = [&](const std::function<void(Policy&)>& change) {
    LoopCase other = plain;
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

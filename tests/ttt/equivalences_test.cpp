// The promise: known layers are special cases of the inner loop, not programs of their own; with zero start
// and batch gradient descent the naive learner is linear attention, online it is DeltaNet.
#include "tests/ttt/ttt_testing.h"
#include "ttt/learners/lact.h"
#include "ttt/system.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::Composed;
using ttt::Policy;

namespace {

constexpr double kTolerance = 1e-12;
constexpr std::int64_t kBatch = 2, kHeads = 3, kTime = 9, kDim = 4;

struct Read {
  Tensor q, k, v, rate;  // rate: one number a token, in (0, 1)
  Views views(ttt::Gates gates = {}) const { return {q, k, v, std::move(gates), {}}; }
};

// Outputs of fn, and the gradients of something that they all have a part in, with respect to the inputs.
Arrays values_and_gradients(std::size_t inputs, const std::function<Tensors(const Read&)>& fn) {
  const Spec rows = f64({kBatch, kHeads, kTime, kDim});
  const Function f = trace(
      [&](const Tensors& in) {
        Tensors out = fn({in[0], in[1], in[2], sigmoid(in[3])});
        const Tensors g =
            grad(outer_loss(out), Tensors(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(inputs)));
        out.insert(out.end(), g.begin(), g.end());
        return out;
      },
      {rows, rows, rows, f64({kBatch, kHeads, kTime, 1})});
  Arrays numbers;
  for (std::size_t i = 0; i < f.inputs().size(); ++i) numbers.push_back(random(f.input_spec(i), 40 + i));
  return f(numbers);
}

// f(x) = x W, from zero.
ttt::Model memory() {
  return {"x W", {ttt::matrix("W", zeros(DType::f64, {kHeads, kDim, kDim}))}, [](const Weights& w, Tensor x) {
            return matmul(x, w["W"]);
          }};
}

Tensors run(const ttt::Learner& learner, const Views& views, Policy policy,
            FormChoice form = FormChoice::automatic) {
  return values_of(ttt::train_along(learner, ttt::for_batch(learner.init(), kBatch), views,
                                    {.policy = std::move(policy), .form = form, .block = 4}));
}

// A system's learner and policy on these views, as they are.
Tensors run(const std::string& system_name, const Views& views) {
  const ttt::System& system = ttt::system_named(system_name);
  ParamTable none(*context().emit.graph, DType::f64);
  const auto learner = system.learner(Params(none), {kHeads, kDim});
  return run(*learner, views, system.policy({kHeads, kDim}));
}

}  // namespace

TEST_CASE(
    "batch gradient descent from zero at rate 1/2 on |kW - "
    "v|^2 is linear attention (Sun et al. 2024, theorem 1)") {
  const auto learnt = [](FormChoice form, Policy::Update update) {
    return values_and_gradients(3, [&](const Read& r) {
      const Composed learner(memory(), ttt::squared_error(), ttt::InnerOptimizer().scale(0.5));
      return run(learner, r.views(), {.chunk = Policy::kWholeSequence, .update = update}, form);
    });
  };
  const Arrays attention = values_and_gradients(3, [](const Read& r) {
    return Tensors{matmul(tril(matmul(r.q, r.k, {.b = true})), r.v), matmul(r.k, r.v, {.a = true})};
  });
  const Arrays everything = values_and_gradients(3, [](const Read& r) {
    const Tensor state = matmul(r.k, r.v, {.a = true});
    return Tensors{matmul(r.q, state), state};
  });
  CHECK(worst_error(values_and_gradients(3, [](const Read& r) { return run("linear-attention", r.views()); }),
                    attention) < kTolerance);
  for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
    CHECK(worst_error(learnt(form, Policy::Update::per_token), attention) < kTolerance);
    CHECK(worst_error(learnt(form, Policy::Update::per_chunk), everything) < kTolerance);
    CHECK(worst_error(learnt(form, Policy::Update::per_chunk), attention) > 0.01);
  }
}

TEST_CASE("a linear learner of mini-batch 1, without norm and residual, is DeltaNet") {
  const auto with_rate = [](const Read& r) { return r.views({{"rate", r.rate}}); };
  const Arrays delta_rule = values_and_gradients(4, [&](const Read& r) {
    Tensor state = zeros(DType::f64, {kBatch, kHeads, kDim, kDim});
    Tensors outputs;
    for (std::int64_t t = 0; t < kTime; ++t) {
      const auto token = [&](Tensor x) { return slice(x, 2, t, t + 1); };
      const Tensor k = token(r.k);
      state = state - matmul(token(r.rate) * k, matmul(k, state) - token(r.v), {.a = true});
      outputs.push_back(matmul(token(r.q), state));
    }
    return Tensors{concat(outputs, 2), state};
  });
  CHECK(worst_error(values_and_gradients(4, [&](const Read& r) { return run("delta-net", with_rate(r)); }),
                    delta_rule) < kTolerance);
  for (const FormChoice form : {FormChoice::primal, FormChoice::dual, FormChoice::wy})
    CHECK(worst_error(values_and_gradients(4,
                                           [&](const Read& r) {
                                             const Composed learner(memory(), ttt::half_squared_error());
                                             return run(learner, with_rate(r), {.chunk = 1}, form);
                                           }),
                      delta_rule) < kTolerance);
}

TEST_CASE(
    "the squared loss with a weight for each token, written "
    "in several ways, has the WY form of the delta rule") {
  const auto weighed = [](const std::function<Tensor(Tensor error, Tensor weight)>& loss, FormChoice form) {
    return values_and_gradients(3, [&](const Read& r) {
      const testing::FormulaLearner learner(
          {ttt::matrix("W", zeros(DType::f64, {kHeads, kDim, kDim}))},
          [](const Weights& w, Tensor x) { return matmul(x, w["W"]); },
          [&](const Weights& w, Tensor k, Tensor v) {
            return loss(matmul(k, w["W"]) - v, sigmoid(sum(k, {-1}, kKeep)));
          });
      return run(learner, r.views(), {.chunk = 1}, form);
    });
  };
  const std::function<Tensor(Tensor, Tensor)> ways[] = {
      [](Tensor e, Tensor w) { return 0.5 * w * sum(square(e), {-1}, kKeep); },
      [](Tensor e, Tensor w) { return sum(0.5 * square(e) * w, {-1}, kKeep); },
      [](Tensor e, Tensor w) { return sum(square(e) * (w * 0.5), {-1}, kKeep); },
      [](Tensor e, Tensor w) { return 0.5 * sum(w * e * e, {-1}, kKeep); },
      [](Tensor e, Tensor w) { return 0.5 * static_cast<double>(kDim) * mean(square(e) * w, {-1}, kKeep); },
      [](Tensor e, Tensor w) { return 0.5 * sum(square(e) * broadcast_to(w, e.shape()), {-1}, kKeep); },
  };
  const Arrays expected = weighed(ways[0], FormChoice::primal);
  for (const auto& way : ways) CHECK(worst_error(weighed(way, FormChoice::wy), expected) < kTolerance);
}

TEST_CASE(
    "LaCT of which only the last matrix learns: all chunks at once give the numbers of one after the other") {
  const auto learnt = [](const ttt::InnerOptimizer& optimizer, Policy::Read when, FormChoice form) {
    return values_and_gradients(4, [&](const Read& r) {
      const Views views = r.views(read_by(
          optimizer, {{"rate", r.rate}, {"momentum", square(r.rate)}, {"forget", 1.0 - 0.5 * r.rate}}));
      const Tensor w = constant(random(f64({kHeads, kDim, kDim + 2}), 60)),
                   gate = constant(random(f64({kHeads, kDim, kDim + 2}), 61)),
                   out = constant(random(f64({kHeads, kDim + 2, kDim}), 62));
      Graph scratch;
      ParamTable unused(scratch, DType::f64);
      ttt::Model model = ttt::swiglu(Params(unused), {kHeads, kDim, kDim + 2, kDim});
      model.start = model.start.with({w, out, gate});
      const Composed learner(model, ttt::inner_product(), optimizer);
      const ttt::InnerLoopResult result = ttt::train_along(
          learner, ttt::for_batch(learner.init(), kBatch), views,
          {.policy = {.chunk = 2, .update = Policy::Update::per_chunk, .read = when, .trained = {"W1"}},
           .form = form,
           .block = 4});
      return Tensors{result.output, result.last()["W1"]};
    });
  };
  using ttt::gate;
  using ttt::InnerOptimizer;
  const InnerOptimizer optimizers[] = {
      InnerOptimizer(),
      InnerOptimizer().momentum(gate("momentum")),
      InnerOptimizer().momentum(gate("momentum")).muon(ttt::muon_tuned()),
      InnerOptimizer().muon().keep(gate("forget")),
      InnerOptimizer().normalize(ttt::Per::column, 0.1).momentum(gate("momentum"), true).keep(gate("forget")),
  };
  for (const InnerOptimizer& optimizer : optimizers)
    for (const Policy::Read when : {Policy::Read::before_write, Policy::Read::after_write}) {
      CAPTURE(optimizer.str());
      const Arrays expected = learnt(optimizer, when, FormChoice::primal);
      CHECK(worst_error(learnt(optimizer, when, FormChoice::dual), expected) < kTolerance);
      CHECK(worst_error(learnt(optimizer, when, FormChoice::chunk_parallel), expected) < kTolerance);
      CHECK(worst_error(learnt(optimizer, when, FormChoice::automatic), expected) < kTolerance);
    }
}

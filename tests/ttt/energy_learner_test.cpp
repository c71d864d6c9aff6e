// The promise: a learner may differentiate by its own rows, as score matching does, and means by that what its text
// says: the rows as they are given, not what else was made of them. Every form is the loop by hand.
#include "autograd/grad.h"
#include "tests/testing.h"
#include "ttt/inner_loop.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using namespace nestgrad::ttt;

namespace {

// Energy of a row, E(x; W) = 1/2 |tanh(x W)|^2. The answer is its gradient, the loss 1/2 |dE/dk - v|^2.
struct Energy : Learner {
  Tensor W;
  bool own_rate = false;
  explicit Energy(Tensor w) : W(w) {}
  Weights init() const override { return {matrix("W", W)}; }
  Tensor predict(const Weights& w, Tensor x) const override {
    return grad(0.5 * sum(square(tanh(matmul(x, w["W"])))), x);
  }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override {
    return 0.5 * sum(square(predict(w, k) - v), {-1}, kKeep);
  }
};

// Its gates are made of a gradient by the keys, too.
struct EnergyWithRate : Energy {
  using Energy::Energy;
  std::vector<std::string> own_gates() const override { return {"rate"}; }
  Gates gates(const Weights& w, Tensor k, Tensor, Tensor) const override {
    return {{"rate", sigmoid(sum(predict(w, k), {-1}, kKeep))}};
  }
};

struct Case {
  const char* name;
  Policy policy;
  bool shares = false;    // q and k are one tensor
  std::int64_t time = 4;  // two chunks, or one, which needs no loop
  bool reads_keys() const { return shares || policy.query_is_key; }
};

// Output, last weight, and their derivatives by all that is given.
std::vector<Tensor> with_slopes(const std::vector<Tensor>& out, const std::vector<Tensor>& in) {
  Tensor all = constant(0, DType::f64);
  for (std::size_t i = 0; i < out.size(); ++i) all = all + sum(sin(out[i] * (1.0 + static_cast<double>(i))));
  std::vector<Tensor> result = out;
  for (const Tensor& x : in) result.push_back(grad(all, x));
  return result;
}

std::vector<Array> numbers(const Case& c) {
  const Spec rows{DType::f64, {1, 1, c.time, 2}};
  return {random_normal(rows, 0, 1, 1, 0), random_normal(rows, 0, 1, 1, 1), random_normal(rows, 0, 1, 1, 2),
          random_normal({DType::f64, {1, 2, 2}}, 0, 0.5, 1, 3)};
}

std::vector<Spec> specs(const Case& c) {
  std::vector<Spec> out;
  for (const Array& a : numbers(c)) out.push_back(a.spec());
  return out;
}

template <class L>
std::vector<Array> trained(const Case& c, FormChoice form) {
  const Function f =
      trace(TraceFn([&](const std::vector<Tensor>& in) {
              const L learner(in[3]);
              Views views{.q = c.shares ? in[1] : in[0], .k = in[1], .v = in[2]};
              const InnerLoopResult r = train_along(learner, for_batch(learner.init(), 1), views,
                                                    {.policy = c.policy, .form = form});
              return with_slopes({r.output, r.last().values()[0]}, {in.begin() + c.reads_keys(), in.end()});
            }),
            specs(c));
  return f(numbers(c));
}

// Chunks, one after the other, every row under a name of its own.
template <class L>
std::vector<Array> by_hand(const Case& c) {
  const Function f = trace(
      TraceFn([&](const std::vector<Tensor>& in) {
        const L learner(in[3]);
        Tensor w = reshape(in[3], {1, 1, 2, 2});
        std::vector<Tensor> answers;
        // Rows [from, to) of q, k or v, under a name of their own.
        const auto rows = [&](std::size_t which, std::int64_t from, std::int64_t to) {
          return probe(slice(in[which], 2, from, to));
        };
        const std::size_t queries = c.reads_keys() ? 1 : 0;
        for (std::int64_t t = 0; t < c.time; t += c.policy.chunk) {
          const std::int64_t end = t + c.policy.chunk;
          const Tensor start = w;
          const Gates gates = learner.gates({matrix("W", w)}, rows(1, t, end), rows(2, t, end), Tensor());
          // One step with the gradient of tokens [from, to) at these weights.
          const auto learn = [&](Tensor at, std::int64_t from, std::int64_t to) {
            at = probe(at);
            const Tensor loss = learner.loss({matrix("W", at)}, rows(1, from, to), rows(2, from, to));
            const auto rate = gates.find("rate");
            const GradSeed seed{loss, rate == gates.end() ? full(DType::f64, loss.shape(), 1) : rate->second};
            w = w - pull_back(std::span(&seed, 1), std::span(&at, 1))[0];
          };
          const auto answer = [&](std::int64_t from, std::int64_t to) {
            answers.push_back(learner.predict({matrix("W", w)}, rows(queries, from, to)));
          };
          if (c.policy.update == Policy::Update::per_token) {
            for (std::int64_t i = t; i < end; ++i) learn(start, i, i + 1), answer(i, i + 1);
          } else {
            for (int step = 0; step < c.policy.steps; ++step) learn(w, t, end);
            answer(t, end);
          }
        }
        return with_slopes({concat(answers, 2), w}, {in.begin() + c.reads_keys(), in.end()});
      }),
      specs(c));
  return f(numbers(c));
}

}  // namespace

TEST_CASE("a learner that differentiates by its own rows is the loop by hand, in every form") {
  using enum Policy::Update;
  for (const Case& c :
       {Case{"one step a chunk", {.chunk = 2, .update = per_chunk}},
        Case{"two steps a chunk", {.chunk = 2, .update = per_chunk, .steps = 2}},
        Case{"queries are keys", {.chunk = 2, .update = per_chunk, .query_is_key = true}},
        Case{"views share a tensor", {.chunk = 2, .update = per_chunk}, true},
        Case{"a step a token", {.chunk = 1}}, Case{"a step a token, a shared tensor", {.chunk = 1}, true},
        Case{"a step a token, two of them at one weight", {.chunk = 2}, true},
        Case{"a step a token, one chunk of a shared tensor", {.chunk = 2}, true, 2},
        Case{"one chunk", {.chunk = 2, .update = per_chunk, .steps = 2}, false, 2},
        Case{
            "one chunk, queries are keys", {.chunk = 2, .update = per_chunk, .query_is_key = true}, false, 2},
        Case{"one chunk of a shared tensor", {.chunk = 2, .update = per_chunk}, true, 2}}) {
    CAPTURE(c.name);
    const std::vector<Array> wanted = by_hand<Energy>(c);
    for (const FormChoice form : {FormChoice::automatic, FormChoice::primal, FormChoice::dual}) {
      CAPTURE(name(form));
      const std::vector<Array> found = trained<Energy>(c, form);
      REQUIRE(found.size() == wanted.size());
      for (std::size_t i = 0; i < found.size(); ++i) CHECK(relative_error(found[i], wanted[i]) < 1e-12);
    }
  }
}

TEST_CASE("gates that a learner makes of a gradient by its rows are those of the loop by hand") {
  for (const auto& [shares, time] : {std::pair{false, 4}, {true, 4}, {false, 2}, {true, 2}}) {
    const Case c{"own rate", {.chunk = 2, .update = Policy::Update::per_chunk, .steps = 2}, shares, time};
    const std::vector<Array> wanted = by_hand<EnergyWithRate>(c);
    for (const FormChoice form : {FormChoice::automatic, FormChoice::primal}) {
      CAPTURE(name(form));
      const std::vector<Array> found = trained<EnergyWithRate>(c, form);
      for (std::size_t i = 0; i < found.size(); ++i) CHECK(relative_error(found[i], wanted[i]) < 1e-12);
    }
  }
}

namespace {

// The answer is that of the row after a step down an energy of its own, E(u) = sum softplus(u b).
struct SteppedRow : Learner {
  Tensor W, b;
  SteppedRow(Tensor w, Tensor own) : W(w), b(own) {}
  Weights init() const override { return {matrix("W", W)}; }
  Tensor predict(const Weights& w, Tensor x) const override {
    return matmul(x - 0.5 * grad(sum(softplus(x * b)), x), w["W"]);
  }
};

// Every token answers with the weight after a step of its own on the token: W - 0.3 dE(x; W)/dW, W spread over tokens.
struct SteppedWeight : Learner {
  Tensor W;
  explicit SteppedWeight(Tensor w) : W(w) {}
  Weights init() const override { return {matrix("W", W)}; }
  Tensor predict(const Weights& w, Tensor x) const override {
    const Tensor own = w["W"];
    Shape one = own.shape(), each = own.shape(), rows = x.shape();
    one.insert(one.end() - 2, 1);
    each.insert(each.end() - 2, x.dim(-2));
    rows.insert(rows.end() - 1, 1);
    const Tensor row = reshape(x, rows), of_row = broadcast_to(reshape(own, one), each);
    const Tensor energy = sum(square(tanh(matmul(row, of_row)) - row));
    return reshape(matmul(row, of_row - 0.3 * grad(energy, of_row)), x.shape());
  }
};

// What a pass along a sequence makes of (k, v, W, b), and which of them it gives anew.
using Pass =
    std::function<std::vector<Tensor>(const std::vector<Tensor>& in, const InnerLoopOptions& options)>;

InnerLoopResult along(const Learner& learner, Weights start, const std::vector<Tensor>& in,
                      const InnerLoopOptions& options) {
  return train_along(learner, start, Views{.q = in[0], .k = in[0], .v = in[1]}, options);
}

}  // namespace

TEST_CASE(
    "two passes of a learner that differentiates by what it is given are the same in one function as in two") {
  const Spec rows{DType::f64, {1, 1, 4, 2}}, weight{DType::f64, {1, 1, 2, 2}}, own{DType::f64, {1, 1, 2}};
  const std::vector<Spec> specs{rows, rows, weight, own};
  std::vector<Array> numbers;
  for (const Spec& spec : specs) numbers.push_back(random_normal(spec, 0, 0.7, 1, numbers.size()));
  const auto start = [](Tensor w) { return Weights{matrix("W", w)}; };
  const auto heads = [](Tensor w) { return reshape(w, {1, 2, 2}); };
  // The second pass begins with the weights, or reads the answers, or has the parameters that the first one gave.
  const std::vector<std::pair<const char*, Pass>> passes{
      {"weights of before",
       [&](const std::vector<Tensor>& in, const InnerLoopOptions& o) {
         const InnerLoopResult r = along(Energy(heads(in[2])), start(in[2]), in, o);
         return std::vector<Tensor>{in[0], r.output, r.last()["W"], in[3]};
       }},
      {"weights of before, own rates",
       [&](const std::vector<Tensor>& in, const InnerLoopOptions& o) {
         const InnerLoopResult r = along(EnergyWithRate(heads(in[2])), start(in[2]), in, o);
         return std::vector<Tensor>{in[0], r.output, r.last()["W"], in[3]};
       }},
      {"answers of before",
       [&](const std::vector<Tensor>& in, const InnerLoopOptions& o) {
         const InnerLoopResult r = along(SteppedWeight(heads(in[2])), start(in[2]), in, o);
         return std::vector<Tensor>{r.output, in[1], in[2], in[3]};
       }},
      {"parameters learnt from the answers", [&](const std::vector<Tensor>& in, const InnerLoopOptions& o) {
         const InnerLoopResult r = along(SteppedRow(heads(in[2]), in[3]), start(in[2]), in, o);
         const std::vector<Tensor> slopes =
             grad(mean(square(r.output - in[1])), std::vector<Tensor>{in[2], in[3]});
         return std::vector<Tensor>{in[0], in[1], in[2] - 0.5 * slopes[0], in[3] - 0.5 * slopes[1]};
       }}};
  for (const auto& [what, pass] : passes)
    for (const Policy::Update update : {Policy::Update::per_token, Policy::Update::per_chunk})
      for (const Policy::Read read : {Policy::Read::before_write, Policy::Read::after_write})
        for (const std::int64_t chunk : {1, 2, 4})
          for (const FormChoice form : {FormChoice::primal, FormChoice::automatic}) {
            CAPTURE_BOUND(what);
            CAPTURE(chunk);
            CAPTURE(name(form));
            const auto& once_along = pass;
            const InnerLoopOptions options{.policy = {.chunk = chunk, .update = update, .read = read},
                                           .form = form};
            const Function once =
                trace(TraceFn([&](const std::vector<Tensor>& in) { return once_along(in, options); }), specs);
            const Function twice = trace(TraceFn([&](const std::vector<Tensor>& in) {
                                           return once_along(once_along(in, options), options);
                                         }),
                                         specs);
            const std::vector<Array> wanted = once(once(numbers)), found = twice(numbers);
            for (std::size_t i = 0; i < found.size(); ++i) CHECK(relative_error(found[i], wanted[i]) < 1e-12);
          }
}

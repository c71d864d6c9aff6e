// The promise: a memory that makes its own keys, values, rates and targets learns by its predictions alone,
// and the outer gradient goes through all of what it makes.
#include "autograd/grad.h"
#include "tests/ops/check_grads.h"
#include "tests/ttt/system_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::system_named;

namespace {

constexpr double kTolerance = 1e-11;
constexpr const char* kMemories[] = {"M_memory", "M_k", "M_v", "M_eta"};
const ProgramSizes kPartial{.time = 10, .chunk = 4};  // two chunks and a part of one

// A system like it whose chunks have this many tokens.
System in_chunks(System system, std::int64_t chunk) {
  system.policy = [given = system.policy, chunk](const ttt::SystemSizes& s) {
    ttt::Policy policy = given(s);
    policy.chunk = chunk;
    return policy;
  };
  return system;
}

// Section 8.1 from the text, without a learner. Each memory's prediction and target get names of their own,
// and the gradient is asked of the prediction: what makes k, v, eta and the target is then not part of it.
// cut: stop_gradient() instead, which the outer gradient does not pass either.
// The rates' ceiling is that of the system, which is made for chunks of `made_for`.
SystemRun from_the_text(std::int64_t chunk, bool cut = false, double made_for = 4) {
  return [=](const SystemProgram& p) {
    Weights memories = p.start, first = p.start;
    Tensors outputs;
    for (std::int64_t t = 0; t < p.views.k.dim(2); ++t) {
      if (t % chunk == 0) first = memories;
      outputs.push_back(matmul(token(p.views.q, t), memories["M_memory"]));
      const Tensor x_k = token(p.views.k, t), x_v = token(p.views.v, t);
      const auto held = [&](const char* name) { return cut ? stop_gradient(first[name]) : first[name]; };
      const Tensor k = l2_norm(matmul(x_k, held("M_k"))), v = matmul(x_v, held("M_v")),
                   eta = sigmoid(matmul(x_k, held("M_eta")) + p.inputs.back()) / made_for;  // eta_bias
      Tensors next;
      for (const char* name : kMemories) {
        const Tensor memory = probe(first[name]), said = matmul(v, held(name)),
                     target = name == std::string("M_eta") ? tanh(said) : l2_norm(said);
        const Tensor loss = 0.5 * sum(eta * square(matmul(k, memory) - target));
        next.push_back(token(p.views.gates.at("keep"), t) * memories[name] - grad(loss, memory));
      }
      memories = memories.with(next);
    }
    return made_by_hand(outputs, memories);
  };
}

// Only the outputs: whatever reaches the outer gradient of M_k, M_v and M_eta went through what they make.
Function output_gradients(const System& system, const ProgramSizes& sizes, const SystemRun& run) {
  return ttt::trace_system(system, sizes, DType::f64, [&](const SystemProgram& p) {
    const Tensor output = run(p).output;
    return grad(outer_loss({output}), p.inputs, {.allow_zero = true});
  });
}
Arrays numbers(const Function& f) { return f(ttt::numbers_for(f, 1)); }

}  // namespace

TEST_CASE("the system is the text's: values and order 1, in chunks and online") {
  const System& system = system_named("self-modifying");
  for (const std::int64_t chunk : {1, 4})
    for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
      CAPTURE(chunk);
      const System own = in_chunks(system, chunk);
      CHECK(worst_error(run_system(own, kPartial, system_in(form), 1),
                        run_system(own, kPartial, from_the_text(chunk), 1)) < kTolerance);
    }
}

TEST_CASE("with one feature a row's target still has length 1, and a number's is its tanh") {
  const ProgramSizes narrow{.dim = 1, .time = 10, .chunk = 4};
  CHECK(worst_error(run_system(system_named("self-modifying"), narrow, system_in(FormChoice::dual), 1),
                    run_system(system_named("self-modifying"), narrow, from_the_text(4), 1)) < kTolerance);
}

TEST_CASE("dual and primal agree at values and orders 1 and 2; there is no other form") {
  const System& system = system_named("self-modifying");
  CHECK(refused(system, kPartial, 2) == "parallel wy");
  CHECK(refused(in_chunks(system, 1), {.time = 5}, 2) == "parallel wy");
  CHECK(refused(system, {.heads = 3, .time = 3, .chunk = 4}, 2) == "parallel wy");
}

TEST_CASE("the outer gradient is the derivative: central differences and Taylor rates, to order 2") {
  const ProgramSizes sizes{.batch = 1, .heads = 2, .dim = 3, .time = 5, .chunk = 2};
  for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
    const Function f =
        ttt::trace_system(system_named("self-modifying"), sizes, DType::f64,
                          [&](const SystemProgram& p) { return values_of(system_in(form)(p)); });
    Subject s{.what = "self-modifying",
              .fn = [f](const Tensors& in) { return f(std::span<const Tensor>(in)); },
              .inputs = ttt::numbers_for(f, 1),
              .active = {},
              .orders = 2};
    CHECK(join(check_taylor(s)) == "");
    s.tolerance = 100;  // the difference's own error: keys are normalised
    CHECK(join(check_grads(s)) == "");
    CHECK(join(check_products(s)) == "");
  }
}

TEST_CASE(
    "held is not stop_gradient: the same values, another "
    "outer gradient, and some parameters would not learn") {
  const System& system = system_named("self-modifying");
  const Arrays values = run_system(system, kPartial, system_in(FormChoice::dual), 0);
  CHECK(worst_error(run_system(system, kPartial, from_the_text(4, true), 0), values) < kTolerance);

  const Arrays held = numbers(output_gradients(system, kPartial, system_in(FormChoice::dual))),
               text = numbers(output_gradients(system, kPartial, from_the_text(4))),
               cut = numbers(output_gradients(system, kPartial, from_the_text(4, true)));
  CHECK(worst_error(held, text) < kTolerance);
  const std::size_t first = held.size() - 1 - std::size(kMemories);  // before eta_bias
  for (std::size_t i = 0; i < std::size(kMemories); ++i) {
    const std::string memory = kMemories[i];
    CAPTURE(memory);
    CHECK(relative_error(cut[first + i], held[first + i]) > 0.01);
    if (memory == "M_memory") continue;
    for (const double g : cut[first + i].to_vector()) CHECK(g == 0);  // only what it makes reaches the output
    double largest = 0;
    for (const double g : held[first + i].to_vector()) largest = std::max(largest, std::abs(g));
    CHECK(largest > 1e-4);
  }
}

TEST_CASE("three levels: the derivative through an outer step that learns the memories' start") {
  // Level 1, the memories read a sequence; level 2, a step on their start lowers the loss of the reading;
  // level 3, how the loss after that step depends on the rate of the step and on everything else.
  const ProgramSizes sizes{.batch = 1, .heads = 1, .dim = 3, .time = 4, .chunk = 2};
  const Function f =
      ttt::trace_system(system_named("self-modifying"), sizes, DType::f64, [&](const SystemProgram& p) {
        const auto reading_loss = [&](const Weights& start) {
          const Tensor out = ttt::train_along(*p.learner, start, p.views, {.policy = p.policy}).output;
          return mean(square(out - p.views.v));
        };
        Tensors start = p.start.values();
        for (Tensor& w : start) w = probe(w);
        const Tensors g = grad(reading_loss(p.start.with(start)), start);
        const Tensor rate = sigmoid(mean(p.views.k));
        for (std::size_t i = 0; i < start.size(); ++i) start[i] = start[i] - rate * g[i];
        return Tensors{reading_loss(p.start.with(start))};
      });
  Subject s{.what = "three levels",
            .fn = [f](const Tensors& in) { return f(std::span<const Tensor>(in)); },
            .inputs = ttt::numbers_for(f, 1),
            .active = {},
            .orders = 2};
  CHECK(join(check_taylor(s)) == "");
  s.tolerance = 100;
  CHECK(join(check_grads(s)) == "");
}

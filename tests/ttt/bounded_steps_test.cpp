// The promise: a learner whose loss or targets nothing bounds has a step that is bounded, whatever it reads; and it is that
// piece which does it: without it the same text is the end of it.
#include <cmath>
#include <map>

#include "tests/ttt/system_testing.h"
#include "ttt/learners/titans.h"
#include "ttt/reference.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::system_named;
using ttt::SystemSizes;

namespace {

// Norm of each matrix before the first token, and after each length of text: [lengths + 1][weights].
std::vector<std::vector<double>> norms_of(const System& system, const ProgramSizes& sizes, double size,
                                          const std::vector<std::int64_t>& lengths) {
  std::vector<std::vector<double>> out;
  for (const std::int64_t time : lengths) {
    ProgramSizes own = sizes;
    own.time = time;
    const Function f = ttt::trace_system(system, own, DType::f64, [&](const SystemProgram& p) {
      ttt::Views views = p.views;
      views.v = views.v * size;  // of the same direction in every token: what is learnt adds up
      views.k = 0.0 * views.k + slice(views.k, -2, 0, 1), views.v = 0.0 * views.v + slice(views.v, -2, 0, 1);
      const InnerLoopResult r = ttt::train_along(*p.learner, p.start, views, {.policy = p.policy});
      Tensors norms;
      for (const ttt::Weights& w : {p.start, r.last()})
        for (const Tensor& each : w.values()) norms.push_back(max(sqrt(sum(square(each), {-2, -1}, kKeep))));
      return norms;
    });
    const Arrays r = f(ttt::numbers_for(f, 1));
    const std::size_t weights = r.size() / 2;
    std::vector<double> start, last;
    for (std::size_t i = 0; i < weights; ++i)
      start.push_back(r[i].item()), last.push_back(r[weights + i].item());
    if (out.empty()) out.push_back(start);
    out.push_back(last);
  }
  return out;
}

// KV binding with steps of the gradient itself.
System unbounded_kv_binding() {
  System out = system_named("kv-binding");
  out.learner = [](const Params& p, const SystemSizes& s) {
    return std::make_unique<ttt::Composed>(
        ttt::mlp(
            p, s.heads, {s.dim, 4 * s.dim, s.dim}, [](Tensor x) { return silu(x); }, "silu"),
        ttt::inner_product());
  };
  return out;
}

}  // namespace

TEST_CASE(
    "KV binding: no token moves a matrix further than 1.1; steps of the gradient itself grow without end") {
  const ProgramSizes sizes{.batch = 1, .heads = 2, .dim = 4, .chunk = 4};
  constexpr double kMost = 1.1;
  const auto bounded = norms_of(system_named("kv-binding"), sizes, 100, {1, 8, 64});
  for (std::size_t i = 0; i < bounded[0].size(); ++i) {
    CHECK(bounded[1][i] <= bounded[0][i] + kMost);
    CHECK(bounded[2][i] <= bounded[0][i] + 8 * kMost);
    CHECK(bounded[3][i] <= bounded[0][i] + 64 * kMost);
  }
  CHECK(bounded[3][1] > bounded[0][1] + 8);  // it goes on learning
  const auto free = norms_of(unbounded_kv_binding(), sizes, 100, {1, 8, 64});
  CHECK(free[2][0] > bounded[0][0] + 8);
  CHECK_FALSE(free[3][0] < 1e6);  // or no number at all
}

namespace {

// Titans' deep memory, with nothing behind its perceptron.
System titans_without_norm() {
  System out = system_named("titans-mlp");
  out.learner = [](const Params& p, const SystemSizes& s) {
    return std::make_unique<ttt::Composed>(
        ttt::mlp(
            p, s.heads, {s.dim, 2 * s.dim, s.dim}, [](Tensor x) { return gelu(x); }, "gelu"),
        ttt::mean_squared_error(), ttt::titans_optimizer());
  };
  return out;
}

}  // namespace

TEST_CASE("Titans, deep: values of any size leave weights of a size with the norm, and none without") {
  const ProgramSizes sizes{.batch = 1, .heads = 2, .dim = 4, .chunk = 4};
  const auto bounded = norms_of(system_named("titans-mlp"), sizes, 100, {64, 256});
  for (std::size_t i = 0; i < bounded[0].size(); ++i) {
    CHECK(bounded[1][i] < 100);
    CHECK(bounded[2][i] < 100);
  }
  CHECK(bounded[2][0] != bounded[0][0]);                                       // it learns
  CHECK_FALSE(norms_of(titans_without_norm(), sizes, 100, {64})[1][0] < 1e6);  // or no number at all
}

TEST_CASE(
    "Titans, deep: a chunk of equal tokens moves the weights as far as one token alone, and no further") {
  // The weights before and after a chunk of so many times the same token, with all gates open but that of momentum.
  // With one head the first numbers of a view, and those of the weights, are the same for any number of tokens.
  const auto learnt = [](std::int64_t tokens) {
    const ProgramSizes sizes{.batch = 1, .heads = 1, .dim = 4, .time = tokens, .chunk = tokens};
    const Function f =
        ttt::trace_system(system_named("titans-mlp"), sizes, DType::f64, [](const SystemProgram& p) {
          ttt::Views views = p.views;
          for (Tensor* each : {&views.q, &views.k, &views.v}) *each = 0.0 * *each + slice(*each, -2, 0, 1);
          for (const auto& [name, value] :
               std::map<std::string, double>{{"rate", 1}, {"eta", 0}, {"keep", 1}})
            views.gates.at(name) = 0.0 * views.gates.at(name) + value;
          Tensors out = p.start.values();
          const InnerLoopResult r = ttt::train_along(*p.learner, p.start, views, {.policy = p.policy});
          for (const Tensor& weight : r.last().values()) out.push_back(weight);
          return out;
        });
    return f(ttt::numbers_for(f, 1));
  };
  const Arrays one = learnt(1);
  CHECK(max_error({one[0]}, {one[one.size() / 2]}) > 1e-4);  // it moves
  for (const std::int64_t tokens : {2, 16}) {
    CAPTURE(tokens);
    CHECK(max_error(learnt(tokens), one) < 1e-12);
  }
}

TEST_CASE("self-modifying memory: a chunk adds at most 1 to a memory's norm, whatever it reads") {
  for (const std::int64_t chunk : {1, 4}) {
    CAPTURE(chunk);
    const ProgramSizes sizes{.batch = 1, .heads = 2, .dim = 4, .chunk = chunk};
    const auto norms = norms_of(system_named("self-modifying"), sizes, 100, {chunk, 8 * chunk, 32 * chunk});
    for (std::size_t i = 0; i < norms[0].size(); ++i) {
      CHECK(norms[1][i] <= norms[0][i] + 1);
      CHECK(norms[2][i] <= norms[0][i] + 8);
      CHECK(norms[3][i] <= norms[0][i] + 32);
    }
  }
}

namespace {

// The formulas of the self-modifying memory for one matrix that reads one token again and again, 40 chunks of this many
// tokens: what it grows to.
double norm_after(bool unit_targets, double rate, std::int64_t tokens_of_a_chunk) {
  const Spec square_matrix{DType::f64, {4, 4}}, row{DType::f64, {1, 4}};
  const Function f = trace(
      [&](const Tensors& in) {
        Tensor memory = in[0];
        const Tensor k = l2_norm(in[1]), v = k * 3.0;
        for (int chunk = 0; chunk < 40; ++chunk) {
          const Tensor said = matmul(v, memory), target = unit_targets ? l2_norm(said) : said;
          memory = memory - rate * static_cast<double>(tokens_of_a_chunk) *
                                matmul(k, matmul(k, memory) - target, {.a = true});
        }
        return Tensors{sqrt(sum(square(memory)))};
      },
      {square_matrix, row});
  return f({random(square_matrix, 1, -1, 1), random(row, 2, -1, 1)})[0].item();
}

}  // namespace

TEST_CASE("learners that bound what the tokens of a chunk do together are told how many there are") {
  for (const char* name : {"self-modifying", "titans-mlp"}) {
    CAPTURE(name);
    const ttt::System& system = ttt::system_named(name);
    CHECK(contains(message_of<ConfigError>([&] {
                     ttt::describe_reference(system, {.batch = 1, .heads = 1, .time = 4, .dim = 2},
                                             {.policy = "chunk=0"});
                   }),
                   "any number of them; give the number"));
    CHECK(contains(message_of<ConfigError>([&] {
                     ttt::trace_system(system, {.chunk = 0}, DType::f64,
                                       [](const ttt::SystemProgram&) { return Tensors(); });
                   }),
                   "any number of them"));
  }
  CHECK(contains(message_of<ConfigError>([] {
                   ttt::describe_reference(ttt::system_named("hope"),
                                           {.batch = 1, .heads = 1, .time = 4, .dim = 2},
                                           {.policy = "chunk=4,update=per-chunk"});
                 }),
                 "leave update at per-token"));
}

TEST_CASE(
    "each of the two pieces is needed: targets that a memory makes longer, rates that add up in a chunk") {
  CHECK(norm_after(true, 0.9, 1) < 10);
  CHECK_FALSE(norm_after(false, 0.9, 1) < 1e6);
  CHECK(norm_after(true, 0.9 / 16, 16) < 10);
  CHECK_FALSE(norm_after(true, 0.9, 16) < 1e6);
}

// The promise: the rows from linear attention to TTT-Linear are what they are called: a formula by hand gives the same.
#include <cmath>
#include <set>

#include "reproduce/experiments/catalogue.h"
#include "reproduce/experiments/ladder_ttt_rows.h"
#include "tests/testing.h"
#include "ttt/claim.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using namespace nestgrad::reproduce;
using namespace nestgrad::reproduce::ladder;

namespace {

constexpr std::int64_t kTime = 7, kDim = 4;
using Matrix = std::vector<double>;  // rows of kDim

struct Learnt {
  Matrix q, k, v, start;  // of one sequence and one head; start: W0, where it is learnt
  Matrix output;
};

Learnt learnt(std::size_t number) {
  const ttt::System system = system_of(table_1().at(number - 1));
  const Function program =
      ttt::trace_system(system, {.batch = 1, .heads = 1, .dim = kDim, .time = kTime}, DType::f64,
                        [](const ttt::SystemProgram& p) {
                          return std::vector<Tensor>{
                              ttt::train_along(*p.learner, p.start, p.views, {.policy = p.policy}).output};
                        });
  const Arrays in = ttt::numbers_for(program, 3);
  Learnt out{in[0].to_vector(), in[1].to_vector(), in[2].to_vector(), {}, program(in)[0].to_vector()};
  if (in.size() > 3) out.start = in[3].to_vector();
  return out;
}

double dot(const Matrix& a, std::int64_t i, const Matrix& b, std::int64_t j) {
  double out = 0;
  for (std::int64_t c = 0; c < kDim; ++c)
    out += a[static_cast<std::size_t>(i * kDim + c)] * b[static_cast<std::size_t>(j * kDim + c)];
  return out;
}
Matrix times(const Matrix& a, const Matrix& w) {
  Matrix out(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t c = 0; c < kDim; ++c) out[i] += a[i / kDim * kDim + c] * w[c * kDim + i % kDim];
  return out;
}
// start + sum over s up to t of <q_t, k_s> u_s, divided by sum <q_t, k_s> if `normalised`.
Matrix attended(const Matrix& q, const Matrix& k, const Matrix& u, Matrix start, bool normalised) {
  for (std::int64_t t = 0; t < kTime; ++t) {
    double all = 0;
    for (std::int64_t s = 0; s <= t; ++s) {
      all += dot(q, t, k, s);
      for (std::int64_t c = 0; c < kDim; ++c)
        start[static_cast<std::size_t>(t * kDim + c)] +=
            dot(q, t, k, s) * u[static_cast<std::size_t>(s * kDim + c)];
    }
    for (std::int64_t c = 0; c < kDim && normalised; ++c)
      start[static_cast<std::size_t>(t * kDim + c)] /= all;
  }
  return start;
}
double apart(const Matrix& a, const Matrix& b) {
  double worst = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) worst = worse(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace

TEST_CASE("row 1 is linear attention with elu + 1 and its normaliser") {
  const Learnt r = learnt(1);
  const auto mapped = [](Matrix x) {
    for (double& each : x) each = each > 0 ? each + 1 : std::exp(each);
    return x;
  };
  CHECK(apart(r.output, attended(mapped(r.q), mapped(r.k), r.v, Matrix(r.v.size()), true)) < 1e-12);
}

TEST_CASE("rows 2 and 3 are linear attention, whatever makes the steps") {
  for (const std::size_t number : {2, 3}) {
    const Learnt r = learnt(number);
    CHECK(apart(r.output, attended(r.q, r.k, r.v, Matrix(r.v.size()), false)) < 1e-12);
  }
}

TEST_CASE("row 4 takes all gradients at W0, and a token reads the steps up to its own") {
  const Learnt r = learnt(4);
  const Matrix answered = times(r.k, r.start);
  Matrix error(r.v);
  for (std::size_t i = 0; i < error.size(); ++i) error[i] -= answered[i];
  CHECK(apart(r.output, attended(r.q, r.k, error, times(r.q, r.start), false)) < 1e-12);
}

TEST_CASE("as networks rows 2 and 3 have the same parameters, losses and gradients; rows 3 and 4 have not") {
  const auto network = [](std::size_t number) {
    LanguageRun run = run_of(table_1().at(number - 1), {});
    run.model.hidden_size = 16, run.model.intermediate_size = 16, run.model.vocab_size = 8;
    return function_of(run);
  };
  Array tokens(DType::i32, {1, 13});
  for (std::size_t i = 0; i < 13; ++i) tokens.as<std::int32_t>()[i] = static_cast<std::int32_t>(i * i % 8);
  const auto parameters = [&](const LogitsFn& model) {
    const TracedModel traced =
        trace_model(DType::f32, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
          ttt::Stream stream;
          return std::vector<Tensor>{next_token_loss(model, Params(table), in[0], stream)};
        });
    return initial_parameters(traced.params, DType::f32, 5);
  };
  const Apart same = apart_in_f64(network(3), network(2), parameters(network(2)), tokens);
  CHECK(same.losses < 1e-12);
  CHECK(same.gradients < 1e-12);
  const StateDict of_three = parameters(network(3)), of_four = parameters(network(4));
  CHECK(of_four.size() == of_three.size() + 2);  // W0, in each layer
}

TEST_CASE("the rows of Figure 7 are row 7 with other mini-batches, and every row is there once") {
  const std::vector<std::string> rows = experiment_named("ladder-ttt").rows({});
  CHECK(std::set<std::string>(rows.begin(), rows.end()).size() == rows.size());
  for (const std::int64_t b : kMiniBatches) {
    const auto row = std::ranges::find(all_rows(), name_of(b), &Row::name);
    REQUIRE(row != all_rows().end());
    CHECK(row->mini_batch == b);
    CHECK(row->learnt_rate);
    CHECK(!row->mamba);
  }
}

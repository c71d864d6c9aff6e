// The promise: a text that lets sequences, heads or chunks meet, or that computes something else for another number of tokens or
// axes, never gives other numbers in one form than in the other: it is refused, or a form without that question runs.
#include "tests/ttt/by_hand.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using Update = Policy::Update;

namespace {

// An optimiser with this piece alone; by hand nothing is computed.
Method with_piece(const std::function<Tensor(Tensor g)>& fn) {
  return {"a piece", {}, [=](const Params&) {
            const auto piece = [=](Tensor g, std::span<Tensor>, const ttt::Gates&) { return fn(g); };
            return std::pair(InnerOptimizer().piece("own", piece), Hand());
          }};
}

// x W, learning to answer with v: the gradient is the same at all weights, so that every form can be asked for.
NamedLearner inner_product(const Sizes& s, const std::function<Tensor(Tensor k)>& factor = {}) {
  return matrix_of(s, [=](const Weights& w, Tensor k, Tensor v) {
    const Tensor each = -sum(matmul(k, w["W"]) * v, {-1}, kKeep);
    return factor ? each * factor(k) : each;
  });
}

constexpr const char* kMeet = "sequences, heads or chunks are not independent in the step of 'W'";

}  // namespace

TEST_CASE(
    "a piece of an optimiser that lets sequences or heads meet runs in the primal form alone, asked for by name") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 8, .dim = 4};
  for (const int axis : {0, 1})
    for (const Update update : {Update::per_token, Update::per_chunk}) {
      CAPTURE(axis);
      const LoopCase loop{inner_product(sizes),
                          with_piece([=](Tensor g) { return g - 0.3 * mean(g, {axis}, kKeep); }),
                          {.chunk = 4, .update = update},
                          sizes};
      CHECK(contains(refusal(loop, FormChoice::parallel), kMeet));
      CHECK(contains(refusal(loop, FormChoice::parallel), "= sum "));
      CHECK(contains(refusal(loop, FormChoice::automatic), kMeet));
      CHECK(refusal(loop, FormChoice::primal) == "");
    }
}

TEST_CASE("a piece of an optimiser that counts axes from the front is not given chunks side by side") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 8, .dim = 4};
  const auto loop = [&](const std::function<Tensor(Tensor)>& piece) {
    return LoopCase{
        inner_product(sizes), with_piece(piece), {.chunk = 4, .update = Update::per_chunk}, sizes};
  };
  const auto of_all = [](Tensor g) { return g / (sqrt(sum(square(g))) + 0.1); };
  const auto from_front = [](Tensor g) { return g / (norm(g, {2, 3}, kKeep) + 0.1); };
  const auto from_end = [](Tensor g) { return g / (norm(g, {-2, -1}, kKeep) + 0.1); };
  CHECK(contains(refusal(loop(of_all), FormChoice::dual), kMeet));
  CHECK(contains(refusal(loop(from_front), FormChoice::chunk_parallel), kMeet));
  CHECK(refusal(loop(from_end), FormChoice::chunk_parallel) == "");
  for (const auto& piece : {std::function<Tensor(Tensor)>(from_front), {from_end}}) {
    const LoopCase c = loop(piece);
    CHECK(differing(c, numbers(c, in_form(FormChoice::primal), 1), 1, {FormChoice::automatic}) == "");
  }
}

TEST_CASE(
    "a learner that makes a number of the tokens that it is given, or counts axes from the front, is refused") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 8, .dim = 4};
  const auto why = [&](const std::function<Tensor(Tensor)>& factor, FormChoice form) {
    return refusal(
        {inner_product(sizes, factor), with_piece([](Tensor g) { return g; }), {.chunk = 4}, sizes}, form);
  };
  for (const FormChoice form : {FormChoice::primal, FormChoice::dual, FormChoice::automatic}) {
    const std::string of_tokens = why(
        [](Tensor k) {
          return full(k.dtype(), {1, 1}, 1.0 / static_cast<double>(k.dim(-2)));
        },
        form);
    CHECK(contains(of_tokens, "[loss] a number is made of how many tokens or axes there are, 0.25"));
    CHECK(contains(of_tokens, "make nothing of the rows' shape but of their features"));
    CHECK(contains(why([](Tensor k) { return sum(softmax(k, 3), {-1}, kKeep); }, form),
                   "count axes from the end"));
    CHECK(why([](Tensor k) { return sum(softmax(k, -1), {-1}, kKeep); }, form) == "");
    // What another extent in front, a token more or a token alone changes.
    const auto number = [](bool one) { return one ? 2.0 : 1.0; };
    CHECK(contains(why(
                       [](Tensor k) {
                         return full(k.dtype(), {1, 1}, static_cast<double>(k.dim(0)));
                       },
                       form),
                   "tokens or axes there are, 2"));
    for (const std::int64_t least : {2, 4, 5})
      CHECK(contains(why(
                         [&](Tensor k) {
                           return full(k.dtype(), {1, 1}, number(k.dim(-2) >= least));
                         },
                         form),
                     "a number is made of how many tokens"));
    CHECK(contains(why(
                       [](Tensor k) {
                         const Tensor first = slice(k, -1, 0, 1);
                         return k.dim(-2) == 1 ? tanh(first) : sin(first);
                       },
                       form),
                   "[loss] an op is there or not by how many tokens or axes there are, 'sin' at"));
    CHECK(why(
              [](Tensor k) {
                return full(k.dtype(), {1, 1}, 1.0 / static_cast<double>(k.dim(-1)));
              },
              form) == "");
  }
}

TEST_CASE("a prediction per chunk without a row for each token is refused") {
  const Sizes sizes{.batch = 1, .heads = 1, .time = 8, .dim = 4};
  const NamedLearner whole = formula(
      "W",
      [](const Params& p) {
        return Weights{matrix("W", p("W", {1, 4, 4}))};
      },
      [](const Weights& w, Tensor) { return w["W"]; },
      [](const Weights& w, Tensor k, Tensor v) { return -sum(matmul(k, w["W"]) * v, {-1}, kKeep); });
  const LoopCase loop{
      whole, with_piece([](Tensor g) { return g; }), {.chunk = 2, .update = Update::per_chunk}, sizes};
  for (const FormChoice form : {FormChoice::primal, FormChoice::automatic})
    CHECK(contains(refusal(loop, form), "[predict] needs a row for each token"));
}

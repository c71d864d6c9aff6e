// The promise: in-place test-time training learns its down-projection alone, chunk after chunk, from pairs of a token and
// the one that follows; all forms give the same numbers.
#include "ops/accumulate.h"
#include "tests/ttt/system_testing.h"
#include "ttt/layer.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::system_named;

namespace {

constexpr double kTolerance = 1e-11;
const ProgramSizes kSizes{.time = 10, .chunk = 4};  // two chunks and a part of one

// Algorithm 1: every chunk reads W_0 + what the chunks before it add.
InnerLoopResult chunk_after_chunk(const SystemProgram& p) {
  const std::size_t n = p.inputs.size();
  const Tensor gate = p.inputs[n - 3], up = p.inputs[n - 2];
  const auto hidden = [&](Tensor x) { return silu(matmul(x, gate)) * matmul(x, up); };
  const std::int64_t time = p.views.k.dim(2);
  Tensor w = p.start.at(0).value;
  Tensors outputs;
  for (std::int64_t begin = 0; begin < time; begin += 4) {
    const std::int64_t end = std::min(begin + 4, time);
    for (std::int64_t t = begin; t < end; ++t) outputs.push_back(matmul(hidden(token(p.views.q, t)), w));
    Tensor change;
    for (std::int64_t t = begin; t < end; ++t)
      accumulate(change, token(p.views.gates.at("rate"), t) *
                             matmul(hidden(token(p.views.k, t)), token(p.views.v, t), {.a = true}));
    w = w + change;
  }
  return made_by_hand(outputs, p.start.with({w}));
}

}  // namespace

TEST_CASE("in-place TTT is the chunked sum of its paper, to order 2, in every form") {
  const System& system = system_named("in-place-ttt");
  const Arrays expected = run_system(system, kSizes, chunk_after_chunk, 2);
  for (const FormChoice form :
       {FormChoice::primal, FormChoice::dual, FormChoice::parallel, FormChoice::chunk_parallel}) {
    const std::string form_name(ttt::name(form));
    CAPTURE(form_name);
    CHECK(worst_error(run_system(system, kSizes, system_in(form), 2), expected) < kTolerance);
  }
}

TEST_CASE(
    "a layer of in-place TTT pairs each value with the key of the token before, whole and token by token") {
  constexpr std::int64_t kTime = 6, kWidth = 8;
  const Function f = trace(
      [&](Tensor x) {
        ParamTable table(*context().emit.graph, DType::f64);
        const Params params(table);
        const ttt::TTTLayer layer(params, {.width = kWidth, .heads = 2},
                                  std::make_unique<ttt::ProjectedViews>(params, kWidth),
                                  system_named("in-place-ttt"), "layer");
        ttt::Stream whole;
        whole.tap_inner_loops = true;
        layer(x, whole);
        const auto tap = [&](const char* view) {
          return ttt::join_heads(whole.taps().at(std::string("layer.") + view));
        };
        const auto projected = [&](const char* name) {
          return ttt::linear(x, params(std::string(name) + "_proj.weight", {kWidth, kWidth}));
        };
        return Tensors{tap("k"), tap("v"), tap("q"), projected("k"), projected("v"), projected("q")};
      },
      f64({2, kTime, kWidth}));
  std::vector<Array> in;
  for (std::size_t i = 0; i < f.inputs().size(); ++i) in.push_back(random(f.input_spec(i), 7 + i));
  const Arrays out = f(in);
  CHECK(out[1].same_bits(out[4]));
  CHECK(out[2].same_bits(out[5]));
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t t = 0; t < kTime; ++t)
      for (std::int64_t i = 0; i < kWidth; ++i)
        CHECK(out[0].at((b * kTime + t) * kWidth + i) ==
              (t == 0 ? 0 : out[3].at((b * kTime + t - 1) * kWidth + i)));
}

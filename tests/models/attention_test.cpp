// The promise: the attention layer reads what its task shows of each token, at once and token by token, also where
// heads of queries share keys and values.
#include "models/attention.h"

#include "tests/layer_outputs.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kBatch = 2, kTime = 7, kWidth = 16, kHeads = 4, kDim = kWidth / kHeads;

// Keys and values of `groups` heads; repeated: for each head of queries again.
class SharedKeys : public ttt::Task {
 public:
  SharedKeys(const Params& params, std::int64_t width, std::int64_t repeats)
      : q_(params("q", {kWidth, kWidth})),
        k_(params("k", {width, kWidth})),
        v_(params("v", {width, kWidth})),
        repeats_(repeats) {}
  Joined views(Tensor x, ttt::Stream&) const override {
    return {ttt::linear(x, q_), repeated(ttt::linear(x, k_)), repeated(ttt::linear(x, v_))};
  }

 private:
  Tensor repeated(Tensor x) const {
    const std::int64_t groups = x.dim(2) / kDim;
    const Tensor each = reshape(x, {x.dim(0), x.dim(1), groups, 1, x.dim(2) / groups});
    return reshape(broadcast_to(each, {x.dim(0), x.dim(1), groups, repeats_, each.dim(4)}),
                   {x.dim(0), x.dim(1), x.dim(2) * repeats_});
  }

  Tensor q_, k_, v_;
  std::int64_t repeats_;
};

Arrays run(std::int64_t width, std::int64_t repeats, bool by_token) {
  return layer_outputs(f64({kBatch, kTime, kWidth}), by_token, [&](const Params& params) {
    return Attention({.width = kWidth, .heads = kHeads}, params,
                     std::make_unique<SharedKeys>(params, width, repeats), "layer", kTime);
  });
}

}  // namespace

TEST_CASE("the attention layer shares keys and values of fewer heads, at once and token by token") {
  for (const std::int64_t groups : {1, 2, 4}) {
    CAPTURE(groups);
    const Arrays repeated = run(groups * kDim, kHeads / groups, false);
    for (const bool by_token : {false, true})
      CHECK(max_error(run(groups * kDim, 1, by_token), repeated) < 1e-13);
  }
}

TEST_CASE("the attention layer refuses keys and values that are no heads, or not as many") {
  CHECK(contains(
      message_of<ShapeError>([] { run(kDim + 1, 1, false); }),
      "[attention] keys and values must be of whole heads of width 4, as many of each; k is f64[2,7,5]"));
  CHECK(contains(message_of<ShapeError>([] { run(3 * kDim, 1, false); }),
                 "need q.heads to be a multiple of k.heads"));
}

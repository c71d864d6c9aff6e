// The promise: attention reads the tokens that its options name and no others, token by token as at once.
// Compared with loops over tokens in plain numbers.
#include <limits>

#include "ops/attrs.h"
#include "ops/table.h"
#include "tests/ttt/attention_by_loops.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("attention is the loop over the tokens that are read, with its derivatives") {
  const LoopSizes s;
  const Arrays qkv = random(s.specs(), 11, -1.5, 1.5);
  const double half = 0.5;  // 1/sqrt(4)
  check_attention("causal", with({}), qkv, backwards(0), half);
  for (const std::int64_t window : {1, 2, 3, 7, 9})
    check_attention(fmt::format("causal, window {}", window), with({.window = window}), qkv,
                    backwards(window), half);
  check_attention("full", with({.causal = false}), qkv, everything(s.time), half);
  for (const std::int64_t window : {1, 3, 5, 7})
    check_attention(fmt::format("neighbourhood {}", window), with({.window = window, .causal = false}), qkv,
                    around(window, s.time), half);
  check_attention("a scale of one's own", with({.window = 3, .scale = 1.3}), qkv, backwards(3), 1.3);
}

TEST_CASE("long causal attention, in blocks of queries, is attention with one mask, at orders 0 to 2") {
  // Blocks of 64, groups of 4 blocks: a whole group, part of one, and rows left over.
  const std::int64_t time = 4 * 64 + 2 * 64 + 9;
  const Arrays qkv = random(LoopSizes{.batch = 1, .time = time}.specs(), 17, -1.5, 1.5);
  for (const std::int64_t window : {std::int64_t{0}, std::int64_t{5}, std::int64_t{70}, time}) {
    CAPTURE(window);
    const Attend masked = [&](Tensor q, Tensor k, Tensor v) {
      const Tensor back = iota(DType::f64, {time, 1}, 0) - iota(DType::f64, {1, time}, 1);
      const Tensor reads = less_equal(0.0, back) * less(back, window == 0 ? 1.0 * time : 1.0 * window);
      return matmul(softmax(select(reads, matmul(q, k, {.b = true}) * 0.5, -1e30), -1), v);
    };
    const Attend blocks = with({.window = window});
    CHECK(relative_error(trace(traced(blocks), {qkv[0].spec(), qkv[1].spec(), qkv[2].spec()})(qkv)[0],
                         by_loops(qkv, backwards(window), 0.5)) < 1e-14);
    const Arrays is = derivatives(blocks, qkv), should = derivatives(masked, qkv);
    for (std::size_t i = 0; i < is.size(); ++i) CHECK(relative_error(is[i], should[i]) < 1e-13);
  }
}

TEST_CASE("attention of other tokens: as many queries as one likes where nothing is masked") {
  const Arrays qkv = random({f64({2, 3, 4, 2}), f64({2, 3, 6, 2}), f64({2, 3, 6, 5})}, 12);
  check_attention("cross", with({.causal = false, .scale = 0.8}), qkv, everything(6), 0.8);
}

TEST_CASE("heads of queries share keys and values: attention is the loop, with its derivatives") {
  for (const LoopSizes& s : {LoopSizes{.batch = 2, .heads = 4, .dim = 3, .out = 2, .groups = 2},
                             LoopSizes{.batch = 1, .heads = 3, .dim = 2, .out = 3, .groups = 1}}) {
    const Arrays qkv = random(s.specs(), 22, -1.5, 1.5);
    const std::string of = fmt::format(", {} heads of {}", s.groups, s.heads);
    check_attention("causal" + of, with({.scale = 0.7}), qkv, backwards(0), 0.7);
    check_attention("causal, window 3" + of, with({.window = 3, .scale = 0.7}), qkv, backwards(3), 0.7);
    check_attention("full" + of, with({.causal = false, .scale = 0.7}), qkv, everything(s.time), 0.7);
    check_attention("neighbourhood" + of, with({.window = 3, .causal = false, .scale = 0.7}), qkv,
                    around(3, s.time), 0.7);
    for (const AttentionOptions& options : {AttentionOptions{.capacity = 7}, {.window = 3}}) {
      const Array whole = trace(traced(with(options)), s.specs())(qkv)[0];
      const Arrays steps = token_by_token(s, options, qkv);
      for (std::int64_t t = 0; t < s.time; ++t) CHECK(relative_error(steps[uz(t)], token(whole, t)) < 1e-13);
    }
  }
  const LoopSizes image{.batch = 1, .heads = 4, .time = 12, .dim = 3, .out = 2, .groups = 2};
  check_attention(
      "image",
      [](Tensor q, Tensor k, Tensor v) { return ttt::neighbourhood_attention_2d(q, k, v, 3, 4, 3, 0.9); },
      random(image.specs(), 23), around_2d(3, 3, 4), 0.9);
}

TEST_CASE("neighbourhood attention in an image is the loop over the tokens around, with its derivatives") {
  struct Case {
    std::int64_t height, width, window;
  };
  for (const auto& [height, width, window] : {Case{3, 4, 3}, {5, 3, 3}, {3, 3, 3}, {2, 3, 1}, {5, 6, 5}}) {
    const auto image = [h = height, w = width, n = window](Tensor q, Tensor k, Tensor v) {
      return ttt::neighbourhood_attention_2d(q, k, v, h, w, n, 0.9);
    };
    const LoopSizes s{.batch = 1, .time = height * width, .dim = 3, .out = 2};
    check_attention(fmt::format("{} x {}, window {}", height, width, window), image, random(s.specs(), 13),
                    around_2d(window, height, width), 0.9);
  }
  // A line is an image of height 1 only for a window of 1; and the default scale is the one of attention().
  const LoopSizes s{.time = 9};
  const Arrays qkv = random(s.specs(), 14);
  const Array full = trace(traced(with({.causal = false})), s.specs())(qkv)[0];
  const auto square = [](Tensor q, Tensor k, Tensor v) {
    return ttt::neighbourhood_attention_2d(q, k, v, 3, 3, 3);
  };
  CHECK(relative_error(trace(traced(square), s.specs())(qkv)[0], full) < 1e-14);
}

TEST_CASE("what each token reads, written out") {
  using Rows = std::vector<std::vector<std::int64_t>>;
  for (const DType dtype : {DType::f32, DType::f64}) {
    CHECK(seen(4, dtype, with({})) == Rows{{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}});
    CHECK(seen(4, dtype, with({.window = 1})) == Rows{{0}, {1}, {2}, {3}});
    CHECK(seen(5, dtype, with({.window = 3})) == Rows{{0}, {0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}});
    // Shorter than the window: what there is.
    CHECK(seen(3, dtype, with({.window = 5})) == Rows{{0}, {0, 1}, {0, 1, 2}});
    CHECK(seen(1, dtype, with({.window = 5})) == Rows{{0}});
    CHECK(seen(3, dtype, with({.causal = false})) == Rows{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}});
    // Moved inside at the borders.
    CHECK(seen(6, dtype, with({.window = 3, .causal = false})) ==
          Rows{{0, 1, 2}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4, 5}, {3, 4, 5}});
    CHECK(seen(6, dtype, with({.window = 5, .causal = false})) == Rows{{0, 1, 2, 3, 4},
                                                                       {0, 1, 2, 3, 4},
                                                                       {0, 1, 2, 3, 4},
                                                                       {1, 2, 3, 4, 5},
                                                                       {1, 2, 3, 4, 5},
                                                                       {1, 2, 3, 4, 5}});
    CHECK(seen(3, dtype, with({.window = 3, .causal = false})) == Rows{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}});
    // An image of 3 x 4:  0 1 2 3 / 4 5 6 7 / 8 9 10 11
    const Rows image = seen(12, dtype, [](Tensor q, Tensor k, Tensor v) {
      return ttt::neighbourhood_attention_2d(q, k, v, 3, 4, 3);
    });
    const std::vector<std::int64_t> left{0, 1, 2, 4, 5, 6, 8, 9, 10}, right{1, 2, 3, 5, 6, 7, 9, 10, 11};
    CHECK(image == Rows{left, left, right, right, left, left, right, right, left, left, right, right});
  }
}

TEST_CASE("a window at least as long as the sequence is no window, to the bit") {
  const LoopSizes s;
  const Arrays qkv = random(s.specs(), 15);
  const Arrays plain = trace(traced(with({})), s.specs())(qkv);
  for (const std::int64_t window : {7, 8, 1000})
    CHECK(same_bits(trace(traced(with({.window = window})), s.specs())(qkv), plain));
  CHECK_FALSE(same_bits(trace(traced(with({.window = 6})), s.specs())(qkv), plain));
}

TEST_CASE("extreme scores give finite outputs and gradients, and what is masked gets none") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const AttentionOptions& options :
         {AttentionOptions{}, {.window = 2}, {.causal = false}, {.window = 3, .causal = false}}) {
      const Spec spec{dtype, {1, 1, 4, 2}};
      const Array x = random({DType::f64, spec.shape}, 16, -1e5, 1e5).cast(dtype);
      const Function f = trace(
          [&](const Tensors& in) {
            const Tensor y = ttt::attention(in[0], in[1], in[2], options);
            Tensors out{y};
            for (const Tensor& g : grad(sum(square(y)), in)) out.push_back(g);
            for (const Tensor& g : grad(sum(slice(y, 2, 0, 1)), {in[1], in[2]})) out.push_back(g);
            return out;
          },
          {spec, spec, spec});
      const Arrays out = f({x, x, x});
      for (const Array& a : out)
        for (const double value : a.to_vector()) CHECK(std::isfinite(value));
      if (options.causal)  // the first token reads itself only
        for (const std::size_t i : {4, 5})
          for (std::int64_t at = 2; at < 8; ++at) CHECK(out[i].at(at) == 0);
    }
}

namespace {

// Of three tokens whose scores rise each reads itself in all of these, and none after it.
struct Masked {
  std::string what;
  Attend attend;
};

std::vector<Masked> masked_in_every_way() {
  const auto places = [](const std::vector<double>& at) {
    return [at](Tensor q, Tensor k, Tensor v) {
      std::vector<double> all;
      for (std::int64_t n = 0; n < q.dim(0); ++n) all.insert(all.end(), at.begin(), at.end());
      const Tensor of = constant(Array::of(all, {q.dim(0), q.dim(2)}, DType::i32));
      return ttt::attention(q, k, v, {.scale = 1, .places = of});
    };
  };
  const auto in_ops = [](std::int64_t window) {
    return [window](Tensor q, Tensor k, Tensor v) {
      return slice(causal_attention_op.expand(Tensors{q, k, v}, CausalAttentionAttrs{window}), 3, 0,
                   v.dim(3));
    };
  };
  return {{"causal", with({.scale = 1})},
          {"causal, window 1", with({.window = 1, .scale = 1})},
          {"causal in ops", in_ops(0)},
          {"causal in ops, window 2", in_ops(2)},
          {"around", with({.window = 1, .causal = false, .scale = 1})},
          {"documents", places({0, 0, 1})},
          {"one document", places({0, 1, 2})},
          {"image", [](Tensor q, Tensor k, Tensor v) {
             return ttt::neighbourhood_attention_2d(q, k, v, 1, 3, 1, 1);
           }}};
}

}  // namespace

TEST_CASE(
    "what is not read has no weight, however small the scores are that are read; nor have derivatives") {
  struct Case {
    DType dtype;
    double q;
    std::vector<double> k;
  };
  const double f32_most = std::numeric_limits<float>::max(), f64_most = std::numeric_limits<double>::max();
  // Scores rise from token to token: of itself and what is before it a token reads itself.
  const std::vector<Case> cases{{DType::f32, -1e15, {4e15, 3e15, 2e15}},
                                {DType::f32, -1e15, {4e22, 3e22, 2e22}},
                                {DType::f32, -1, {f32_most, f32_most / 2, f32_most / 4}},
                                {DType::f32, 1, {-f32_most / 4, f32_most / 4, f32_most / 2}},
                                {DType::f64, -1e15, {4e15, 3e15, 2e15}},
                                {DType::f64, -1e150, {4e157, 3e157, 2e157}},
                                {DType::f64, -1, {f64_most, f64_most / 2, f64_most / 4}},
                                {DType::f64, 1, {1e4, 2e4, 3e4}}};
  for (const auto& [dtype, query, keys] : cases)
    for (const Masked& each : masked_in_every_way()) {
      CAPTURE(each.what);
      CAPTURE_BOUND(query);
      CAPTURE_BOUND(keys[0]);
      const int orders =
          keys[0] == f32_most || keys[0] == f64_most ? 1 : 2;  // twice the key has to be finite
      const Shape shape{1, 1, 3, 1};
      const Array q = Array::of({query, query, query}, shape, dtype), k = Array::of(keys, shape, dtype),
                  v = Array::of({1, 2, 4}, shape, dtype);
      const Arrays out = trace(
          [&](const Tensors& in) {
            Tensors all{each.attend(in[0], in[1], in[2])};
            Tensor of = sum(all[0]);
            for (int order = 1; order <= orders; ++order) {
              const Tensors g = grad(of, in, {.allow_zero = true});
              all.insert(all.end(), g.begin(), g.end());
              of = sum(square(g[2]));
            }
            return all;
          },
          {q.spec(), k.spec(), v.spec()})({q, k, v});
      // One weight of each row is one, the others are zero: all derivatives vanish but that of the values.
      CHECK(out[0].to_vector() == std::vector<double>{1, 2, 4});
      CHECK(out[3].to_vector() == std::vector<double>{1, 1, 1});
      for (std::size_t i = 1; i < out.size(); ++i)
        if (i != 3)
          for (const double x : out[i].to_vector()) CHECK(x == 0);
      // No infinity is made on the way.
      Graph eager(GraphOptions{.mode = GraphMode::eager, .check_finite = true});
      const GraphScope scope(eager);
      const Tensors in{eager.input(q), eager.input(k), eager.input(v)};
      const Tensor y = each.attend(in[0], in[1], in[2]);
      CHECK(eager.node(y.id()).value.to_vector() == std::vector<double>{1, 2, 4});
      CHECK(eager.node(grad(sum(y), in)[2].id()).value.to_vector() == std::vector<double>{1, 1, 1});
    }
  // Where the lowest number is the largest score, those who are read share alone.
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Masked& each : masked_in_every_way()) {
      CAPTURE(each.what);
      const double most = dtype == DType::f32 ? f32_most : f64_most;
      const Shape shape{1, 1, 3, 1};
      const Array q = Array::of({-1, -1, -1}, shape, dtype), k = Array::of({most, most, most}, shape, dtype),
                  v = Array::of({1, 2, 4}, shape, dtype), zero = Array::zeros(dtype, shape);
      const Function f = trace(traced(each.attend), {q.spec(), k.spec(), v.spec()});
      CHECK(relative_error(f({q, k, v})[0], f({zero, zero, v})[0]) < (dtype == DType::f32 ? 2e-7 : 1e-15));
    }
}

TEST_CASE(
    "token by token, rows that nothing was written to have no weight, however small the scores that are read") {
  for (const AttentionOptions& options :
       {AttentionOptions{.scale = 1, .capacity = 5}, {.window = 2, .scale = 1}})
    for (const double size : {1e15, 1e18}) {
      const LoopSizes s{.batch = 1, .heads = 1, .time = 3, .dim = 1, .out = 1};
      const Shape shape{1, 1, 3, 1};
      const Array q = Array::of({-size, -size, -size}, shape, DType::f32),
                  k = Array::of({4 * size, 3 * size, 2 * size}, shape, DType::f32),
                  v = Array::of({1, 2, 4}, shape, DType::f32);
      const Arrays steps = token_by_token(s, options, {q, k, v});
      CHECK(steps[0].at(0) == 1);
      CHECK(steps[1].at(0) == 2);
      CHECK(steps[2].at(0) == 4);
    }
}

TEST_CASE("reading token by token is reading the whole sequence, with a window and without") {
  const LoopSizes s{.time = 11};
  const Arrays qkv = random(s.specs(), 17, -1.5, 1.5);
  std::vector<AttentionOptions> cases{{.capacity = 11}, {.capacity = 20}, {.scale = 0.3, .capacity = 11}};
  for (const std::int64_t window : {1, 2, 3, 5, 10, 11, 14}) cases.push_back({.window = window});
  for (const AttentionOptions& options : cases) {
    CAPTURE(options.window);
    CAPTURE(options.capacity);
    const Array whole = trace(traced(with(options)), s.specs())(qkv)[0];
    const Arrays steps = token_by_token(s, options, qkv);
    for (std::int64_t t = 0; t < s.time; ++t) CHECK(relative_error(steps[uz(t)], token(whole, t)) < 1e-13);
    const Arrays narrow{qkv[0].cast(DType::f32), qkv[1].cast(DType::f32), qkv[2].cast(DType::f32)};
    const Arrays narrow_steps = token_by_token(s, options, narrow);
    for (std::int64_t t = 0; t < s.time; ++t)
      CHECK(relative_error(narrow_steps[uz(t)].cast(DType::f64), token(whole, t)) < 3e-6);
  }
  // The ring forgets: a window of 3 is not one of 4.
  const Array whole = trace(traced(with({.window = 4})), s.specs())(qkv)[0];
  CHECK(relative_error(token_by_token(s, {.window = 3}, qkv)[10], token(whole, 10)) > 1e-3);
}

TEST_CASE("gradients through steps in a row are those of the whole sequence, to order 2") {
  const LoopSizes s{.batch = 1, .time = 5, .dim = 3, .out = 2};
  const Arrays qkv = random(s.specs(), 18);
  for (const AttentionOptions& options : {AttentionOptions{.capacity = 5}, {.window = 2}}) {
    std::vector<std::string> names;
    const TracedModel start = step_of(s, options, ttt::Stream::Mode::initial, &names),
                      step = step_of(s, options, ttt::Stream::Mode::step, &names);
    const Attend stepped = [&](Tensor q, Tensor k, Tensor v) {
      const auto at = [](Tensor x, std::int64_t t) { return slice(x, 2, t, t + 1); };
      const Tensors first{at(q, 0), at(k, 0), at(v, 0)};
      Tensors out = start.function(std::span<const Tensor>(first)), answers;
      for (std::int64_t t = 0; t < s.time; ++t) {
        Tensors in{at(q, t), at(k, t), at(v, t)};
        in.insert(in.end(), out.begin() + 1, out.end());
        out = step.function(std::span<const Tensor>(in));
        answers.push_back(out[0]);
      }
      return concat(answers, 2);
    };
    CHECK(max_error(derivatives(stepped, qkv), derivatives(with(options), qkv)) < 1e-13);
  }
}

TEST_CASE("a cache that is full says so; a ring goes on") {
  const LoopSizes s{.time = 5};
  const Arrays qkv = random(s.specs(), 19);
  CHECK(contains(message_of<ValueError>([&] { token_by_token(s, {.capacity = 4}, qkv); }),
                 "index 4 is outside of the table's 4 rows"));
  CHECK_NOTHROW(token_by_token(s, {.window = 4, .capacity = 1}, qkv));
}

TEST_CASE("operands and options that make no sense are refused, with their shapes and what to do") {
  Graph graph;
  const auto x = [&](Shape shape, DType dtype = DType::f64) {
    return graph.input(Spec{dtype, std::move(shape)});
  };
  const Tensor q = x({2, 3, 5, 4}), v = x({2, 3, 5, 6});
  const auto shapes = [&](Tensor a, Tensor b, Tensor c, const AttentionOptions& options = {}) {
    return message_of<ShapeError>([&] { ttt::attention(a, b, c, options); });
  };
  CHECK(contains(
      shapes(x({5, 4}), q, v),
      "[attention] needs q [batch, heads, time, dim], k [batch, groups, time, dim] and v [batch, groups, time, "
      "out], none empty: q is f64[5,4], k is f64[2,3,5,4], v is f64[2,3,5,6] (at attention_test.cpp:"));
  CHECK(contains(shapes(x({2, 3, 0, 4}), q, v), "none empty: q is f64[2,3,0,4]"));
  CHECK(contains(shapes(q, x({2, 1, 5, 4}), v),
                 "batch, or heads of k and v, differ; repeat operands with broadcast_to()"));
  CHECK(contains(shapes(q, x({2, 2, 5, 4}), x({2, 2, 5, 6})),
                 "need q.heads to be a multiple of k.heads: q is f64[2,3,5,4], k is f64[2,2,5,4]"));
  CHECK(contains(shapes(q, q, x({1, 3, 5, 6})), "v is f64[1,3,5,6]"));
  CHECK(contains(shapes(q, x({2, 3, 5, 3}), v), "need q.dim == k.dim: q is f64[2,3,5,4], k is f64[2,3,5,3]"));
  CHECK(contains(shapes(q, q, x({2, 3, 4, 6})), "need k.time == v.time"));
  CHECK(contains(shapes(x({2, 3, 1, 4}), q, v), "need q.time == k.time; only attention without"));
  CHECK(contains(shapes(x({2, 3, 1, 4}), q, v, {.window = 3, .causal = false}), "need q.time == k.time"));
  CHECK(contains(message_of<DTypeError>([&] {
                   ttt::attention(q, q, x({2, 3, 5, 6}, DType::f32));
                 }),
                 "v is f32[2,3,5,6]"));
  CHECK(contains(message_of<DTypeError>([&] {
                   const Tensor whole = x({1, 1, 2, 2}, DType::i32);
                   ttt::attention(whole, whole, whole);
                 }),
                 "one floating type, cast() first"));

  const auto options = [&](const AttentionOptions& o) {
    return message_of<ConfigError>([&] { ttt::attention(q, q, v, o); });
  };
  CHECK(contains(
      options({.window = -1}),
      "[attention] the window must be positive, or 0 for no bound; it is -1 (at attention_test.cpp:"));
  CHECK(contains(options({.window = 4, .causal = false}), "must be odd and positive, it is 4"));
  CHECK(contains(options({.window = -3, .causal = false}), "must be odd and positive, it is -3"));
  CHECK(contains(options({.window = 7, .causal = false}),
                 "a window of 7 tokens does not fit into a sequence of 5; need a window of at most that"));
  CHECK(
      contains(options({.scale = -1}), "scale must be positive and finite, or 0 for 1/sqrt(dim); it is -1"));
  CHECK(contains(options({.scale = std::nan("")}), "scale must be positive"));

  const Tensor pixels = x({1, 1, 12, 2});
  const auto image = [&](std::int64_t height, std::int64_t width, std::int64_t window) {
    ttt::neighbourhood_attention_2d(pixels, pixels, pixels, height, width, window);
  };
  CHECK(contains(message_of<ShapeError>([&] { image(3, 5, 3); }),
                 "[neighbourhood_attention_2d] an image of height 3 and width 5 does not have 12 tokens"));
  CHECK(contains(message_of<ShapeError>([&] { image(-3, -4, 3); }), "height -3"));
  CHECK(contains(message_of<ConfigError>([&] { image(3, 4, 2); }), "must be odd and positive, it is 2"));
  CHECK(contains(message_of<ConfigError>([&] { image(2, 6, 3); }), "does not fit into a height of 2"));
  CHECK(contains(message_of<ConfigError>([&] { image(6, 2, 3); }), "does not fit into a width of 2"));
  CHECK(contains(
      message_of<ConfigError>([&] { ttt::neighbourhood_attention_2d(pixels, pixels, pixels, 3, 4, 3, -2); }),
      "[neighbourhood_attention_2d] scale must be positive"));

  ttt::Stream stream(ttt::Stream::Mode::step), whole;
  const Tensor one = x({2, 3, 1, 4});
  const auto step = [&](Tensor row, const AttentionOptions& o) {
    ttt::attention_step(row, row, row, o, stream, "layer");
  };
  CHECK(contains(message_of<ShapeError>([&] { step(q, {.capacity = 8}); }),
                 "[attention_step] reads one token, q has 5; use attention()"));
  CHECK(contains(message_of<ConfigError>([&] { step(one, {.window = 3, .causal = false}); }),
                 "cannot read what comes after it; set causal"));
  CHECK(contains(message_of<ConfigError>([&] { step(one, {}); }),
                 "needs a window or a capacity, the most tokens that it will read; they are 0 and 0"));
  CHECK(contains(message_of<ConfigError>([&] { step(one, {.window = -2, .capacity = 4}); }),
                 "they are -2 and 4"));
  const GraphScope open(graph);
  CHECK(contains(
      message_of<GraphError>([&] { ttt::attention_step(one, one, one, {.window = 3}, whole, "layer"); }),
      "state 'layer.seen' exists only while decoding"));
}

TEST_CASE("places of documents are refused where attention would not look at them") {
  trace(
      [](Tensor x) {
        const Tensor places = iota(DType::i32, {1, 4}, 1);
        CHECK(contains(
            message_of<ConfigError>([&] { ttt::attention(x, x, x, {.causal = false, .places = places}); }),
            "documents would be read together"));
        ttt::Stream stream(ttt::Stream::Mode::step);
        const Tensor token = slice(x, 2, 0, 1);
        CHECK(contains(message_of<ConfigError>([&] {
                         ttt::attention_step(token, token, token, {.window = 2, .places = places}, stream,
                                             "a");
                       }),
                       "a stream of its own"));
        return x;
      },
      f64({1, 1, 4, 2}));
}

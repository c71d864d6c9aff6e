// The promise of cuda/passes.h: graphs of equal values, with fewer launches and permutes.
#include <doctest/doctest.h>

#include "autograd/custom.h"
#include "autograd/grad.h"
#include "cuda_emulator/emulator.h"
#include "tests/fuzz/draws.h"
#include "tests/testing.h"
#include "ttt/causal_attention.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// Values and derivatives of both orders are the CPU's, with slices and without. What the plan on the emulated GPU says of itself, with
// slices.
std::string equal_on_both(const TraceFn& outputs, const std::vector<Spec>& specs) {
  const Function f = trace(
      [&](const Tensors& in) {
        Tensors out = outputs(in);
        Tensor first, second;
        for (const Tensor& t : out) first = first.defined() ? first + sum(sin(t)) : sum(sin(t));
        const Tensors g = grad(first, in);
        for (const Tensor& t : g) second = second.defined() ? second + sum(square(t)) : sum(square(t));
        const Tensors h = grad(second, in);
        out.insert(out.end(), g.begin(), g.end());
        out.insert(out.end(), h.begin(), h.end());
        return out;
      },
      specs);
  const Arrays in = random(specs, 3), expected = f.plan({.device = Device::cpu()}).run(in);
  for (const bool slice : {true, false})
    CHECK(max_error(f.plan({.slice = slice, .device = Device::cuda()}).run(in), expected) < 1e-11);
  return trace(outputs, specs).plan({.device = Device::cuda()}).str();
}

// [batch, heads, chunks, time, dim] with its chunks in front.
Tensor chunks_first(const Tensor& x) { return permute(x, {2, 0, 1, 3, 4}); }
Tensor chunks_third(const Tensor& x) { return permute(x, {1, 2, 0, 3, 4}); }

// Programs over values whose three batch axes stand in any order: what the passes are about, in all mixtures.
class RandomChunks {
 public:
  RandomChunks(fuzz::Draws& draws, const Tensors& in) : draws_(draws) {
    for (const Tensor& t : in) values_.push_back({t, {0, 1, 2}});
  }
  Tensors run() {
    for (int i = 0, n = draws_.between(3, 9); i < n; ++i) values_.push_back(next());
    Tensors out;
    for (int i = 0, n = draws_.between(1, 3); i < n; ++i) out.push_back(any().t);
    out.push_back(values_.back().t);
    return out;
  }

 private:
  // Axis i is batch axis batch[i], whole or of extent 1.
  struct Value {
    Tensor t;
    std::vector<int> batch;
  };

  Value any() { return draws_.of(values_); }
  // With its batch axes in this order.
  static Tensor in_order(const Value& v, const std::vector<int>& batch) {
    std::vector<int> order;
    for (const int axis : batch)
      order.push_back(static_cast<int>(std::ranges::find(v.batch, axis) - v.batch.begin()));
    order.insert(order.end(), {3, 4});
    return permute(v.t, order);
  }
  Value permuted(const Value& v) {
    std::vector<int> batch = v.batch;
    std::rotate(batch.begin(), batch.begin() + draws_.between(1, 2), batch.end());
    if (draws_.one_in(3)) std::swap(batch[0], batch[1]);
    return {in_order(v, batch), batch};
  }
  Value scanned(const Value& v) {
    const Tensor first = sum(v.t, {0}) * 0.5, rate = tanh(sum(v.t, {1, 2, 3, 4}, kKeep));
    const bool sums = draws_.one_in(2);
    const auto step = [&](const Tensors& m, const Tensors& x) -> StepOutput {
      const Tensor of_step = sums ? sum(m[0] * sin(x[0]), {2, 3}, kKeep) : m[0];
      return {{m[0] * x[1] + x[0]}, {m[0], of_step}};
    };
    const ScanResult r = scan(step, {first}, {v.t, rate});
    return {draws_.one_in(2) ? r.ys[0] + r.ys[1] : broadcast_to(r.ys[1], v.t.shape()) * r.carries[0],
            v.batch};
  }
  Value single(const Value& v) {
    const auto whole = [](const Tensor& t) {
      return reshape(t, {1, t.shape()[0], t.shape()[1], t.shape()[2], 3, 3});
    };
    const auto step = [&](const Tensors& w, const Tensors& x) -> StepOutput {
      const Tensor y = matmul(x[0], w[0], {draws_.one_in(2), false});
      return {{w[0] + y}, {permute(tanh(y), {2, 1, 0, 3, 4})}};
    };
    const ScanResult r = scan(step, {v.t}, {whole(v.t)});
    std::vector<int> turned(v.batch.rbegin(), v.batch.rend());
    if (draws_.one_in(2)) return {r.carries[0], v.batch};
    return {reshape(r.ys[0], {r.ys[0].shape()[1], r.ys[0].shape()[2], r.ys[0].shape()[3], 3, 3}), turned};
  }
  Value next() {
    const Value v = any(), other = any();
    switch (draws_.below(10)) {
      case 0:
        return permuted(v);
      case 1:
        return {tanh(v.t) - v.t * 0.25, v.batch};
      case 2:
        return {v.t * in_order(other, v.batch), v.batch};
      case 3:
        return {in_order(v, other.batch) + sigmoid(other.t), other.batch};
      case 4:
      case 5:
        return {matmul(v.t, in_order(other, v.batch), {draws_.one_in(2), draws_.one_in(3)}), v.batch};
      case 6:
        return {matmul(v.t, sum(in_order(other, v.batch), {draws_.below(3)}, kKeep)), v.batch};
      case 7: {
        const int axis = draws_.below(3);
        const Tensor product = matmul(v.t, tanh(in_order(other, v.batch)), {true, false});
        return {broadcast_to(sum(product, {axis}, kKeep), v.t.shape()) + v.t, v.batch};
      }
      case 8:
        return draws_.one_in(2) ? scanned(v) : single(v);
      default:
        return {transpose(v.t) / (1 + square(max(v.t, {draws_.below(3), draws_.between(3, 4)}, kKeep))),
                v.batch};
    }
  }

  fuzz::Draws& draws_;
  std::vector<Value> values_;
};

}  // namespace

TEST_SUITE_BEGIN("cuda");

TEST_CASE("CUDA: a scan of one step is part of the graph around it, unless it is one kernel") {
  const TraceFn f = [](const Tensors& in) {
    const ScanResult r = scan(
        [&](const Tensors& c, const Tensors& x) -> StepOutput {
          const Tensor y = matmul(x[0], c[0]);
          return {{c[0] + matmul(x[0], y, {true, false})}, {y, tanh(y) * in[2]}};
        },
        {in[0]}, {in[1]});
    return Tensors{r.carries[0], r.ys[0], r.ys[1]};
  };
  CHECK(contains(equal_on_both(f, {f64({2, 6, 6}), f64({1, 2, 8, 6}), f64({6})}), "scan steps 1"));
  // Of which a block's shared memory does not hold what a step makes.
  const std::string text = trace(f, {f64({2, 160, 160}), f64({1, 2, 200, 160}), f64({160})})
                               .plan({.device = Device::cuda()})
                               .str();
  CHECK(!contains(text, "scan"));
  // And where only what an op makes is too large.
  const TraceFn result = [](const Tensors& in) {
    const auto step = [](const Tensors& c, const Tensors& x) -> StepOutput {
      return {{c[0]}, {tanh(matmul(x[0], c[0]))}};
    };
    return scan(step, {in[0]}, {in[1]}).ys;
  };
  CHECK(!contains(
      trace(result, {f64({2, 160, 160}), f64({1, 2, 200, 160})}).plan({.device = Device::cuda()}).str(),
      "scan"));
}

TEST_CASE(
    "CUDA: an op without a kernel in a loop that becomes part of the graph is expanded, simplified or not") {
  const TraceFn f = [](const Tensors& in) {
    const auto read = [&](Tensor q) { return slice(ttt::causal_attention(q, in[1], in[2], 3), 3, 0, 3); };
    const auto inner = [&](const Tensors& c, const Tensors&) -> StepOutput {
      return {{c[0] * 0.5 + read(c[0])}, {}};
    };
    const auto outer = [&](const Tensors& c, const Tensors&) -> StepOutput {
      return {scan(inner, {read(c[0])}, {}, {.steps = 1}).carries, {}};
    };
    return scan(outer, {in[0]}, {}, {.steps = 1}).carries;
  };
  const Spec row = f64({1, 2, 4, 3});
  const Function program = trace(f, {row, row, row});
  const Arrays in = random({row, row, row}, 3);
  const Arrays expected = program.plan({.device = Device::cpu()}).run(in);
  for (const bool simplify : {true, false})
    for (const bool slice : {true, false}) {
      CAPTURE(simplify);
      const PlanOptions options{.simplify = simplify, .slice = slice, .device = Device::cuda()};
      CHECK(max_error(program.plan(options).run(in), expected) < 1e-12);
    }
}

TEST_CASE(
    "CUDA: scans of one step with checkpoints in them have the same plan whatever the process traced before") {
  const std::vector<Spec> specs{f64({64, 32}), f64({32, 32})};
  const auto planned = [&] {
    const Function f = trace(
        [](const Tensors& in) {
          Tensor x = in[0];
          for (int layer = 0; layer < 4; ++layer) {
            const auto step = [](const Tensors& c, const Tensors& now) -> StepOutput {
              const Tensor h = tanh(matmul(now[0], c[0])), again = checkpoint([&] {
                                                             const Tensor z = sin(matmul(h, c[0]));
                                                             return Tensors{tanh(z * exp(z) + z)};
                                                           })[0];
              return {{c[0]}, {sin(again * again) + again}};
            };
            x = reshape(scan(step, {in[1]}, {reshape(x, {1, 64, 32})}, {.checkpoint_every = 1}).ys[0],
                        {64, 32});
          }
          return grad(sum(square(x)), in);
        },
        specs);
    return f.plan({.device = Device::cuda()}).stats();
  };
  const PlanStats first = planned(), second = planned(), third = planned();
  CHECK(first.arena_bytes == second.arena_bytes);
  CHECK(second.arena_bytes == third.arena_bytes);
  CHECK(first.flops == second.flops);
  CHECK(second.flops == third.flops);
}

TEST_CASE("CUDA: what a scan of one step made again for its derivative is made again as part of a graph" *
          doctest::test_suite("cuda;slow")) {
  const std::vector<Spec> specs{f64({2, 160, 160}), f64({1, 2, 200, 160})};
  const auto in_layers = [&](int every) {
    return trace(
        [&](const Tensors& in) {
          Tensor x = in[1];
          for (int layer = 0; layer < 4; ++layer) {
            const auto step = [](const Tensors& c, const Tensors& now) -> StepOutput {
              const Tensor y = tanh(matmul(now[0], c[0]));
              return {{c[0] + matmul(now[0], y, {true, false})}, {tanh(y * sin(y)) + y}};
            };
            x = scan(step, {in[0]}, {x}, {.checkpoint_every = every}).ys[0];
          }
          return grad(sum(square(x)), in);
        },
        specs);
  };
  const Arrays in = random(specs, 1, -0.1, 0.1);
  const auto plan_of = [&](int every, std::optional<int> option) {
    return in_layers(every).plan({.checkpoint_every = option, .device = Device::cuda()});
  };
  Plan all = plan_of(0, {}), asked = plan_of(1, {}), option = plan_of(0, 1);
  CHECK(!contains(all.str(), "scan"));
  CHECK(!contains(asked.str(), "scan"));
  CHECK(asked.stats().arena_bytes < all.stats().arena_bytes);
  CHECK(option.stats().arena_bytes == asked.stats().arena_bytes);
  const Arrays found = all.run(in);
  CHECK(same_bits(asked.run(in), found));
  CHECK(same_bits(option.run(in), found));
  CHECK(max_error(in_layers(0).plan({.device = Device::cpu()}).run(in), found) < 1e-11);
}

TEST_CASE("CUDA: what only others read of elementwise steps is made after them") {
  // Momentum, and its derivative in the rate of each step: a sum over all of its elements, a number for each step.
  const TraceFn f = [](const Tensors& in) {
    const auto steps = [](const Tensors& m, const Tensors& x) -> StepOutput {
      const Tensor next = m[0] * x[1] + x[0];
      // The last: of a sequence alone, and of fewer axes.
      const Tensor largest = max(x[0], {1}, kKeep) + sum(x[0], {0, 1, 2});
      const Tensor same = sum(constant(random(f64({2, 3}), 9)), {0});
      return {{next}, {m[0], sum(m[0] * exp(x[0]), {1, 2}, kKeep) * x[1], largest, same}};
    };
    const ScanResult r = scan(steps, {in[0]}, {in[1], in[2]});
    return Tensors{r.carries[0], r.ys[0], r.ys[1], r.ys[2], r.ys[3]};
  };
  const std::string text = equal_on_both(f, {f64({3, 4, 5}), f64({6, 3, 4, 5}), f64({6, 3, 1, 1})});
  INFO(text);
  CHECK(contains(text, "  0 mul+add"));  // all that is left of a step
  CHECK(!contains(text, "  1 "));
  CHECK(contains(text, "1 exp"));
  CHECK(contains(text, "f64[6,3,1,1]"));  // the sums of all steps
  // Nobody keeps the carry of each step: then the sums stay where they are.
  const TraceFn kept_by_none = [](const Tensors& in) {
    const auto steps = [](const Tensors& m, const Tensors& x) -> StepOutput {
      return {{m[0] * 0.5 + x[0]}, {sum(m[0] * x[0])}};
    };
    return Tensors{scan(steps, {in[0]}, {in[1]}).ys[0]};
  };
  CHECK(!contains(equal_on_both(kept_by_none, {f64({3, 4}), f64({6, 3, 4})}), "f64[6,3,4]"));
}

TEST_CASE("CUDA: permutes of batch axes vanish where ops do not care, and sums of products are products") {
  const Shape x{16, 16, 3, 2, 6};  // batch, heads, chunks, time, dim
  const TraceFn f = [](const Tensors& in) {
    const Tensor k = chunks_first(in[0]), v = chunks_first(in[1]), w = in[2];
    const Tensor y = matmul(tanh(k), w) * v;                     // one right operand for all chunks
    const Tensor whole = sum(matmul(k, y, {true, false}), {0});  // [batch, heads, dim, dim]
    const Tensor largest = max(y, {0, 4}, kKeep);
    return Tensors{chunks_third(y), whole, chunks_third(y / (1 + square(largest)))};
  };
  const std::string text = equal_on_both(f, {f64(x), f64(x), f64({16, 16, 6, 6})});
  CHECK(!contains(text, "permute"));
  INFO(text);
  CHECK(text.find("matmul") != text.rfind("matmul"));  // the second is an output, without a sum
  CHECK(!contains(text, "sum"));
}

TEST_CASE("CUDA: permutes stay where they are where moving them would make more of them") {
  const TraceFn f = [](const Tensors& in) {
    const Tensor p = chunks_first(in[0]);
    return Tensors{exp(p), sin(p), matmul(p, p, {false, true})};
  };
  const std::string text = equal_on_both(f, {f64({2, 3, 4, 5, 6})});
  CHECK(text.find("permute") == text.rfind("permute"));
  CHECK(contains(text, "permute"));
}

TEST_CASE("CUDA: a scan reads and writes chunks where they lie, so that products around it permute nothing") {
  const TraceFn f = [](const Tensors& in) {
    const Tensor k = chunks_first(in[0]), v = chunks_first(in[1]);
    const ScanResult sums = scan(
        [](const Tensors& w, const Tensors& x) -> StepOutput {
          return {{w[0] * 0.9 + x[0]}, {w[0]}};
        },
        {in[2]}, {matmul(k, v, {true, false})});
    return Tensors{chunks_third(matmul(k, sums.ys[0])), sums.carries[0]};
  };
  const std::string text = equal_on_both(f, {f64({2, 3, 4, 5, 6}), f64({2, 3, 4, 5, 6}), f64({2, 3, 6, 6})});
  CHECK(contains(text, "scan steps 4"));
  CHECK(!contains(text, "permute"));
}

TEST_CASE("CUDA: a sum of many products is as many as the GPU needs to be full, and no more") {
  const TraceFn f = [](const Tensors& in) {
    const Tensor other = matmul(in[0], sin(in[1]), {true, false});
    return Tensors{sum(matmul(in[0], in[1], {true, false}), {1}), sum(other, {0})};
  };
  const std::string text = equal_on_both(f, {f64({2, 510, 4, 6}), f64({2, 510, 4, 5})});
  INFO(text);
  // Only what is summed over the first axis is made for each member.
  const std::size_t each = text.find("f64[2,510,6,5]");
  CHECK(each != std::string::npos);
  CHECK(each == text.rfind("f64[2,510,6,5]"));
  CHECK(contains(text, "f64[2,170,6,5]"));
}

TEST_CASE("CUDA: only of rows of both operands, and of sums that alone are read, one product is made") {
  const std::vector<Spec> specs{f64({16, 16, 3, 2, 2}), f64({16, 16, 3, 2, 2})};
  const auto products = [&](const TraceFn& f) { return count(equal_on_both(f, specs), "matmul"); };
  // Rows of the left operand times rows of the right one.
  const TraceFn other_axes = [](const Tensors& in) {
    return Tensors{sum(matmul(in[0], in[1], {false, true}), {2})};
  };
  CHECK(products(other_axes) == 1);
  const TraceFn no_axes = [](const Tensors& in) { return Tensors{sum(matmul(in[0], in[1]), {2})}; };
  CHECK(products(no_axes) == 1);
  const TraceFn one_for_all = [](const Tensors& in) {
    return Tensors{sum(matmul(max(in[0], {2}, kKeep), in[1], {true, false}), {2})};
  };
  CHECK(products(one_for_all) == 1);
  const TraceFn read_by_others = [](const Tensors& in) {
    const Tensor each = matmul(in[0], in[1], {true, false});
    return Tensors{sum(each, {2}), each};
  };
  CHECK(products(read_by_others) == 1);
}

TEST_CASE("CUDA: what is permuted meets operands with fewer axes") {
  const TraceFn f = [](const Tensors& in) {
    const Tensor p = chunks_first(in[0]), q = permute(in[1], {0, 3, 1, 2, 4, 5});
    return Tensors{permute(tanh(q) * p, {0, 2, 3, 1, 4, 5}), permute(matmul(q, p), {0, 2, 3, 1, 4, 5})};
  };
  CHECK(!contains(equal_on_both(f, {f64({2, 3, 4, 3, 3}), f64({2, 2, 3, 4, 3, 3})}), "permute"));
}

TEST_CASE("CUDA: what scans read step by step alone is read by nobody else for a sum after them") {
  const TraceFn f = [](const Tensors& in) {
    const auto first = [](const Tensors& m, const Tensors& x) -> StepOutput {
      const Tensor next = m[0] * 0.5 + sin(x[0]) * m[0];
      return {{next}, {next}};
    };
    const Tensor made = scan(first, {in[0]}, {in[1]}).ys[0];
    const auto second = [](const Tensors& m, const Tensors& x) -> StepOutput {
      return {{m[0] * 0.9 + x[0]}, {sum(x[0], {0, 1, 2}, kKeep), m[0]}};
    };
    const ScanResult r = scan(second, {in[0]}, {made});
    return Tensors{r.ys[0], r.ys[1]};
  };
  const std::string text = equal_on_both(f, {f64({3, 4, 5}), f64({6, 3, 4, 5})});
  INFO(text);
  CHECK(!contains(text, "f64[6,1,1,1]"));
}

TEST_CASE("CUDA: sums over matrices begin with their rows, in the kernel that makes these") {
  const TraceFn f = [](const Tensors& in) {
    const Tensor y = exp(in[0]) * in[1];
    // The last: of what no op made.
    return Tensors{sum(y, {1, 2}, kKeep), max(y, {0, 2}, kKeep), sum(y, {0, 1}, kKeep), sum(in[1])};
  };
  const std::string text = equal_on_both(f, {f64({3, 5, 40}), f64({5, 40})});
  INFO(text);
  CHECK(contains(text, "exp+mul+sum "));
  CHECK(count(text, "sum") == 4);
}

TEST_CASE("CUDA: programs over chunks, drawn at random, are what they are on the CPU, under any schedule" *
          doctest::test_suite("cuda;slow")) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("program ", seed);
    fuzz::Draws draws(seed);
    const std::vector<Spec> specs{f64({2, 3, 4, 3, 3}), f64({2, 3, 4, 3, 3})};
    const Function f = trace(
        [&](const Tensors& in) {
          Tensors out = RandomChunks(draws, in).run();
          Tensor loss;
          for (const Tensor& t : out) loss = loss.defined() ? loss + sum(sin(t)) : sum(sin(t));
          for (const Tensor& t : grad(loss, in, {.allow_zero = true})) out.push_back(t);
          return out;
        },
        specs);
    const Arrays in = random(specs, seed), expected = f.plan({.device = Device::cpu()}).run(in);
    for (const bool slice : {true, false})
      CHECK(max_error(f.plan({.slice = slice, .device = Device::cuda()}).run(in), expected) < 1e-9);
    const Arrays found = f.plan({.device = Device::cuda()}).run(in);
    for (const int every : {1, 2})
      CHECK(same_bits(f.plan({.checkpoint_every = every, .device = Device::cuda()}).run(in), found));
  }
}

TEST_SUITE_END();

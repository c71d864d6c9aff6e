// The promise: ops that run as one instruction give the bits of the ops one by one, whatever the length and
// the number of rows, for any number of threads.
#include <algorithm>
#include <sstream>

#include "engine/core/node_call.h"
#include "engine/core/threads.h"
#include "engine/plan/cluster.h"
#include "models/optimizer.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::vector<Spec> specs_of(DType dtype, const Shape& shape) {
  Shape row(shape.size(), 1), single = shape;
  row.back() = shape.back(), single.back() = 1;
  return {{dtype, shape}, {dtype, row}, {dtype, single}};
}

// Layer norm and softmax of rows, and their gradients: reductions between elementwise ops, rows and single
// elements of them, several outputs, inputs that are spread.
Function rows_of(DType dtype, const Shape& shape) {
  const auto body = [](const Tensors& in) {
    const Tensor x = in[0] + in[1] * in[2];
    const Tensor centred = x - mean(x, {-1}, kKeep);
    const Tensor normal = centred * rsqrt(mean(square(centred), {-1}, kKeep) + 1e-6);
    const Tensor weights = softmax(normal * in[1], -1);
    const Tensors g = grad(sum(square(weights - in[0])), in);
    return Tensors{weights, max(square(x), std::vector<int>{-1}), g[0], g[1], g[2]};
  };
  return trace(TraceFn(body), specs_of(dtype, shape));
}

}  // namespace

TEST_CASE("Ops that run together give the bits of the ops one by one, for rows of any length") {
  const int threads = thread_count();
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Shape& shape :
         {Shape{3, 1}, Shape{5, 7}, Shape{2, 8, 64}, Shape{3, 513}, Shape{300, 200},
          Shape{2, kMostClusterRow}, Shape{2, kMostClusterRow + 1}, Shape{0, 8}, Shape{70000, 2}}) {
      CAPTURE(to_string(Spec{dtype, shape}));
      const Function f = rows_of(dtype, shape);
      Arrays in;
      for (const Array& a : random(specs_of(DType::f64, shape), 5)) in.push_back(a.cast(dtype));
      Plan plain = f.plan({.fuse = false});
      const Arrays should = plain.run(in);
      for (const int n : {1, 2, 5}) {
        set_thread_count(n);
        Plan fused = f.plan();
        CHECK(same_bits(fused.run(in), should));
        CHECK((shape[0] == 0 || fused.stats().instructions < plain.stats().instructions));
      }
      set_thread_count(threads);
    }
}

TEST_CASE("Sums over rows run within the ops around them, unless a row is too long for the cache") {
  const auto instructions = [](std::int64_t n) {
    const Function f = trace(TraceFn([](const Tensors& in) {
                               const Tensor x = in[0] + 1.0, mean_x = mean(x, {-1}, kKeep);
                               return Tensors{x - mean_x, mean_x, x};
                             }),
                             {f64({4, n})});
    return f.plan().stats().instructions;
  };
  CHECK(instructions(kMostClusterRow) == 1);
  CHECK(instructions(kMostClusterRow + 1) > 1);
  const auto of_sums = [](std::int64_t n) {  // nothing as long as the rows joins
    const Function f = trace([](Tensor x) { return Tensors{sin(sum(x, {-1}, kKeep))}; }, f64({4, n}));
    return f.plan().stats().instructions;
  };
  CHECK(of_sums(kMostClusterRow) == 1);
  CHECK(of_sums(kMostClusterRow + 1) == 2);
}

TEST_CASE("A product that something else reads is not drawn into a sum") {
  const Function f = trace(
      [](Tensor x, Tensor y) {
        const Tensor product = matmul(x, y);
        return Tensors{sum(product + y), sum(sin(product))};
      },
      f64({4, 4}), f64({4, 4}));
  const Arrays in = random({f64({4, 4}), f64({4, 4})}, 3);
  CHECK(same_bits(f.plan().run(in), f.plan({.fuse = false}).run(in)));
}

TEST_CASE("What another op reads in between ends a group, and order is kept") {
  // The product needs the middle of the chain; what follows needs the product.
  const Function f = trace(TraceFn([](const Tensors& in) {
                             const Tensor a = in[0] * 2.0, b = a + 1.0;
                             const Tensor c = matmul(b, in[1]);
                             const Tensor d = b * c;
                             return Tensors{d + a, c};
                           }),
                           {f64({4, 4}), f64({4, 4})});
  const Arrays in = random({f64({4, 4}), f64({4, 4})}, 3);
  CHECK(same_bits(f.plan().run(in), f.plan({.fuse = false}).run(in)));
  CHECK(f.plan().stats().instructions == 3);
}

TEST_CASE("Branches that meet run together, as far as one instruction may have ops and inputs") {
  // depth: functions of each input, before products join them.
  const auto plan_of = [](int leaves, int depth) {
    const std::vector<Spec> specs(static_cast<std::size_t>(leaves), f64({2000}));
    return trace(TraceFn([depth](const Tensors& in) {
                   Tensors level;  // each a branch of its own, that shares nothing with the others
                   for (Tensor leaf : in) {
                     for (int i = 0; i < depth; ++i) leaf = sin(leaf);
                     level.push_back(leaf);
                   }
                   while (level.size() > 1) {
                     Tensors next;
                     for (std::size_t i = 0; i + 1 < level.size(); i += 2)
                       next.push_back(level[i] * level[i + 1]);
                     if (level.size() % 2 == 1) next.push_back(level.back());
                     level = next;
                   }
                   return level;
                 }),
                 specs);
  };
  for (const auto& tree : std::vector<std::pair<int, int>>{{2, 1},
                                                           {3, 1},
                                                           {4, 1},
                                                           {5, 1},
                                                           {8, 1},
                                                           {9, 1},
                                                           {16, 1},
                                                           {17, 1},
                                                           {33, 1},
                                                           {64, 1},
                                                           {64, 0},
                                                           {40, 0},
                                                           {8, 6},
                                                           {9, 4}}) {
    const int leaves = tree.first, depth = tree.second;
    CAPTURE(leaves);
    const Function f = plan_of(leaves, depth);
    const Arrays in = random(std::vector<Spec>(static_cast<std::size_t>(leaves), f64({2000})), 3);
    Plan plain = f.plan({.fuse = false}), fused = f.plan();
    CHECK(same_bits(fused.run(in), plain.run(in)));
    std::istringstream lines(fused.str());
    std::string line;
    std::getline(lines, line);  // a summary; then "0 sin+mul @0 = io0 io1 f64[2000] (..)"
    while (std::getline(lines, line) && contains(line, " = ")) {
      const std::string before = line.substr(0, line.find(" = ")), after = line.substr(line.find(" = ") + 3);
      CHECK(std::ranges::count(before, '+') < static_cast<std::ptrdiff_t>(kMostClusterOps));
      const std::string inputs = after.substr(0, after.find("f64["));
      CHECK(std::ranges::count(inputs, ' ') <= static_cast<std::ptrdiff_t>(kMostClusterInputs));
    }
    const auto ops = static_cast<std::size_t>((1 + depth) * leaves - 1);
    CHECK(plain.stats().instructions == ops);
    if (ops <= kMostClusterOps && leaves <= static_cast<int>(kMostClusterInputs))
      CHECK(fused.stats().instructions == 1);
    else CHECK(fused.stats().instructions < ops / 4);
  }
}

TEST_CASE("A step of AdamW reads and writes each number once") {
  std::vector<Spec> specs(4, f64({5000}));
  specs.resize(7, f64());
  const Function f = trace(TraceFn([](const Tensors& in) {
                             const AdamWParameter next =
                                 adamw_parameter({in[1], in[2], in[3]}, in[0], {in[4], in[5], in[6]}, {}, {});
                             return Tensors{next.param, next.m, next.v};
                           }),
                           specs);
  Plan plan = f.plan({.donate = donations(3, 0, 1)});
  CHECK(plan.stats().instructions == 1);
  CHECK(plan.stats().arena_bytes == 0);
}

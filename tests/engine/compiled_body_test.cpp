// The promise: a loop whose body is compiled as one function gives the bits of the interpreted one, whatever is
// multiplied, and products that go over one matrix go over it once, unless that would be another result.
#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/core/threads.h"
#include "engine/plan/body_source.h"
#include "engine/plan/native.h"
#include "engine/run/profile.h"
#include "ops/kernels.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

bool is_compiled_here() { return !native_target().flags.empty(); }

// What the compiled plan gives and what the interpreter gives; the first must have been compiled.
void check_bits(const Function& f, const Arrays& at) {
  const Arrays expected = f.plan({.compile = Compile::never}).run(at);
  const NativeReport before = native_report();
  for (const int workers : {1, 3}) {
    Plan plan = f.plan({.compile = Compile::now, .workers = workers});
    CHECK(same_bits(plan.run(at), expected));
    CHECK(same_bits(plan.run(at), expected));
  }
  const NativeReport after = native_report();
  CHECK_MESSAGE(after.failed == before.failed, after.last_failure);
  CHECK(after.compiled + after.from_cache > before.compiled + before.from_cache);
}

// Weights [.., in, out] read and taught by rows [steps, .., rows, ..], in every way that a product has.
Function taught(DType dtype, Shape batch, std::int64_t rows, std::int64_t in, std::int64_t out) {
  const auto of = [&](Shape lead, Shape last) {
    lead.insert(lead.end(), batch.begin(), batch.end());
    lead.insert(lead.end(), last.begin(), last.end());
    return Spec{dtype, lead};
  };
  const std::int64_t steps = 4;
  return trace(
      [](const Tensors& given) {
        const ScanResult r = scan(
            [](const Tensors& c, const Tensors& x) -> StepOutput {
              const Tensor w = c[0], k = x[0], v = x[1];
              const Tensor error = tanh(matmul(k, w)) - v, again = matmul(k * 0.5, w) + v;
              const Tensor back = matmul(error, w, {.b = true}), twice = matmul(again, w, {.b = true}) + k;
              const Tensor scores = matmul(k, back, {.b = true});
              const Tensor next =
                  w - 0.1 * matmul(k, error, {.a = true}) + 0.01 * matmul(twice, again, {.a = true});
              return {{next * 0.9},
                      {error, twice, matmul(scores, v), matmul(w, matmul(k, v, {.a = true}), {.a = true})}};
            },
            {given[0]}, {given[1], given[2]});
        Tensor loss = sum(square(r.carries[0]));
        for (const Tensor& y : r.ys) loss = loss + sum(square(y));
        Tensors results{loss};
        for (const Tensor& g : grad(loss, given)) results.push_back(g);
        return results;
      },
      {of({}, {in, out}), of({steps}, {rows, in}), of({steps}, {rows, out})});
}

Arrays numbers_for(const Function& f, std::uint64_t seed) {
  std::vector<Spec> specs;
  for (std::size_t i = 0; i < f.inputs().size(); ++i) specs.push_back(f.input_spec(i));
  return random(specs, seed, -0.5, 0.5);
}

// A loop with one carry [heads, dim, dim] and rows [steps, heads, count, dim] of two kinds.
using Step = std::function<StepOutput(Tensor w, Tensor k, Tensor v)>;
Function one_row(const Step& step, std::int64_t dim = 16, std::int64_t count = 1) {
  const Spec w = f32({2, dim, dim}), rows = f32({3, 2, count, dim});
  return trace(
      [=](const Tensors& in) {
        const ScanResult r = scan([&](const Tensors& c, const Tensors& x) { return step(c[0], x[0], x[1]); },
                                  {in[0]}, {in[1], in[2]});
        Tensors out = r.carries;
        out.insert(out.end(), r.ys.begin(), r.ys.end());
        return out;
      },
      {w, rows, rows});
}
Tensor outer(Tensor a, Tensor b) { return matmul(a, b, {.a = true}); }
std::string source_of(const Function& f) { return f.plan({.compile = Compile::never}).source(); }

}  // namespace

TEST_CASE("compiled bodies have the bits of interpreted ones, whatever the extents" *
          doctest::test_suite("slow")) {
  const std::string before{kernels().name};
  for (const std::string_view isa : instruction_sets()) {
    set_instruction_set(isa);
    CAPTURE(isa);
    if (!is_compiled_here()) continue;
    const DType f32 = DType::f32, f64 = DType::f64;
    for (const auto& [dtype, batch, rows, in, out] : std::vector<std::tuple<DType, Shape, int, int, int>>{
             {f32, {2, 3}, 1, 16, 24},
             {f64, {2}, 1, 9, 21},
             {f32, {2}, 1, 7, 19},
             {f32, {}, 1, 70, 1},
             {f64, {2}, 5, 17, 9},
             {f32, {}, 16, 33, 64},
             {f32, {2}, 16, 32, 64},  // the transpose of a product, and two that share a transposed matrix
             {f64, {}, 16, 96, 128},  // the transposes of both
             {f32, {}, 3, 300, 5},    // an element is several sums
             {f32, {1, 2}, 13, 1, 8}}) {
      CAPTURE_BOUND(name(dtype));
      CAPTURE_BOUND(rows);
      CAPTURE_BOUND(in);
      CAPTURE_BOUND(out);
      const Function f = taught(dtype, batch, rows, in, out);
      check_bits(f, numbers_for(f, 3));
    }
  }
  set_instruction_set(before);
}

TEST_CASE(
    "compiled bodies have the bits of interpreted ones where numbers are infinite, NaN or zeros of both signs") {
  if (!is_compiled_here()) return;
  const Function f = taught(DType::f32, {2}, 1, 16, 16);
  Arrays at = numbers_for(f, 5);
  auto w = at[0].as<float>(), k = at[1].as<float>();
  std::fill(w.begin() + 16, w.begin() + 64, -0.0F);
  for (std::size_t i = 0; i < 20; ++i) k[i] = i % 2 == 0 ? -0.0F : 0.0F;
  check_bits(f, at);
  w[300] = std::numeric_limits<float>::infinity(), k[40] = std::numeric_limits<float>::quiet_NaN();
  const Arrays expected = f.plan({.compile = Compile::never}).run(at),
               got = f.plan({.compile = Compile::now}).run(at);
  for (std::size_t i = 0; i < got.size(); ++i)
    for (std::int64_t e = 0; e < got[i].size(); ++e) {  // which NaN it is is not defined
      const double x = got[i].at(e), y = expected[i].at(e);
      if (!(x == y || (std::isnan(x) && std::isnan(y)))) FAIL_CHECK(i, " ", e, ": ", x, " ", y);
    }
}

TEST_CASE("products over one matrix go over it once") {
  // Two reads; a read of the weights and a step; two steps.
  const Function reads = one_row([](Tensor w, Tensor k, Tensor v) -> StepOutput {
    return {{w}, {matmul(k, w), exp(v), matmul(v, w)}};
  });
  CHECK(contains(source_of(reads), "walk<float, 16, 16, 2, 0>("));
  const Function step = one_row([](Tensor w, Tensor k, Tensor v) -> StepOutput {
    return {{w + outer(k, v)}, {matmul(k, w)}};
  });
  CHECK(contains(source_of(step), "walk<float, 16, 16, 1, 1>("));
  const Function steps = one_row([](Tensor w, Tensor k, Tensor v) -> StepOutput {
    return {{w + outer(k, v) + outer(v, exp(k))}, {}};
  });
  CHECK(contains(source_of(steps), "walk<float, 16, 16, 0, 2>("));
  for (const Function& f : {reads, step, steps})
    if (is_compiled_here()) check_bits(f, numbers_for(f, 11));
}

TEST_CASE(
    "products with one transposed matrix of several heads do not write over what the next head's reads") {
  if (!is_compiled_here()) return;
  // Small heads are taken two at a time; the second product's output lies where the first one's left operand was.
  const auto program = [](bool reads_the_first) {
    return trace(
        [=](const Tensors& in) {
          const ScanResult r = scan(
              [=](const Tensors& c, const Tensors& x) -> StepOutput {
                const Tensor first = matmul(tanh(x[0]), c[0], {.b = true});
                const Tensor other = reads_the_first ? slice(first, -1, 0, 8) : exp(x[1]);
                return {{c[0] * 0.9}, {first * matmul(other, c[0], {.b = true})}};
              },
              {in[0]}, {in[1], in[2]});
          return Tensors{r.carries[0], r.ys[0]};
        },
        {f32({8, 16, 8}), f32({3, 8, 4, 8}), f32({3, 8, 4, 8})});
  };
  for (const bool reads_the_first : {false, true}) {
    const Function f = program(reads_the_first);
    check_bits(f, numbers_for(f, 3));
  }
}

TEST_CASE(
    "few rows times a large transposed matrix: what is small is transposed, the matrix only where it pays") {
  const auto shared = [](std::int64_t dim, std::int64_t rows) {
    const auto times = [](Tensor x, Tensor w) { return matmul(x, w, {.b = true}); };
    const Function f = one_row(
        [&](Tensor w, Tensor k, Tensor v) -> StepOutput {
          return {{w * 0.9}, {times(k, w) + v, times(v, w)}};
        },
        dim, rows);
    if (is_compiled_here()) check_bits(f, numbers_for(f, 3));
    return contains(source_of(f), "with one matrix");
  };
  CHECK(shared(48, 16));
  CHECK_FALSE(shared(96, 16));
  CHECK(shared(96, 17));  // rows that fill no register
  CHECK(shared(100, 16));
  if (!is_compiled_here()) return;
  // Both operands transposed, and a sum that is written where its other term was.
  const Function f = one_row(
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        const Tensor large = matmul(v, k, {.b = true});
        return {{w * 0.9}, {v * 2.0 + permute(matmul(k, large, {.a = true, .b = true}), {0, 2, 1})}};
      },
      16, 64);
  check_bits(f, numbers_for(f, 3));
}

TEST_CASE("products over one matrix that wait for each other do not go over it at once") {
  const std::vector<Step> programs{
      // The second read needs the first.
      [](Tensor w, Tensor k, Tensor) -> StepOutput {
        return {{w}, {matmul(tanh(matmul(k, w)), w)}};
      },
      // The step needs what is read, and what is read after the step are the new weights.
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        const Tensor next = w + outer(k, matmul(k, w) - v);
        return {{next}, {matmul(v, next)}};
      },
      // What stands between two steps is read by others, too.
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        const Tensor first = w + outer(k, v), second = first + outer(v, k);
        return {{second}, {matmul(k, first), sum(first, {-1})}};
      },
      // The same matrix in one step and, transposed, in another.
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        return {{w + outer(k, v)}, {matmul(v, w, {.b = true}), matmul(k, w)}};
      },
      // The step is of another matrix than the one that is read.
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        return {{tanh(w) + outer(k, v)}, {matmul(k, w)}};
      },
      // A step that is written over the matrix that it is from, which is then read.
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        const Tensor next = tanh(w) + outer(k, v);
        return {{w}, {matmul(v, next)}};
      },
      // A step from what a step made, twice, and a chain of reads.
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        Tensor next = w, y = k;
        for (int i = 0; i < 6; ++i) next = next + outer(k * (1.0 + i), v), y = matmul(y, w) + v;
        return {{next}, {y}};
      }};
  for (std::size_t i = 0; i < programs.size(); ++i) {
    CAPTURE(i);
    const Function f = one_row(programs[i]);
    if (is_compiled_here()) check_bits(f, numbers_for(f, 13 + i));
  }
  CHECK_FALSE(contains(source_of(one_row(programs[0])), "16, 2, 0>("));
}

TEST_CASE("steps of several rows go over one matrix by blocks, unless somebody needs what lies between") {
  const auto rows = [](const Step& step, std::int64_t dim) { return one_row(step, dim, 5); };
  const Step two = [](Tensor w, Tensor k, Tensor v) -> StepOutput {
    return {{w + outer(k, v) + outer(v, exp(k))}, {}};
  };
  CHECK(contains(source_of(rows(two, 32)), "product_rows<float, 32, 32, 5, true, 16>("));
  CHECK(
      contains(source_of(rows(two, 37)), "product_rows<float, 37, 37, 5, true, 5>("));  // what is left of 37
  CHECK(contains(source_of(rows(two, 7)), "product_rows<float, 7, 7, 5, true, 7>("));
  const std::vector<Step> programs{
      two,
      // Of three, one of a single row and one that is not transposed.
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        const Tensor one = sum(k, {-2}, kKeep);
        return {{w + outer(k, v) + outer(one, one * 0.5) + matmul(outer(v, k), w)}, {}};
      },
      // What stands between two steps is read, by a product or by others.
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        const Tensor first = w + outer(k, v), second = first + outer(v, k);
        return {{second}, {matmul(k, first)}};
      },
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        const Tensor first = w + outer(k, v), second = first + outer(matmul(v, first), k);
        return {{second}, {}};
      },
      // The second step adds what is made of the old matrix, which the new one may be written over.
      [](Tensor w, Tensor k, Tensor v) -> StepOutput {
        return {{w + outer(k, v) + outer(matmul(k, w), v)}, {matmul(v, w, {.b = true})}};
      }};
  for (std::size_t i = 0; i < programs.size(); ++i)
    for (const std::int64_t dim : {7, 32, 37}) {
      CAPTURE(i);
      CAPTURE(dim);
      const Function f = rows(programs[i], dim);
      if (is_compiled_here()) check_bits(f, numbers_for(f, 19 + i));
    }
  CHECK_FALSE(contains(source_of(rows(programs[2], 32)), "product_rows<"));
  CHECK_FALSE(contains(source_of(rows(programs[3], 32)), "product_rows<"));
}

TEST_CASE("sums over other axes than the last are a part of compiled bodies") {
  // Of x [.., 3, 11, 21] and of shapes whose rows do not fill registers, or fill several.
  const auto sums = [](DType dtype, const Shape& shape, const std::vector<int>& axes) {
    Shape xs = shape;
    xs.insert(xs.begin(), 4);
    return trace(
        [&](const Tensors& in) {
          const ScanResult r = scan(
              [&](const Tensors& c, const Tensors& x) -> StepOutput {
                const Tensor y = x[0] * c[0];
                return {{tanh(y)}, {sum(y, axes, kKeep)}};
              },
              {in[0]}, {in[1]});
          return Tensors{r.carries[0], r.ys[0]};
        },
        std::vector<Spec>{{dtype, shape}, {dtype, xs}});
  };
  struct Case {
    Shape shape;
    std::vector<int> axes;
    std::string text;  // of f32; empty: it is no such sum
  };
  for (const auto& [shape, axes, text] :
       std::vector<Case>{{{16, 64}, {0}, "column_sum<float, 16, 64>("},
                         {{3, 11, 21}, {1}, "column_sum<float, 11, 21>("},
                         {{3, 11, 21}, {0, 1}, "column_sum<float, 33, 21>("},
                         {{2, 9, 1, 5, 7}, {1}, "column_sum<float, 9, 35>("},
                         {{12, 9, 5}, {1}, "i < 3; ++i) column_sum<float, 9, 5>("},
                         {{1, 7, 1, 3}, {0, 1}, "column_sum<float, 7, 3>("},
                         {{3, 11, 21}, {0, 2}, ""},
                         {{3, 4, 5, 6}, {0, 2}, ""},
                         {{1, 7, 1, 33}, {0, 3}, ""}}) {
    CAPTURE_BOUND(shape.size());
    CAPTURE_BOUND(text);
    CHECK(contains(source_of(sums(DType::f32, shape, axes)), "column_sum<") == !text.empty());
    if (!text.empty()) CHECK(contains(source_of(sums(DType::f32, shape, axes)), text));
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Function f = sums(dtype, shape, axes);
      if (is_compiled_here()) check_bits(f, numbers_for(f, 17));
    }
  }
  // One of a row beside axes of one element is a row's sum, and runs with what is around it.
  CHECK(contains(sums(DType::f32, {1, 7, 1, 33}, {0, 3}).plan({}).str(), "mul+tanh+sum "));
}

TEST_CASE("an error in a compiled body is the interpreter's, and leaves the plan as it was") {
  if (!is_compiled_here()) return;
  const Function f = trace(
      [](Tensor table, Tensor rows) {
        const ScanResult r = scan(
            [&](const Tensors& c, const Tensors& x) -> StepOutput {
              return {{c[0] + sum(square(gather(table, x[0])), {0})}, {}};
            },
            {constant(0.0, DType::f32) + full(DType::f32, {16}, 0.0)}, {rows});
        return r.carries[0];
      },
      f32({5, 16}), i32({4, 2}));
  const Array table = random(f32({5, 16}), 1);
  Array rows(i32({4, 2}));
  for (std::int32_t& row : rows.as<std::int32_t>()) row = 3;
  Plan compiled = f.plan({.compile = Compile::now}), interpreted = f.plan({.compile = Compile::never});
  const Arrays expected = interpreted.run({table, rows});
  CHECK(same_bits(compiled.run({table, rows}), expected));
  Array wrong(i32({4, 2}));
  for (std::int32_t& row : wrong.as<std::int32_t>()) row = 7;
  const std::string message = message_of<ValueError>([&] { interpreted.run({table, wrong}); });
  CHECK(message_of<ValueError>([&] { compiled.run({table, wrong}); }) == message);
  CHECK(same_bits(compiled.run({table, rows}), expected));
}

TEST_CASE("a plan with compiled bodies is profiled with the same outputs") {
  if (!is_compiled_here()) return;
  const Function f = taught(DType::f32, {2}, 4, 16, 16);
  const Arrays at = numbers_for(f, 1);
  Plan plan = f.plan({.compile = Compile::now});
  CHECK(same_bits(plan.profile(at).outputs, f.plan({.compile = Compile::never}).run(at)));
}

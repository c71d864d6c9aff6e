// The kernels of whole scans against the same scans op by op, and against the CPU. Runs on a GPU, and on the emulator.
#include <doctest/doctest.h>

#include "autograd/grad.h"
#include "autograd/scan.h"
#include "tests/cuda/rounded.h"
#include "tests/ttt/system_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_SUITE_BEGIN("cuda");

namespace {

Device gpu() { return Device::cuda(); }

}  // namespace

TEST_CASE("CUDA: a scan over slices as one kernel is the scan op by op, in values and gradients" *
          doctest::test_suite("cuda;slow")) {
  struct Check {
    const char* system;
    DType dtype;
    int order;
    double tolerance;
  };
  for (const Check& c : {Check{"ttt-linear", DType::f64, 2, 1e-10}, Check{"ttt-linear", DType::f32, 1, 1e-3},
                         Check{"ttt-mlp", DType::f64, 1, 1e-10}, Check{"delta-net", DType::f64, 2, 1e-10},
                         Check{"lact", DType::f64, 1, 1e-10}, Check{"titans-linear", DType::f64, 1, 1e-10}}) {
    const ttt::ProgramSizes sizes{.batch = 2, .heads = 2, .dim = 4, .time = 9, .chunk = 3};
    const Function f =
        ttt::trace_system(ttt::system_named(c.system), sizes, c.dtype, [&](const ttt::SystemProgram& p) {
          return with_derivatives(p, system_in(FormChoice::dual), c.order);
        });
    const Arrays inputs = ttt::numbers_for(f, 1);
    Plan fused = f.plan({.device = gpu()});
    INFO(std::string(c.system), " ", name(c.dtype));
    CHECK(contains(fused.str(), "one kernel"));
    const Arrays found = fused.run(inputs);
    CHECK(worst_error(found, f.plan({.slice = false, .device = gpu()}).run(inputs)) < c.tolerance);
    CHECK(same_bits(fused.run(inputs), found));
    for (int every : {1, 2}) {
      Plan checkpointed = f.plan({.checkpoint_every = every, .device = gpu()});
      INFO("every ", every);
      CHECK(contains(checkpointed.str(), "one kernel"));
      CHECK(same_bits(checkpointed.run(inputs), found));
    }
  }
}

TEST_CASE("CUDA: a scan's kernel that is compiled for it has the bits of the one that interprets it" *
          doctest::test_suite("cuda;slow;turn-2")) {
  struct Sizes {
    const char* system;
    std::int64_t dim, chunk;  // of many rows a warp takes two or four at once
  };
  for (const auto& [system, dim, chunk] : {Sizes{"ttt-linear", 8, 8}, Sizes{"ttt-linear", 8, 16},
                                           Sizes{"ttt-mlp", 8, 8}, Sizes{"delta-net", 8, 8}})
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Function f = ttt::trace_system(
          ttt::system_named(system), {.batch = 2, .heads = 2, .dim = dim, .time = 32, .chunk = chunk}, dtype,
          [&](const ttt::SystemProgram& p) { return with_derivatives(p, system_in(FormChoice::dual), 1); });
      const Arrays inputs = ttt::numbers_for(f, 1);
      Plan compiled = f.plan({.device = gpu(), .compile = Compile::now});
      CAPTURE_BOUND(system);
      CAPTURE_BOUND(chunk);
      CAPTURE(name(dtype));
      CHECK(contains(compiled.str(), "compiled for it"));
      CHECK(
          same_bits(compiled.run(inputs), f.plan({.device = gpu(), .compile = Compile::never}).run(inputs)));
    }
}

TEST_CASE(
    "CUDA: rows of a compiled scan have the bits of interpreted ones, however many a warp takes at once") {
  for (const std::int64_t rows : {8, 16, 18, 32, 48})
    for (const std::int64_t row : {5, 33, 64}) {
      if (kSanitized && (row != 33 || rows < 18)) continue;  // a compiler takes long there
      const Spec x{DType::f32, {4, 3, rows, row}}, carry{DType::f32, {3, rows, row}};
      const Function f = trace(TraceFn([](const std::vector<Tensor>& in) {
                                 const ScanResult r = scan(
                                     [](const Tensors& c, const Tensors& xs) -> StepOutput {
                                       const Tensor shifted = xs[0] - max(xs[0], {-1}, true),
                                                    e = exp(shifted);
                                       const Tensor p = e / sum(e, {-1}, true);
                                       return {{c[0] + p}, {p - mean(p * c[0], {-1}, true)}};
                                     },
                                     {in[0]}, {in[1]});
                                 return std::vector<Tensor>{r.carries[0], r.ys[0]};
                               }),
                               {carry, x});
      const Arrays inputs = ttt::numbers_for(f, 1);
      Plan compiled = f.plan({.device = gpu(), .compile = Compile::now});
      INFO(rows, " rows of ", row);
      CHECK(contains(compiled.str(), "compiled for it"));
      CHECK(
          same_bits(compiled.run(inputs), f.plan({.device = gpu(), .compile = Compile::never}).run(inputs)));
    }
}

TEST_CASE("CUDA: products of a batch inside of a step do not write over what others of it still read") {
  // What is made of the sum over axis 1 needs all of it: a slice has both its members.
  const Spec w = f32({3, 1, 16, 64}), x = f32({3, 3, 2, 16, 64}), v = f32({3, 3, 2, 64, 64});
  const Function f = trace(TraceFn([](const std::vector<Tensor>& in) {
                             const ScanResult r = scan(
                                 [](const Tensors& c, const Tensors& xs) -> StepOutput {
                                   const Tensor turned = matmul(xs[0], xs[1], {.b = true}),
                                                plain = matmul(turned, xs[1]);
                                   return {{c[0] * 0.5 + tanh(0.01 * sum(plain, {1}, true))}, {turned}};
                                 },
                                 {in[0]}, {in[1], in[2]});
                             return std::vector<Tensor>{r.carries[0], r.ys[0]};
                           }),
                           {w, x, v});
  const Arrays inputs = ttt::numbers_for(f, 1);
  const auto compiled = [&](Precision precision) {
    Plan plan = f.plan({.device = gpu(), .precision = precision, .compile = Compile::now});
    CHECK(contains(plan.source(), "i < 2; ++i"));
    return plan.run(inputs);
  };
  CHECK(
      same_bits(compiled(Precision::f32), f.plan({.device = gpu(), .compile = Compile::never}).run(inputs)));
  CHECK(worst_error(compiled(Precision::tf32), f.plan({.device = Device::cpu()}).run(inputs)) < 2e-3);
}

namespace {

// Running sums with decay: what is carried is kept by a second scan, which goes backwards; with their gradients.
Function running_sums(DType dtype, std::int64_t elements) {
  const std::int64_t time = 7, slices = 3;
  const Spec carry{dtype, {slices, 2, elements}}, x{dtype, {time, slices, 2, elements}},
      rate{dtype, {time, slices, 1, 1}}, number{dtype, {}};
  return trace(TraceFn([](const std::vector<Tensor>& in) {
                 const ScanResult r = scan(
                     [&](const Tensors& c, const Tensors& xs) -> StepOutput {
                       const Tensor next = c[0] * sigmoid(xs[0]) + xs[0] * in[3];
                       return {{next, c[0]}, {c[0], next * c[1]}};
                     },
                     {in[0], in[0] * 0.5}, {in[1]});
                 const ScanResult back = scan(
                     [](const Tensors& c, const Tensors& xs) -> StepOutput {
                       return {{c[0] * xs[1] + xs[0]}, {}};
                     },
                     {in[0]}, {r.ys[1], in[2]}, {.reverse = true});
                 std::vector<Tensor> out{r.carries[0], r.carries[1], r.ys[0], r.ys[1], back.carries[0]};
                 Tensor loss;
                 for (const Tensor& y : out) accumulate(loss, sum(square(y)));
                 for (Tensor g : grad(loss, {in[0], in[1]})) out.push_back(g);
                 return out;
               }),
               {carry, x, rate, number});
}

}  // namespace

TEST_CASE(
    "CUDA: a scan of elementwise steps is one kernel, a thread an element, with the bits of the scan op by op") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t elements : {1, 5, 300}) {
      if (kSanitized && dtype == DType::f64) continue;
      const Function f = running_sums(dtype, elements);
      const Arrays inputs = ttt::numbers_for(f, 1);
      Plan compiled = f.plan({.device = gpu(), .compile = Compile::now});
      INFO(name(dtype), " ", elements);
      CHECK(count(compiled.str(), "a thread an element") >= 3);
      CHECK(contains(compiled.source(), "nestgrad_elements("));
      const Arrays found = compiled.run(inputs);
      const Arrays op_by_op =
          f.plan({.slice = false, .device = gpu(), .compile = Compile::never}).run(inputs);
      CHECK(same_bits(found, op_by_op));
      CHECK(same_bits(compiled.run(inputs), found));
      for (const int every : kSanitized ? std::vector{2} : std::vector{1, 2, 3})
        CHECK(same_bits(
            f.plan({.checkpoint_every = every, .device = gpu(), .compile = Compile::now}).run(inputs),
            found));
    }
}

namespace {

// A scan with a product of each layout of operands; those of each are given, so that rounding them is all that a precision does.
Function products_of_all_layouts() {
  const std::int64_t slices = 3, time = 4;
  const auto rows = [&](std::int64_t m, std::int64_t n) { return f32({time, slices, m, n}); };
  return trace(TraceFn([](const std::vector<Tensor>& in) {
                 const ScanResult r = scan(
                     [](const Tensors& c, const Tensors& x) -> StepOutput {
                       const Tensor plain = matmul(x[0], x[1]), b_turned = matmul(x[2], x[1], {.b = true}),
                                    a_turned = matmul(x[0], x[2], {.a = true}),
                                    both = matmul(x[2], x[3], {.a = true, .b = true}),
                                    large = matmul(x[1], x[4], {.a = true});
                       return {{c[0] + plain}, {plain, b_turned, a_turned, both, large}};
                     },
                     {in[0]}, Tensors(in.begin() + 1, in.end()));
                 std::vector<Tensor> out = r.carries;
                 out.insert(out.end(), r.ys.begin(), r.ys.end());
                 return out;
               }),
               {f32({slices, 16, 48}), rows(16, 32), rows(32, 48), rows(16, 48), rows(8, 16), rows(32, 64)});
}

}  // namespace

TEST_CASE("CUDA: a step of an array times all of it, in bf16: both begin at one address, and one is longer") {
  const Function f = trace(
      [](Tensor x) {
        const Tensor all = reshape(x, {24, 16});
        return scan(
                   [&](const Tensors& c, const Tensors& now) -> StepOutput {
                     const Tensor y = matmul(now[0], all, {.b = true});
                     return {{c[0] + sum(y)}, {y}};
                   },
                   {sum(x)}, {x})
            .ys[0];
      },
      f32({4, 6, 16}));
  const Array x = rounded(random(f32({4, 6, 16}), 3), 7);
  const Array on_cpu = f.plan({.device = Device::cpu()}).run({x})[0];
  Plan plan = f.plan({.slice = false, .device = gpu(), .precision = Precision::bf16});
  for (int run = 0; run < 2; ++run) CHECK(relative_error(plan.run({x})[0], on_cpu) < 2e-6);
}

TEST_CASE("CUDA: products of a compiled scan in tf32 and bf16 round their operands, and nothing else") {
  const Function f = products_of_all_layouts();
  const auto run = [&](const Arrays& inputs, Precision precision) {
    Plan plan = f.plan({.device = gpu(), .precision = precision, .compile = Compile::now});
    CHECK(count(plan.source(), "product_in<") == (precision == Precision::f32 ? 0 : 5));
    return plan.run(inputs);
  };
  Plan on_cpu = f.plan({.device = Device::cpu()});
  // Of small integers nothing is rounded: each element is in its place.
  Arrays whole;
  for (std::size_t i = 0; i < f.inputs().size(); ++i) {
    whole.push_back(random(f.input_spec(i), i));
    for (float& x : whole.back().as<float>()) x = std::round(x * 3);
  }
  const Arrays exact_whole = on_cpu.run(whole);
  for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16})
    CHECK(same_bits(run(whole, precision), exact_whole));
  const Arrays inputs = ttt::numbers_for(f, 1), exact = on_cpu.run(inputs);
  for (const Precision precision : {Precision::tf32, Precision::bf16}) {
    Arrays rounded_inputs{inputs[0]};
    for (std::size_t i = 1; i < inputs.size(); ++i)
      rounded_inputs.push_back(precision == Precision::tf32 ? rounded(inputs[i], 10, Middle::away)
                                                            : rounded(inputs[i], 7));
    const Arrays found = run(inputs, precision);
    const Arrays expected = on_cpu.run(rounded_inputs);
    for (std::size_t i = 0; i < found.size(); ++i) {
      INFO("output ", i);
      CHECK(relative_error(found[i], expected[i]) < 4e-6);
      CHECK(relative_error(found[i], exact[i]) > 1e-5);
    }
    CHECK(same_bits(run(inputs, precision), found));
  }
}

TEST_CASE("CUDA: the published layers' scans run as one kernel each") {
  for (const std::string system : {"ttt-linear", "ttt-mlp", "delta-net", "lact-v3"}) {
    const Function f = ttt::trace_system(
        ttt::system_named(system), {.batch = 2, .heads = 2, .dim = 16, .time = 32, .chunk = 16}, DType::f32,
        [&](const ttt::SystemProgram& p) { return with_derivatives(p, system_in(FormChoice::dual), 1); });
    const std::string text = f.plan({.device = gpu()}).str();
    INFO(std::string(system));
    CHECK(count(text, "one kernel") == count(text, " scan steps"));
    CHECK(count(text, " scan steps") >= 2);
  }
}

TEST_SUITE_END();

// Kernels that are compiled for a scan (cuda/scan_source.h): on the emulator the very text that NVRTC gets on a GPU.
#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "autograd/grad.h"
#include "cuda/cluster_source.h"
#include "cuda/kernel_maker.h"
#include "cuda/loop_time.h"
#include "engine/core/index.h"
#include "ops/table.h"
#include "tests/cuda/emulator_testing.h"
#include "tests/fuzz/compare.h"
#include "tests/temporary_folder.h"
#include "tests/ttt/system_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_SUITE_BEGIN("cuda");

namespace {

using Reset = emulator::testing::Fresh;

// Where kernels are kept, for a test that counts what is compiled.
struct Cache {
  Cache() { setenv("NESTGRAD_CACHE", (folder / "cache").c_str(), 1); }
  ~Cache() { unsetenv("NESTGRAD_CACHE"); }
  TemporaryFolder folder;
};

PlanOptions on_gpu(Compile compile) { return {.device = Device::cuda(), .compile = compile}; }

Function program(const char* system, const ttt::ProgramSizes& sizes, DType dtype, int order) {
  return ttt::trace_system(ttt::system_named(system), sizes, dtype, [&](const ttt::SystemProgram& p) {
    return with_derivatives(p, system_in(FormChoice::dual), order);
  });
}

Arrays run(Plan& plan, const Arrays& inputs) {
  try {
    return plan.run(inputs);
  } catch (const DeviceError&) {
    FAIL(emulator::last_fault());
    throw;
  }
}

// Compiled and interpreted, with any schedule: the same bits.
void check_same_bits(const Function& f, const Arrays& inputs, bool all_compiled = true) {
  Plan interpreted = f.plan(on_gpu(Compile::never)), compiled = f.plan(on_gpu(Compile::now));
  const std::string text = compiled.str();
  const int kernels = count(text, "one kernel");
  INFO(text);
  REQUIRE(kernels >= 1);
  if (all_compiled) CHECK(count(text, "one kernel, compiled for it") == kernels);
  const Arrays expected = interpreted.run(inputs);
  for (int i = 0; i < 3; ++i) CHECK(same_bits(run(compiled, inputs), expected));
  PlanOptions checkpointed = on_gpu(Compile::now);
  checkpointed.checkpoint_every = 2;
  CHECK(same_bits(f.plan(checkpointed).run(inputs), expected));
}

// A scan over heads whose step is `step` of the carry and of what each step gets.
Function loop(const std::function<Tensors(Tensor, Tensor)>& step, const Shape& carry, const Shape& each,
              DType dtype, int steps = 5) {
  constexpr std::int64_t kHeads = 3;
  const auto with = [&](std::initializer_list<std::int64_t> front, const Shape& back) {
    Shape out(front);
    out.insert(out.end(), back.begin(), back.end());
    return Spec{dtype, out};
  };
  return trace(TraceFn([&](const Tensors& in) {
                 const ScanResult r = scan(
                     [&](const Tensors& c, const Tensors& x) -> StepOutput {
                       Tensors out = step(c[0], x[0]);
                       const Tensor next = out[0];
                       out.erase(out.begin());
                       return {{next}, out};
                     },
                     {in[0]}, {in[1]});
                 Tensors out{r.carries[0]};
                 out.insert(out.end(), r.ys.begin(), r.ys.end());
                 Tensor loss = sum(square(out[0]));
                 for (std::size_t i = 1; i < out.size(); ++i) loss = loss + sum(square(out[i]));
                 for (const Tensor& g : grad(loss, in)) out.push_back(g);
                 return out;
               }),
               {with({kHeads}, carry), with({steps, kHeads}, each)});
}

}  // namespace

TEST_CASE("CUDA: a kernel compiled for a scan has the bits of the one that interprets it: learners" *
          doctest::test_suite("cuda;slow;turn-4")) {
  const Reset reset;
  for (const char* system : {"ttt-linear", "ttt-mlp", "delta-net", "lact", "titans-linear"})
    for (const DType dtype : {DType::f32, DType::f64}) {
      if (dtype == DType::f64 && std::string_view(system) != "ttt-linear")
        continue;  // a compiler a kernel: slow
      const Function f =
          program(system, {.batch = 2, .heads = 2, .dim = 8, .time = 12, .chunk = 4}, dtype, 1);
      INFO(std::string(system), " ", name(dtype));
      check_same_bits(f, ttt::numbers_for(f, 1));
    }
  const Function f =
      program("ttt-linear", {.batch = 1, .heads = 2, .dim = 6, .time = 10, .chunk = 5}, DType::f64, 2);
  check_same_bits(f, ttt::numbers_for(f, 1));
}

TEST_CASE(
    "CUDA: a kernel compiled for a scan has the bits of the one that interprets it: ops of all kinds and sizes" *
    doctest::test_suite("cuda;slow;turn-1")) {
  const Reset reset;
  struct Case {
    const char* name;
    std::function<Tensors(Tensor, Tensor)> step;
    Shape carry, each;
  };
  const auto products = [](Tensor w, Tensor x) {
    const Tensor y = matmul(x, w), z = matmul(y, w, {.b = true});
    return Tensors{w * 0.9 + 0.1 * matmul(x, y, {.a = true}), z, matmul(z, x, {.b = true})};
  };
  const std::vector<Case> cases{
      {"products", products, {7, 9}, {5, 7}},
      {"products of whole groups", products, {64, 32}, {16, 64}},
      {"rows",
       [](Tensor w, Tensor x) {
         const Tensor centred = x - mean(x, {-1}, kKeep),
                      unit = centred * rsqrt(mean(square(centred), {-1}, kKeep) + 1e-5);
         return Tensors{w + sum(unit, {-2}, kKeep), exp(unit - max(unit, {-1}, kKeep)) * w};
       },
       {1, 40},
       {6, 40}},
      {"moves",
       [](Tensor w, Tensor x) {
         const Tensor turned = transpose(x), more = concat({x, x * 2.0}, -1);
         return Tensors{w + slice(turned, 1, 0, 3),
                        pad(x, 2, 1, 2),
                        tril(matmul(x, x, {.b = true})),
                        cumsum(x, 1),
                        more,
                        broadcast_to(sum(x, {-1}, kKeep), x.shape()),
                        sum(x, {1}),
                        max(x, {1}, kKeep),
                        sum(x, {1, 2})};
       },
       {3, 5},
       {5, 3}},
  };
  for (const Case& c : cases)
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Function f = loop(c.step, c.carry, c.each, dtype);
      INFO(std::string(c.name), " ", name(dtype));
      check_same_bits(f, random(f.plan().input_specs(), 3));
      CHECK(max_error(f.plan(on_gpu(Compile::now)).run(random(f.plan().input_specs(), 3)),
                      f.plan().run(random(f.plan().input_specs(), 3))) <
            (dtype == DType::f32 ? 1e-3 : 1e-10));
    }
}

TEST_CASE("CUDA: no checkpoint schedule decides whether a scan is one kernel") {
  const Reset reset;
  bool kernels = false, none = false;
  for (std::int64_t n = 800; n <= 1'300; n += 20) {
    const Function f = loop(
        [](Tensor w, Tensor x) {
          return Tensors{w + matmul(matmul(x, w, {.b = true}), w), exp(w)};
        },
        {4, n}, {4, n}, DType::f64);
    PlanOptions kept = on_gpu(Compile::never), recomputed = kept;
    recomputed.checkpoint_every = 2;
    const auto found = count(f.plan(kept).str(), "one kernel");
    INFO(n);
    CHECK(count(f.plan(recomputed).str(), "one kernel") == found);
    (found > 0 ? kernels : none) = true;
  }
  CHECK(kernels);
  CHECK(none);
}

TEST_CASE("CUDA: a multiprocessor takes slices through a scan one after the other") {
  const Function f =
      trace(TraceFn([](const Tensors& in) { return Tensors{exp(matmul(in[0], in[0]))}; }), {f32({16, 16})});
  const auto in_kernel = [&](std::int64_t slices) { return cuda::step_time(f.graph(), slices, 4).in_kernel; };
  CHECK(in_kernel(4) > 0);
  CHECK(in_kernel(1) == in_kernel(4));
  CHECK(in_kernel(5) == 2 * in_kernel(4));
}

TEST_CASE("CUDA: a kernel compiled for a cluster has the bits of the one that interprets it") {
  const Reset reset;
  const auto check_one = [](const TraceFn& of, const Shape& shape, const Shape& other, DType dtype) {
    const Function f = trace(of, {{dtype, shape}, {dtype, other}, {dtype, {}}});
    INFO(to_string(shape), " with ", to_string(other), " ", name(dtype));
    const Arrays inputs = random(f.plan().input_specs(), 1);
    Plan plan = f.plan(on_gpu(Compile::now));
    CHECK(contains(plan.source(), "nestgrad_cluster("));
    CHECK(same_bits(plan.run(inputs), f.plan(on_gpu(Compile::never)).run(inputs)));
  };
  const auto check = [&](const Shape& shape, const Shape& other, DType dtype) {
    check_one(TraceFn([](const Tensors& in) {
                return Tensors{exp(in[0]) * in[1] + in[2], -in[1]};
              }),
              shape, other, dtype);
    check_one(TraceFn([](const Tensors& in) {
                const Tensor x = in[0], y = in[1], rate = in[2];
                const Tensor mean = sum(x * y, {-1}, kKeep) * rate, centred = x - mean;
                const Tensor norm = rsqrt(sum(square(centred), {-1}, kKeep) + 1.0);
                return Tensors{centred * norm + y, norm, softmax(x + y, -1), tanh(sum(x))};
              }),
              shape, other, dtype);
  };
  // Rows and whole arrays of sizes that 16 bytes divide and do not; what repeats along rows, across them, and in the middle.
  check({6, 64}, {6, 64}, DType::f32);
  check({5, 3}, {3}, DType::f32);
  check({4, 3}, {3}, DType::f32);
  check({4, 6}, {4, 1}, DType::f32);
  check({5, 3}, {5, 1}, DType::f64);
  check({2, 3, 4, 8}, {3, 1, 8}, DType::f32);
  check({2, 3, 4, 8}, {2, 1, 4, 1}, DType::f64);
  check({3, 1000}, {1000}, DType::f32);
  check({2, 1500}, {2, 1}, DType::f32);  // rows that no warp keeps in registers
  check({7, 1}, {1}, DType::f32);
}

TEST_CASE(
    "CUDA: a kernel compiled for a cluster counts in 64 bits where elements, or threads of short rows, are too many") {
  const RowReduction row_sum = [](const std::byte*, std::byte*, std::int64_t) {
  };  // the CPU's, which no text has
  const auto text = [&](const Shape& shape, bool by_rows) {
    ClusterCall call{{}, {f32(shape)}, f32(shape)};
    if (by_rows) call.ops.push_back({&sum_op, row_sum, {0}, true, 0});
    else call.ops.push_back({&exp_op, nullptr, {0}, false, 0});
    return cuda::cluster_kernel_text(call).text;
  };
  CHECK(contains(text({1 << 20, 3}, true), "using Index = int;"));
  CHECK(contains(text({1 << 26, 3}, true), "using Index = std::int64_t;"));
  CHECK(contains(text({1 << 26, 3}, false), "using Index = int;"));
  // A thread beyond the last counts on by all of the grid, which is as much again.
  CHECK(contains(text({(1 << 28) - 4096, 4}, false), "using Index = int;"));
  CHECK(contains(text({1 << 28, 4}, false), "using Index = std::int64_t;"));
  CHECK(contains(text({1 << 16, 1 << 15}, false), "using Index = std::int64_t;"));
}

TEST_CASE("CUDA: a kernel compiled for a cluster of a scan op by op, at places that 16 bytes do not divide") {
  const Reset reset;
  const Function f = loop(
      [](Tensor w, Tensor x) {
        const Tensor s = sum(x, {-1}, kKeep);
        return Tensors{w + exp(x) * s, x * s, triangular_solve(matmul(x, x, {.b = true}) + 3.0, x)};
      },
      {3, 5}, {3, 5}, DType::f32);
  Plan plan = f.plan(on_gpu(Compile::now));
  CHECK(contains(plan.str(), "op by op"));
  CHECK(contains(plan.source(), "nestgrad_cluster("));
  const Arrays inputs = random(plan.input_specs(), 1);
  CHECK(same_bits(plan.run(inputs), f.plan(on_gpu(Compile::never)).run(inputs)));
}

TEST_CASE("CUDA: kernels compiled for scans in whatever order a device runs its threads") {
  const Reset reset;
  const Function layer =
      program("ttt-linear", {.batch = 2, .heads = 2, .dim = 8, .time = 12, .chunk = 4}, DType::f32, 1);
  // Several products with transposed operands in a step, one after the other: a sum keeps them in one slice.
  const Function products = loop(
      [](Tensor w, Tensor x) {
        const Tensor all = sum(matmul(matmul(x, w, {.b = true}), w), {-3}, kKeep);
        return Tensors{w + 0.1 * all, matmul(w, x, {.b = true})};
      },
      {2, 5, 8}, {2, 5, 8}, DType::f32);
  // Products with sums in parts, in a batch.
  const Function parts = loop(
      [](Tensor w, Tensor x) {
        const Tensor y = matmul(w, x);
        return Tensors{w + 0.01 * tanh(sum(y, {-3}, kKeep)), y};
      },
      {2, 16, 64}, {2, 64, 64}, DType::f32);
  for (const Function& f : {layer, products, parts}) {
    const Arrays inputs = random(f.plan().input_specs(), 1);
    Arrays first;
    for (const auto order : {emulator::Order::forward, emulator::Order::reverse, emulator::Order::shuffled}) {
      emulator::settings().order = order;
      Plan plan = f.plan(on_gpu(Compile::now));
      CHECK(contains(plan.str(), "compiled for it"));
      const Arrays out = plan.run(inputs);
      if (first.empty()) first = out;
      CHECK(same_bits(out, first));
    }
    emulator::settings().order = emulator::Order::forward;
  }
}

TEST_CASE("CUDA: a kernel is compiled once, kept, and shown; what cannot be compiled is interpreted") {
  const Reset reset;
  const Cache cache;
  const auto f = [](double rate) {
    return loop(
        [rate](Tensor w, Tensor x) { return Tensors{w - rate * matmul(x, matmul(x, w), {.a = true})}; },
        {4, 4}, {3, 4}, DType::f64);
  };
  const auto compiled = [] { return emulator::calls("nvrtcCompileProgram"); };
  Plan plan = f(0.125).plan(on_gpu(Compile::now));
  const auto once = compiled();
  CHECK(once >= 1);
  CHECK(contains(plan.source(), "void __launch_bounds__(256, 1) nestgrad_scan("));
  CHECK(contains(plan.source(), "T(-0x1p-3)"));
  CHECK(contains(plan.source(), "product<ProductShape<"));
  CHECK(f(0.125).plan(on_gpu(Compile::never)).source().empty());
  f(0.125).plan(on_gpu(Compile::background));
  CHECK(compiled() == once);
  // On another device of the same kind it is taken from the user's cache. (What tests before this one compiled for the first device is
  // in theirs: the second device brings it here.)
  emulator::settings().devices = 16;
  PlanOptions elsewhere = on_gpu(Compile::now);
  elsewhere.device = Device::cuda(14);
  f(0.125).plan(elsewhere);
  const auto twice = compiled();
  elsewhere.device = Device::cuda(15);
  CHECK(contains(f(0.125).plan(elsewhere).str(), "compiled for it"));
  CHECK(compiled() == twice);
  // Compilers that fail, machine code that does not load, no compiler.
  double rate = 0.125;
  for (const char* call : {"nvrtcCompileProgram", "nvrtcCreateProgram", "nvrtcVersion", "cudaLibraryLoadData",
                           "cudaLibraryGetKernel"}) {
    INFO(std::string(call));
    const Function g = f(rate *= 0.5);
    emulator::fail_call(call,
                        std::string_view(call).starts_with("cuda") ? int(cudaErrorInvalidKernelImage) : 6);
    Plan interpreted = g.plan(on_gpu(Compile::now));
    CHECK(contains(interpreted.str(), "bytes of shared memory a slice, interpreted: "));
    const Arrays inputs = random(interpreted.input_specs(), 1);
    CHECK(same_bits(interpreted.run(inputs), g.plan(on_gpu(Compile::never)).run(inputs)));
  }
}

TEST_CASE(
    "CUDA: a scan that needs nearly all shared memory takes the parts of its sums one after the other") {
  const Reset reset;
  for (const std::int64_t more : {4, 28}) {  // columns: room for the parts side by side, and none
    const Spec weight = f32({3, 64, 64}), rest = f32({3, 64, more}), x = f32({3, 3, 16, 64});
    std::vector<Spec> specs(6, weight);
    specs.push_back(rest);
    specs.push_back(x);
    const Function f = trace(TraceFn([](const std::vector<Tensor>& in) {
                               return scan(
                                          [](const Tensors& w, const Tensors& now) -> StepOutput {
                                            Tensor y = now[0];
                                            for (int i = 0; i < 6; ++i) y = tanh(matmul(y, w[uz(i)]));
                                            Tensors next(w.begin(), w.end());
                                            for (int i = 0; i < 6; ++i) next[uz(i)] = w[uz(i)] * 0.5;
                                            next[6] = w[6] * 0.5;
                                            return {next, {y, next[6]}};
                                          },
                                          Tensors(in.begin(), in.end() - 1), {in.back()})
                                   .ys;
                             }),
                             specs);
    const Arrays inputs = random(specs, 1);
    Plan compiled = f.plan(on_gpu(Compile::now));
    INFO(more, compiled.str());
    CHECK(contains(compiled.str(), "compiled for it"));
    CHECK(contains(compiled.source(), more == 4 ? ", true>(" : ", false>("));
    CHECK(same_bits(run(compiled, inputs), f.plan(on_gpu(Compile::never)).run(inputs)));
  }
}

TEST_CASE("CUDA: the texts of kernels of the published layers" * doctest::test_suite("cuda;slow;turn-3")) {
  const Reset reset;
  // With NESTGRAD_KERNEL_TEXTS=FOLDER they are written there, for tests of what nvcc makes of them.
  const char* const folder = std::getenv("NESTGRAD_KERNEL_TEXTS");
  emulator::settings().memory = std::size_t{32} << 30;
  emulator::settings().multiprocessors = 132;
  emulator::settings().devices = 18;
  int number = 0;
  const auto texts_of = [&](const Function& f, const std::string& name, Precision precision) {
    PlanOptions options = on_gpu(Compile::now);
    options.device = Device::cuda(17);
    options.precision = precision;
    const std::string source = f.plan(options).source();
    for (std::size_t at = source.find("extern \"C\""); at != std::string::npos; ++number) {
      const std::size_t next = source.find("extern \"C\"", at + 1);
      const std::string text = source.substr(at, next == std::string::npos ? next : next - at);
      const char* const kind = contains(text, "nestgrad_scan(")       ? "scan"
                               : contains(text, "nestgrad_elements(") ? "elements"
                                                                      : "cluster";
      if (folder)
        std::ofstream(std::filesystem::path(folder) /
                      fmt::format("{}-{}-{}{}.cu", name, nestgrad::name(precision), kind, number))
            << cuda::kernel_headers() << text;
      at = next;
    }
    return source;
  };
  for (const auto& [system, precision, chunk] :
       {std::tuple{"ttt-linear", Precision::f32, 16}, std::tuple{"ttt-linear", Precision::tf32, 16},
        std::tuple{"delta-net", Precision::f32, 1}}) {
    CAPTURE_BOUND(system);
    CHECK(contains(texts_of(program(system, {8, 12, 64, 64, chunk}, DType::f32, 1), system, precision),
                   "nestgrad_scan("));
  }
  const Function prefix_sum = trace(TraceFn([](const std::vector<Tensor>& in) {
                                      return scan(
                                                 [](const Tensors& c, const Tensors& x) -> StepOutput {
                                                   return {{c[0] * 0.5 + x[0]}, {c[0]}};
                                                 },
                                                 {in[0]}, {in[1]})
                                          .ys;
                                    }),
                                    {f32({4, 192, 384}), f32({8, 4, 192, 384})});
  CHECK(contains(texts_of(prefix_sum, "prefix-sum", Precision::f32), "using V = Four<T>"));
  CHECK(number >= 2);
}

TEST_SUITE_END();

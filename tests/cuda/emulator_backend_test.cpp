// What the CUDA backend promises that only an emulated device can show: what it queues, when it waits, and
// what happens when the device is full, gone, missing or too old.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <thread>

#include "autograd/grad.h"
#include "cuda_emulator/emulator.h"
#include "models/trainer.h"
#include "tests/temporary_folder.h"
#include "tests/testing.h"
#include "tests/ttt/system_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// Settings and counts as they were, at the end. What earlier cases have queued is done before: backends that live on count on it.
struct Reset {
  Reset() { cudaDeviceSynchronize(), emulator::reset(); }
  ~Reset() { emulator::reset(); }
};

// Layer norm, products, a scan over slices, and gradients.
Function program() {
  return trace(TraceFn([](const Tensors& in) {
                 const Tensor x = layer_norm(in[0], in[1], in[1]);
                 const ScanResult r = scan(
                     [&](const Tensors& w, const Tensors& now) -> StepOutput {
                       const Tensor y = matmul(now[0], w[0]);
                       return {{w[0] - 0.1 * matmul(now[0], y - now[0], {true, false})}, {y}};
                     },
                     {in[2]}, {x});
                 const Tensor loss = sum(square(r.ys[0]));
                 Tensors out{loss};
                 for (const Tensor& g : grad(loss, in)) out.push_back(g);
                 return out;
               }),
               {f64({5, 2, 3, 4, 8}), f64({8}), f64({2, 3, 8, 8})});
}

}  // namespace

TEST_SUITE_BEGIN("cuda");

TEST_CASE("CUDA: a run that was recorded is one launch of a graph, and waits for nothing") {
  const Reset reset;
  const Device gpu = Device::cuda();
  const Function f = program();
  Plan plan = f.plan({.device = gpu});
  Arrays in, out;
  for (const Array& a : random(plan.input_specs(), 1)) in.push_back(a.to(gpu));
  for (const Spec& spec : plan.output_specs()) out.emplace_back(spec, gpu);
  for (int i = 0; i < 2; ++i) plan.run(in, out);  // as it is, and recorded
  const auto now = [](const char* call) { return emulator::calls(call); };
  const auto graphs = now("cudaGraphLaunch"), kernels = now("cudaLaunchKernel"),
             waits = now("cudaStreamSynchronize"), products = now("cublasDgemmStridedBatched");
  for (int i = 0; i < 3; ++i) plan.run(in, out);
  CHECK(now("cudaGraphLaunch") == graphs + 3);
  CHECK(now("cudaLaunchKernel") == kernels);
  CHECK(now("cublasDgemmStridedBatched") == products);
  CHECK(now("cudaStreamSynchronize") == waits);
  CHECK(now("cudaEventSynchronize") == 0);
  Arrays expected = f.plan({.device = Device::cpu()}).run(random(plan.input_specs(), 1));
  CHECK(max_error(out, expected) < 1e-12);
}

TEST_CASE("CUDA: results have the same bits in whatever order a device runs its threads") {
  const Reset reset;
  const Function f = program();
  const Arrays in = random(f.plan().input_specs(), 2);
  Arrays first;
  for (const auto order : {emulator::Order::forward, emulator::Order::reverse, emulator::Order::shuffled}) {
    emulator::settings().order = order;
    const Arrays out = f.plan({.device = Device::cuda()}).run(in);
    if (first.empty()) first = out;
    CHECK(same_bits(out, first));
  }
}

TEST_CASE("CUDA: a plan that is too large for the device says what it needs and what is free") {
  const Reset reset;
  const Device gpu = Device::cuda();
  const Function f =
      trace(TraceFn([](const Tensors& in) { return Tensors{sum(matmul(exp(in[0]), exp(in[0])))}; }),
            {f64({1024, 1024})});
  f.plan({.device = gpu});  // so that cuBLAS has its memory
  emulator::settings().memory = emulator::allocated() + (std::size_t{4} << 20);
  const std::string message = message_of<DeviceError>([&] { f.plan({.device = gpu}); });
  CHECK(contains(message, "[plan] needs 16.0 MiB of memory on cuda:0"));
  CHECK(contains(message, " are free; give a memory budget, or make the batch or the context smaller"));
  const std::string array = message_of<DeviceError>([&] { Array(f64({1 << 20}), gpu); });
  CHECK(contains(array, "8.0 MiB of memory were asked for on cuda:0"));
}

TEST_CASE("CUDA: a device that is lost in the middle of training leaves the checkpoint intact") {
  const Reset reset;
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors";
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 2000; ++i)
    text.push_back(static_cast<std::uint8_t>("abcde fgh\n"[(i * i / 7 + i) % 10]));
  const ByteCorpus corpus{text, {text.begin(), text.begin() + 600}};
  TrainingOptions options;
  options.model = {.hidden_size = 16,
                   .intermediate_size = 32,
                   .num_hidden_layers = 1,
                   .num_attention_heads = 2,
                   .ttt_layer_type = "linear",
                   .mini_batch_size = 4};
  options.steps = 6, options.batch = 2, options.context = 16;
  const auto trainer_on = [&](const Device& device) {
    const DeviceScope on(device);
    return std::make_unique<Trainer>(options, corpus);
  };
  const auto on_gpu = trainer_on(Device::cuda());
  for (int i = 0; i < 2; ++i) on_gpu->step();
  on_gpu->save(path);
  emulator::fail_call("kernel", cudaErrorIllegalAddress, 3);
  CHECK(
      contains(message_of<DeviceError>([&] { on_gpu->step(); }), "an illegal memory access was encountered"));
  CHECK_THROWS_AS(on_gpu->save(path), DeviceError);  // what is lost is not written over what is saved
  const auto on_cpu = trainer_on(Device::cpu()), alone = trainer_on(Device::cpu());
  on_cpu->load(path);
  CHECK(on_cpu->steps_done() == 2);
  for (int i = 0; i < 2; ++i) alone->step();
  CHECK(on_cpu->step().loss == doctest::Approx(alone->step().loss).epsilon(1e-4));
}

TEST_CASE("CUDA: the default device and precision of a scope are this thread's, until the scope ends") {
  const Device before = default_device();
  const auto f = [] { return trace([](Tensor x) { return x + 1.0; }, Spec{DType::f64, {2}}); };
  {
    const DeviceScope on(Device::cuda());
    const PrecisionScope in(Precision::tf32);
    CHECK(default_device() == Device::cuda());
    CHECK(PlanOptions().precision == Precision::tf32);
    CHECK(f().device() == Device::cuda());
    {
      const DeviceScope inner(Device::cpu());
      CHECK(f().plan().device() == Device::cpu());
      CHECK(default_precision() == Precision::tf32);
    }
    CHECK(f().plan().device() == Device::cuda());
    Device elsewhere;
    std::thread([&] { elsewhere = default_device(); }).join();
    CHECK(elsewhere == before);
  }
  CHECK(default_device() == before);
  CHECK(default_precision() == Precision::f32);
}

TEST_CASE("CUDA: no device, and a driver that is too old, are said as what they are") {
  const Reset reset;
  emulator::settings().devices = 0;
  CHECK(Device::cuda_count() == 0);
  CHECK(contains(message_of<DeviceError>([] { Device::cuda(); }),
                 "cuda:0 was asked for: this machine has no NVIDIA GPU"));
  emulator::settings().devices = 1;
  emulator::settings().driver_version = 11040;
  CHECK(contains(message_of<DeviceError>([] { Device::cuda(); }),
                 "the NVIDIA driver is for CUDA 11.4, this build needs CUDA 13.0; install a newer driver"));
  emulator::settings().driver_version = 13000;
  CHECK(contains(message_of<DeviceError>([] { Device::cuda(7); }),
                 "cuda:7 was asked for, there is only 1 (cuda:0)"));
}

namespace {

// Arrays of a program on a GPU, to run it with.
struct OnGpu {
  explicit OnGpu(const Plan& plan) {
    for (const Array& a : random(plan.input_specs(), 1)) in.push_back(a.to(plan.device()));
    for (const Spec& spec : plan.output_specs()) out.emplace_back(spec, plan.device());
  }
  Arrays in, out;
};

// A device that no other test has: what a process reads when it first uses one, it reads now.
Device another_gpu(int index) {
  emulator::settings().devices = index + 1;
  return Device::cuda(index);
}

struct Environment {
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("CUDA: the first run is done as it is, so that nothing is loaded while one is recorded") {
  const Reset reset;
  emulator::settings().lazy_loading = true;
  Plan plan = program().plan({.device = Device::cuda()});
  OnGpu arrays(plan);
  plan.run(arrays.in, arrays.out);
  CHECK(emulator::calls("cudaStreamBeginCapture") == 0);
  const Arrays first = {arrays.out[0].clone(), arrays.out[1].clone()};
  for (int i = 0; i < 3; ++i) plan.run(arrays.in, arrays.out);
  CHECK(emulator::calls("cudaStreamBeginCapture") == 1);
  CHECK(emulator::calls("cudaGraphLaunch") == 3);
  CHECK(plan.stats().recordings == 1);
  CHECK(contains(plan.str(), "1 recordings of runs, 0 of them by changing another"));
  CHECK(same_bits({arrays.out[0], arrays.out[1]}, first));
  // Another program has other kernels; one that could not be recorded runs as it is.
  for (const char* call : {"cudaStreamBeginCapture", "cudaGraphInstantiate"}) {
    INFO(std::string(call));
    Plan refused = program().plan({.device = Device::cuda()});
    OnGpu others(refused);
    refused.run(others.in, others.out);
    emulator::fail_call(call, cudaErrorStreamCaptureUnsupported);
    for (int i = 0; i < 3; ++i) refused.run(others.in, others.out);
    CHECK(same_bits({others.out[0], others.out[1]}, first));
    CHECK(refused.stats().recordings == 0);
    CHECK(contains(refused.str(), "runs are not recorded: operation not permitted when stream is capturing"));
  }
  // What is wrong in itself is not taken for a refusal.
  Plan broken = program().plan({.device = Device::cuda()});
  OnGpu others(broken);
  broken.run(others.in, others.out);
  emulator::fail_call("cudaGraphInstantiate", cudaErrorInvalidValue);
  CHECK(contains(message_of<DeviceError>([&] { broken.run(others.in, others.out); }), "invalid argument"));
}

TEST_CASE(
    "CUDA: a run that cannot be recorded, since something in it may not be done then, is done as it is") {
  const Reset reset;
  Plan plan = program().plan({.device = Device::cuda()});
  OnGpu arrays(plan);
  plan.run(arrays.in, arrays.out);
  const Arrays first = {arrays.out[0].clone(), arrays.out[1].clone()};
  emulator::settings().lazy_loading = true;  // as if nothing had been loaded yet
  for (int i = 0; i < 3; ++i) plan.run(arrays.in, arrays.out);
  CHECK(emulator::calls("cudaStreamBeginCapture") == 1);
  CHECK(emulator::calls("cudaGraphLaunch") == 0);
  CHECK(
      contains(plan.str(), "runs are not recorded: operation failed due to a previous error during capture"));
  CHECK(same_bits({arrays.out[0], arrays.out[1]}, first));
}

TEST_CASE("CUDA: few recordings are kept, those used last, and others are changed into new ones") {
  const Reset reset;
  Plan plan = program().plan({.device = Device::cuda()});
  std::vector<OnGpu> sets;
  for (int i = 0; i < 6; ++i) sets.emplace_back(plan);
  const auto run = [&](OnGpu& set) { plan.run(set.in, set.out); };
  for (OnGpu& set : sets) run(set);
  CHECK(emulator::calls("cudaStreamBeginCapture") == 0);
  for (int i = 0; i < 4; ++i) run(sets[static_cast<std::size_t>(i)]);
  CHECK(plan.stats().recordings == 4);
  CHECK(emulator::calls("cudaGraphInstantiate") == 4);
  run(sets[0]);
  CHECK(plan.stats().recordings == 4);
  run(sets[4]);  // in the place of 1
  run(sets[0]), run(sets[2]), run(sets[3]);
  CHECK(plan.stats().recordings == 5);
  CHECK(emulator::calls("cudaGraphInstantiate") == 4);
  CHECK(emulator::calls("cudaGraphExecUpdate") == 1);
  run(sets[1]);
  CHECK(plan.stats().recordings == 6);
  CHECK(contains(plan.str(), "6 recordings of runs, 2 of them by changing another"));
  for (const OnGpu& set : sets) CHECK(same_bits(set.out, sets[0].out));
  // Where that fails another is made.
  emulator::fail_call("cudaGraphExecUpdate", cudaErrorGraphExecUpdateFailure);
  run(sets[5]);
  CHECK(emulator::calls("cudaGraphInstantiate") == 5);
  CHECK(same_bits(sets[5].out, sets[0].out));
}

TEST_CASE("CUDA: results that always lie elsewhere are not recorded again and again") {
  const Reset reset;
  const Function f = trace([](Tensor x) { return x * 2.0 + 1.0; }, f64({3})).to(Device::cuda());
  std::vector<Array> all{Array::of({1, 2, 3}, {3}).to(Device::cuda())};
  for (int i = 0; i < 20; ++i) all.push_back(f(all.back()));  // none is freed
  CHECK(emulator::calls("cudaStreamBeginCapture") == 0);
  CHECK(all.back().at(0) == 2 * 1048576.0 - 1);
}

TEST_CASE("CUDA: memory that was given back counts as free, and is used again") {
  const Reset reset;
  const Device gpu = Device::cuda();
  gpu.synchronize();
  const std::size_t before = gpu.memory().free;
  {
    const Array large(f32({1 << 20}), gpu);
    CHECK(gpu.memory().free + (std::size_t{4} << 20) == before);
  }
  gpu.synchronize();
  CHECK(gpu.memory().free == before);
}

TEST_CASE("CUDA: a device without memory pools keeps what was given back, until it is full") {
  const Reset reset;
  emulator::settings().memory_pools = false;
  const Device gpu = another_gpu(9);
  const auto held = [] { return emulator::allocated(9); };
  const std::size_t before = gpu.memory().free;
  const auto made = [] { return emulator::calls("cudaMalloc"); };
  const auto at_first = made();
  for (int i = 0; i < 3; ++i) {
    const Array x = random(f32({1000}), 1), there = x.to(gpu);
    CHECK(there.to(Device::cpu()).same_bits(x));
    CHECK(gpu.memory().free == before - 4096);
  }
  CHECK(made() == at_first + 1);
  CHECK(gpu.memory().free == before);
  const std::size_t kept = held();
  emulator::settings().memory = kept + 4096;
  const Array other(f32({2000}), gpu);  // fits once what is kept is given back
  CHECK(held() == kept + 4096);
  CHECK(contains(message_of<DeviceError>([&] { Array(f32({2000}), gpu); }), "were asked for on cuda:9"));
}

TEST_CASE("CUDA: cuBLAS is opened for the first product") {
  const Reset reset;
  const Device gpu = another_gpu(10);
  const Array x = random(f64({4, 4}), 1);
  CHECK(trace([](Tensor a) { return sum(exp(a)); }, x.spec()).to(gpu)(x).size() == 1);
  CHECK(emulator::calls("cublasCreate") == 0);
  const Function square_of = trace([](Tensor a) { return matmul(a, a); }, x.spec());
  emulator::fail_call("cublasSetStream", CUBLAS_STATUS_INTERNAL_ERROR);
  CHECK(contains(message_of<DeviceError>([&] { square_of.to(gpu)(x); }), "cublasSetStream"));
  CHECK(max_error(square_of.to(gpu)({x}), square_of({x})) < 1e-14);
  CHECK(emulator::calls("cublasCreate") == 2);
  CHECK(emulator::calls("cublasDestroy") == 1);
}

TEST_CASE("CUDA: with NESTGRAD_CUDA_SYNC an error names the instruction that made it") {
  const Reset reset;
  const Environment sync("NESTGRAD_CUDA_SYNC", "1");
  const Device gpu = another_gpu(11);
  const auto add_up = [](const Tensors& c, const Tensors& now) -> StepOutput {
    return {{c[0] + matmul(now[0], now[0])}, {}};
  };
  const Function f = trace([&](Tensor x, Tensor y) { return scan(add_up, {exp(x)}, {y}).carries[0]; },
                           f64({3, 3}), f64({5, 3, 3}));
  const auto run = [&] { f.plan({.slice = false, .device = gpu}).run(random(f.plan().input_specs(), 1)); };
  CHECK_NOTHROW(run());
  CHECK(emulator::calls("cudaStreamBeginCapture") == 0);
  const auto found = [&](int kernel) {
    emulator::fail_call("kernel", cudaErrorIllegalAddress, kernel);
    const std::string message = message_of<DeviceError>(run);
    emulator::reset();
    emulator::settings().devices = 12;
    return message;
  };
  CHECK(contains(found(1), "found after exp (at emulator_backend_test.cpp:"));
  CHECK(contains(found(3), "of step 1 (at emulator_backend_test.cpp:"));
}

TEST_CASE("CUDA: variables that are neither 0 nor 1 are refused; a build without code for a device says so") {
  const Reset reset;
  {
    const Environment graph("NESTGRAD_CUDA_GRAPH", "yes");
    CHECK(contains(message_of<ConfigError>([] { another_gpu(12); }),
                   "NESTGRAD_CUDA_GRAPH is 'yes'; say 0 or 1"));
  }
  emulator::fail_call("cudaFuncGetAttributes", cudaErrorNoKernelImageForDevice);
  CHECK(contains(message_of<DeviceError>([] { another_gpu(12); }),
                 "this build has no code that cuda:12 (Emulated device) can run, of compute capability 9.0"));
  const Environment graph("NESTGRAD_CUDA_GRAPH", "0");
  Plan plan = program().plan({.device = another_gpu(12)});
  OnGpu arrays(plan);
  for (int i = 0; i < 4; ++i) plan.run(arrays.in, arrays.out);
  CHECK(emulator::calls("cudaGraphLaunch") == 0);
  CHECK(contains(plan.str(), "runs are not recorded: NESTGRAD_CUDA_GRAPH is 0"));
}

TEST_CASE("CUDA: a scan is one kernel where that is fast and its slices fit; else it runs op by op") {
  const Reset reset;
  emulator::settings().multiprocessors = 132;  // as a device that is made now has
  emulator::settings().memory = std::size_t{32} << 30;
  const Device gpu = another_gpu(13);
  const auto plan_of = [&](const char* learner, const ttt::ProgramSizes& sizes, FormChoice form,
                           DType dtype) {
    const Function f = ttt::trace_system(
        ttt::system_named(learner), sizes, dtype,
        [&](const ttt::SystemProgram& p) { return with_derivatives(p, system_in(form), 1); });
    return f.plan({.device = gpu}).str();
  };
  // The published layer with an H200's worth of heads.
  const std::string layer = plan_of("ttt-linear", {8, 12, 64, 64, 16}, FormChoice::dual, DType::f32);
  CHECK(count(layer, "one kernel") == count(layer, " scan steps"));
  CHECK(count(layer, "op by op") == 0);
  // Products of large chunks, by few slices; products that are small, whose state is too large for a block.
  const std::string chunks = plan_of("lact-v2", {8, 4, 192, 1024, 256}, FormChoice::dual, DType::f32);
  CHECK(count(chunks, "op by op: a step takes about ") >= 2);
  const std::string large = plan_of("ttt-mlp", {8, 12, 64, 32, 16}, FormChoice::dual, DType::f64);
  CHECK(contains(large, "op by op: a slice needs "));
  CHECK(contains(large, " bytes of shared memory, a block of threads has "));
}

TEST_CASE(
    "CUDA: scans that share values of steps are kernels together or not at all, and no schedule has other bits") {
  const Reset reset;
  const Device gpu = Device::cuda();
  // A slice of the backward scan is too large for a block, one of the forward scan is not.
  const Function f =
      system_derivatives(ttt::system_named("ttt-linear"), {4, 16, 8, 30, 10}, system_in(FormChoice::dual), 1);
  const Arrays inputs = ttt::numbers_for(f, 1);
  Plan plan = f.plan({.device = gpu});
  const std::string text = plan.str();
  CHECK(count(text, " scan steps") >= 2);
  CHECK(count(text, "one kernel") == 0);
  CHECK(count(text, "op by op: a slice needs ") == 1);
  CHECK(count(text, "op by op: so does a scan that it shares the values of steps with") == 1);
  const Arrays found = plan.run(inputs);
  CHECK(same_bits(f.plan({.slice = false, .device = gpu}).run(inputs), found));
  for (const int every : {1, 2})
    CHECK(same_bits(f.plan({.checkpoint_every = every, .device = gpu}).run(inputs), found));
}

TEST_CASE("CUDA: of a batch that cuBLAS cannot go through at once it takes the longest axis") {
  const Reset reset;
  // Chunks, heads: the right operand is the same for all chunks.
  const Array a = random(f32({7, 2, 5, 6}), 1), b = random(f32({2, 6, 4}), 2);
  const Function f = trace([](Tensor x, Tensor y) { return matmul(x, y); }, a.spec(), b.spec());
  Plan plan = f.plan({.device = Device::cuda()});
  const auto before = emulator::calls("cublasGemmStridedBatchedEx");
  const Array found = plan.run({a, b})[0];
  CHECK(emulator::calls("cublasGemmStridedBatchedEx") - before == 2);
  CHECK(relative_error(found, f.plan({.device = Device::cpu()}).run({a, b})[0]) < 1e-6);
  // And of three axes of which the one in the middle is the longest.
  const Array c = random(f32({2, 1, 3, 5, 6}), 3), d = random(f32({1, 4, 3, 6, 4}), 4);
  const Function g = trace([](Tensor x, Tensor y) { return matmul(x, y); }, c.spec(), d.spec());
  Plan middle = g.plan({.device = Device::cuda()});
  const Array outer = middle.run({c, d})[0];
  CHECK(emulator::calls("cublasGemmStridedBatchedEx") - before == 2 + 6);
  CHECK(relative_error(outer, g.plan({.device = Device::cpu()}).run({c, d})[0]) < 1e-6);
  // Of chunks that have one right operand, and follow each other in memory, all rows are one product: two heads, one call.
  const Array e = random(f32({2, 7, 5, 6}), 5), h = random(f32({2, 1, 6, 4}), 6);
  const Function k = trace([](Tensor x, Tensor y) { return matmul(x, y); }, e.spec(), h.spec());
  Plan rows = k.plan({.device = Device::cuda()});
  const Array whole = rows.run({e, h})[0];
  CHECK(emulator::calls("cublasGemmStridedBatchedEx") - before == 2 + 6 + 1);
  CHECK(relative_error(whole, k.plan({.device = Device::cpu()}).run({e, h})[0]) < 1e-6);
  // Of no chunks nothing is made.
  const Function none = trace([](Tensor x, Tensor y) { return matmul(x, y); }, f32({0, 5, 6}), f32({6, 4}));
  CHECK(
      none.plan({.device = Device::cuda()}).run({Array(f32({0, 5, 6})), random(f32({6, 4}), 8)})[0].size() ==
      0);
  // But not columns.
  const Array o = random(f32({2, 7, 6, 5}), 7);
  const Function columns = trace(
      [](Tensor x, Tensor y) {
        return matmul(x, y, {true, false});
      },
      o.spec(), h.spec());
  CHECK(relative_error(columns.plan({.device = Device::cuda()}).run({o, h})[0],
                       columns.plan({.device = Device::cpu()}).run({o, h})[0]) < 1e-6);
}

TEST_CASE("CUDA: products are in tf32 where that is asked for") {
  const Reset reset;
  const Array a = random(f32({17, 33}), 1), b = random(f32({33, 9}), 2);
  const Function f = trace([](Tensor x, Tensor y) { return matmul(x, y); }, a.spec(), b.spec());
  const auto run = [&](Precision precision) {
    return f.plan({.device = Device::cuda(), .precision = precision}).run({a, b})[0];
  };
  CHECK(relative_error(run(Precision::tf32), run(Precision::f32)) > 1e-6);
}

TEST_SUITE_END();

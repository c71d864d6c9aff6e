// What the CUDA backend promises that only an emulated device can show: what it queues, when it waits, and
// what happens when the device is full, gone, missing or too old.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <thread>

#include "autograd/grad.h"
#include "cuda_emulator/emulator.h"
#include "models/trainer.h"
#include "tests/temporary_folder.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// Settings and counts as they were, at the end.
struct Reset {
  Reset() { emulator::reset(); }
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
  plan.run(in, out);
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

TEST_SUITE_END();

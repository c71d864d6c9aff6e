// The promises of cuda_emulator for threads: what is right
// on a GPU is right here, and each planted fault is caught.
#include <cuda_bf16.h>

#include <cmath>
#include <cstdlib>
#include <numeric>

#include "tests/cuda/emulator_testing.h"

using namespace nestgrad::emulator::testing;
using nestgrad::emulator::Order;
namespace emulator = nestgrad::emulator;

TEST_SUITE_BEGIN("cuda-emulated");

// --- Threads.

namespace {

__global__ void count_threads(int* counts, int* turns, int* next) {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned i = linear_block() * threads + linear_thread();
  atomicAdd(&counts[i], 1);
  turns[atomicAdd(next, 1)] = int(i);
}

std::vector<int> turns_of(Order order, dim3 grid, dim3 block, int threads) {
  emulator::settings().order = order;
  const Array<int> counts(std::vector<int>(std::size_t(threads), 0)), turns{std::size_t(threads)},
      next(std::vector<int>{0});
  REQUIRE(launch(count_threads, grid, block, 0, counts.data, turns.data, next.data) == cudaSuccess);
  CHECK(counts.read() == std::vector<int>(std::size_t(threads), 1));
  return turns.read();
}

}  // namespace

TEST_CASE("Every thread of a grid runs once, in the order that a test asks for") {
  const Fresh fresh;
  const dim3 grid(3, 2, 2), block(5, 3, 2);
  std::vector<int> forward(360);
  std::iota(forward.begin(), forward.end(), 0);
  CHECK(turns_of(Order::forward, grid, block, 360) == forward);
  CHECK(turns_of(Order::reverse, grid, block, 360) == std::vector<int>(forward.rbegin(), forward.rend()));
  const std::vector<int> shuffled = turns_of(Order::shuffled, grid, block, 360);
  CHECK(shuffled != forward);
  CHECK(shuffled == turns_of(Order::shuffled, grid, block, 360));
}

TEST_CASE("The environment chooses the order of threads") {
  const Fresh fresh;
  setenv("NESTGRAD_EMULATOR_ORDER", "reverse", 1);
  emulator::reset();
  CHECK(emulator::settings().order == Order::reverse);
  unsetenv("NESTGRAD_EMULATOR_ORDER");
  emulator::reset();
  CHECK(emulator::settings().order == Order::forward);
}

// --- Barriers.

namespace {

// Mirrors every block's part of x `rounds` times through shared memory.
__global__ void mirror(float* x, int rounds, bool first_barrier, bool second_barrier) {
  float* tile = shared_floats();
  float* mine = &x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int i = 0; i < rounds; ++i) {
    tile[threadIdx.x] = *mine;
    if (first_barrier) __syncthreads();
    *mine = tile[blockDim.x - 1 - threadIdx.x];
    if (second_barrier) __syncthreads();
  }
}

int orders_that_mirror(int rounds, bool first_barrier, bool second_barrier) {
  const int n = 3 * 96;
  std::vector<float> in(n);
  std::iota(in.begin(), in.end(), 0.f);
  int right = 0;
  for (const Order order : kOrders) {
    emulator::settings().order = order;
    const Array<float> x(in);
    REQUIRE(launch(mirror, 3, 96, 96 * sizeof(float), x.data, rounds, first_barrier, second_barrier) ==
            cudaSuccess);
    bool same = true;
    const std::vector<float> out = x.read();
    for (int i = 0; i < n; ++i)
      same = same && out[std::size_t(i)] == float(rounds % 2 == 0 ? i : i / 96 * 96 + 95 - i % 96);
    right += same;
  }
  return right;
}

__global__ void return_early(float* x, unsigned threads) {
  if (threadIdx.x >= threads) return;
  x[threadIdx.x] = 1;
  __syncthreads();
}

__global__ void stop_at(unsigned i) {
  if (blockIdx.x * blockDim.x + threadIdx.x == i) __trap();
}

__global__ void wait_apart(float* x) {
  x[threadIdx.x] = 1;
  if (threadIdx.x < 32) __syncthreads();
  else __syncthreads();
}

}  // namespace

TEST_CASE("Barriers order the threads of a block") {
  const Fresh fresh;
  CHECK(orders_that_mirror(1, true, false) == 3);
  CHECK(orders_that_mirror(5, true, true) == 3);
}

TEST_CASE("Without a barrier some order of threads gives a wrong result" * doctest::skip(kFindsRaces)) {
  const Fresh fresh;
  CHECK(orders_that_mirror(1, false, false) < 3);
  CHECK(orders_that_mirror(5, true, false) < 3);
}

TEST_CASE("A kernel may stop itself") {
  const Fresh fresh;
  CHECK(contains(fault_of(cudaErrorLaunchFailure, stop_at, 2, 8, 0, 9u),
                 "block (1,0,0), thread (1,0,0): __trap"));
}

TEST_CASE("A barrier that not all threads of the block reach is an error that says who is where") {
  const Fresh fresh;
  const Array<float> x(128);
  for (const Order order : kOrders) {
    emulator::settings().order = order;
    const std::string left = fault_of(cudaErrorLaunchFailure, return_early, 1, 128, 0, x.data, 100u);
    CHECK(contains(left, "100 thread(s) at __syncthreads (emulator_test.cpp:"));
    CHECK(contains(left, "28 thread(s) done, the first is (100,0,0)"));
    CHECK(contains(left, "grid (1,1,1), block (128,1,1)"));
    const std::string apart = fault_of(cudaErrorLaunchFailure, wait_apart, 1, 64, 0, x.data);
    CHECK(contains(apart, "the first is (0,0,0)"));
    CHECK(contains(apart, "the first is (32,0,0)"));
  }
}

// --- Warps.

namespace {

enum Kind { kIndexed, kUp, kDown, kXor };

template <class T>
__global__ void shuffles(T* out, Kind kind, int by, int width) {
  const unsigned i = linear_thread();
  const T mine = T(100 + i);
  const unsigned lanes = blockDim.x - i / 32 * 32;
  const unsigned mask = lanes >= 32 ? ~0u : (1u << lanes) - 1;
  if (kind == kIndexed) out[i] = __shfl_sync(mask, mine, by, width);
  if (kind == kUp) out[i] = __shfl_up_sync(mask, mine, unsigned(by), width);
  if (kind == kDown) out[i] = __shfl_down_sync(mask, mine, unsigned(by), width);
  if (kind == kXor) out[i] = __shfl_xor_sync(mask, mine, by, width);
}

// The lane that CUDA's programming guide names.
int source_lane(Kind kind, int lane, int by, int width) {
  const int segment = lane / width * width, within = lane % width;
  if (kind == kIndexed) return segment + by % width;
  if (kind == kUp) return within < by ? lane : lane - by;
  if (kind == kDown) return within + by >= width ? lane : lane + by;
  return (lane ^ by) >= segment + width ? lane : lane ^ by;
}

template <class T>
void check_shuffles(int threads) {
  for (const Kind kind : {kIndexed, kUp, kDown, kXor})
    for (const int width : {32, 8})
      for (const int by : {0, 1, 5, 16}) {
        const Array<T> out{std::size_t(threads)};
        REQUIRE(launch(shuffles<T>, 1, unsigned(threads), 0, out.data, kind, by, width) == cudaSuccess);
        const std::vector<T> got = out.read();
        for (int i = 0; i < threads; ++i) {
          const int source = i / 32 * 32 + source_lane(kind, i % 32, by, width);
          if (source < threads) CHECK(got[std::size_t(i)] == T(100 + source));
        }
      }
}

__global__ void vote(unsigned* ballots, int* any, int* all) {
  const unsigned i = threadIdx.x, mask = blockDim.x - i / 32 * 32 >= 32 ? ~0u : 0xffu;
  ballots[i] = __ballot_sync(mask, i % 3 == 0);
  any[i] = __any_sync(mask, i == 33);
  all[i] = __all_sync(mask, i >= 32);
}

__global__ void shuffle_with_mask(float* x, unsigned mask) { x[threadIdx.x] = __shfl_xor_sync(mask, 1.f, 1); }

__global__ void shuffle_in_branch(float* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(~0u, 1.f, 0);
}

__global__ void halves_apart(float* x, bool meet) {
  if (threadIdx.x < 16) {
    x[threadIdx.x] = __shfl_down_sync(0xffffu, float(threadIdx.x), 1, 16);
    if (meet) __syncwarp(0xffffu);
  } else {
    x[threadIdx.x] = __shfl_up_sync(0xffff0000u, float(threadIdx.x), 1, 16);
  }
}

__global__ void swap_in_warp(float* x, bool wait) {
  float* tile = shared_floats();
  tile[threadIdx.x] = float(threadIdx.x);
  if (wait) __syncwarp();
  x[threadIdx.x] = tile[threadIdx.x ^ 1];
}

__global__ void undefined_source(float* x) { x[threadIdx.x] = __shfl_down_sync(0xffu, 1.f, 4); }

}  // namespace

TEST_CASE("Shuffles move the values that CUDA defines, for 32 and 64 bits, whole and partial warps") {
  const Fresh fresh;
  for (const Order order : kOrders) {
    emulator::settings().order = order;
    for (const int threads : {32, 64, 72}) {
      check_shuffles<float>(threads);
      check_shuffles<double>(threads);
      check_shuffles<int>(threads);
    }
  }
}

TEST_CASE("A shuffle from a lane that takes no part gives what no result survives") {
  const Fresh fresh;
  const Array<float> x(8);
  REQUIRE(launch(undefined_source, 1, 8, 0, x.data) == cudaSuccess);
  const std::vector<float> got = x.read();
  CHECK(got[3] == 1);
  CHECK(std::isnan(got[4]));
}

TEST_CASE("Votes count the lanes of the mask") {
  const Fresh fresh;
  const Array<unsigned> ballots(40);
  const Array<int> any(40), all(40);
  REQUIRE(launch(vote, 1, 40, 0, ballots.data, any.data, all.data) == cudaSuccess);
  CHECK(ballots.read()[5] == 0x49249249u);
  CHECK(ballots.read()[39] == 0x92u);
  CHECK(any.read()[0] == 0);
  CHECK(any.read()[39] == 1);
  CHECK(all.read()[0] == 0);
  CHECK(all.read()[39] == 1);
}

TEST_CASE("A shuffle in which a named lane takes no part is an error, not a hang") {
  const Fresh fresh;
  const Array<float> x(64);
  for (const Order order : kOrders) {
    emulator::settings().order = order;
    CHECK(contains(fault_of(cudaErrorLaunchFailure, shuffle_with_mask, 1, 48, 0, x.data, ~0u),
                   "16 thread(s) at __shfl_xor_sync"));
    CHECK(contains(fault_of(cudaErrorLaunchFailure, shuffle_in_branch, 1, 32, 0, x.data),
                   "16 thread(s) done, the first is (16,0,0)"));
    CHECK(contains(fault_of(cudaErrorLaunchFailure, shuffle_with_mask, 1, 32, 0, x.data, 0xffffu),
                   "do not include its own"));
  }
}

TEST_CASE("Parts of a warp meet apart from each other") {
  const Fresh fresh;
  for (const bool meet : {false, true}) {
    const Array<float> x(32);
    REQUIRE(launch(halves_apart, 1, 32, 0, x.data, meet) == cudaSuccess);
    CHECK(x.read()[3] == 4);
    CHECK(x.read()[16] == 16);
    CHECK(x.read()[20] == 19);
  }
}

namespace {

bool swaps_in_every_order(bool wait) {
  bool right = true;
  for (const Order order : kOrders) {
    emulator::settings().order = order;
    const Array<float> x(40);
    REQUIRE(launch(swap_in_warp, 1, 40, 40 * sizeof(float), x.data, wait) == cudaSuccess);
    const std::vector<float> got = x.read();
    for (unsigned i = 0; i < 40; ++i) right = right && got[i] == float(i ^ 1);
  }
  return right;
}

}  // namespace

TEST_CASE("Lanes see what others wrote before they met") {
  const Fresh fresh;
  CHECK(swaps_in_every_order(true));
}

TEST_CASE("Lanes that did not meet go wrong in some order" * doctest::skip(kFindsRaces)) {
  const Fresh fresh;
  CHECK(!swaps_in_every_order(false));
}

// --- Atomics and numbers.

namespace {

__global__ void atomics(int* i, unsigned* u, float* f, double* d) {
  const int x = int(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&i[0], x);
  atomicMin(&i[1], x - 50);
  atomicMax(&i[2], x);
  atomicAdd(&u[0], 1u);
  atomicMax(&u[1], unsigned(x));
  atomicMin(&u[2], unsigned(x + 7));
  if (atomicCAS(&u[3], 0u, 5u) == 0u) atomicAdd(&u[4], 1u);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
}

__global__ void numbers(float* f, unsigned* u) {
  f[0] = max(std::nanf(""), 1.f);
  f[1] = min(2.f, std::nanf(""));
  f[2] = rsqrtf(4.f);
  f[3] = __fmaf_rn(2.f, 3.f, 1.f);
  f[4] = __int_as_float(__float_as_int(1.5f));
  f[5] = __ldg(&f[4]);
  f[6] = make_float4(1, 2, 3, 4).w;
  u[0] = __umulhi(0x80000000u, 6u);
  u[1] = unsigned(__popc(0xf0fu));
}

}  // namespace

TEST_CASE("Atomics and the functions of the device compute what CUDA says") {
  const Fresh fresh;
  const Array<int> i(std::vector<int>{0, 100, -1});
  const Array<unsigned> u(std::vector<unsigned>{0, 0, 99, 0, 0}), v(2);
  const Array<float> f(std::vector<float>{0}), g(7);
  const Array<double> d(std::vector<double>{0});
  REQUIRE(launch(atomics, 4, 32, 0, i.data, u.data, f.data, d.data) == cudaSuccess);
  REQUIRE(launch(numbers, 1, 1, 0, g.data, v.data) == cudaSuccess);
  CHECK(i.read() == std::vector<int>{127 * 64, -50, 127});
  CHECK(u.read() == std::vector<unsigned>{128, 127, 7, 5, 1});
  CHECK(f.read()[0] == 64);
  CHECK(d.read()[0] == 32);
  CHECK(g.read() == std::vector<float>{1, 2, 0.5f, 7, 1.5f, 1.5f, 4});
  CHECK(v.read() == std::vector<unsigned>{3, 8});
}

TEST_CASE("Brain floats round to the nearest, to even in the middle") {
  CHECK(__bfloat162float(__float2bfloat16(1.f)) == 1.f);
  CHECK(__bfloat162float(__float2bfloat16(1.f + 0x1p-8f)) == 1.f);
  CHECK(__bfloat162float(__float2bfloat16(1.f + 3 * 0x1p-8f)) == 1.f + 4 * 0x1p-8f);
  CHECK(__bfloat162float(__float2bfloat16(1.f + 0x1.02p-8f)) == 1.f + 2 * 0x1p-8f);
  CHECK(__bfloat162float(__float2bfloat16(-0x1.ffp127f)) == -INFINITY);
  CHECK(std::isnan(__bfloat162float(__float2bfloat16(NAN))));
}

TEST_SUITE_END();

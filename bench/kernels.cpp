// Speed of single CPU kernels, as they are made for a plan: GFLOP/s of products of the sizes that test-time
// training is made of, against what the core can do (the large square product at the end).
//
//   taskset -c 1 kernels --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
//
// A name says type, batch, extents m x n x k of C[m,n] = op(A) op(B), and which operands are transposed.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "engine/op.h"
#include "engine/random.h"

using namespace nestgrad;

namespace {

struct Sizes {
  std::int64_t batch, m, n, k;
};

void matmul(benchmark::State& state, DType dtype, Sizes s, bool ta, bool tb) {
  const Spec specs[]{{dtype, {s.batch, ta ? s.k : s.m, ta ? s.m : s.k}},
                     {dtype, {s.batch, tb ? s.n : s.k, tb ? s.k : s.n}}};
  const Op& op = *find_op("matmul");
  const Attrs attrs{.ints = {ta, tb}};
  const Kernel kernel = op.cpu(Call{op, specs, attrs, infer(op, specs, attrs)});
  const Array a = random_normal(specs[0], 0, 1, 1, 0), b = random_normal(specs[1], 0, 1, 1, 1);
  Array out(dtype, {s.batch, s.m, s.n});
  const std::byte* in[]{a.data(), b.data()};
  for (auto _ : state) {
    kernel(in, out.data());
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(s.batch * s.m * s.n * s.k * state.iterations()),
                         benchmark::Counter::kIsRate);
}

void add(DType dtype, Sizes s) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      benchmark::RegisterBenchmark(fmt::format("matmul/{}/{}x[{}x{}x{}]{}{}", name(dtype), s.batch, s.m, s.n,
                                               s.k, ta ? " a'" : "", tb ? " b'" : "")
                                       .c_str(),
                                   matmul, dtype, s, ta, tb);
}

}  // namespace

int main(int argc, char** argv) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t dim : {32, 64, 128})
      for (const std::int64_t chunk : {16, 64}) {
        add(dtype, {24, chunk, dim, dim});    // rows of a chunk through a weight
        add(dtype, {24, chunk, chunk, dim});  // queries against keys
        add(dtype, {24, chunk, dim, chunk});  // attention to values
        add(dtype, {24, dim, dim, chunk});    // a step of a weight
      }
    for (const Sizes s : {Sizes{4, 192, 256, 192},
                          {4, 256, 192, 192},
                          {4, 192, 192, 256},  // LaCT
                          {24, 1, 64, 64},
                          {1, 1, 512, 128},
                          {24, 64, 1, 64},  // decoding
                          {24, 10, 10, 10},
                          {24, 7, 33, 20},
                          {24, 64, 64, 3},
                          {24, 3, 64, 64},
                          {1, 1024, 512, 128},
                          {1, 128, 512, 1024},
                          {1, 1024, 1024, 1024}})
      add(dtype, s);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}

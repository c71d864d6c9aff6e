// Speed of single CPU kernels, as they are made for a plan: GFLOP/s of products of the sizes that test-time
// training is made of, against what the core can do (the large square product at the end), and elements per
// second of the elementwise ops.
//
//   NESTGRAD_THREADS=1 taskset -c 1 kernels --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
//
// A product's name says type, batch, extents m x n x k of C[m,n] = op(A) op(B), and which operands are
// transposed; an elementwise op's, type and number of elements.
// Where libxsmm was found when this was built, its kernels for small products of the same matrices stand next
// to ours, as xsmm/...
#include "ops/kernels.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "engine/core/op.h"
#include "engine/core/random.h"
#include "ops/attrs.h"
#include "ops/table.h"
#ifdef NESTGRAD_BENCH_XSMM
#include <libxsmm.h>
#endif

using namespace nestgrad;

namespace {

struct Sizes {
  std::int64_t batch, m, n, k;
};

void report(benchmark::State& state, Sizes s) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(s.batch * s.m * s.n * s.k * state.iterations()),
                         benchmark::Counter::kIsRate);
}

void matmul(benchmark::State& state, DType dtype, Sizes s, bool ta, bool tb) {
  const Spec specs[]{{dtype, {s.batch, ta ? s.k : s.m, ta ? s.m : s.k}},
                     {dtype, {s.batch, tb ? s.n : s.k, tb ? s.k : s.n}}};
  const Op& op = matmul_op;
  const Attrs attrs = MatmulAttrs{ta, tb};
  const OpKernel kernel = op.cpu(OpCall{op, specs, attrs, infer(op, specs, attrs)});
  const Array a = random_normal(specs[0], 0, 1, 1, 0), b = random_normal(specs[1], 0, 1, 1, 1);
  Array out(dtype, {s.batch, s.m, s.n});
  const std::byte* in[]{a.data(), b.data()};
  for (auto _ : state) {
    kernel(in, out.data());
    benchmark::ClobberMemory();
  }
  report(state, s);
}

#ifdef NESTGRAD_BENCH_XSMM
// The kernel that libxsmm makes for C' = B' A', as its matrices are column-major; null where it makes none:
// of large products, and with B transposed.
template <class T>
auto xsmm_kernel(Sizes s, bool ta, bool tb) {
  const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  const int row_b = tb ? k : n, row_a = ta ? m : k;
  const int flags = (tb ? LIBXSMM_GEMM_FLAG_TRANS_A : 0) | (ta ? LIBXSMM_GEMM_FLAG_TRANS_B : 0);
  const T one = 1, zero = 0;
  if constexpr (sizeof(T) == 4)
    return libxsmm_smmdispatch(n, m, k, &row_b, &row_a, &n, &one, &zero, &flags, nullptr);
  else return libxsmm_dmmdispatch(n, m, k, &row_b, &row_a, &n, &one, &zero, &flags, nullptr);
}

template <class T>
void xsmm(benchmark::State& state, Sizes s, bool ta, bool tb) {
  const auto kernel = xsmm_kernel<T>(s, ta, tb);
  const DType dtype = sizeof(T) == 4 ? DType::f32 : DType::f64;
  const Array a = random_normal({dtype, {s.batch, s.m, s.k}}, 0, 1, 1, 0);
  const Array b = random_normal({dtype, {s.batch, s.k, s.n}}, 0, 1, 1, 1);
  Array out(dtype, {s.batch, s.m, s.n});
  const T* const left = reinterpret_cast<const T*>(a.data());
  const T* const right = reinterpret_cast<const T*>(b.data());
  T* const to = reinterpret_cast<T*>(out.data());
  for (auto _ : state) {
    for (std::int64_t i = 0; i < s.batch; ++i)
      kernel(right + i * s.k * s.n, left + i * s.m * s.k, to + i * s.m * s.n);
    benchmark::ClobberMemory();
  }
  report(state, s);
}

constexpr std::int64_t kXsmmProducts = 128 * 128 * 128;  // m n k of the products that libxsmm is made for

template <class T>
void add_xsmm(const std::string& name, Sizes s, bool ta, bool tb) {
  if (s.m * s.n * s.k <= kXsmmProducts && xsmm_kernel<T>(s, ta, tb) != nullptr)
    benchmark::RegisterBenchmark(("xsmm/" + name).c_str(), xsmm<T>, s, ta, tb);
}
#endif

void add(DType dtype, Sizes s) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      const std::string what = fmt::format("{}/{}x[{}x{}x{}]{}{}", name(dtype), s.batch, s.m, s.n, s.k,
                                           ta ? " a'" : "", tb ? " b'" : "");
      benchmark::RegisterBenchmark(("matmul/" + what).c_str(), matmul, dtype, s, ta, tb);
#ifdef NESTGRAD_BENCH_XSMM
      if (dtype == DType::f32) add_xsmm<float>(what, s, ta, tb);
      else add_xsmm<double>(what, s, ta, tb);
#endif
    }
}

// Operands between 0.1 and 3, which every op takes.
void elementwise(benchmark::State& state, const Op& op, DType dtype, int operands, std::int64_t size) {
  const std::vector<Spec> specs(static_cast<std::size_t>(operands), Spec{dtype, {size}});
  const OpKernel kernel = op.cpu(OpCall{op, specs, {}, infer(op, specs, {})});
  std::vector<Array> inputs;
  std::vector<const std::byte*> in;
  for (const Spec& spec : specs) {
    inputs.push_back(random_uniform(spec, 0.1, 3, 1, inputs.size()));
    in.push_back(inputs.back().data());
  }
  Array out(dtype, {size});
  for (auto _ : state) {
    kernel(in.data(), out.data());
    benchmark::ClobberMemory();
  }
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(size * state.iterations()), benchmark::Counter::kIsRate);
}

void add_elementwise(DType dtype) {
  constexpr std::int64_t kSize = 4096;  // in the nearest cache
  for (const Op* op : op_table()) {
    if (!op->element_loop) continue;
    const auto operands = static_cast<int>(op->samples().at(0).inputs.size());
    benchmark::RegisterBenchmark(fmt::format("{}/{}/{}", op->name, name(dtype), kSize).c_str(), elementwise,
                                 *op, dtype, operands, kSize);
  }
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
                          {1, 1024, 256, 256},  // a layer of width 256, and the gradient of its weight
                          {1, 256, 256, 1024},
                          {1, 1024, 512, 128},
                          {1, 128, 512, 1024},
                          {1, 1024, 1024, 1024}})
      add(dtype, s);
    add_elementwise(dtype);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("instruction set", instruction_set());
  benchmark::RunSpecifiedBenchmarks();
}

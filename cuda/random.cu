// Random numbers: philox is counted, so each thread makes its own. Compiled without contraction of products
// and sums (engine/core/random_fill.h); normals are computed in double for f32 too.
#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "engine/core/random_fill.h"

namespace nestgrad::cuda {

namespace {

template <class T, class Pair>
__global__ void random(T* out, std::int64_t n, std::uint64_t seed, std::uint64_t stream, Pair pair) {
  const std::int64_t b = global_thread();
  if (2 * b < n) fill_pair(out, n, b, seed, stream, pair);
}

}  // namespace

void CudaBackend::random(const RandomFill& fill, std::int64_t n, std::byte* to) {
  use();
  with_pairs(fill, [&]<class T, class Pair>(T, const Pair& pair) {
    launch(*this, for_each_of((n + 1) / 2), cuda::random<T, Pair>, reinterpret_cast<T*>(to), n, fill.seed,
           fill.stream, pair);
  });
}

}  // namespace nestgrad::cuda

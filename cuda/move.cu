// Ops that only move elements: those with Op::view (broadcast_to, permute, slice), concat, pad; and cast.
#include <cuda_bf16.h>

#include <optional>
#include <utility>
#include <vector>

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/moves.h"

namespace nestgrad::cuda {

namespace {

template <class U>
__global__ void move_elements(const U* source, U* target, Move move) {
  const std::int64_t i = global_thread();
  if (i >= move.size) return;
  target[move.target_offset + move.to.at(i)] = source[move.source_offset + move.from.at(i)];
}

// A block a tile. Rows of it in shared memory are an element longer, so that a column does not lie in one bank. All that a thread
// reads is asked for before the first of it is stored.
constexpr int kTile = static_cast<int>(TiledMove::kTile), kTileThreads = 256, kAtOnce = kTileThreads / kTile;
template <class U>
__global__ void move_tiles(const U* source, U* target, TiledMove move) {
  NESTGRAD_SHARED(U, tile);
  const auto number = static_cast<std::uint32_t>(blockIdx.x);
  const std::uint32_t rest = move.by_tiles_across.quotient(number),
                      matrix = move.by_tiles_down.quotient(rest);
  const std::int64_t column = std::int64_t{number - rest * move.tiles_across} * kTile,
                     row = std::int64_t{rest - matrix * move.tiles_down} * kTile;
  const U* const from = source + move.outer.source_offset + move.outer.from.at(matrix);
  U* const to = target + move.outer.target_offset + move.outer.to.at(matrix);
  const int beside = static_cast<int>(threadIdx.x) % kTile, first = static_cast<int>(threadIdx.x) / kTile;
  U held[kTile / kAtOnce] = {};
  NESTGRAD_UNROLL
  for (int k = 0; k < kTile / kAtOnce; ++k)
    if (const std::int64_t at = column + first + k * kAtOnce; row + beside < move.rows && at < move.columns)
      held[k] = from[at * move.source_column + row + beside];
  NESTGRAD_UNROLL
  for (int k = 0; k < kTile / kAtOnce; ++k) tile[(first + k * kAtOnce) * (kTile + 1) + beside] = held[k];
  __syncthreads();
  NESTGRAD_UNROLL
  for (int k = 0; k < kTile / kAtOnce; ++k)
    if (const std::int64_t at = row + first + k * kAtOnce; at < move.rows && column + beside < move.columns)
      to[at * move.target_row + column + beside] = tile[beside * (kTile + 1) + first + k * kAtOnce];
}

struct alignas(16) Unit {
  std::uint32_t words[4];
};

// A move, and how it is done with 16 bytes at once, or by tiles, where both arrays lie so that it can be.
struct Mover {
  Mover(const Move& all, DType dtype)
      : move(all),
        wide(in_units(all, static_cast<std::int64_t>(sizeof(Unit) / size_of(dtype)))),
        tiled(in_tiles(all)),
        element(size_of(dtype)) {}

  template <class U>
  void launch_with(const CudaBackend& backend, const Move& how, const std::byte* source,
                   std::byte* target) const {
    launch(backend, for_each_of(how.size), move_elements<U>, reinterpret_cast<const U*>(source),
           reinterpret_cast<U*>(target), how);
  }
  template <class U>
  void launch_element_by_element(const CudaBackend& backend, const std::byte* source,
                                 std::byte* target) const {
    if (!tiled) return launch_with<U>(backend, move, source, target);
    const Extent extent{tiled->tiles, kTileThreads, kTile * (kTile + 1) * sizeof(U)};
    launch(backend, extent, move_tiles<U>, reinterpret_cast<const U*>(source), reinterpret_cast<U*>(target),
           *tiled);
  }
  void operator()(const CudaBackend& backend, const std::byte* source, std::byte* target) const {
    const auto begins = [](const std::byte* at) {
      return reinterpret_cast<std::uintptr_t>(at) % sizeof(Unit) == 0;
    };
    if (wide && begins(source) && begins(target)) launch_with<Unit>(backend, *wide, source, target);
    else if (element == 8) launch_element_by_element<std::uint64_t>(backend, source, target);
    else launch_element_by_element<std::uint32_t>(backend, source, target);
  }

  Move move;
  std::optional<Move> wide;
  std::optional<TiledMove> tiled;
  std::size_t element;  // its bytes
};

template <class From, class To>
__global__ void convert(const From* from, To* to, std::int64_t n, Fault* fault, int site) {
  const std::int64_t i = global_thread();
  if (i >= n) return;
  if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
    if (!has_i32(from[i])) {
      report(fault, site, from[i]);
      to[i] = 0;
      return;
    }
  }
  to[i] = static_cast<To>(from[i]);
}

__global__ void round_elements(const float* from, __nv_bfloat16* to, std::int64_t n) {
  const std::int64_t i = global_thread();
  if (i < n) to[i] = __float2bfloat16_rn(from[i]);
}

}  // namespace

void round_to_bf16(const CudaBackend& backend, const std::byte* from, std::byte* to, std::int64_t n) {
  launch(backend, for_each_of(n), round_elements, reinterpret_cast<const float*>(from),
         reinterpret_cast<__nv_bfloat16*>(to), n);
}

OpKernel view_kernel(const OpCall& call, Backend& backend) {
  return [&on = cuda(backend), move = Mover(move_of_view(call), call.out.dtype)](
             const std::byte* const* in, std::byte* out) { move(on, in[0], out); };
}

OpKernel concat_kernel(const OpCall& call, Backend& backend) {
  std::vector<Mover> moves;
  for (const Move& move : moves_of_concat(call)) moves.emplace_back(move, call.out.dtype);
  return [&on = cuda(backend), moves = std::move(moves)](const std::byte* const* in, std::byte* out) {
    for (std::size_t i = 0; i < moves.size(); ++i) moves[i](on, in[i], out);
  };
}

OpKernel pad_kernel(const OpCall& call, Backend& backend) {
  return [&on = cuda(backend), bytes = call.out.bytes(), move = Mover(move_of_pad(call), call.out.dtype)](
             const std::byte* const* in, std::byte* out) {
    on.zero(out, bytes);
    move(on, in[0], out);
  };
}

OpKernel cast_kernel(const OpCall& call, Backend& backend) {
  return dispatch(call.in[0].dtype, [&]<class From>(From) {
    return dispatch(call.out.dtype, [&]<class To>(To) -> OpKernel {
      const int site =
          cuda(backend).fault_site(call, "{} is no i32, which goes from -2147483648 to 2147483647");
      return [&on = cuda(backend), n = call.out.size(), site](const std::byte* const* in, std::byte* out) {
        launch(on, for_each_of(n), convert<From, To>, reinterpret_cast<const From*>(in[0]),
               reinterpret_cast<To*>(out), n, on.faults(), site);
      };
    });
  });
}

}  // namespace nestgrad::cuda

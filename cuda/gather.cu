// gather, scatter_add and index_add: rows of a table by index, and their sums back, in index order, to zeros or to another
// table. An index outside of the table is reported, and reads zeros or adds nothing.
// Which updates a row of a large table gets is noted first, in any order: what is added up follows the order of the indices.
#include <algorithm>
#include <string>

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace nestgrad::cuda {

namespace {

struct Rows {
  std::int64_t count, width, rows;  // of indices, elements of a row, rows of the table
};

__device__ bool is_inside(std::int32_t index, std::int64_t rows, Fault* fault, int site) {
  if (index >= 0 && index < rows) return true;
  report(fault, site, index);
  return false;
}

template <class U>
__global__ void gather(const U* table, const std::int32_t* index, U* out, Rows size, Fault* fault, int site) {
  const std::int64_t i = global_thread();
  if (i >= size.count * size.width) return;
  const std::int32_t row = index[i / size.width];
  out[i] = is_inside(row, size.rows, fault, site) ? table[row * size.width + i % size.width] : U(0);
}

__global__ void check_indices(const std::int32_t* index, std::int64_t count, std::int64_t rows, Fault* fault,
                              int site) {
  const std::int64_t i = global_thread();
  if (i < count) is_inside(index[i], rows, fault, site);
}

template <class T>
__device__ T added(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  else return a + b;
}

// What a warp adds up: a row of the table, 32 elements of it.
template <class T>
struct RowSum {
  const T* updates;
  std::int64_t width, column;
  T total = T(0);
  __device__ void add(std::int64_t i) {
    if (column < width) total = added(total, updates[i * width + column]);
  }
};

// It looks at 32 indices at once.
template <class T>
__device__ void add_found(RowSum<T>& sum, const std::int32_t* index, std::int64_t count, std::int64_t row) {
  const unsigned lane = threadIdx.x % kWarp;
  for (std::int64_t begin = 0; begin < count; begin += kWarp) {
    const bool here = begin + lane < count && index[begin + lane] == row;
    for (unsigned hits = __ballot_sync(kFullWarp, here); hits != 0; hits &= hits - 1)
      sum.add(begin + __ffs(static_cast<int>(hits)) - 1);
  }
}

// The same of at most 32 numbers of updates that are known, in any order: lane by lane the smallest that is left.
template <class T>
__device__ void add_listed(RowSum<T>& sum, const std::int32_t* list, int count) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const std::int32_t mine = lane < count ? list[lane] : 0;
  int before = 0;
  for (int other = 0; other < count; ++other) before += __shfl_sync(kFullWarp, mine, other) < mine;
  for (int k = 0; k < count; ++k) {
    const unsigned at = __ballot_sync(kFullWarp, lane < count && before == k);
    sum.add(__shfl_sync(kFullWarp, mine, __ffs(static_cast<int>(at)) - 1));
  }
}

// table: to which it adds, `out` itself or apart from it; null: zeros. begins: where the list of a row begins in `lists`,
// [rows + 1]; null: there are no lists.
template <class T>
__global__ void scatter_add(const std::int32_t* index, const T* updates, const T* table, T* out, Rows size,
                            const std::int32_t* begins, const std::int32_t* lists) {
  const std::int64_t tiles = (size.width + kWarp - 1) / kWarp, part = global_thread() / kWarp;
  if (part >= size.rows * tiles) return;
  const std::int64_t row = part / tiles, column = part % tiles * kWarp + threadIdx.x % kWarp;
  RowSum<T> sum{updates, size.width, column};
  if (table && column < size.width) sum.total = table[row * size.width + column];
  const int listed = begins ? begins[row + 1] - begins[row] : 0;
  if (begins && listed <= static_cast<int>(kWarp)) add_listed(sum, lists + begins[row], listed);
  else add_found(sum, index, size.count, row);
  if (column < size.width) out[row * size.width + column] = sum.total;
}

// Few updates of a table in its place: a warp for each of them, which adds all of its row if it is the first of these.
template <class T>
__global__ void add_few(const std::int32_t* index, const T* updates, T* table, Rows size) {
  const std::int64_t tiles = (size.width + kWarp - 1) / kWarp, part = global_thread() / kWarp;
  if (part >= size.count * tiles) return;
  const std::int64_t mine = part / tiles, column = part % tiles * kWarp + threadIdx.x % kWarp, row = index[mine];
  if (row < 0 || row >= size.rows) return;
  for (std::int64_t i = 0; i < mine; ++i)
    if (index[i] == row) return;
  RowSum<T> sum{updates, size.width, column};
  if (column < size.width) sum.total = table[row * size.width + column];
  add_found(sum, index, size.count, row);
  if (column < size.width) table[row * size.width + column] = sum.total;
}

// How often each row is meant; counts are zeros before.
__global__ void count_rows(const std::int32_t* index, std::int32_t* counts, Rows size) {
  const std::int64_t i = global_thread();
  if (i < size.count && index[i] >= 0 && index[i] < size.rows) atomicAdd(counts + index[i], 1);
}

// Where the list of each row begins, by one block.
__global__ void begin_lists(const std::int32_t* counts, std::int32_t* begins, std::int64_t rows) {
  NESTGRAD_SHARED(std::int32_t, before);  // [threads]
  const std::int64_t each = (rows + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * each,
                     end = begin + each < rows ? begin + each : rows;
  std::int32_t mine = 0;
  for (std::int64_t r = begin; r < end; ++r) mine += counts[r];
  before[threadIdx.x] = mine;
  __syncthreads();
  std::int32_t now = 0;
  for (unsigned t = 0; t < threadIdx.x; ++t) now += before[t];
  for (std::int64_t r = begin; r < end; ++r) {
    begins[r] = now;
    now += counts[r];
  }
  if (threadIdx.x == blockDim.x - 1) begins[rows] = now;
}

// The numbers of the updates of each row, in any order; counts are zeros after it.
__global__ void fill_lists(const std::int32_t* index, std::int32_t* counts, const std::int32_t* begins,
                           std::int32_t* lists, Rows size) {
  const std::int64_t i = global_thread();
  if (i >= size.count || index[i] < 0 || index[i] >= size.rows) return;
  const int place = atomicAdd(counts + index[i], -1) - 1;
  lists[begins[index[i]] + place] = static_cast<std::int32_t>(i);
}

constexpr unsigned kListThreads = 256;

std::string outside_of(std::int64_t rows) {
  return "index {} is outside of the table's " + std::to_string(rows) + " rows";
}

}  // namespace

OpKernel gather_kernel(const OpCall& call, Backend& backend) {
  const std::int64_t rows = call.in[0].shape[0], count = call.in[1].size();
  const Rows size{count, call.out.size() / std::max<std::int64_t>(1, count), rows};
  return
      [size, &on = cuda(backend), wide = size_of(call.out.dtype) == 8,
       site = cuda(backend).fault_site(call, outside_of(rows))](const std::byte* const* in, std::byte* out) {
        if (size.width == 0) {  // no thread of gather would look at them
          launch(on, for_each_of(size.count), check_indices, reinterpret_cast<const std::int32_t*>(in[1]),
                 size.count, size.rows, on.faults(), site);
          return;
        }
        const auto queue = [&]<class U>(U) {
          launch(on, for_each_of(size.count * size.width), gather<U>, reinterpret_cast<const U*>(in[0]),
                 reinterpret_cast<const std::int32_t*>(in[1]), reinterpret_cast<U*>(out), size, on.faults(),
                 site);
        };
        if (wide) queue(std::uint64_t{});
        else queue(std::uint32_t{});
      };
}

namespace {

// to_table: the inputs are a table, indices and updates; else indices and updates.
OpKernel add_rows_kernel(const OpCall& call, Backend& backend, bool to_table) {
  const std::int64_t rows = call.out.shape[0];
  const std::size_t first = to_table ? 1 : 0;  // of the indices
  const Rows size{call.in[first].size(), call.out.size() / std::max<std::int64_t>(1, rows), rows};
  // With few rows or indices each row looks at all indices; else there is a list for each before.
  constexpr std::int64_t kFew = std::int64_t{1} << 16, kMost = std::int64_t{1} << 31, kFewUpdates = 128;
  const bool few = size.count <= kFewUpdates && size.count < size.rows;
  const bool listed = size.rows * (size.count / kWarp) > kFew && size.count < kMost && size.rows < kMost;
  if (listed)
    cuda(backend).need_scratch(static_cast<std::size_t>(2 * size.rows + 1 + size.count) *
                               sizeof(std::int32_t));
  return dispatch(call.out.dtype, [&]<class T>(T) -> OpKernel {
    return [size, first, few, listed, inputs = call.in.size(), &on = cuda(backend),
            site = cuda(backend).fault_site(call, outside_of(rows))](const std::byte* const* in, std::byte* out) {
      const auto* index = reinterpret_cast<const std::int32_t*>(in[first]);
      const T* updates = reinterpret_cast<const T*>(in[first + 1]);
      const T* table = first ? reinterpret_cast<const T*>(in[0]) : nullptr;
      T* to = reinterpret_cast<T*>(out);
      launch(on, for_each_of(size.count), check_indices, index, size.count, size.rows, on.faults(), site);
      const std::int64_t tiles = (size.width + kWarp - 1) / kWarp;
      if (few && table == to) {
        launch(on, for_each_of(size.count * tiles * kWarp), add_few<T>, index, updates, to, size);
        return;
      }
      std::int32_t *counts = nullptr, *begins = nullptr, *lists = nullptr;
      if (listed) {
        counts = scratch_of<std::int32_t>(in, inputs), begins = counts + size.rows, lists = begins + size.rows + 1;
        on.zero(reinterpret_cast<std::byte*>(counts),
                static_cast<std::size_t>(size.rows) * sizeof(std::int32_t));
        launch(on, for_each_of(size.count), count_rows, index, counts, size);
        launch(on, {1, kListThreads, kListThreads * sizeof(std::int32_t)}, begin_lists, counts, begins,
               size.rows);
        launch(on, for_each_of(size.count), fill_lists, index, counts, begins, lists, size);
      }
      launch(on, for_each_of(size.rows * tiles * kWarp), scatter_add<T>, index, updates, table, to, size, begins, lists);
    };
  });
}

}  // namespace

OpKernel scatter_add_kernel(const OpCall& call, Backend& backend) { return add_rows_kernel(call, backend, false); }

OpKernel index_add_kernel(const OpCall& call, Backend& backend) { return add_rows_kernel(call, backend, true); }

}  // namespace nestgrad::cuda

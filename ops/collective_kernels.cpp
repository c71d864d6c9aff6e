#include "ops/collective_kernels.h"

#include <fmt/format.h>

#include <cstring>

#include "engine/core/index.h"
#include "engine/processes/group.h"
#include "engine/processes/tree_sum.h"
#include "ops/attrs.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

using Memory = std::shared_ptr<CollectiveMemory>;

// The memory of the host.
class HostMemory final : public CollectiveMemory {
 public:
  explicit HostMemory(std::shared_ptr<Transport> all) : all_(std::move(all)) {}
  int rank() const override { return all_->rank(); }
  int size() const override { return all_->size(); }
  void exchange(std::span<const Transport::Send> out, std::span<const Transport::Receive> in) override {
    all_->exchange(out, in);
  }
  void copy(const std::byte* from, std::byte* to, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void zero(std::byte* at, std::size_t bytes) override {
    if (bytes > 0) std::memset(at, 0, bytes);
  }
  void add(DType dtype, std::byte* to, const std::byte* from, std::int64_t n) override {
    dispatch(dtype, [&]<class T>(T) {
      T* const sum = reinterpret_cast<T*>(to);
      const T* const more = reinterpret_cast<const T*>(from);
      for (std::int64_t i = 0; i < n; ++i) sum[i] += more[i];
    });
  }
  std::shared_ptr<std::byte> scratch(std::size_t bytes) override {
    const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
    return {memory, memory.get()};
  }

 private:
  std::shared_ptr<Transport> all_;
};

// Sends out[r] to each other process r and receives in[r] from it.
void exchange_all(CollectiveMemory& memory, const std::vector<std::span<const std::byte>>& out,
                  const std::vector<std::span<std::byte>>& in) {
  std::vector<Transport::Send> sends;
  std::vector<Transport::Receive> receives;
  for (int r = 0; r < memory.size(); ++r) {
    if (r == memory.rank()) continue;
    if (!out[uz(r)].empty()) sends.push_back({r, out[uz(r)]});
    if (!in[uz(r)].empty()) receives.push_back({r, in[uz(r)]});
  }
  memory.exchange(sends, receives);
}

OpKernel copying(const OpCall& call, Memory memory) {
  return [memory = std::move(memory), bytes = call.out.bytes()](const std::byte* const* in, std::byte* out) {
    memory->copy(in[0], out, bytes);
  };
}

// parts[leaves.begin] to parts[leaves.end - 1], added into the first of them, in the tree of TreeSum.
void add_tree(CollectiveMemory& memory, DType dtype, const std::vector<std::byte*>& parts, IndexRange leaves,
              std::int64_t n) {
  if (leaves.size() < 2) return;
  const std::int64_t middle = split_of(leaves);
  add_tree(memory, dtype, parts, {leaves.begin, middle}, n);
  add_tree(memory, dtype, parts, {middle, leaves.end}, n);
  memory.add(dtype, parts[uz(leaves.begin)], parts[uz(middle)], n);
}

}  // namespace

std::shared_ptr<Transport> processes_of(const OpCall& call) {
  const int id = call.attrs.as<GroupAttrs>().group;
  std::shared_ptr<Transport> out = ProcessGroup::find(id);
  if (!out)
    call.shape_error(fmt::format("there is no group {} of processes (any more); keep the ProcessGroup", id));
  return out;
}

std::shared_ptr<CollectiveMemory> host_memory(const OpCall& call) {
  return std::make_shared<HostMemory>(processes_of(call));
}

std::size_t all_sum_scratch(const OpCall& call, int rank, int size) {
  return size_of(call.out.dtype) * uz(size) * uz(part_of(call.out.size(), rank, size).size());
}

// Each process adds up a part of the numbers, and sends it to the others.
OpKernel all_sum_kernel(const OpCall& call, Memory memory) {
  if (memory->size() == 1) return copying(call, std::move(memory));
  return [memory = std::move(memory), n = call.out.size(), dtype = call.out.dtype](const std::byte* const* in,
                                                                                   std::byte* out) {
    const int size = memory->size(), me = memory->rank();
    const std::size_t element = size_of(dtype);
    const auto part = [&](int r) { return part_of(n, r, size); };
    const auto sent_to = [&](const std::byte* from, int r) {
      return std::span(from + uz(part(r).begin) * element, uz(part(r).size()) * element);
    };
    const std::size_t own_bytes = uz(part(me).size()) * element;
    const std::shared_ptr<std::byte> numbers =
        memory->scratch(own_bytes * uz(size));  // of my part, from each
    std::vector<std::byte*> parts;
    std::vector<std::span<const std::byte>> sent;
    std::vector<std::span<std::byte>> received;
    for (int r = 0; r < size; ++r) {
      parts.push_back(numbers.get() + uz(r) * own_bytes);
      sent.push_back(sent_to(in[0], r));
      received.emplace_back(parts.back(), own_bytes);
    }
    memory->copy(sent[uz(me)].data(), parts[uz(me)], own_bytes);
    exchange_all(*memory, sent, received);
    add_tree(*memory, dtype, parts, {0, size}, part(me).size());
    memory->copy(numbers.get(), out + uz(part(me).begin) * element, own_bytes);
    for (int r = 0; r < size; ++r) {
      sent[uz(r)] = sent_to(out, me);
      received[uz(r)] = {out + uz(part(r).begin) * element, uz(part(r).size()) * element};
    }
    exchange_all(*memory, sent, received);
  };
}

OpKernel exchange_kernel(const OpCall& call, Memory memory) {
  if (memory->size() == 1) return copying(call, std::move(memory));
  return [memory = std::move(memory), bytes = call.out.bytes()](const std::byte* const* in, std::byte* out) {
    const std::size_t part = bytes / uz(memory->size());
    std::vector<std::span<const std::byte>> sent;
    std::vector<std::span<std::byte>> received;
    for (std::size_t r = 0; r < uz(memory->size()); ++r) {
      sent.emplace_back(in[0] + r * part, part);
      received.emplace_back(out + r * part, part);
    }
    const std::size_t me = uz(memory->rank()) * part;
    memory->copy(in[0] + me, out + me, part);
    exchange_all(*memory, sent, received);
  };
}

// What the process one before, or one after, has; zeros where there is none.
OpKernel neighbour_kernel(const OpCall& call, Memory memory) {
  const int step = &call.op == &rank_before_op ? -1 : 1;
  return [memory = std::move(memory), bytes = call.out.bytes(), step](const std::byte* const* in,
                                                                      std::byte* out) {
    const int from = memory->rank() + step, to = memory->rank() - step;
    const auto is_rank = [&](int r) { return r >= 0 && r < memory->size() && bytes > 0; };
    std::vector<Transport::Send> sends;
    std::vector<Transport::Receive> receives;
    if (is_rank(to)) sends.push_back({to, {in[0], bytes}});
    if (is_rank(from)) receives.push_back({from, {out, bytes}});
    else memory->zero(out, bytes);
    if (memory->size() > 1) memory->exchange(sends, receives);
  };
}

}  // namespace nestgrad

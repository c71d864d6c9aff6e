#include "ops/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/core/index.h"
#include "engine/processes/tree_sum.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

std::shared_ptr<Transport> processes_of(const OpCall& c) {
  const int id = c.attrs.as<GroupAttrs>().group;
  std::shared_ptr<Transport> out = ProcessGroup::find(id);
  if (!out)
    c.shape_error(fmt::format("there is no group {} of processes (any more); keep the ProcessGroup", id));
  return out;
}

Spec infer_same(const OpCall& c) {
  processes_of(c);
  return c.in[0];
}

Spec infer_all_sum(const OpCall& c) {
  processes_of(c);
  if (c.in[0].dtype == DType::i32) c.dtype_error("only f32 and f64 are added up over processes; cast() it");
  return c.in[0];
}

Spec infer_exchange(const OpCall& c) {
  const int size = processes_of(c)->size();
  if (c.in[0].rank() == 0 || c.in[0].shape[0] != size)
    c.shape_error(fmt::format("the first axis must have an entry for each of {} processes", size));
  return c.in[0];
}

// Where there is no kernel, as on a GPU: a process that is alone in its group has the result already.
Tensor expand_alone(std::span<const Tensor> in, const Attrs& attrs) {
  const std::shared_ptr<Transport> all = ProcessGroup::find(attrs.as<GroupAttrs>().group);
  if (all && all->size() > 1)
    throw DeviceError(fmt::format(
        "[processes] collectives over {} processes run on the CPU: give the plan that device", all->size()));
  return in[0];
}

// Sends out[r] to each other process r and receives in[r] from it.
void exchange_all(Transport& all, const std::vector<std::span<const std::byte>>& out,
                  const std::vector<std::span<std::byte>>& in) {
  std::vector<Transport::Send> sends;
  std::vector<Transport::Receive> receives;
  for (int r = 0; r < all.size(); ++r) {
    if (r == all.rank()) continue;
    if (!out[uz(r)].empty()) sends.push_back({r, out[uz(r)]});
    if (!in[uz(r)].empty()) receives.push_back({r, in[uz(r)]});
  }
  all.exchange(sends, receives);
}

OpKernel exchange_kernel(const OpCall& c) {
  if (processes_of(c)->size() == 1) return copy_bytes(c);
  return [all = processes_of(c), bytes = c.out.bytes()](const std::byte* const* in, std::byte* out) {
    const std::size_t part = bytes / uz(all->size());
    std::vector<std::span<const std::byte>> sent;
    std::vector<std::span<std::byte>> received;
    for (std::size_t r = 0; r < uz(all->size()); ++r) {
      sent.emplace_back(in[0] + r * part, part);
      received.emplace_back(out + r * part, part);
    }
    const std::size_t me = uz(all->rank()) * part;
    std::memcpy(out + me, in[0] + me, part);
    exchange_all(*all, sent, received);
  };
}

// parts[first] to parts[first + count - 1] added into parts[first], in the tree of TreeSum.
template <class T>
void add_tree(const std::vector<T*>& parts, IndexRange leaves, std::int64_t n) {
  if (leaves.size() < 2) return;
  const std::int64_t middle = split_of(leaves);
  add_tree(parts, {leaves.begin, middle}, n);
  add_tree(parts, {middle, leaves.end}, n);
  T* const to = parts[uz(leaves.begin)];
  const T* const from = parts[uz(middle)];
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// Each process adds up a part of the numbers, and sends it to the others.
template <class T>
OpKernel all_sum_kernel_of(const OpCall& c) {
  return [all = processes_of(c), n = c.out.size()](const std::byte* const* in, std::byte* out) {
    const int size = all->size(), me = all->rank();
    const auto bytes_of = [&](int r) {
      const IndexRange part = part_of(n, r, size);
      return std::pair{uz(part.begin) * sizeof(T), uz(part.size()) * sizeof(T)};
    };
    const IndexRange own = part_of(n, me, size);
    std::vector<T> numbers(uz(size) * uz(own.size()));  // of my part, from each
    std::vector<T*> parts;
    std::vector<std::span<const std::byte>> sent;
    std::vector<std::span<std::byte>> received;
    for (int r = 0; r < size; ++r) {
      parts.push_back(numbers.data() + r * own.size());
      const auto [begin, bytes] = bytes_of(r);
      sent.emplace_back(in[0] + begin, bytes);
      received.push_back(std::as_writable_bytes(std::span(parts.back(), uz(own.size()))));
    }
    const auto [begin, bytes] = bytes_of(me);
    std::ranges::copy(sent[uz(me)], received[uz(me)].begin());
    exchange_all(*all, sent, received);
    add_tree(parts, {0, size}, own.size());
    if (bytes > 0) std::memcpy(out + begin, numbers.data(), bytes);
    for (int r = 0; r < size; ++r) {
      const auto [first, count] = bytes_of(r);
      sent[uz(r)] = {out + begin, bytes};
      received[uz(r)] = {out + first, count};
    }
    exchange_all(*all, sent, received);
  };
}

OpKernel all_sum_kernel(const OpCall& c) {
  if (processes_of(c)->size() == 1) return copy_bytes(c);
  return c.out.dtype == DType::f32 ? all_sum_kernel_of<float>(c) : all_sum_kernel_of<double>(c);
}

// What the process `step` ranks away has; zeros where there is none.
OpKernel neighbour_kernel(const OpCall& c, int step) {
  return [all = processes_of(c), bytes = c.out.bytes(), step](const std::byte* const* in, std::byte* out) {
    const int from = all->rank() + step, to = all->rank() - step;
    const auto is_rank = [&](int r) { return r >= 0 && r < all->size() && bytes > 0; };
    std::vector<Transport::Send> sends;
    std::vector<Transport::Receive> receives;
    if (is_rank(to)) sends.push_back({to, {in[0], bytes}});
    if (is_rank(from)) receives.push_back({from, {out, bytes}});
    else if (bytes > 0) std::memset(out, 0, bytes);
    if (all->size() > 1) all->exchange(sends, receives);
  };
}
OpKernel before_kernel(const OpCall& c) { return neighbour_kernel(c, -1); }
OpKernel after_kernel(const OpCall& c) { return neighbour_kernel(c, 1); }

// Where there is no kernel: a process that is alone has no neighbours.
Tensor expand_no_neighbour(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor x = expand_alone(in, attrs);
  return zeros(x.dtype(), x.shape());
}

std::vector<OpSample> samples_of(const char* error_text, Shape wrong) {
  std::vector<OpSample> out{{.inputs = {{{1, 3}}}, .attrs = GroupAttrs{0}},
                            {.inputs = {{{1, 3}}}, .attrs = GroupAttrs{-1}, .error = "there is no group -1"}};
  if (error_text)
    out.push_back({.inputs = {{std::move(wrong)}}, .attrs = GroupAttrs{0}, .error = error_text});
  return out;
}

GroupAttrs of(const ProcessGroup& processes) { return {processes.id()}; }

// The extent of each process's part of an axis.
std::int64_t part_extent(const char* op, const Operand& x, int axis, const ProcessGroup& processes) {
  const std::int64_t extent = x.tensor.shape()[uz(axis)];
  if (extent % processes.size() != 0)
    throw ShapeError(
        fmt::format("[{}] axis {} of {} cannot be cut into {} equal parts, one for each process (at {})", op,
                    axis, describe(x.tensor), processes.size(), describe(x.loc)));
  return extent / processes.size();
}

// [processes, ..] -> what each has for this process, one after another along an axis of what follows.
Tensor exchanged_along(Tensor parts, int axis, Loc loc, const ProcessGroup& processes) {
  Shape joint(parts.shape().begin() + 1, parts.shape().end());
  joint[uz(axis)] *= processes.size();
  std::vector<int> order;
  for (int a = 1; a < parts.rank(); ++a) {
    if (a == axis + 1) order.push_back(0);
    order.push_back(a);
  }
  return reshape(permute(exchange({parts, loc}, processes), order), joint);
}

}  // namespace

constinit const Op own_op = {.name = "own",
                             .doc = "An input that is each process's own in a group.",
                             .infer = infer_same,
                             .vjp = [](const VjpCall& c) { return c.ct; },
                             .simplify = drop_if_nothing_changes,
                             .linear_in = always_linear,
                             .is_linear = true,
                             .axes = [](const OpCall&, int, int axis) { return axis; },
                             .is_alias = true,
                             .processes = OpProcesses::input_to_own,
                             .cost = no_cost,
                             .cpu = copy_bytes,
                             .read_attrs = attrs_from<GroupAttrs>,
                             .samples = [] { return samples_of(nullptr, {}); }};

constinit const Op vary_op = {
    .name = "vary",
    .doc = "A value that is the same in all processes of a group, as each one's own.",
    .infer = infer_same,
    .vjp = [](const VjpCall& c) { return emit(all_sum_op, {c.ct}, c.attrs); },
    .simplify = drop_if_nothing_changes,
    .linear_in = always_linear,
    .is_linear = true,
    .axes = [](const OpCall&, int, int axis) { return axis; },
    .is_alias = true,
    .processes = OpProcesses::same_to_own,
    .cost = no_cost,
    .cpu = copy_bytes,
    .read_attrs = attrs_from<GroupAttrs>,
    .samples = [] { return samples_of(nullptr, {}); }};

constinit const Op all_sum_op = {
    .name = "all_sum",
    .doc = "The sum over the processes of a group of each one's own x: sum_r x_r.",
    .infer = infer_all_sum,
    .vjp = [](const VjpCall& c) { return emit(vary_op, {c.ct}, c.attrs); },
    .expand = expand_alone,
    .linear_in = always_linear,
    .is_linear = true,
    .processes = OpProcesses::own_to_same,
    .cost = elementwise_cost,
    .cpu = all_sum_kernel,
    .read_attrs = attrs_from<GroupAttrs>,
    .samples = [] { return samples_of(nullptr, {}); }};

constinit const Op exchange_op = {.name = "exchange",
                                  .doc = "Entry r of x comes to process r: out_r[s] = x_s[r].",
                                  .infer = infer_exchange,
                                  .vjp = [](const VjpCall& c) { return emit(exchange_op, {c.ct}, c.attrs); },
                                  .expand = expand_alone,
                                  .linear_in = always_linear,
                                  .is_linear = true,
                                  .processes = OpProcesses::own_to_own,
                                  .cost = copy_cost,
                                  .cpu = exchange_kernel,
                                  .read_attrs = attrs_from<GroupAttrs>,
                                  .samples =
                                      [] {
                                        return samples_of("an entry for each of 1 processes", {2, 3});
                                      }};

constinit const Op rank_before_op = {
    .name = "rank_before",
    .doc = "What the process with the rank before has: out_r = x_{r-1}; zeros at rank 0.",
    .infer = infer_same,
    .vjp = [](const VjpCall& c) { return emit(rank_after_op, {c.ct}, c.attrs); },
    .expand = expand_no_neighbour,
    .linear_in = always_linear,
    .is_linear = true,
    .processes = OpProcesses::own_to_own,
    .cost = copy_cost,
    .cpu = before_kernel,
    .read_attrs = attrs_from<GroupAttrs>,
    .samples = [] { return samples_of(nullptr, {}); }};

constinit const Op rank_after_op = {
    .name = "rank_after",
    .doc = "What the process with the next rank has: out_r = x_{r+1}; zeros at the last.",
    .infer = infer_same,
    .vjp = [](const VjpCall& c) { return emit(rank_before_op, {c.ct}, c.attrs); },
    .expand = expand_no_neighbour,
    .linear_in = always_linear,
    .is_linear = true,
    .processes = OpProcesses::own_to_own,
    .cost = copy_cost,
    .cpu = after_kernel,
    .read_attrs = attrs_from<GroupAttrs>,
    .samples = [] { return samples_of(nullptr, {}); }};

Tensor own(Operand x, const ProcessGroup& processes) {
  return emit(own_op, {x.tensor}, of(processes), x.loc);
}
Tensor vary(Operand x, const ProcessGroup& processes) {
  return emit(vary_op, {x.tensor}, of(processes), x.loc);
}
Tensor all_sum(Operand x, const ProcessGroup& processes) {
  return emit(all_sum_op, {x.tensor}, of(processes), x.loc);
}
Tensor exchange(Operand x, const ProcessGroup& processes) {
  return emit(exchange_op, {x.tensor}, of(processes), x.loc);
}
Tensor rank_before(Operand x, const ProcessGroup& processes) {
  return emit(rank_before_op, {x.tensor}, of(processes), x.loc);
}
Tensor rank_after(Operand x, const ProcessGroup& processes) {
  return emit(rank_after_op, {x.tensor}, of(processes), x.loc);
}

Tensor all_to_all(Operand x, int split, int join, const ProcessGroup& processes) {
  const int cut = normal_axis("all_to_all", split, x), joined = normal_axis("all_to_all", join, x);
  Shape parted = x.tensor.shape();  // [.., processes, extent / processes, ..]
  parted[uz(cut)] = part_extent("all_to_all", x, cut, processes);
  parted.insert(parted.begin() + cut, processes.size());
  std::vector<int> to_front{cut};
  for (int axis = 0; axis < static_cast<int>(parted.size()); ++axis)
    if (axis != cut) to_front.push_back(axis);
  return exchanged_along(permute(reshape(x, parted), to_front), joined, x.loc, processes);
}

Tensor all_gather(Operand x, int axis, const ProcessGroup& processes) {
  Shape each = x.tensor.shape();
  each.insert(each.begin(), processes.size());
  return exchanged_along(broadcast_to(x, each), normal_axis("all_gather", axis, x), x.loc, processes);
}

Tensor own_part(Operand x, int axis, const ProcessGroup& processes) {
  const int cut = normal_axis("own_part", axis, x);
  const std::int64_t part = part_extent("own_part", x, cut, processes);
  return slice(vary(x, processes), cut, processes.rank() * part, (processes.rank() + 1) * part);
}

}  // namespace nestgrad

#include "ops/collectives.h"

#include <fmt/format.h>

#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "ops/attrs.h"
#include "ops/collective_kernels.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

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

OpKernel host_all_sum(const OpCall& c) { return all_sum_kernel(c, host_memory(c)); }
OpKernel host_exchange(const OpCall& c) { return exchange_kernel(c, host_memory(c)); }
OpKernel host_neighbour(const OpCall& c) { return neighbour_kernel(c, host_memory(c)); }

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
  const std::int64_t extent = x.tensor().shape()[uz(axis)];
  if (extent % processes.size() != 0)
    throw call_error<ShapeError>(op, x.loc,
                                 "axis {} of {} cannot be cut into {} equal parts, one for each process",
                                 axis, describe(x.tensor()), processes.size());
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
    .linear_in = always_linear,
    .is_linear = true,
    .processes = OpProcesses::own_to_same,
    .cost = elementwise_cost,
    .cpu = host_all_sum,
    .read_attrs = attrs_from<GroupAttrs>,
    .samples = [] { return samples_of(nullptr, {}); }};

constinit const Op exchange_op = {.name = "exchange",
                                  .doc = "Entry r of x comes to process r: out_r[s] = x_s[r].",
                                  .infer = infer_exchange,
                                  .vjp = [](const VjpCall& c) { return emit(exchange_op, {c.ct}, c.attrs); },
                                  .linear_in = always_linear,
                                  .is_linear = true,
                                  .processes = OpProcesses::own_to_own,
                                  .cost = copy_cost,
                                  .cpu = host_exchange,
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
    .linear_in = always_linear,
    .is_linear = true,
    .processes = OpProcesses::own_to_own,
    .cost = copy_cost,
    .cpu = host_neighbour,
    .read_attrs = attrs_from<GroupAttrs>,
    .samples = [] { return samples_of(nullptr, {}); }};

constinit const Op rank_after_op = {
    .name = "rank_after",
    .doc = "What the process with the next rank has: out_r = x_{r+1}; zeros at the last.",
    .infer = infer_same,
    .vjp = [](const VjpCall& c) { return emit(rank_before_op, {c.ct}, c.attrs); },
    .linear_in = always_linear,
    .is_linear = true,
    .processes = OpProcesses::own_to_own,
    .cost = copy_cost,
    .cpu = host_neighbour,
    .read_attrs = attrs_from<GroupAttrs>,
    .samples = [] { return samples_of(nullptr, {}); }};

Tensor own(Operand x, const ProcessGroup& processes) {
  return emit(own_op, {x.tensor()}, of(processes), x.loc);
}
Tensor vary(Operand x, const ProcessGroup& processes) {
  return emit(vary_op, {x.tensor()}, of(processes), x.loc);
}
Tensor all_sum(Operand x, const ProcessGroup& processes) {
  return emit(all_sum_op, {x.tensor()}, of(processes), x.loc);
}
Tensor exchange(Operand x, const ProcessGroup& processes) {
  return emit(exchange_op, {x.tensor()}, of(processes), x.loc);
}
Tensor rank_before(Operand x, const ProcessGroup& processes) {
  return emit(rank_before_op, {x.tensor()}, of(processes), x.loc);
}
Tensor rank_after(Operand x, const ProcessGroup& processes) {
  return emit(rank_after_op, {x.tensor()}, of(processes), x.loc);
}

Tensor all_to_all(Operand x, int split, int join, const ProcessGroup& processes) {
  const CompositeScope scope("all_to_all", x.loc);
  const int cut = normal_axis("all_to_all", split, x), joined = normal_axis("all_to_all", join, x);
  Shape parted = x.tensor().shape();  // [.., processes, extent / processes, ..]
  parted[uz(cut)] = part_extent("all_to_all", x, cut, processes);
  parted.insert(parted.begin() + cut, processes.size());
  std::vector<int> to_front{cut};
  for (int axis = 0; axis < static_cast<int>(parted.size()); ++axis)
    if (axis != cut) to_front.push_back(axis);
  return exchanged_along(permute(reshape(x, parted), to_front), joined, x.loc, processes);
}

Tensor all_gather(Operand x, int axis, const ProcessGroup& processes) {
  const CompositeScope scope("all_gather", x.loc);
  Shape each = x.tensor().shape();
  each.insert(each.begin(), processes.size());
  return exchanged_along(broadcast_to(x, each), normal_axis("all_gather", axis, x), x.loc, processes);
}

Tensor own_part(Operand x, int axis, const ProcessGroup& processes) {
  const CompositeScope scope("own_part", x.loc);
  const int cut = normal_axis("own_part", axis, x);
  const std::int64_t part = part_extent("own_part", x, cut, processes);
  return slice(vary(x, processes), cut, processes.rank() * part, (processes.rank() + 1) * part);
}

}  // namespace nestgrad

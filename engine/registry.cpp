#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "engine/op.h"

namespace nestgrad {

namespace {

struct Table {
  std::deque<Op> rows;
  std::vector<const Op*> pointers;
};

Table& table() {
  static Table t;
  return t;
}

std::string operands(const Call& call) {
  std::string text;
  for (std::size_t i = 0; i < call.in.size(); ++i)
    text += fmt::format("{}{} is {}", i ? ", " : "", static_cast<char>('a' + i), to_string(call.in[i]));
  return text;
}

}  // namespace

const Op& register_op(Op op) {
  if (find_op(op.name)) throw Error(fmt::format("[{}] this op is already in the table", op.name));
  Table& t = table();
  t.rows.push_back(std::move(op));
  t.pointers.push_back(&t.rows.back());
  std::ranges::sort(t.pointers, {}, [](const Op* row) { return row->name; });
  return t.rows.back();
}

std::span<const Op* const> op_table() { return table().pointers; }

const Op* find_op(std::string_view name) {
  for (const Op* row : table().pointers)
    if (row->name == name) return row;
  return nullptr;
}

void set_cuda_kernel(std::string_view name, Kernel (*make)(const Call&, Backend&)) {
  for (Op& row : table().rows)
    if (row.name == name) {
      row.cuda = make;
      return;
    }
  throw Error(fmt::format("[{}] a CUDA kernel for an op that is not in the table", name));
}

void Call::shape_error(const std::string& message) const {
  throw ShapeError(fmt::format("[{}] {}: {}", op.name, message, operands(*this)));
}

void Call::dtype_error(const std::string& message) const {
  throw DTypeError(fmt::format("[{}] {}: {}", op.name, message, operands(*this)));
}

Spec infer(const Op& op, std::span<const Spec> in, const Attrs& attrs) {
  Spec out = op.infer({op, in, attrs, {}});
  check_spec(op.name, out);
  return out;
}

Cost elementwise_cost(const Call& call) {
  Cost cost{static_cast<double>(call.out.size()), static_cast<double>(call.out.bytes())};
  for (const Spec& in : call.in) cost.bytes += static_cast<double>(in.bytes());
  return cost;
}

}  // namespace nestgrad

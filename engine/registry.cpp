#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "engine/body.h"
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

std::size_t mix(std::size_t seed, std::size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
}

bool same_literal(const Array& a, const Array& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined() || a.data() == b.data()) return a.spec() == b.spec();
  return a.spec() == b.spec() && a.same_bits(b);
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

bool Attrs::operator==(const Attrs& o) const {
  const auto same = [](const std::shared_ptr<const Body>& a, const std::shared_ptr<const Body>& b) {
    return a == b || (a && b && *a == *b);
  };
  return ints == o.ints && reals == o.reals && text == o.text && same(body, o.body) && same(rule, o.rule) &&
         same_literal(literal, o.literal);
}

std::size_t Attrs::hash() const {
  std::size_t h = std::hash<std::string>{}(text);
  for (std::int64_t v : ints) h = mix(h, std::hash<std::int64_t>{}(v));
  for (double v : reals) h = mix(h, std::hash<double>{}(v));
  for (const Body* each : {body.get(), rule.get()}) h = mix(h, each ? each->hash : 0);
  if (!literal.defined()) return h;
  const std::string_view bytes(reinterpret_cast<const char*>(literal.data()), literal.bytes());
  return mix(h, std::hash<std::string_view>{}(bytes));
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

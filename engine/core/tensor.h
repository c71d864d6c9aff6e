// Tensor: a name for a future number. Trivially copyable; owns nothing.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/core/array.h"
#include "engine/core/source_location.h"

namespace nestgrad {

class Graph;
using NodeId = std::int32_t;
using Loc = SourceLocation;

class Tensor {
 public:
  Tensor() = default;
  Tensor(Graph& graph, NodeId id);

  bool defined() const { return graph_ != nullptr; }
  Graph& graph() const;  // GraphError when undefined, or when the graph is gone
  bool alive() const;    // defined, and its graph still exists
  NodeId id() const { return id_; }
  const Spec& spec() const;
  const Shape& shape() const { return spec().shape; }
  DType dtype() const { return spec().dtype; }
  int rank() const { return spec().rank(); }
  // Extent of an axis; negative axes count from the end.
  std::int64_t dim(int axis, Loc loc = Loc::current()) const;
  bool operator==(const Tensor&) const = default;  // the same tensor; equal(a, b) compares the numbers
  // A traced tensor has no numbers that an `if` could ask for: choose with where(mask, a, b), loop with scan().
  explicit operator bool() const = delete;

 private:
  friend class Graph;
  Graph* graph_ = nullptr;
  NodeId id_ = -1;
  std::uint32_t serial_ = 0;  // of the graph: tells a live graph from a new one at the same address
};
static_assert(std::is_trivially_copyable_v<Tensor>);

// An argument of an op: a tensor or a number, with the line
// that wrote it. Numbers take the other operand's type.
struct Operand {
  Operand(Tensor t, Loc where = Loc::current()) : is_number(false), loc(where), tensor_(t) {}
  template <class Number>
  requires(std::is_arithmetic_v<Number> &&
           !std::is_same_v<Number, bool>)  // `a == b` compares handles: equal(a, b)
      Operand(Number v, Loc where = Loc::current())
      : number(static_cast<double>(v)), is_number(true), loc(where) {}
  // Where only a tensor will do. GraphError, with the line, for a number and for a tensor that names nothing.
  Tensor tensor() const;

  double number = 0;
  bool is_number;
  Loc loc;

 private:
  Tensor tensor_;
};

}  // namespace nestgrad

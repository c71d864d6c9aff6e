// Attrs: what one use of an op is told besides its inputs: a value of a struct of the op's own, which never
// changes after it was made, or nothing. Copies share it, and any thread may read it.
//
//   struct SliceAttrs {                                 // in ops/attrs.h, with those of all other ops
//     int axis = 0;
//     std::int64_t begin = 0, end = 0;
//     static auto fields(auto& a) { return std::tie(a.axis, a.begin, a.end); }
//   };
//   Tensor y = emit(slice_op, {x}, SliceAttrs{0, 2, 5});
//   node.attrs.as<SliceAttrs>().begin                    // 2
//
// Equality, hash, text and files follow from fields(). A field is an integer, a bool, a DType, a Shape, a
// string, an Array or a body; no more than one Shape, which is then the last number.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/core/tensor.h"

namespace nestgrad {

struct GraphBody;  // engine/core/body.h
using BodyPtr = std::shared_ptr<const GraphBody>;

namespace attrs_detail {

template <class T>
inline constexpr char kType = 0;  // its address stands for T

std::size_t mix(std::size_t seed, std::size_t value);

template <class T>
bool same(const T& a, const T& b) {
  return a == b;
}
bool same(const BodyPtr& a, const BodyPtr& b);  // the same computation
bool same(const Array& a, const Array& b);      // the same bits

template <class T>
std::size_t hash_of(const T& v) {
  return std::hash<T>{}(v);
}
std::size_t hash_of(const Shape& v);
std::size_t hash_of(const BodyPtr& v);
std::size_t hash_of(const Array& v);

// Everything in attributes that is a number, and all bodies, in the order of the fields.
struct Parts {
  std::vector<std::int64_t> numbers;
  std::vector<BodyPtr> bodies;

  template <class T>
  requires std::integral<T> || std::is_enum_v<T>
  void add(const T& v) { numbers.push_back(static_cast<std::int64_t>(v)); }
  void add(const Shape& v) { numbers.insert(numbers.end(), v.begin(), v.end()); }
  void add(const BodyPtr& v) { bodies.push_back(v); }
  void add(const std::string&) {}
  void add(const Array&) {}
};

struct Held {
  explicit Held(const void* type_of_value) : type(type_of_value) {}
  virtual ~Held() = default;
  virtual bool same_as(const Held& other) const = 0;  // of the same type
  virtual std::size_t hash() const = 0;
  virtual Parts parts() const = 0;
  const void* const type;
};

template <class T>
struct HeldAs final : Held {
  explicit HeldAs(T v) : Held(&kType<T>), value(std::move(v)) {}
  bool same_as(const Held& other) const override {
    const auto theirs = T::fields(static_cast<const HeldAs&>(other).value);
    return std::apply(
        [&](const auto&... a) {
          return std::apply([&](const auto&... b) { return (same(a, b) && ...); }, theirs);
        },
        T::fields(value));
  }
  std::size_t hash() const override {
    std::size_t h = 0;
    std::apply([&](const auto&... field) { ((h = mix(h, hash_of(field))), ...); }, T::fields(value));
    return h;
  }
  Parts parts() const override {
    Parts out;
    std::apply([&](const auto&... field) { (out.add(field), ...); }, T::fields(value));
    return out;
  }
  const T value;
};

}  // namespace attrs_detail

class Attrs {
 public:
  Attrs() = default;
  template <class T>
  requires requires(const T& t) { T::fields(t); }
  Attrs(T value) : held_(std::make_shared<const attrs_detail::HeldAs<T>>(std::move(value))) {}

  // Null, or a GraphError, if the attributes are of another struct, or none.
  template <class T>
  const T* find() const {
    if (!held_ || held_->type != &attrs_detail::kType<T>) return nullptr;
    return &static_cast<const attrs_detail::HeldAs<T>&>(*held_).value;
  }
  template <class T>
  const T& as() const {
    if (const T* found = find<T>()) return *found;
    wrong_struct();
  }

  bool operator==(const Attrs& other) const {
    if (held_ == other.held_) return true;
    return held_ && other.held_ && held_->type == other.held_->type && held_->same_as(*other.held_);
  }
  std::size_t hash() const { return held_ ? held_->hash() : 0; }
  std::vector<std::int64_t> numbers() const { return held_ ? held_->parts().numbers : Shape(); }
  std::vector<BodyPtr> bodies() const { return held_ ? held_->parts().bodies : std::vector<BodyPtr>(); }

 private:
  [[noreturn]] static void wrong_struct();
  std::shared_ptr<const attrs_detail::Held> held_;
};

// Attributes of struct T with these numbers(); none if there are more or fewer than it has, or one does not fit its
// field. T is made of numbers alone.
template <class T>
std::optional<Attrs> attrs_from(std::span<const std::int64_t> numbers) {
  T out;
  bool fits = true;
  const auto take = [&]<class Field>(Field& field) {
    if constexpr (std::is_same_v<Field, Shape>) {
      field.assign(numbers.begin(), numbers.end());
      numbers = {};
    } else {
      fits = fits && !numbers.empty();
      if (!fits) return;
      field = static_cast<Field>(numbers.front());
      fits = static_cast<std::int64_t>(field) == numbers.front();
      if constexpr (std::is_same_v<Field, DType>) fits = fits && field <= DType::i32;
      numbers = numbers.subspan(1);
    }
  };
  std::apply([&](auto&... field) { (take(field), ...); }, T::fields(out));
  if (!fits || !numbers.empty()) return std::nullopt;
  return out;
}

// ---- of the engine's own ops ----

struct InputAttrs {
  std::string name;
  static auto fields(auto& a) { return std::tie(a.name); }
};

struct ConstantAttrs {
  Array literal;  // on the CPU, in a buffer of its own
  static auto fields(auto& a) { return std::tie(a.literal); }
};

// Of an op that is told the shape of its output, and nothing else.
struct ShapeAttrs {
  Shape shape;
  static auto fields(auto& a) { return std::tie(a.shape); }
};

struct ScanAttrs {
  BodyPtr body;  // one step
  std::int64_t steps = 0;
  bool reverse = false;  // the last step comes first
  int every = 0;         // a derivative keeps the carries of every n-th step; 0: what it needs of each
  // Made by plans alone (engine/plan/recompute_carries.cpp): the inputs that are carries are stacks [steps, ..] of
  // another scan, and at the first step of each segment of `every` steps the carries are what these have.
  bool recomputes = false;
  static auto fields(auto& a) { return std::tie(a.body, a.steps, a.reverse, a.every, a.recomputes); }
};

// A carry after a scan's last step.
struct FinalAttrs {
  BodyPtr body;  // the scan's
  int carry = 0;
  static auto fields(auto& a) { return std::tie(a.body, a.carry); }
};

// A value of every step of a scan, [steps, ..].
struct StackAttrs {
  BodyPtr body;     // the scan's
  NodeId node = 0;  // of the body
  std::int64_t steps = 0;
  static auto fields(auto& a) { return std::tie(a.body, a.node, a.steps); }
};

// A pass forward, and a rule that is its derivative.
struct CustomAttrs {
  BodyPtr forward, rule;
  static auto fields(auto& a) { return std::tie(a.forward, a.rule); }
};

}  // namespace nestgrad

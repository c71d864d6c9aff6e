// Array: numbers on a device. Always dense and row-major, on the CPU at a multiple of 64 bytes; the buffer is shared between copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/device.h"
#include "engine/core/error.h"

namespace nestgrad {

enum class DType : std::uint8_t { f32, f64, i32 };

std::string_view name(DType dtype);
std::size_t size_of(DType dtype);  // bytes of one element
inline bool is_float(DType dtype) { return dtype != DType::i32; }

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}

// Calls fn(T{}) with the C++ type of dtype.
template <class Fn>
decltype(auto) dispatch(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::f32:
      return fn(float{});
    case DType::f64:
      return fn(double{});
    case DType::i32:
      break;
  }
  return fn(std::int32_t{});
}

// Extents of a dense row-major array, outermost first. An empty shape is a scalar.
using Shape = std::vector<std::int64_t>;

std::int64_t numel(const Shape& shape);  // ShapeError where it is no 64-bit number
Shape strides_of(const Shape& shape);    // row-major strides in elements

// Type and shape: everything about an Array but its numbers.
struct Spec {
  DType dtype = DType::f64;
  Shape shape;
  bool operator==(const Spec&) const = default;
  int rank() const { return static_cast<int>(shape.size()); }
  std::int64_t size() const { return numel(shape); }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }
};

std::string to_string(const Shape& shape);  // [2,3]
std::string to_string(const Spec& spec);    // f64[2,3]

// ShapeError, in the name of `who`, if an extent is negative, or if the array had more than 2^47 bytes (as many as a
// processor addresses) with extents of zero counted as one. Every
// node of a graph and every array keeps it, so that arithmetic on sizes and strides never overflows.
void check_spec(std::string_view who, const Spec& spec);

class Array {
 public:
  Array() = default;                              // no numbers at all: defined() is false
  explicit Array(Spec spec, Device device = {});  // not initialised
  Array(DType dtype, Shape shape) : Array(Spec{dtype, std::move(shape)}) {}

  static Array zeros(DType dtype, Shape shape) { return full(dtype, std::move(shape), 0.0); }
  static Array full(DType dtype, Shape shape, double value);
  static Array scalar(double value, DType dtype = DType::f64) { return full(dtype, {}, value); }
  static Array of(const std::vector<double>& values, Shape shape, DType dtype = DType::f64);

  bool defined() const { return buffer_ != nullptr; }
  const Spec& spec() const { return spec_; }
  DType dtype() const { return spec_.dtype; }
  const Shape& shape() const { return spec_.shape; }
  std::int64_t size() const { return spec_.size(); }
  std::size_t bytes() const { return spec_.bytes(); }

  const Device& device() const { return device_; }
  // The same numbers there; this array itself if that is where it is. From a GPU to the CPU it waits for the
  // work that makes them, and throws what went wrong in it.
  Array to(const Device& device) const;

  // An address of the device.
  std::byte* data() { return buffer_.get(); }
  const std::byte* data() const { return buffer_.get(); }

  // The elements as T; DTypeError when T is not the element type, DeviceError when they are not on the CPU.
  template <class T>
  std::span<T> as() {
    require(dtype_of<T>());
    return {reinterpret_cast<T*>(data()), static_cast<std::size_t>(size())};
  }
  template <class T>
  std::span<const T> as() const {
    require(dtype_of<T>());
    return {reinterpret_cast<const T*>(data()), static_cast<std::size_t>(size())};
  }

  // From any device:
  double at(std::int64_t flat_index) const;  // one element of any dtype, bounds checked
  double item() const;                       // the only element of a one-element array
  std::vector<double> to_vector() const;     // all elements, converted
  bool same_bits(const Array& other) const;  // equal spec and equal bytes
  Array clone() const;                       // own buffer
  Array unshared() &&;                       // this array if no other has its buffer, else a clone
  Array cast(DType dtype) const;             // own buffer on the CPU, converted
  Array reshaped(Shape shape) const;         // shared buffer

 private:
  friend void copy(const Array& from, Array& to);
  void require_numbers() const;  // ValueError: there are none
  void require(DType dtype) const;
  Spec spec_;
  Device device_;
  std::shared_ptr<std::byte[]> buffer_;
};

// All numbers of one array into another of its spec, whichever devices they lie on.
void copy(const Array& from, Array& to);

// Flat index of the first element that is not finite; -1: all are.
std::int64_t first_not_finite(const Array& a);

// max|a-b| / max(floor, max|b|); infinity where a number of either is not finite. Specs must agree in shape.
double relative_error(const Array& a, const Array& b, double floor = 1e-300);

}  // namespace nestgrad

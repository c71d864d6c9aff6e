#include "engine/array.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

namespace nestgrad {

namespace {
constexpr std::align_val_t kAlignment{64};
}

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::i32:
      break;
  }
  return "i32";
}

std::size_t size_of(DType dtype) { return dtype == DType::f64 ? 8 : 4; }

std::int64_t numel(const Shape& shape) {
  std::int64_t n = 1;
  for (std::int64_t extent : shape) n *= extent;
  return n;
}

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }
std::string to_string(const Spec& spec) {
  return fmt::format("{}{}", name(spec.dtype), to_string(spec.shape));
}

Array::Array(Spec spec) : spec_(std::move(spec)) {
  for (std::int64_t extent : spec_.shape)
    if (extent < 0)
      throw ShapeError(fmt::format("[array] negative extent in shape {}", to_string(spec_.shape)));
  auto* raw = static_cast<std::byte*>(::operator new(std::max<std::size_t>(spec_.bytes(), 1), kAlignment));
  buffer_ = std::shared_ptr<std::byte[]>(raw, [](std::byte* p) { ::operator delete(p, kAlignment); });
}

Array Array::full(DType dtype, Shape shape, double value) {
  Array out(dtype, std::move(shape));
  dispatch(dtype, [&]<class T>(T) { std::ranges::fill(out.as<T>(), static_cast<T>(value)); });
  return out;
}

Array Array::of(const std::vector<double>& values, Shape shape, DType dtype) {
  Array out(dtype, std::move(shape));
  if (static_cast<std::int64_t>(values.size()) != out.size())
    throw ShapeError(
        fmt::format("[array] {} values given for shape {}", values.size(), to_string(out.shape())));
  dispatch(dtype, [&]<class T>(T) {
    std::ranges::transform(values, out.as<T>().begin(), [](double v) { return static_cast<T>(v); });
  });
  return out;
}

double Array::at(std::int64_t flat_index) const {
  if (flat_index < 0 || flat_index >= size())
    throw ValueError(fmt::format("[array] index {} is outside of {}", flat_index, to_string(spec_)));
  return dispatch(dtype(), [&]<class T>(T) {
    return static_cast<double>(as<T>()[static_cast<std::size_t>(flat_index)]);
  });
}

double Array::item() const {
  if (size() != 1)
    throw ShapeError(fmt::format("[array] item() needs one element, this is {}", to_string(spec_)));
  return at(0);
}

std::vector<double> Array::to_vector() const {
  return dispatch(dtype(), [&]<class T>(T) {
    auto values = as<T>();
    return std::vector<double>(values.begin(), values.end());
  });
}

Array Array::clone() const {
  Array out(spec_);
  std::memcpy(out.data(), data(), bytes());
  return out;
}

Array Array::cast(DType to) const {
  if (to == dtype()) return clone();
  Array out(to, shape());
  dispatch(dtype(), [&]<class From>(From) {
    dispatch(to, [&]<class To>(To) {
      std::ranges::transform(as<From>(), out.as<To>().begin(), [](From v) { return static_cast<To>(v); });
    });
  });
  return out;
}

Array Array::reshaped(Shape shape) const {
  if (numel(shape) != size())
    throw ShapeError(fmt::format("[array] cannot view {} as {}", to_string(spec_), to_string(shape)));
  Array out = *this;
  out.spec_.shape = std::move(shape);
  return out;
}

bool Array::same_bits(const Array& other) const {
  return spec_ == other.spec_ && std::memcmp(data(), other.data(), bytes()) == 0;
}

void Array::require(DType wanted) const {
  if (!defined()) throw ValueError("[array] this array holds no numbers");
  if (dtype() != wanted)
    throw DTypeError(fmt::format("[array] {} is read as {}; cast it first", to_string(spec_), name(wanted)));
}

double relative_error(const Array& a, const Array& b, double floor) {
  if (a.shape() != b.shape())
    throw ShapeError(fmt::format("[relative_error] {} against {}", to_string(a.spec()), to_string(b.spec())));
  double worst = 0, scale = floor;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double x = a.at(i), y = b.at(i);
    if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x - y));
    scale = std::max(scale, std::abs(y));
  }
  return worst / scale;
}

}  // namespace nestgrad

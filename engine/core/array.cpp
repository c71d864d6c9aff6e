#include "engine/core/array.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "engine/core/convert.h"
#include "engine/core/device_memory.h"

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

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
  for (std::int64_t extent : shape)
    if (__builtin_mul_overflow(n, extent, &n))
      throw ShapeError(fmt::format("[shape] {} has more elements than can be counted", to_string(shape)));
  return n;
}

void check_spec(std::string_view who, const Spec& spec) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 47;
  std::uint64_t bytes = size_of(spec.dtype);
  for (std::int64_t extent : spec.shape) {
    if (extent < 0) throw ShapeError(fmt::format("[{}] negative extent in {}", who, to_string(spec)));
    if (extent > 0 &&
        (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes) || bytes > kMost))
      throw ShapeError(fmt::format("[{}] {} is larger than any memory (2^47 bytes)", who, to_string(spec)));
  }
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

namespace {

std::shared_ptr<std::byte[]> allocated(const Spec& spec, std::size_t bytes, std::align_val_t alignment) {
  auto* raw = static_cast<std::byte*>(::operator new(bytes, alignment, std::nothrow));
  if (!raw)
    throw DeviceError(fmt::format(
        "[array] out of memory: the system has no {} MiB for {}. Use smaller shapes or batches, or give the plan a memory budget",
        bytes >> 20, to_string(spec)));
  return {raw, [alignment](std::byte* p) { ::operator delete(p, alignment); }};
}

// Large arrays (the arenas of plans, above all) begin at a huge page, and the system is asked for such pages:
// walking through them then needs far fewer translations of addresses. It may decline; nothing else changes.
constexpr std::size_t kLarge = std::size_t{4} << 20, kHugePage = std::size_t{2} << 20;
std::shared_ptr<std::byte[]> on_huge_pages(const Spec& spec, std::size_t bytes) {
  std::shared_ptr<std::byte[]> memory = allocated(spec, bytes, std::align_val_t{kHugePage});
#ifdef MADV_HUGEPAGE
  madvise(memory.get(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace

Array::Array(Spec spec, Device device) : spec_(std::move(spec)), device_(std::move(device)) {
  check_spec("array", spec_);
  const std::size_t bytes = std::max<std::size_t>(spec_.bytes(), 1);
  if (!device_.is_cpu()) {
    buffer_ = std::shared_ptr<std::byte[]>(device_.device_memory()->allocate(bytes),
                                           [on = device_](std::byte* p) { on.device_memory()->release(p); });
    return;
  }
  buffer_ = bytes < kLarge ? allocated(spec_, bytes, kAlignment) : on_huge_pages(spec_, bytes);
}

Array Array::to(const Device& device) const {
  if (!defined() || device == device_) return *this;
  Array out(spec_, device);
  copy(*this, out);
  return out;
}

Array Array::full(DType dtype, Shape shape, double value) {
  Array out(dtype, std::move(shape));
  dispatch(dtype, [&]<class T>(T) { std::ranges::fill(out.as<T>(), exactly<T>(value, "array")); });
  return out;
}

Array Array::of(const std::vector<double>& values, Shape shape, DType dtype) {
  Array out(dtype, std::move(shape));
  if (static_cast<std::int64_t>(values.size()) != out.size())
    throw ShapeError(
        fmt::format("[array] {} values given for shape {}", values.size(), to_string(out.shape())));
  dispatch(dtype, [&]<class T>(T) {
    std::ranges::transform(values, out.as<T>().begin(), [](double v) { return exactly<T>(v, "array"); });
  });
  return out;
}

double Array::at(std::int64_t flat_index) const {
  if (flat_index < 0 || flat_index >= size())
    throw ValueError(fmt::format("[array] index {} is outside of {}", flat_index, to_string(spec_)));
  if (!device_.is_cpu()) return to(Device::cpu()).at(flat_index);
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
  if (!device_.is_cpu()) return to(Device::cpu()).to_vector();
  return dispatch(dtype(), [&]<class T>(T) {
    auto values = as<T>();
    return std::vector<double>(values.begin(), values.end());
  });
}

void Array::require_numbers() const {
  if (!defined()) throw ValueError("[array] this array holds no numbers");
}

Array Array::clone() const {
  require_numbers();
  Array out(spec_, device_);
  copy(*this, out);
  return out;
}

Array Array::unshared() && { return buffer_.use_count() > 1 ? clone() : std::move(*this); }

Array Array::cast(DType wanted) const {
  require_numbers();
  if (!device_.is_cpu()) return to(Device::cpu()).cast(wanted);
  if (wanted == dtype()) return clone();
  Array out(wanted, shape());
  dispatch(dtype(), [&]<class From>(From) {
    dispatch(wanted, [&]<class To>(To) {
      std::ranges::transform(as<From>(), out.as<To>().begin(),
                             [](From v) { return converted<To>(v, "cast"); });
    });
  });
  return out;
}

Array Array::reshaped(Shape shape) const {
  require_numbers();
  check_spec("array", {dtype(), shape});
  if (std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 0; }) || numel(shape) != size())
    throw ShapeError(fmt::format("[array] cannot view {} as {}", to_string(spec_), to_string(shape)));
  Array out = *this;
  out.spec_.shape = std::move(shape);
  return out;
}

bool Array::same_bits(const Array& other) const {
  if (spec_ != other.spec_ || defined() != other.defined()) return false;
  if (!defined()) return true;
  const Array a = to(Device::cpu()), b = other.to(Device::cpu());
  return std::memcmp(a.data(), b.data(), bytes()) == 0;
}

void Array::require(DType wanted) const {
  require_numbers();
  if (dtype() != wanted)
    throw DTypeError(fmt::format("[array] {} is read as {}; cast it first", to_string(spec_), name(wanted)));
  if (!device_.is_cpu())
    throw DeviceError(
        fmt::format("[array] {} lies on {}, its elements are asked "
                    "for here; copy it with to(Device::cpu())",
                    to_string(spec_), device_.name()));
}

void copy(const Array& from, Array& to) {
  from.require_numbers(), to.require_numbers();
  if (from.spec() != to.spec())
    throw ShapeError(fmt::format("[copy] {} does not fit {}", to_string(from.spec()), to_string(to.spec())));
  const Device &source = from.device(), &target = to.device();
  if (source.is_cpu() && target.is_cpu()) std::memcpy(to.data(), from.data(), from.bytes());
  else if (source.is_cpu()) target.device_memory()->upload(from.data(), to.data(), from.bytes());
  else if (target.is_cpu()) source.device_memory()->download(from.data(), to.data(), from.bytes());
  else if (source == target) source.device_memory()->copy(from.data(), to.data(), from.bytes());
  else copy(from.to(Device::cpu()), to);
}

std::int64_t first_not_finite(const Array& a) {
  return dispatch(a.dtype(), [&]<class T>(T) -> std::int64_t {
    const auto all = a.as<T>();
    const auto bad = std::ranges::find_if(all, [](T v) { return !std::isfinite(static_cast<double>(v)); });
    return bad == all.end() ? -1 : bad - all.begin();
  });
}

double relative_error(const Array& a, const Array& b, double floor) {
  if (a.shape() != b.shape())
    throw ShapeError(fmt::format("[relative_error] {} against {}", to_string(a.spec()), to_string(b.spec())));
  if (!a.device().is_cpu() || !b.device().is_cpu())
    return relative_error(a.to(Device::cpu()), b.to(Device::cpu()), floor);
  double worst = 0, scale = floor;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double x = a.at(i), y = b.at(i);
    if (!std::isfinite(x) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x - y));
    scale = std::max(scale, std::abs(y));
  }
  return worst / scale;
}

}  // namespace nestgrad

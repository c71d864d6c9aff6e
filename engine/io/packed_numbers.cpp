#include "engine/io/packed_numbers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "engine/io/file.h"

namespace nestgrad {

namespace {

constexpr std::array<NumberFormat, 6> kFormats{{{"F64", "float64", 8, DType::f64},
                                                {"F32", "float32", 4, DType::f32},
                                                {"I32", "int32", 4, DType::i32},
                                                {"I64", "int64", 8, DType::i32},
                                                {"F16", "float16", 2, DType::f32},
                                                {"BF16", "bfloat16", 2, DType::f32}}};

const NumberFormat* named(std::string_view NumberFormat::*column, std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, column);
  return found == kFormats.end() ? nullptr : &*found;
}

// IEEE binary16 to binary32: every value has an exact counterpart; NaN payloads are kept.
std::uint32_t widen_f16(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half} >> 15 << 31;
  const std::uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
  if (exponent == 31) return sign | 0x7f800000u | fraction << 13;            // infinity, NaN
  if (exponent != 0) return sign | (exponent + 112) << 23 | fraction << 13;  // bias 15 becomes 127
  // Zero or denormal: fraction * 2^-24, which binary32 represents as a normal number.
  return sign | std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24f);
}

// bfloat16 is the upper half of binary32.
std::uint32_t widen_bf16(std::uint16_t upper) { return std::uint32_t{upper} << 16; }

}  // namespace

const NumberFormat* format_of_safetensors(std::string_view name) {
  return named(&NumberFormat::safetensors, name);
}
const NumberFormat* format_of_numpy(std::string_view name) { return named(&NumberFormat::numpy, name); }

bool is_any_array(const Shape& shape) {
  try {
    check_spec("file", {DType::f64, shape});
    return true;
  } catch (const ShapeError&) {
    return false;
  }
}

std::optional<std::int64_t> packed_bytes(const NumberFormat& format, const Shape& shape) {
  if (!is_any_array(shape)) return std::nullopt;
  return numel(shape) * static_cast<std::int64_t>(format.width);
}

std::optional<std::size_t> unpack_numbers(const NumberFormat& format, const std::byte* from, Array& out) {
  if (format.width == 8 && format.becomes == DType::i32) return narrow_to_i32(from, out.as<std::int32_t>());
  if (format.width == 2) {
    const auto widen = format.numpy == "float16" ? widen_f16 : widen_bf16;
    for (std::size_t i = 0; i < static_cast<std::size_t>(out.size()); ++i) {
      std::uint16_t narrow;
      std::memcpy(&narrow, from + 2 * i, 2);
      const std::uint32_t wide = widen(narrow);
      std::memcpy(out.data() + 4 * i, &wide, 4);  // as bits: a signalling NaN survives
    }
  } else if (out.bytes() != 0) {
    std::memcpy(out.data(), from, out.bytes());
  }
  return std::nullopt;
}

}  // namespace nestgrad

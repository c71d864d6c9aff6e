// How files store numbers, and what the numbers become here: shared by the readers of this folder.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "engine/core/array.h"

namespace nestgrad {

struct NumberFormat {
  std::string_view safetensors, numpy;  // its names in these formats
  std::size_t width;                    // bytes of one element in the file
  DType becomes;                        // f64, f32, i32: bit by bit; i64: i32; f16, bf16: f32 (exact)
};
// Null for a name that no format has.
const NumberFormat* format_of_safetensors(std::string_view name);
const NumberFormat* format_of_numpy(std::string_view name);

// Whether an array of eight-byte numbers can have these extents (check_spec): a reader that asks first can name the file.
bool is_any_array(const Shape& shape);

// Bytes that an array takes in the file; nothing where it cannot be one.
std::optional<std::int64_t> packed_bytes(const NumberFormat& format, const Shape& shape);

// Copies out.size() little-endian numbers (no alignment needed). Returns the index of the first i64 outside of
// i32, or nothing when all fit. out.dtype() is format.becomes.
std::optional<std::size_t> unpack_numbers(const NumberFormat& format, const std::byte* from, Array& out);

}  // namespace nestgrad

// Named arrays in one file, in the safetensors format (https://github.com/huggingface/safetensors):
//
//   8 bytes    N, the length of the header: unsigned, little-endian
//   N bytes    JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets": [begin, end]}, ..},
//              padded with spaces at the end
//   the rest   the numbers, row-major, little-endian; offsets count from here and leave no holes
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "engine/core/array.h"

namespace nestgrad {

struct SafeTensors {
  std::map<std::string, Array> tensors;
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::string> types;  // of what was read: as the file has it, "BF16"; never written
};

// Reads F32, F64 and I32 bit by bit; I64 becomes i32 (a value that does not fit is an error), F16 and BF16
// become f32 (exact). `what` names the bytes in error messages, usually a path. The bytes are not trusted:
// whatever they are, the result is a SafeTensors or an IoError of one line that says what is wrong, in which
// tensor or at which byte, and what to do.
SafeTensors parse_safetensors(std::span<const std::byte> bytes, const std::string& what);
SafeTensors read_safetensors(const std::string& path);

// The inverse of parse_safetensors. Equal contents give equal bytes: tensors lie in the order of element
// size, widest first so that each is aligned, then of name; the data begin at a multiple of 64 bytes. Throws
// IoError for an array without numbers, a tensor named "__metadata__", and text that is not UTF-8.
std::string format_safetensors(const SafeTensors& contents);

// Writes the same bytes to `path`, atomically (engine/io/file.h).
void write_safetensors(const std::string& path, const SafeTensors& contents);

}  // namespace nestgrad

// One array in a NumPy file (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html):
//
//   6 bytes    0x93 "NUMPY"
//   2 bytes    version: 1 0 or 2 0
//   2 or 4     N, the length of the header: unsigned, little-endian; 2 bytes in version 1, 4 in version 2
//   N bytes    a Python dictionary: {'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }, spaces, \n
//   the rest   the numbers, row-major
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "engine/core/array.h"

namespace nestgrad {

// Reads little-endian f4, f8 and i4 bit by bit; i8 becomes i32 (a value that does not fit is an error).
// `what` names the bytes in error messages, usually a path. The bytes are not trusted: whatever they are, the
// result is an Array or an IoError of one line that says what is wrong, where, and what to do.
Array parse_npy(std::span<const std::byte> bytes, const std::string& what);
Array read_npy(const std::string& path);

// Writes `array` as numpy.save does (version 1, data at a multiple of 64 bytes), atomically
// (engine/io/file.h). Throws IoError, also for an array without numbers.
void write_npy(const std::string& path, const Array& array);

}  // namespace nestgrad

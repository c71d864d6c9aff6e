// The files of the MNIST data set (http://yann.lecun.com/exdb/mnist, "THE IDX FILE FORMAT"), as they are or compressed
// by gzip:
//
//   2 bytes      0 0
//   1 byte       type of the numbers: 8, unsigned bytes, is read
//   1 byte       how many axes, 1 to 8
//   4 each       extents, big-endian, outermost first
//   the rest     the numbers, row-major
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "engine/core/array.h"

namespace nestgrad {

// The numbers, 0 to 255, as i32 of the file's shape. `what` names the bytes in error messages, usually a path. The
// bytes are not trusted: whatever they are, the result is an Array or an IoError of one line that says what is wrong
// and what to do.
Array parse_idx(std::span<const std::byte> bytes, const std::string& what);
Array read_idx(const std::string& path);

}  // namespace nestgrad

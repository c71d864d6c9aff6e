// An index, an extent or a node's id as the standard library's containers count. It is not negative.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nestgrad {

constexpr std::size_t uz(std::int64_t i) { return static_cast<std::size_t>(i); }

// Is whole == rows * columns, all positive? The product itself may not fit into 64 bits.
constexpr bool is_grid(std::int64_t whole, std::int64_t rows, std::int64_t columns) {
  return rows > 0 && columns > 0 && whole % rows == 0 && whole / rows == columns;
}

}  // namespace nestgrad

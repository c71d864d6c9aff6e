// An index, an extent or a node's id as the standard library's containers count. It is not negative.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nestgrad {

constexpr std::size_t uz(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace nestgrad

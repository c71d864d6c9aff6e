// Place: where a value of a program lies: (kind, offset), resolved against the frame in which the program
// runs, so that one compiled body can be run on any memory: another time step, another segment, another
// slice.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nestgrad {

struct Place {
  enum class Kind : std::uint8_t { none, arena, external, literal };
  Kind kind = Kind::none;
  std::size_t at = 0;  // arena: byte offset; external: index; literal: index into Program::literals
  bool operator==(const Place&) const = default;
};

}  // namespace nestgrad

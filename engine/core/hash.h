// FNV-1a, a hash of bytes that is the same on every machine and in every version.
//
//   fnv1a(bytes_of_b, fnv1a(bytes_of_a))   // of one after the other
#pragma once

#include <cstdint>

namespace nestgrad {

template <class Bytes>
constexpr std::uint64_t fnv1a(const Bytes& bytes, std::uint64_t hash = 0xcbf29ce484222325) {
  for (const auto byte : bytes) hash = (hash ^ static_cast<std::uint8_t>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace nestgrad

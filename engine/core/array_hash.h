// The hash of an array's numbers, wherever it is.
#pragma once

#include <span>

#include "engine/core/array.h"
#include "engine/core/hash.h"

namespace nestgrad {

// before: the hash of what came before, as fnv1a() takes it.
inline std::uint64_t hash_of(const Array& a, std::uint64_t before = fnv1a(std::span<const std::byte>())) {
  const Array here = a.to(Device::cpu());
  return fnv1a(std::span(static_cast<const std::byte*>(here.data()), here.bytes()), before);
}

}  // namespace nestgrad

// A scan whose steps are elementwise, as a prefix sum: an element goes through all steps by itself, so a thread takes one, or four that
// lie side by side, and keeps what is carried in registers. What the texts of such kernels (cuda/elements_source.h) are made of; V is
// what a thread has of a value: T, or Four<T>.
#pragma once

#include "cuda/scan_parts.cuh"
#include "cuda/scan_steps.cuh"

namespace nestgrad::cuda {

// From element e on. Four begin at a multiple of 16 bytes.
template <class V, class T>
__device__ V load_elements(const std::byte* from, int e) {
  const T* const x = reinterpret_cast<const T*>(from) + e;
  if constexpr (std::is_same_v<V, T>) return *x;
  else return load_four<true>(x);
}
template <class V, class T>
__device__ void store_elements(const V& x, std::byte* to, int e) {
  T* const y = reinterpret_cast<T*>(to) + e;
  if constexpr (std::is_same_v<V, T>) *y = x;
  else store_four<true>(x, y);
}

// What a carry begins with; it is the first that is kept.
template <class V, class T>
__device__ V first_of_carry(const StepAddresses<BaseOf>& addresses, const StepTableView& t,
                            const StepCarry& carry, const Stretch& steps, int e) {
  const V x =
      addresses.begins_with_zeros(carry, steps) ? V{} : load_elements<V, T>(addresses.begin(carry, steps), e);
  if (addresses.keeps(carry, steps))
    store_elements<V, T>(x, addresses.at(t.stack[carry.stack], steps.first), e);
  return x;
}

// What step i makes of it, where somebody needs it but the next step.
template <class V, class T>
__device__ void keep_carry(const StepAddresses<BaseOf>& addresses, const StepCarry& carry,
                           const Stretch& steps, int i, int time, int e, const V& x) {
  if (std::byte* const to = addresses.next_elsewhere(carry, steps, i, time)) store_elements<V, T>(x, to, e);
}

}  // namespace nestgrad::cuda

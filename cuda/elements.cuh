// A scan whose steps are elementwise, as a prefix sum: an element goes through all steps by itself, so a thread takes one, and keeps
// what is carried in registers. What the texts of such kernels (cuda/elements_source.h) are made of.
#pragma once

#include "cuda/scan_steps.cuh"

namespace nestgrad::cuda {

// Element e of a value that has one for each step.
template <class T>
__device__ T element_at(const ValueLine& line, int time, int e) {
  return reinterpret_cast<const T*>(line.at(time))[e];
}

// What a carry begins with; it is the first that is kept.
template <class T>
__device__ T first_of_carry(const StepAddresses<BaseOf>& addresses, const StepTableView& t,
                            const StepCarry& carry, const Stretch& steps, int e) {
  const T x = addresses.begins_with_zeros(carry, steps)
                  ? T(0)
                  : reinterpret_cast<const T*>(addresses.begin(carry, steps))[e];
  if (addresses.keeps(carry, steps))
    reinterpret_cast<T*>(addresses.at(t.stack[carry.stack], steps.first))[e] = x;
  return x;
}

// What step i makes of it, where somebody needs it but the next step.
template <class T>
__device__ void keep_carry(const StepAddresses<BaseOf>& addresses, const StepCarry& carry,
                           const Stretch& steps, int i, int time, int e, T x) {
  if (std::byte* const to = addresses.next_elsewhere(carry, steps, i, time)) reinterpret_cast<T*>(to)[e] = x;
}

}  // namespace nestgrad::cuda

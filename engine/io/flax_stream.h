// Named arrays in one file as JAX programs stream them (EasyLM's StreamingCheckpointer, which ttt-lm-jax has
// too). In msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md), one pair after the other:
//
//   [[part, part, ..], binary]   the parts of the array's name; in the binary, what flax.serialization.to_bytes
//                                makes of the array: an extension of type 1, in which there is
//   [[extent, ..], dtype, binary]   with NumPy's name of the dtype, and the numbers, row-major, little-endian
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "engine/core/array.h"

namespace nestgrad {

// The arrays whose names `wanted` takes; parts of a name are joined by '/'. The others are passed over: an
// optimiser's numbers are more than the model's, and may be of any type. float32, float64 and int32 are read
// bit by bit; int64 becomes i32, float16 and bfloat16 f32. `what` names the bytes in errors. The bytes are not
// trusted: whatever they are, the result is arrays or an IoError of one line that says what is wrong, where,
// and what to do; no more is allocated than the bytes hold.
std::map<std::string, Array> parse_flax_stream(std::span<const std::byte> bytes, const std::string& what,
                                               const std::function<bool(const std::string& name)>& wanted);

}  // namespace nestgrad

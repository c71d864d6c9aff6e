// Where the matrices of products and of linear systems begin for each member of its batch, under
// broadcasting.
#pragma once

#include "cuda/strided.h"
#include "engine/core/op.h"

namespace nestgrad::cuda {

// In elements; an operand that repeats has a stride of 0.
struct Batch {
  Strided a, b, out;
};

inline Batch batch_of(const OpCall& call) {
  const auto stride = [&](const Spec& operand, int axis) {
    const int own = axis - (call.out.rank() - operand.rank());
    if (own < 0 || operand.shape[static_cast<std::size_t>(own)] == 1) return std::int64_t{0};
    return strides_of(operand.shape)[static_cast<std::size_t>(own)];
  };
  Batch batch;
  for (int d = 0; d < call.out.rank() - 2; ++d)
    if (!append(call.out.shape[static_cast<std::size_t>(d)], {{batch.a, stride(call.in[0], d)},
                                                              {batch.b, stride(call.in[1], d)},
                                                              {batch.out, stride(call.out, d)}}))
      call.shape_error("more than 16 batch axes; reshape() some together");
  return batch;
}

}  // namespace nestgrad::cuda

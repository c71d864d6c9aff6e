// Which elements a sum or maximum over axes takes.
#pragma once

#include <algorithm>

#include "cuda/strided.h"
#include "engine/core/op.h"
#include "ops/attrs.h"

namespace nestgrad::cuda {

// Output i is made of the input elements kept.at(i) + reduced.at(0 .. terms).
struct Reduction {
  Strided kept, reduced;
  std::int64_t outputs = 1, terms = 1;
};

inline Reduction reduction_of(const OpCall& call) {
  Reduction out;
  const Shape &shape = call.in[0].shape, &axes = call.attrs.as<ReduceAttrs>().axes;
  const Shape strides = strides_of(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const bool is_reduced = std::ranges::find(axes, static_cast<std::int64_t>(d)) != axes.end();
    (is_reduced ? out.terms : out.outputs) *= shape[d];
    if (!append(shape[d], {{is_reduced ? out.reduced : out.kept, strides[d]}}))
      call.shape_error("more than 16 axes that lie apart; reshape() some together");
  }
  return out;
}

}  // namespace nestgrad::cuda

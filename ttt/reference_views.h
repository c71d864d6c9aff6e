// What a reference (ttt/reference.h) makes of its inputs: the views of the inner loop. Internal.
#pragma once

#include "ttt/reference.h"

namespace nestgrad::ttt {

using NamedTensors = std::map<std::string, Tensor>;

// Sizes of a sequence; q and v may differ where the policy and the start state allow it.
struct ReferenceShape : ReferenceSizes {
  ReferenceShape(const ReferenceSizes& sizes)
      : ReferenceSizes(sizes), queries(sizes.time), value_dim(sizes.dim) {}
  std::int64_t queries, value_dim;
};

Policy reference_policy(const System& system, const ReferenceSizes& sizes, const ReferenceOptions& options);
SystemSizes system_sizes(const ReferenceSizes& sizes, const Policy& policy, const ReferenceOptions& options);

// What the layer's projections leave: q, k, v, gates by their names and, of systems with position rates,
// `rate` and `position`.
std::vector<ReferenceTensor> raw_inputs(const System& system, const Policy& policy,
                                        const ReferenceShape& shape, DType dtype);
// The views that the layer makes of them.
Views views_from_raw(const System& system, const Policy& policy, const NamedTensors& raw,
                     const ReferenceOptions& options);
// The same with names: q, k, v, gates, `position`. And back.
NamedTensors named_views(const Views& views);
Views views_from(const NamedTensors& named);

// The views as inputs of their own; the text of each says what the layer makes them of.
std::vector<ReferenceTensor> effective_inputs(const System& system, const Policy& policy,
                                              const ReferenceShape& shape, const ReferenceOptions& options);

// "batch head token feature", of the views and what is shaped as they are; "place" of position rates.
std::string view_axes(const std::string& name);

}  // namespace nestgrad::ttt

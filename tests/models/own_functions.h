// What models have in common that tests write as a function of their own.
#pragma once

#include "models/language_model.h"
#include "ops/ops.h"

namespace nestgrad::testing {

inline constexpr std::int64_t kWidth = 6, kVocab = 11;

inline Tensor embedded(const Params& params, Tensor tokens) {
  return gather(params("embedding", {kVocab, kWidth}), tokens);
}

}  // namespace nestgrad::testing

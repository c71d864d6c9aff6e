// What classifiers answer.
#pragma once

#include <cstdint>

#include "engine/core/array.h"

namespace nestgrad::reproduce {

// How many labels i32 [..] are the class with the largest of f32 logits [.., classes], the first of equal ones.
std::int64_t right_answers(const Array& logits, const Array& labels);

}  // namespace nestgrad::reproduce

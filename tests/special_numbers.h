// Numbers that are none, for tests.
#pragma once

#include <limits>

namespace nestgrad::testing {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace nestgrad::testing

// What printing, reports and pictures write alike.
#pragma once

#include <string>

#include "engine/core/op.h"

namespace nestgrad {

// The attributes of a use of an op, for people: "axes=0,1". Empty if there is nothing to say.
std::string attributes_text(const Op& op, const Attrs& attrs);
// "sum[axes=0,1]"
std::string call_text(const Op& op, const Attrs& attrs);

}  // namespace nestgrad

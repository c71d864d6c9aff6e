// Rematerialization: what a scan keeps for the scans that read its values, its derivatives above all. A value
// that cheap ops give from others is computed again where it is read: its way through the memory costs more.
// Decided by a minimum cut.
#pragma once

#include "engine/lower.h"

namespace nestgrad {

Lowered rematerialize(const Lowered& from);

}  // namespace nestgrad

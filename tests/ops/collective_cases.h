// All collectives, on any devices.
#pragma once

#include <functional>

#include "engine/core/device.h"
#include "engine/processes/threads.h"

namespace nestgrad::testing {

// Each collective in a program of all ranks, whose plans run on device_of(rank), against one process that has everything: the loss, and
// gradients of squares of gradients up to order 3.
void check_collectives(RankThreads& ranks, const std::function<Device(int rank)>& device_of);

}  // namespace nestgrad::testing

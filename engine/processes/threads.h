// Processes that are threads of this one: all that several processes do, without MPI, under ThreadSanitizer too.
#pragma once

#include <functional>

#include "engine/processes/transport.h"

namespace nestgrad {

// Calls fn(transport) on `size` threads of their own, each with its own rank, and waits for them. Where one throws, the
// others' next exchange() with it throws ProcessError; the exception that came first is thrown on. fn may be called
// from several threads at once.
void run_as_processes(int size, const std::function<void(Transport& transport)>& fn,
                      std::chrono::milliseconds stall_limit = std::chrono::minutes(10));

}  // namespace nestgrad

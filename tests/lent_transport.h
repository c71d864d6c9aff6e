// The transport of a rank, as who shares it wants it.
#pragma once

#include <memory>

#include "engine/processes/transport.h"

namespace nestgrad::testing {

// For as long as run_as_processes() runs.
inline std::shared_ptr<Transport> lent(Transport& all) {
  return {&all, [](Transport*) {}};
}

}  // namespace nestgrad::testing

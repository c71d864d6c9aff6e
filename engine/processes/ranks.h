// What calls of a Transport say of others: is there such a rank?
#pragma once

#include "engine/processes/transport.h"

namespace nestgrad {

// ProcessError of messages to or from a rank that there is not, or from this process to itself.
void check_ranks(const Transport& all, std::span<const Transport::Send> out,
                 std::span<const Transport::Receive> in);

}  // namespace nestgrad

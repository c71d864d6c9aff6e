// A policy as one line that can be read back: "chunk=16,update=per-token,read=after-write".
#pragma once

#include <string_view>

#include "ttt/policy.h"

namespace nestgrad::ttt {

// The policy with the settings that `text` names, KEY=VALUE with commas between them; the others stay.
//   chunk=N (0: the whole sequence)   update=per-token|per-chunk   read=after-write|before-write
//   steps=N   average, ascent, query_is_key, partial_chunk_writes=true|false   trained=W1+W2 (all: every one)
//   meta=full|first-order|truncated   horizon=N
// ConfigError for an unknown key, one that is there twice, a value that is none of its, and a policy that makes no
// sense.
Policy overridden(Policy policy, std::string_view text);

// All of these settings, in that order: overridden(anything, settings_of(p)) is p, but for `carry`.
std::string settings_of(const Policy& policy);

}  // namespace nestgrad::ttt

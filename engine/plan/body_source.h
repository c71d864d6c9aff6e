// The C++ text of a loop's body: all that a step does, one instruction after the other, as a person would write it
// for its shapes. Groups of elementwise ops are as of engine/plan/cluster_source.h, products have extents that the
// compiler knows (Op::products), operands have fixed addresses in the step's memory. What has no text, or is so
// large that threads share it, is called: the kernel that the interpreter would call. The bits are the interpreter's.
#pragma once

#include <string>

#include "engine/plan/program.h"

namespace nestgrad {

// A step. arena, external: as of Frame; literals: where those of the program lie; call(context, i): has
// instruction i done.
using CompiledBody = void (*)(std::byte* arena, std::byte* const* external, const std::byte* const* literals,
                              void (*call)(void* context, int instruction), void* context);

// A function of type CompiledBody, its name being "$", after those that it needs. Empty: there is no such text, as
// every instruction would be a call, or the body is too long.
std::string body_source(const Program& body);

}  // namespace nestgrad

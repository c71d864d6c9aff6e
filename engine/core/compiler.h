// Ends the compilation by an old compiler with a line that says so, instead of an error somewhere in a header.
#pragma once

#if __cplusplus < 202002L || (defined(__clang__) ? __clang_major__ < 14 : defined(__GNUC__) && __GNUC__ < 11)
#error "nestgrad needs g++ 11 or clang 14, or a newer one, with -std=c++20"
#include <nestgrad/needs_a_newer_compiler>
#endif

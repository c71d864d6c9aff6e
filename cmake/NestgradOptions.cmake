# Compiler settings that every target of this project shares: instruction set, warnings, sanitizers.
add_library(nestgrad_options INTERFACE)

option(NESTGRAD_CCACHE "Compile through ccache when it is installed" ON)
find_program(NESTGRAD_CCACHE_PROGRAM ccache)
mark_as_advanced(NESTGRAD_CCACHE_PROGRAM)
if(NESTGRAD_CCACHE AND NESTGRAD_CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${NESTGRAD_CCACHE_PROGRAM})
  if(NESTGRAD_PCH OR NESTGRAD_TESTS)
    # Without the sloppiness ccache passes on whatever uses a precompiled header. Such a header remembers the text of
    # each file in it, comments too, and takes a file with another text for another file: "redefinition". So a header
    # is looked up by the texts of its files (depend mode), never by what the preprocessor leaves of them. The
    # namespace keeps away entries of caches that were filled before this was so.
    list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 CCACHE_NAMESPACE=nestgrad-depend)
  endif()
endif()

if(NESTGRAD_ARCH)
  target_compile_options(nestgrad_options INTERFACE -march=${NESTGRAD_ARCH})
endif()

# -ffp-contract=off: the same formula gives the same bits wherever the compiler puts it. Products and sums that
# should be fused are written as such.
target_compile_options(nestgrad_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -Wno-missing-field-initializers -ffp-contract=off)
if(NESTGRAD_WARNINGS_AS_ERRORS)
  target_compile_options(nestgrad_options INTERFACE -Werror)
endif()

if(NESTGRAD_SANITIZE)
  target_compile_options(nestgrad_options INTERFACE -fsanitize=${NESTGRAD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(NESTGRAD_SANITIZE MATCHES "address")  # what that sees too costs a quarter of a build
    target_compile_options(nestgrad_options INTERFACE -fno-sanitize=null,object-size,pointer-overflow)
  endif()
  target_link_options(nestgrad_options INTERFACE -fsanitize=${NESTGRAD_SANITIZE})
  target_compile_definitions(nestgrad_options INTERFACE NESTGRAD_SANITIZED=1)  # compilers have different words for it
  if(NESTGRAD_SANITIZE STREQUAL "thread")
    target_compile_definitions(nestgrad_options INTERFACE NESTGRAD_SANITIZED_THREADS=1)
  endif()
endif()
# Linked after nestgrad_options by what is no part of the library, and so has none of what takes time: it is compiled for a short
# build. UBSan watches nothing of it: it makes a build half as long again.
add_library(nestgrad_options_outside INTERFACE)
if(NESTGRAD_SANITIZE)
  target_compile_options(nestgrad_options_outside INTERFACE -O0 -fno-sanitize=undefined)
else()
  target_compile_options(nestgrad_options_outside INTERFACE $<$<CONFIG:Release>:-Og>)
endif()

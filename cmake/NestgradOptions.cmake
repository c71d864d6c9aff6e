# Compiler settings that every target of this project shares: instruction set, warnings, sanitizers.
add_library(nestgrad_options INTERFACE)

if(NESTGRAD_ARCH)
  target_compile_options(nestgrad_options INTERFACE -march=${NESTGRAD_ARCH})
endif()

# -ffp-contract=off: the same formula gives the same bits wherever the compiler puts it. Products and sums that
# should be fused are written as such.
target_compile_options(nestgrad_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wno-restrict -ffp-contract=off)
if(NESTGRAD_WARNINGS_AS_ERRORS)
  target_compile_options(nestgrad_options INTERFACE -Werror)
endif()

if(NESTGRAD_SANITIZE)
  target_compile_options(nestgrad_options INTERFACE -fsanitize=${NESTGRAD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(nestgrad_options INTERFACE -fsanitize=${NESTGRAD_SANITIZE})
endif()

# The files of ops/kernels/ are compiled once for every instruction set that the processor family has, each time into a
# namespace named after it; ops/kernels.cpp picks one when the program starts. NESTGRAD_KERNEL_SOURCES: what to compile,
# a small file for each, which names the set and includes the source.
option(NESTGRAD_AVX512 "On x86-64: kernels for AVX-512 as well" ON)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(NESTGRAD_INSTRUCTION_SETS scalar v3)
  if(NESTGRAD_AVX512)
    list(APPEND NESTGRAD_INSTRUCTION_SETS v4)
    set_source_files_properties(ops/kernels.cpp PROPERTIES COMPILE_DEFINITIONS NESTGRAD_AVX512=1)
  endif()
  set(NESTGRAD_FLAGS_scalar -march=x86-64)
  if(NOT NESTGRAD_SANITIZE)  # -O3 takes twice as long to compile, for processors of before 2013
    list(APPEND NESTGRAD_FLAGS_scalar -O2)
  endif()
  set(NESTGRAD_FLAGS_v3 -march=x86-64-v3)
  set(NESTGRAD_FLAGS_v4 -march=x86-64-v4)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(NESTGRAD_INSTRUCTION_SETS neon)
else()
  set(NESTGRAD_INSTRUCTION_SETS scalar)
endif()

file(GLOB NESTGRAD_KERNEL_FILES CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ops/kernels/*.cpp)
set(NESTGRAD_KERNEL_OPTIMISATION -O3)
if(NESTGRAD_SANITIZE)
  # What looks at every access beside AddressSanitizer would take ten times as long to compile.
  set(NESTGRAD_KERNEL_OPTIMISATION -O1 -fno-sanitize=null,alignment,object-size,pointer-overflow)
  # So would AddressSanitizer, if its checks were not calls.
  if(NESTGRAD_SANITIZE MATCHES "address")
    if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      list(APPEND NESTGRAD_KERNEL_OPTIMISATION -fsanitize-address-outline-instrumentation)
    else()
      list(APPEND NESTGRAD_KERNEL_OPTIMISATION --param=asan-instrumentation-with-call-threshold=0)
    endif()
  endif()
endif()
set(NESTGRAD_KERNEL_SOURCES "")
foreach(isa ${NESTGRAD_INSTRUCTION_SETS})
  foreach(file ${NESTGRAD_KERNEL_FILES})
    cmake_path(GET file FILENAME name)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/kernels/${isa}/${name})
    file(CONFIGURE OUTPUT ${source} CONTENT "#define NESTGRAD_ISA ${isa}\n#include \"${file}\"\n")
    # Square roots need not set errno. Kernels are optimised in every build, as they are most of what tests run; less so
    # under sanitizers, where it would take minutes.
    set_source_files_properties(${source} PROPERTIES
      COMPILE_OPTIONS "${NESTGRAD_KERNEL_OPTIMISATION};${NESTGRAD_FLAGS_${isa}};-fno-math-errno" SKIP_PRECOMPILE_HEADERS ON)
    list(APPEND NESTGRAD_KERNEL_SOURCES ${source})
  endforeach()
endforeach()

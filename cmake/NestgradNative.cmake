# The text of the headers that compiled loops begin with (engine/plan/native.h), as string literals of a source file,
# NESTGRAD_NATIVE_SOURCE. Also as a script: cmake -DNESTGRAD_NATIVE_SOURCE=FILE -P cmake/NestgradNative.cmake
if(NOT NESTGRAD_NATIVE_SOURCE)
  set(NESTGRAD_NATIVE_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/native_headers.cpp)
endif()
set(folder ${CMAKE_CURRENT_LIST_DIR}/..)
set(NESTGRAD_NATIVE_HEADERS numerics/isa numerics/fma numerics/number numerics/parts numerics/exponential
  numerics/logarithm numerics/error_function numerics/power numerics/trigonometric numerics/functions numerics/formulas
  numerics/pack numerics/lane_sum numerics/rows numerics/transpose kernels/some kernels/column_sum kernels/gemm_tile
  kernels/gemm_pack kernels/gemm_along kernels/fixed_product)
set(text "// The headers of ops/numerics and ops/kernels, without what they include of each other.\n\nextern const char* const nestgrad_native_headers[];\nextern const int nestgrad_native_header_count;\nconst char* const nestgrad_native_headers[] = {\n")
foreach(name ${NESTGRAD_NATIVE_HEADERS})
  set(path ${folder}/ops/${name}.h)
  file(READ ${path} header)
  if(name STREQUAL numerics/formulas)
    set(definitions ${folder}/ops/elementwise.def)
    file(READ ${definitions} rows)
    string(REPLACE "#include \"ops/elementwise.def\"\n" "${rows}" header "${header}")
  endif()
  string(REGEX REPLACE "#include \"ops/[^\n]*\n" "" header "${header}")
  string(REPLACE "#pragma once\n" "" header "${header}")
  # A literal for each: compilers need not take one of more than 64 KB.
  string(APPEND text "R\"header(${header})header\",\n")
endforeach()
if(NOT CMAKE_SCRIPT_MODE_FILE)  # configured again when one of them changes
  foreach(name ${NESTGRAD_NATIVE_HEADERS})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/ops/${name}.h)
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/ops/elementwise.def)
endif()
list(LENGTH NESTGRAD_NATIVE_HEADERS count)
string(APPEND text "};\nconst int nestgrad_native_header_count = ${count};\n")
file(CONFIGURE OUTPUT ${NESTGRAD_NATIVE_SOURCE} CONTENT "${text}" @ONLY)

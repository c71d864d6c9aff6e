# nestgrad_cuda_emulated: the CUDA backend, kernels and host code alike, compiled as C++ against the emulator's
# headers in place of the toolkit's. nestgrad_emulator_test_objects: the emulator's own tests.
file(GLOB NESTGRAD_EMULATOR CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda_emulator/*.cpp)
add_library(nestgrad_cuda_emulated OBJECT ${NESTGRAD_CUDA_SOURCES} ${PROJECT_SOURCE_DIR}/cuda/nccl.cpp ${NESTGRAD_EMULATOR})
set(NESTGRAD_EMULATED_KERNELS ${NESTGRAD_CUDA_SOURCES})
list(FILTER NESTGRAD_EMULATED_KERNELS INCLUDE REGEX "\\.cu$")
set_source_files_properties(${NESTGRAD_EMULATED_KERNELS} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
target_include_directories(nestgrad_cuda_emulated BEFORE PUBLIC ${PROJECT_SOURCE_DIR}/cuda_emulator/include)
target_include_directories(nestgrad_cuda_emulated PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(nestgrad_cuda_emulated PRIVATE nestgrad_options Eigen3::Eigen PUBLIC fmt::fmt)
# Kernels that are made of text while a program runs are compiled as these are, but without UBSan, which would take most of the time.
set(NESTGRAD_EMULATOR_FLAGS "")
if(NESTGRAD_SANITIZE)
  string(REGEX REPLACE ",?undefined" "" found_there "${NESTGRAD_SANITIZE}")
  if(found_there)
    set(NESTGRAD_EMULATOR_FLAGS -fsanitize=${found_there})
  endif()
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/cuda_emulator/nvrtc.cpp PROPERTIES COMPILE_DEFINITIONS
  "NESTGRAD_EMULATOR_COMPILER=\"${CMAKE_CXX_COMPILER}\";NESTGRAD_EMULATOR_ROOT=\"${PROJECT_SOURCE_DIR}\";NESTGRAD_EMULATOR_FLAGS=\"${NESTGRAD_EMULATOR_FLAGS}\"")

file(GLOB NESTGRAD_EMULATOR_TESTS CONFIGURE_DEPENDS cuda/emulator_*_test.cpp cuda/emulator_test.cpp)
nestgrad_keep_fourth(NESTGRAD_EMULATOR_TESTS)
add_library(nestgrad_emulator_test_objects OBJECT ${NESTGRAD_EMULATOR_TESTS})
target_include_directories(nestgrad_emulator_test_objects BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/cuda_emulator/include)
target_include_directories(nestgrad_emulator_test_objects PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(nestgrad_emulator_test_objects PRIVATE nestgrad_options nestgrad_options_outside doctest::doctest fmt::fmt)
nestgrad_unity_apart(nestgrad_emulator_test_objects ${NESTGRAD_EMULATOR_TESTS})

# Every CUDA thread is a fiber that the sanitizer knows; what switches between them must not be watched itself.
if(NESTGRAD_SANITIZE MATCHES "thread")
  set_source_files_properties(${NESTGRAD_EMULATOR} PROPERTIES COMPILE_OPTIONS "-fno-sanitize=thread")
  add_executable(emulator_race cuda/emulator_race.cpp ${NESTGRAD_EMULATOR})
  target_include_directories(emulator_race BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/cuda_emulator/include)
  target_include_directories(emulator_race PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(emulator_race PRIVATE nestgrad_options Eigen3::Eigen fmt::fmt)
  add_test(NAME "emulator: a kernel with all its barriers has no race" COMMAND emulator_race clean)
  foreach(mode barrier warp blocks)
    add_test(NAME "emulator: a planted race is reported: ${mode}" COMMAND emulator_race ${mode})
    set_tests_properties("emulator: a planted race is reported: ${mode}" PROPERTIES
      PASS_REGULAR_EXPRESSION "WARNING: ThreadSanitizer: data race" LABELS cuda-emulated)
  endforeach()
endif()

nestgrad_unity(nestgrad_cuda_emulated ${NESTGRAD_CUDA_SOURCES} ${PROJECT_SOURCE_DIR}/cuda/nccl.cpp ${NESTGRAD_EMULATOR})

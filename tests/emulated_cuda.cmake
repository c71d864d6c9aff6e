# nestgrad_cuda_emulated: the CUDA backend, kernels and host code alike, compiled as C++ against the emulator's
# headers in place of the toolkit's.
file(GLOB NESTGRAD_EMULATED_SOURCES CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/cuda/*.cu ${PROJECT_SOURCE_DIR}/cuda/*.cpp ${PROJECT_SOURCE_DIR}/cuda/emulator/*.cpp)
list(FILTER NESTGRAD_EMULATED_SOURCES EXCLUDE REGEX "/no_cuda\\.cpp$")
add_library(nestgrad_cuda_emulated OBJECT ${NESTGRAD_EMULATED_SOURCES})
set(NESTGRAD_EMULATED_KERNELS ${NESTGRAD_EMULATED_SOURCES})
list(FILTER NESTGRAD_EMULATED_KERNELS INCLUDE REGEX "\\.cu$")
set_source_files_properties(${NESTGRAD_EMULATED_KERNELS} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
target_include_directories(nestgrad_cuda_emulated BEFORE PUBLIC ${PROJECT_SOURCE_DIR}/cuda/emulator/include)
target_include_directories(nestgrad_cuda_emulated PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(nestgrad_cuda_emulated PRIVATE nestgrad_options Eigen3::Eigen PUBLIC fmt::fmt)

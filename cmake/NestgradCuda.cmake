# nestgrad_device: the object files behind Device::cuda, the CUDA backend or what stands in for it. Programs link
# them beside nestgrad_objects.
set(NESTGRAD_CUDA AUTO CACHE STRING "The CUDA backend: ON, OFF, or AUTO (where the CUDA toolkit is found)")
set_property(CACHE NESTGRAD_CUDA PROPERTY STRINGS AUTO ON OFF)
set(NESTGRAD_CUDA_ARCHITECTURES "" CACHE STRING "GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES; empty: 8.0, 9.0 and newer, and, if the toolkit knows them, 10.0 and 12.0")

# Other words for yes and no mean what they mean in every other option.
string(TOUPPER "${NESTGRAD_CUDA}" asked)
if(asked MATCHES "^(ON|1|TRUE|YES|Y)$")
  set(asked ON)
elseif(asked MATCHES "^(OFF|0|FALSE|NO|N|)$")
  set(asked OFF)
elseif(NOT asked STREQUAL "AUTO")
  message(FATAL_ERROR "NESTGRAD_CUDA is ${NESTGRAD_CUDA}; it may be ON, OFF or AUTO")
endif()

set(NESTGRAD_WITH_CUDA OFF)
if(NOT asked STREQUAL "OFF" AND NOT NESTGRAD_SANITIZE)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(CMAKE_CUDA_COMPILER nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  endif()
  if(CMAKE_CUDA_COMPILER)
    set(NESTGRAD_WITH_CUDA ON)
  elseif(asked STREQUAL "ON")
    message(FATAL_ERROR "NESTGRAD_CUDA is ON, but there is no nvcc; install the CUDA toolkit, or say where it is with CUDA_HOME or -DCMAKE_CUDA_COMPILER")
  endif()
endif()

file(GLOB NESTGRAD_CUDA_SOURCES CONFIGURE_DEPENDS cuda/*.cu cuda/*.cpp)
list(FILTER NESTGRAD_CUDA_SOURCES EXCLUDE REGEX "/(no_cuda|no_nccl|nccl|lazy_[a-z]+)\\.cpp$")

if(NESTGRAD_WITH_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES 80)  # of the compiler's own check alone
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25 does not know this of newer compilers, and would quietly compile for C++17.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  add_library(nestgrad_device OBJECT ${NESTGRAD_CUDA_SOURCES} cuda/lazy_cublas.cpp cuda/lazy_nvrtc.cpp)
  # NCCL carries bytes between the GPUs of several processes; its header comes with some toolkits, and as a package of its own.
  find_path(NESTGRAD_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NESTGRAD_NCCL_INCLUDE)
    target_sources(nestgrad_device PRIVATE cuda/nccl.cpp cuda/lazy_nccl.cpp)
    target_include_directories(nestgrad_device SYSTEM PRIVATE ${NESTGRAD_NCCL_INCLUDE})
    find_library(NESTGRAD_NCCL NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR})
    cmake_path(GET NESTGRAD_NCCL PARENT_PATH NESTGRAD_NCCL_FOLDER)
    set_source_files_properties(cuda/lazy_nccl.cpp PROPERTIES
      COMPILE_DEFINITIONS NESTGRAD_NCCL_FOLDER="${NESTGRAD_NCCL_FOLDER}")
  else()
    target_sources(nestgrad_device PRIVATE cuda/no_nccl.cpp)
  endif()
  message(STATUS "nestgrad: NCCL ${NESTGRAD_NCCL_INCLUDE}")
  # cuBLAS is opened when a program first needs it. Some toolkits come without it, where Python's packages have theirs.
  find_path(NESTGRAD_CUBLAS_INCLUDE cublas_v2.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NESTGRAD_CUBLAS NAMES cublas libcublas.so.${CUDAToolkit_VERSION_MAJOR} HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NOT NESTGRAD_CUBLAS_INCLUDE OR NOT NESTGRAD_CUBLAS)
    find_package(Python3 COMPONENTS Interpreter)
    if(Python3_FOUND)
      execute_process(COMMAND ${Python3_EXECUTABLE} -c "import glob, nvidia; print(';'.join(p for root in nvidia.__path__ for p in glob.glob(root + '/*')), end='')"
        OUTPUT_VARIABLE NESTGRAD_PYTHON_CUDA ERROR_QUIET)
    endif()
    find_path(NESTGRAD_CUBLAS_INCLUDE cublas_v2.h PATHS ${NESTGRAD_PYTHON_CUDA} PATH_SUFFIXES include NO_DEFAULT_PATH)
    find_library(NESTGRAD_CUBLAS NAMES libcublas.so.${CUDAToolkit_VERSION_MAJOR} PATHS ${NESTGRAD_PYTHON_CUDA} PATH_SUFFIXES lib NO_DEFAULT_PATH)
  endif()
  if(NOT NESTGRAD_CUBLAS_INCLUDE)
    message(FATAL_ERROR "the CUDA toolkit in ${CUDAToolkit_BIN_DIR} has no cublas_v2.h, nor has a Python package; install cuBLAS's headers, say where they are with -DNESTGRAD_CUBLAS_INCLUDE=FOLDER, or build with -DNESTGRAD_CUDA=OFF")
  endif()
  message(STATUS "nestgrad: cuBLAS ${NESTGRAD_CUBLAS_INCLUDE} ${NESTGRAD_CUBLAS}")
  set(NESTGRAD_CUBLAS_FOLDER "")
  if(NESTGRAD_CUBLAS)
    cmake_path(GET NESTGRAD_CUBLAS PARENT_PATH NESTGRAD_CUBLAS_FOLDER)
  endif()
  target_include_directories(nestgrad_device SYSTEM PRIVATE ${NESTGRAD_CUBLAS_INCLUDE})
  # So is NVRTC, which compiles kernels while a program runs.
  find_library(NESTGRAD_NVRTC NAMES nvrtc libnvrtc.so.${CUDAToolkit_VERSION_MAJOR} HINTS ${CUDAToolkit_LIBRARY_DIR}
    PATHS ${NESTGRAD_PYTHON_CUDA} PATH_SUFFIXES lib)
  set(NESTGRAD_NVRTC_FOLDER "")
  if(NESTGRAD_NVRTC)
    cmake_path(GET NESTGRAD_NVRTC PARENT_PATH NESTGRAD_NVRTC_FOLDER)
  endif()
  set_source_files_properties(cuda/lazy_nvrtc.cpp PROPERTIES
    COMPILE_DEFINITIONS NESTGRAD_NVRTC_FOLDER="${NESTGRAD_NVRTC_FOLDER}")
  set_source_files_properties(cuda/lazy_cublas.cpp PROPERTIES
    COMPILE_DEFINITIONS NESTGRAD_CUBLAS_FOLDER="${NESTGRAD_CUBLAS_FOLDER}")
  set(NESTGRAD_CUDA_TARGETS "${NESTGRAD_CUDA_ARCHITECTURES}")
  if(NOT NESTGRAD_CUDA_TARGETS)
    set(NESTGRAD_CUDA_TARGETS 80-real 90)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)  # machine code needs no driver as new as the toolkit
      set(NESTGRAD_CUDA_TARGETS 80-real 90-real 100-real 120)
    endif()
  endif()
  set_target_properties(nestgrad_device PROPERTIES
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY None
    CUDA_ARCHITECTURES "${NESTGRAD_CUDA_TARGETS}")
  # Without contraction, so that formulas have the bits that they have on the CPU; what should be fused is written as fma().
  target_compile_options(nestgrad_device PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wno-missing-field-initializers>
    "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Werror=all-warnings;-Xptxas=-warn-spills,-Werror;-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>")
  # Static, so that what is built here runs, and is linked with, where there is no toolkit.
  target_link_libraries(nestgrad_device PUBLIC CUDA::cudart_static ${CMAKE_DL_LIBS})
else()
  add_library(nestgrad_device OBJECT cuda/no_cuda.cpp)
  target_link_libraries(nestgrad_device PRIVATE nestgrad_options)
endif()
target_include_directories(nestgrad_device PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>)
target_link_libraries(nestgrad_device PUBLIC fmt::fmt)
message(STATUS "nestgrad: CUDA backend ${NESTGRAD_WITH_CUDA}")

# NESTGRAD_UNITY: nestgrad_unity(TARGET SOURCES..) has the target's .cpp files compiled together, those of each folder, but for the
# files that cmake/apart.txt names. What is not among the sources, as kernels, is compiled as ever.
option(NESTGRAD_UNITY "Compile the files of each folder together: a shorter clean build, in which changing one file builds many again" OFF)

function(nestgrad_unity target)
  if(NOT NESTGRAD_UNITY)
    return()
  endif()
  file(STRINGS ${PROJECT_SOURCE_DIR}/cmake/apart.txt apart REGEX "^[^#]")
  foreach(source ${ARGN})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    if(name MATCHES "\\.cpp$" AND NOT name IN_LIST apart)
      cmake_path(GET name PARENT_PATH folder)
      string(REPLACE "/" "_" folder ${folder})
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

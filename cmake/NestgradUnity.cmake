# NESTGRAD_UNITY: nestgrad_unity(TARGET SOURCES..) has the target's .cpp files compiled together, those of each folder, but for the
# files that cmake/apart.txt names and those with options of their own, which are set before this is called. What is not among the
# sources, as kernels, is compiled as ever.
option(NESTGRAD_UNITY "Compile the files of each folder together: a shorter clean build, in which changing one file builds many again" OFF)

# Folders whose code tests spend much of their time in. Under sanitizers all others are compiled without optimisation: that takes half
# the time, and tests are as fast.
set(NESTGRAD_BUSY_FOLDERS cuda cuda_emulator engine/core engine/plan engine/run ops)

function(nestgrad_unity target)
  if(NOT NESTGRAD_UNITY)
    return()
  endif()
  file(STRINGS ${PROJECT_SOURCE_DIR}/cmake/apart.txt apart REGEX "^[^#]")
  set(folders "")
  foreach(source ${ARGN})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(name MATCHES "\\.cpp$" AND NOT name IN_LIST apart AND NOT definitions AND NOT options)
      cmake_path(GET name PARENT_PATH folder)
      list(APPEND folders ${folder})
      string(APPEND includes_of_${folder} "#include \"${PROJECT_SOURCE_DIR}/${name}\"\n")
      set_source_files_properties(${source} PROPERTIES HEADER_FILE_ONLY ON)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    string(REPLACE "/" "_" file ${folder})
    set(together ${CMAKE_CURRENT_BINARY_DIR}/together/${target}/${file}.cpp)
    file(CONFIGURE OUTPUT ${together} CONTENT "${includes_of_${folder}}" @ONLY)
    target_sources(${target} PRIVATE ${together})
    # Names that hide names of another file, which has them for its own.
    set_source_files_properties(${together} PROPERTIES COMPILE_OPTIONS -Wno-shadow)
    if(NESTGRAD_SANITIZE AND NOT folder IN_LIST NESTGRAD_BUSY_FOLDERS)
      set_source_files_properties(${together} PROPERTIES COMPILE_OPTIONS "-Wno-shadow;-O0" SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

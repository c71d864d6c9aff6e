# Installs the library, its headers and a package file, so that `find_package(nestgrad)` works.
include(CMakePackageConfigHelpers)

install(TARGETS nestgrad EXPORT nestgradTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(NESTGRAD_WITH_CUDA)  # the runtime comes along: who links nestgrad needs no toolkit
  install(FILES $<TARGET_PROPERTY:CUDA::cudart_static,IMPORTED_LOCATION> DESTINATION ${CMAKE_INSTALL_LIBDIR}/nestgrad
    RENAME libcudart_static.a)
endif()

# What users include, with what that includes in turn. All other headers are the library's own.
file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR} ttt/learners/*.h models/vision/*.h)
list(APPEND headers nestgrad.h
  engine/core/random.h engine/core/threads.h engine/io/npy.h engine/io/safetensors.h engine/look/print.h engine/run/interpreter.h
  look/inspection.h engine/io/idx.h engine/io/png.h models/data.h models/images/corruptions.h models/images/glyphs.h models/images/invented.h
  models/images/labelled_images.h models/images/resized.h models/images/scenes.h models/partial_load.h models/sample.h models/trainer.h
  ops/attrs.h ops/table.h ttt/policy_text.h ttt/reference.h ttt/verification.h)
if(TARGET nestgrad_programs)
  install(TARGETS nestgrad_programs EXPORT nestgradTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  list(APPEND headers programs/programs.h)
endif()
# The programs, as nestgrad-train_lm and so on: their own names say too little outside of this tree.
if(NESTGRAD_EXAMPLES)
  foreach(name train_lm generate evaluate inspect learners reference verify loops_ahead)
    install(PROGRAMS $<TARGET_FILE:${name}> DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME nestgrad-${name})
  endforeach()
endif()
set(installed)
while(headers)
  list(POP_FRONT headers header)
  list(APPEND installed ${header})
  file(STRINGS ${header} includes REGEX "^#include \"")
  list(TRANSFORM includes REPLACE "^#include \"(.+)\".*" "\\1")
  list(APPEND headers ${includes})
  list(REMOVE_DUPLICATES headers)
  list(REMOVE_ITEM headers ${installed})
endwhile()
set(NESTGRAD_HEADERS_FOLDER ${CMAKE_CURRENT_BINARY_DIR}/installed_headers)
configure_file(cmake/InstallHeaders.cmake.in InstallHeaders.cmake @ONLY)
list(TRANSFORM installed PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE sources)
add_custom_command(OUTPUT ${NESTGRAD_HEADERS_FOLDER}.made COMMAND ${CMAKE_COMMAND} -P ${CMAKE_CURRENT_BINARY_DIR}/InstallHeaders.cmake
  DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/InstallHeaders.cmake ${sources} COMMENT "Headers as they are installed" VERBATIM)
add_custom_target(nestgrad_headers DEPENDS ${NESTGRAD_HEADERS_FOLDER}.made)
add_dependencies(nestgrad nestgrad_headers)  # whoever builds the library can install it
install(DIRECTORY ${NESTGRAD_HEADERS_FOLDER}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT nestgradTargets NAMESPACE nestgrad:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nestgrad)
configure_package_config_file(cmake/nestgradConfig.cmake.in nestgradConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nestgrad)
write_basic_package_version_file(nestgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# The same for pkg-config. Folders below the prefix are found from where the file lies, wherever it was installed to.
file(RELATIVE_PATH NESTGRAD_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" NESTGRAD_PC_PREFIX "\${pcfiledir}/${NESTGRAD_PC_PREFIX}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(NESTGRAD_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
endif()
foreach(folder LIBDIR INCLUDEDIR)
  set(NESTGRAD_PC_${folder} "\${prefix}/${CMAKE_INSTALL_${folder}}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${folder}}")
    set(NESTGRAD_PC_${folder} ${CMAKE_INSTALL_${folder}})
  endif()
endforeach()
set(NESTGRAD_PC_LIBRARIES)
if(NESTGRAD_OPTIONAL_LIBRARIES)
  string(APPEND NESTGRAD_PC_LIBRARIES " -lsentencepiece")
endif()
if(NESTGRAD_WITH_CUDA)
  string(APPEND NESTGRAD_PC_LIBRARIES " \${libdir}/nestgrad/libcudart_static.a -ldl -lrt")
endif()
configure_file(cmake/nestgrad.pc.in nestgrad.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/nestgrad.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/nestgradConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/nestgradConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nestgrad)

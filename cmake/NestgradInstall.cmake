# Installs the library, its headers and a package file, so that `find_package(nestgrad)` works.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS nestgrad EXPORT nestgradTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# What users include, with what that includes in turn. All other headers are the library's own.
file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR} ttt/learners/*.h)
list(APPEND headers nestgrad.h
  engine/core/random.h engine/core/threads.h engine/io/npy.h engine/io/safetensors.h engine/look/print.h engine/run/interpreter.h
  look/inspection.h models/data.h models/trainer.h
  ops/attrs.h ops/table.h)
set(installed)
while(headers)
  list(POP_FRONT headers header)
  list(APPEND installed ${header})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/nestgrad/${folder})
  file(STRINGS ${header} includes REGEX "^#include \"")
  list(TRANSFORM includes REPLACE "^#include \"(.+)\".*" "\\1")
  list(APPEND headers ${includes})
  list(REMOVE_DUPLICATES headers)
  list(REMOVE_ITEM headers ${installed})
endwhile()
install(EXPORT nestgradTargets NAMESPACE nestgrad:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nestgrad)
configure_package_config_file(cmake/nestgradConfig.cmake.in nestgradConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nestgrad)
write_basic_package_version_file(nestgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/nestgradConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/nestgradConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nestgrad)

# Installs the library, its headers and a package file, so that `find_package(nestgrad)` works.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS nestgrad EXPORT nestgradTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY engine ops autograd ttt models look DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/nestgrad
  FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
install(FILES nestgrad.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/nestgrad)
install(EXPORT nestgradTargets NAMESPACE nestgrad:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nestgrad)
configure_package_config_file(cmake/nestgradConfig.cmake.in nestgradConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nestgrad)
write_basic_package_version_file(nestgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/nestgradConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/nestgradConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nestgrad)

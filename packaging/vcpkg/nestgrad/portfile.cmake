# Builds the tree that this port stands in.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)
vcpkg_check_linkage(ONLY_STATIC_LIBRARY)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DNESTGRAD_TESTS=OFF -DNESTGRAD_BENCH=OFF -DNESTGRAD_EXAMPLES=OFF -DNESTGRAD_CUDA=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/nestgrad)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(WRITE "${CURRENT_PACKAGES_DIR}/share/${PORT}/usage"
"nestgrad provides CMake targets:

  find_package(nestgrad CONFIG REQUIRED)
  target_link_libraries(main PRIVATE nestgrad::nestgrad)   # nestgrad::programs for mains of your own
")

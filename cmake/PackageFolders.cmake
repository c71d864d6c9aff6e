# Run by cpack before it packs: everybody may enter the folders, whatever the umask of who makes the package. (CMake 3.25
# cuts CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS by the umask.)
file(CHMOD_RECURSE ${CPACK_TEMPORARY_DIRECTORY} DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

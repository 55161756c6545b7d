# Debian's libxxhash-dev ships no CMake package. Only its header is used (XXH_INLINE_ALL). Target: xxHash::headers.
include(FindPackageHandleStandardArgs)
find_path(xxHash_INCLUDE_DIR xxhash.h)
find_package_handle_standard_args(xxHash REQUIRED_VARS xxHash_INCLUDE_DIR)
if(xxHash_FOUND AND NOT TARGET xxHash::headers)
  add_library(xxHash::headers INTERFACE IMPORTED)
  set_target_properties(xxHash::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${xxHash_INCLUDE_DIR})
endif()
mark_as_advanced(xxHash_INCLUDE_DIR)

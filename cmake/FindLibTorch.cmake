# LibTorch's CPU half. Its own TorchConfig.cmake asks for a CUDA toolkit where the wheel was built with CUDA; libtorch_cpu and libc10 alone
# need none and start in 0.2 s with 119 MB, the whole of LibTorch in 0.36 s with 472 MB. Target: LibTorch::cpu.
#
# Looked for in, and in this order: Torch_DIR; CMAKE_PREFIX_PATH, as a variable or from the environment, with what Python's
# torch.utils.cmake_prefix_path says or the torch folder itself; beside an installed package, lib/troupe/torch (where the Debian package has
# it).
include(FindPackageHandleStandardArgs)
set(LibTorch_places ${CMAKE_PREFIX_PATH})
cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST LibTorch_environment)
list(APPEND LibTorch_places ${LibTorch_environment})
list(TRANSFORM LibTorch_places REPLACE "/share/cmake/*$" "")
if(Torch_DIR)
  cmake_path(SET LibTorch_first NORMALIZE "${Torch_DIR}/../../..")
  list(PREPEND LibTorch_places ${LibTorch_first})
endif()
list(APPEND LibTorch_places ${CMAKE_CURRENT_LIST_DIR}/../../troupe/torch)

find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/version.h HINTS ${LibTorch_places} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(LibTorch_cpu_LIBRARY torch_cpu HINTS ${LibTorch_places} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_c10_LIBRARY c10 HINTS ${LibTorch_places} PATH_SUFFIXES lib NO_DEFAULT_PATH)
if(LibTorch_INCLUDE_DIR)
  file(STRINGS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h LibTorch_lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX MATCHALL "[0-9]+" LibTorch_numbers "${LibTorch_lines}")
  list(JOIN LibTorch_numbers "." LibTorch_VERSION)
endif()
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "say where it is: -DCMAKE_PREFIX_PATH=<what Python's torch.utils.cmake_prefix_path says>, or \
-DTorch_DIR=<site-packages>/torch/share/cmake/Torch (pip install torch brings it)")
if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${LibTorch_cpu_LIBRARY};${LibTorch_c10_LIBRARY}")
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_cpu_LIBRARY LibTorch_c10_LIBRARY)

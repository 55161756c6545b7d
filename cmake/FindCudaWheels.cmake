# What a build with CUDA links beside LibTorch's CPU half: LibTorch's CUDA half, the CUDA runtime and NCCL, all as the PyPI wheels bring them.
# The toolkit, which nvcc and the headers come from, has libraries of the same names: those are never linked, since of two in a process the
# first one loaded wins. Target: CudaWheels::all.
#
# Looked for beside LibTorch (a complete `pip install torch`), and in CUDA_WHEELS_DIR: the folder `nvidia` of another site-packages.
include(FindPackageHandleStandardArgs)
cmake_path(GET LibTorch_cpu_LIBRARY PARENT_PATH CudaWheels_torch)
cmake_path(SET CudaWheels_beside NORMALIZE "${CudaWheels_torch}/../../nvidia")
set(CudaWheels_roots ${CUDA_WHEELS_DIR} ${CudaWheels_beside})

find_library(CudaWheels_torch_LIBRARY torch_cuda HINTS ${CudaWheels_torch} NO_DEFAULT_PATH)
find_library(CudaWheels_c10_LIBRARY c10_cuda HINTS ${CudaWheels_torch} NO_DEFAULT_PATH)
# The wheels have no lib*.so links, so whole names.
find_file(CudaWheels_cudart_LIBRARY libcudart.so.13 HINTS ${CudaWheels_roots} PATH_SUFFIXES cu13/lib NO_DEFAULT_PATH)
find_file(CudaWheels_nccl_LIBRARY libnccl.so.2 HINTS ${CudaWheels_roots} PATH_SUFFIXES nccl/lib NO_DEFAULT_PATH)
find_path(CudaWheels_nccl_INCLUDE_DIR nccl.h HINTS ${CudaWheels_roots} PATH_SUFFIXES nccl/include NO_DEFAULT_PATH)
if(CudaWheels_nccl_INCLUDE_DIR)
  file(STRINGS ${CudaWheels_nccl_INCLUDE_DIR}/nccl.h CudaWheels_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX MATCHALL "[0-9]+" CudaWheels_numbers "${CudaWheels_lines}")
  list(JOIN CudaWheels_numbers "." CudaWheels_VERSION)
endif()
find_package_handle_standard_args(CudaWheels
  REQUIRED_VARS CudaWheels_torch_LIBRARY CudaWheels_c10_LIBRARY CudaWheels_cudart_LIBRARY CudaWheels_nccl_LIBRARY CudaWheels_nccl_INCLUDE_DIR
  VERSION_VAR CudaWheels_VERSION
  REASON_FAILURE_MESSAGE "`./dev build cuda` installs them, or say where they are: -DCUDA_WHEELS_DIR=<site-packages>/nvidia")

if(CudaWheels_FOUND AND NOT TARGET CudaWheels::all)
  # libtorch_cuda asks for a dozen libraries of these folders. A path in the program that is also searched for what its libraries need is
  # called RPATH; linkers write the newer RUNPATH, which is not, unless told otherwise.
  set(CudaWheels_paths "")
  foreach(root IN LISTS CudaWheels_roots)
    file(GLOB folders ${root}/*/lib)
    foreach(folder IN LISTS folders)
      list(APPEND CudaWheels_paths "LINKER:-rpath,${folder}")
    endforeach()
  endforeach()
  add_library(CudaWheels::all INTERFACE IMPORTED)
  set_target_properties(CudaWheels::all PROPERTIES
    # No symbol of libtorch_cuda is asked for by name: what it does it registers as it is loaded.
    INTERFACE_LINK_LIBRARIES
      "-Wl,--push-state,--no-as-needed;${CudaWheels_torch_LIBRARY};-Wl,--pop-state;${CudaWheels_c10_LIBRARY};${CudaWheels_cudart_LIBRARY};${CudaWheels_nccl_LIBRARY}"
    INTERFACE_LINK_OPTIONS "LINKER:--disable-new-dtags;${CudaWheels_paths}")
endif()
mark_as_advanced(CudaWheels_torch_LIBRARY CudaWheels_c10_LIBRARY CudaWheels_cudart_LIBRARY CudaWheels_nccl_LIBRARY CudaWheels_nccl_INCLUDE_DIR)

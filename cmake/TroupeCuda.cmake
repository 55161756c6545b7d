# TROUPE_CUDA: nvcc for the one .cu file, and the wheels to link. The headers of CUDA and NCCL are seen by the files that need them alone
# (tests/layers/include_arrows.py holds that), so that all others compile as in the CPU build, and ccache has them.
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # the wheel's, not the toolkit's static one
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 90-real 100-real 120)  # those of the LibTorch wheel
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "TROUPE_CUDA: no nvcc; install CUDA toolkit 13.0, or say where it is: CUDACXX=<toolkit>/bin/nvcc")
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER_VERSION MATCHES "^13\\.")
  message(FATAL_ERROR "TROUPE_CUDA: nvcc is ${CMAKE_CUDA_COMPILER_VERSION}, LibTorch's wheel is of CUDA 13; say where that toolkit is: CUDACXX=<toolkit>/bin/nvcc")
endif()
if(NOT CUDA_WHEELS_DIR)
  file(GLOB CUDA_WHEELS_DIR ${PROJECT_SOURCE_DIR}/.venv-cuda/lib/python3*/site-packages/nvidia)
endif()
find_package(CudaWheels 2.28 REQUIRED)

# troupe_cuda_sources(TARGET CXX FILES.. CUDA FILES..): C++ files that see the headers of CUDA and NCCL, and .cu files, which see nothing of
# LibTorch.
function(troupe_cuda_sources target)
  cmake_parse_arguments(ARG "" "" "CXX;CUDA" ${ARGN})
  add_library(${target}_cuda OBJECT ${ARG_CXX})
  target_include_directories(${target}_cuda PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(${target}_cuda SYSTEM PRIVATE ${CudaWheels_nccl_INCLUDE_DIR} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_link_libraries(${target}_cuda PRIVATE LibTorch::cpu troupe_flags)
  target_compile_features(${target}_cuda PRIVATE cxx_std_20)
  add_library(${target}_kernels OBJECT ${ARG_CUDA})
  target_include_directories(${target}_kernels PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(${target}_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_cuda> $<TARGET_OBJECTS:${target}_kernels>)
endfunction()

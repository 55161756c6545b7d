# LibTorch from the PyPI wheel in .venv, unless the caller says where it is. The wheel's own RPATH finds the CUDA runtime that
# libtorch_cpu asks for.
find_package(LibTorch QUIET)
if(NOT LibTorch_FOUND)
  find_program(TROUPE_PYTHON NAMES python3 HINTS ${PROJECT_SOURCE_DIR}/.venv/bin $ENV{VIRTUAL_ENV}/bin NO_DEFAULT_PATH)
  find_program(TROUPE_PYTHON NAMES python3)
  # Not torch.utils.cmake_prefix_path: importing torch takes seconds, and all of its wheels.
  execute_process(
    COMMAND ${TROUPE_PYTHON} -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
    OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "LibTorch not found: ./dev setup installs it, or pass -DTorch_DIR=<site-packages>/torch/share/cmake/Torch")
  endif()
  set(Torch_DIR ${torch_folder}/share/cmake/Torch CACHE PATH "The folder of TorchConfig.cmake, in LibTorch's share/cmake/Torch" FORCE)
  find_package(LibTorch REQUIRED)
endif()

# One precompiled header for the files that see all of LibTorch: 25 s a file without. GCC works at its pending templates for 5 s in every
# file that has it, even an empty one: what sees no more of LibTorch than ATen/core/Tensor.h and single operators is PLAIN, without it.
file(WRITE ${CMAKE_BINARY_DIR}/troupe_pch.cpp "")
add_library(troupe_pch OBJECT ${CMAKE_BINARY_DIR}/troupe_pch.cpp)
target_compile_features(troupe_pch PUBLIC cxx_std_20)
target_link_libraries(troupe_pch PRIVATE LibTorch::cpu troupe_flags)
target_precompile_headers(troupe_pch PRIVATE <torch/torch.h> <caf/all.hpp> <algorithm> <atomic> <chrono> <condition_variable>
  <cstdint> <filesystem> <functional> <map> <memory> <mutex> <optional> <span> <string> <string_view> <thread> <vector>)

# LibTorch from the PyPI wheel. The CPU build links libtorch_cpu and libc10 only: it starts in 0.2 s with 119 MB, the whole of LibTorch
# in 0.36 s with 472 MB, and it needs no CUDA toolkit. The wheel's own RPATH finds the CUDA runtime that libtorch_cpu asks for.
if(NOT TROUPE_TORCH_DIR)
  find_program(TROUPE_PYTHON NAMES python3 HINTS ${PROJECT_SOURCE_DIR}/.venv/bin $ENV{VIRTUAL_ENV}/bin NO_DEFAULT_PATH)
  find_program(TROUPE_PYTHON NAMES python3)
  execute_process(
    COMMAND ${TROUPE_PYTHON} -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
    OUTPUT_VARIABLE TROUPE_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "LibTorch not found: ./dev setup installs it, or pass -DTROUPE_TORCH_DIR=<site-packages>/torch")
  endif()
  set(TROUPE_TORCH_DIR ${TROUPE_TORCH_DIR} CACHE PATH "The torch folder of the PyPI wheel")
endif()
add_library(troupe_torch INTERFACE)
target_include_directories(troupe_torch SYSTEM INTERFACE ${TROUPE_TORCH_DIR}/include ${TROUPE_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(troupe_torch INTERFACE ${TROUPE_TORCH_DIR}/lib/libtorch_cpu.so ${TROUPE_TORCH_DIR}/lib/libc10.so)
list(APPEND CMAKE_BUILD_RPATH ${TROUPE_TORCH_DIR}/lib)

# One precompiled header for every file that sees LibTorch or CAF: 25 s a file without it.
file(WRITE ${CMAKE_BINARY_DIR}/troupe_pch.cpp "")
add_library(troupe_pch OBJECT ${CMAKE_BINARY_DIR}/troupe_pch.cpp)
target_compile_features(troupe_pch PUBLIC cxx_std_20)
target_link_libraries(troupe_pch PRIVATE troupe_torch troupe_flags)
target_precompile_headers(troupe_pch PRIVATE <torch/torch.h> <caf/all.hpp> <algorithm> <atomic> <chrono> <condition_variable>
  <cstdint> <filesystem> <functional> <map> <memory> <mutex> <optional> <span> <string> <string_view> <thread> <vector>)

#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tensor_io/device/accelerator.hpp"

namespace troupe::test {

/// What says that nothing was tested, loudly; the exit status is what ctest and check.py take for "not run".
[[noreturn]] inline void not_run(const std::string& why) {
  std::printf("NOT RUN: %s\n", why.c_str());
  std::fprintf(stderr, "NOT RUN: %s\n", why.c_str());
  std::fflush(nullptr);
  std::_Exit(77);
}

inline void need_devices(int count) {
  auto* cuda = accelerator();
  const int there = cuda == nullptr ? 0 : cuda->device_count();
  if (there == 0)
    not_run("no GPU here (" + (cuda == nullptr ? std::string("built without CUDA") : cuda->problem()) + ")");
  if (there < count) not_run("needs " + std::to_string(count) + " GPUs, this machine has " + std::to_string(there));
}

}  // namespace troupe::test

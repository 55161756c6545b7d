// troupe checkpoint ls|inspect|verify|convert: a program of its own, because it needs LibTorch and `troupe` does not.
#include <cstdio>

#include "launch/command/checkpoint_tool.hpp"
#include "tensor_io/base/error.hpp"

int main(int argc, char** argv) {
  try {
    return troupe::checkpoint_command({argv + 1, argv + argc});
  } catch (const troupe::Error& error) {
    std::fprintf(stderr, "troupe: %s\n", error.what());
    return troupe::exit_code(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "troupe: %s\n", error.what());
    return troupe::exit_code(troupe::ErrorCode::internal);
  }
}

#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// How the program starts.
struct LaunchOptions {
  std::int64_t ranks = 1;  ///< ranks inside this process: a simulated cluster, for tests
  std::string chaos;       ///< what hurts them, see parse_chaos; empty: nothing does
  std::int64_t threads =
      0;  ///< LibTorch's threads per rank; 0: one where ranks share the machine, LibTorch's default for a rank alone
};

}  // namespace troupe

#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// The part of the config that chooses how ranks exchange tensors.
struct CommunicatorSettings {
  std::string backend = "auto";    ///< auto, shm, gloo, hierarchical, nccl
  double collective_timeout = 60;  ///< seconds that one collective may wait for the others
};

}  // namespace troupe

#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// The part of the config that chooses how ranks exchange tensors.
struct CommunicatorSettings {
  std::string backend = "auto";    ///< auto, shm, gloo, hierarchical, nccl, or one of register_communicator
  std::string device = "auto";     ///< auto, cpu, cuda, cuda:N: the place of a rank's model, gradients and batches
  bool share_device = false;       ///< several ranks on one GPU, for tests
  bool tf32 = false;               ///< f32 matrix products of a GPU round their factors to 10 bits
  bool cudnn_benchmark = false;    ///< cuDNN tries its algorithms on each new shape, and takes the fastest
  double collective_timeout = 60;  ///< seconds that one collective may wait for the others
};

}  // namespace troupe

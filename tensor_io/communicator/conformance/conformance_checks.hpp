#pragma once
#include <ATen/core/Tensor.h>

#include <semaphore>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/conformance/communicator_conformance.hpp"

namespace troupe::conformance {

/// One group of ranks under one check; its ranks share it.
struct ConformanceRun {
  const CommunicatorConformanceOptions& options;
  int world_size;
  std::vector<at::Tensor> kept = std::vector<at::Tensor>(static_cast<std::size_t>(world_size));  ///< by rank
  std::counting_semaphore<> fast_ranks_done{0};
};

struct ConformanceCheck {
  const char* name;
  const char* claim;
  std::vector<int> worlds;  ///< group sizes
  bool own_worlds;          ///< only these make sense: not those that a user asks for
  void (*body)(ConformanceRun& run, Communicator& communicator);  ///< on each rank's thread; throws what does not hold
  void (*after)(ConformanceRun& run) = nullptr;                   ///< when the communicators are gone
  std::chrono::milliseconds timeout{0};                           ///< of the group; 0: the user's
};

const std::vector<ConformanceCheck>& conformance_checks();

}  // namespace troupe::conformance

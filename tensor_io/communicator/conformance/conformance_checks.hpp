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
  std::vector<int> worlds;                                        ///< group sizes
  bool own_worlds;                                                ///< only these make sense: not the user's
  void (*body)(ConformanceRun& run, Communicator& communicator);  ///< on each rank's thread; throws the broken claim
  void (*after)(ConformanceRun& run) = nullptr;                   ///< when the communicators are gone
  std::chrono::milliseconds timeout{0};                           ///< of the group; 0: the user's
};

/// All, in the order of the suite.
const std::vector<ConformanceCheck>& conformance_checks();

void check_all_reduce(ConformanceRun& run, Communicator& communicator);
void check_many_chunks(ConformanceRun& run, Communicator& communicator);
void check_all_reduce_update(ConformanceRun& run, Communicator& communicator);
void check_mixed_memory(ConformanceRun& run, Communicator& communicator);
void check_reduce_scatter(ConformanceRun& run, Communicator& communicator);
void check_reduce(ConformanceRun& run, Communicator& communicator);
void check_sums(ConformanceRun& run, Communicator& communicator);
void check_averages(ConformanceRun& run, Communicator& communicator);
void check_nan(ConformanceRun& run, Communicator& communicator);
void check_gathers(ConformanceRun& run, Communicator& communicator);
void check_all_gather_into_allocated(ConformanceRun& run, Communicator& communicator);
void check_send_recv(ConformanceRun& run, Communicator& communicator);
void check_byte_strings(ConformanceRun& run, Communicator& communicator);
void check_split(ConformanceRun& run, Communicator& communicator);
void check_slow_group(ConformanceRun& run, Communicator& communicator);
void check_ledger(ConformanceRun& run, Communicator& communicator);
void check_allocate(ConformanceRun& run, Communicator& communicator);
void allocated_memory_stays(ConformanceRun& run);
void check_allocate_shared(ConformanceRun& run, Communicator& communicator);
void shared_memory_stays(ConformanceRun& run);
void check_deadline(ConformanceRun& run, Communicator& communicator);
void check_abort(ConformanceRun& run, Communicator& communicator);

}  // namespace troupe::conformance

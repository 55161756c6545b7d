#pragma once
#include <functional>

#include "launch/rank_system.hpp"

namespace troupe {

/// A simulated cluster: N ranks as threads of this process, each with its own actors and lanes, under one coordinator; the numerics are
/// those of N processes. `body` runs on each rank's thread; a rank that ends with an exception is told to `on_failure` (any thread, one at
/// a time). Returns when all ranks have ended. `options` serves as the model of each rank's; rank, coordinator and rendezvous are filled
/// in.
void simulate(caf::actor_system& system, int world_size, const RankSystemOptions& options, const std::function<void(RankSystem&)>& body,
              const std::function<void(int rank, const ErrorReport&)>& on_failure);

}  // namespace troupe

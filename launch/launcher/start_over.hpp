#pragma once
#include <functional>
#include <optional>

#include "actors/coordinator/coordinator.hpp"

namespace troupe {

/// The end of a job, or of one of its lives.
struct LaunchOutcome {
  int code = 0;
  std::optional<ErrorReport> state_lost;  ///< why it may only begin anew from a checkpoint
};

/// Runs a job, and, if it has lost its state, again from its last checkpoint: as often as a slot may restart. `run`
/// gets the number of times that the job has begun anew. Returns the last life's exit code.
int run_until_kept(const RecoveryOptions& recovery, const std::function<LaunchOutcome(int starts_over)>& run);

}  // namespace troupe

#pragma once
#include <cstdint>
#include <vector>

#include "actors/compute/compute_core.hpp"
#include "actors/compute/state_healing.hpp"
#include "actors/step/step_report.hpp"
#include "actors/step/vote.hpp"

namespace troupe {

/// Compares the replicas every `verify_every` steps, and handles those that differ (on_divergence). Compute's
/// thread.
class ReplicaCheck {
 public:
  ReplicaCheck(ComputeCore& core, StateHealing& healing) : core_(core), healing_(healing) {}

  /// In the step under way.
  bool is_due() const;
  /// For this rank's vote; 0: it is not due.
  std::uint64_t parameter_hash_if_due() const;
  /// Collective if the votes' hashes differ: heals the replicas that differ, says so in the report, and returns true.
  /// Throws Error(mismatch) if on_divergence or the lack of a majority forbids that.
  bool heal_diverged(const std::vector<Vote>& votes, Optimizer& optimizer, StepReport& report);

 private:
  NamedTensors parameters() const;

  ComputeCore& core_;
  StateHealing& healing_;
};

}  // namespace troupe

#pragma once
#include <cstdint>
#include <vector>

#include "actors/compute/compute_core.hpp"
#include "actors/compute/state_healing.hpp"
#include "actors/step/step_report.hpp"
#include "actors/step/vote.hpp"

namespace troupe {

/// Whether the replicas are still equal, every `verify_every` steps, and what becomes of one that is not
/// (on_divergence). Compute's thread.
class ReplicaCheck {
 public:
  ReplicaCheck(ComputeCore& core, StateHealing& healing) : core_(core), healing_(healing) {}

  /// In the step under way.
  bool is_due() const;
  /// For this rank's vote; 0: it is not due.
  std::uint64_t parameter_hash_if_due() const;
  /// Collective where the votes' hashes differ: heals those that differ, and says so in the report; true then. Throws
  /// Error(mismatch) where that is not to be.
  bool heal_diverged(const std::vector<Vote>& votes, Optimizer& optimizer, StepReport& report);

 private:
  NamedTensors parameters() const;

  ComputeCore& core_;
  StateHealing& healing_;
};

}  // namespace troupe

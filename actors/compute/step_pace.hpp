#pragma once
#include <vector>

#include "actors/compute/compute_core.hpp"
#include "actors/step/step_report.hpp"
#include "actors/step/vote.hpp"
#include "actors/stragglers/batch_split.hpp"
#include "actors/stragglers/straggler.hpp"

namespace troupe {

/// Finds slow ranks, and splits a batch by their pace. Both follow from the times in the votes, so that all ranks see
/// the same. Compute's thread.
class StepPace {
 public:
  explicit StepPace(const ComputeCore& core) : core_(core) {}

  /// As Compute::split_batches.
  void split_batches(std::int64_t samples, int ranks);
  const std::vector<std::int64_t>& batch_split() const noexcept { return split_.by_rank(); }
  /// A generation begins.
  void reset();
  void watch(const std::vector<Vote>& votes, StepReport& report);

 private:
  const ComputeCore& core_;
  StragglerWatch watch_;
  BatchSplit split_;
};

}  // namespace troupe

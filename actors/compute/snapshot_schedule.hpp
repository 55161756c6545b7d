#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "actors/compute/compute_core.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// Decides when a strategy that keeps snapshots takes one (snapshot_every), and what of the step goes back with it.
/// Compute's thread.
class SnapshotSchedule {
 public:
  explicit SnapshotSchedule(ComputeCore& core) : core_(core) {}

  /// Every `snapshot_every` steps, and at the start of a generation: the older copies belong to other shards, and some
  /// died with their ranks. Collective. `in_step`: micro-batches of the step have been run.
  void take_if_due(Optimizer& optimizer, bool in_step);
  /// Before these members leave: the others get what only these hold, and this rank has parted then. Collective. False:
  /// the strategy's job can't go on without them.
  bool hand_over(Optimizer& optimizer, const std::vector<int>& leaving);
  /// In a new generation: true if all ranks have gone back to a snapshot, and the step is another one.
  bool went_back();

 private:
  std::string note() const;

  ComputeCore& core_;
  std::uint64_t generation_ = 0;  // of the last snapshot that has ended
};

}  // namespace troupe

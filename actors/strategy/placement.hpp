#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// The part of the data that a rank trains on.
struct DataShard {
  int index = 0, count = 1;
};

/// Ranks that hold the same part of the state: they heal a newcomer among them.
struct ReplicaGroup {
  std::shared_ptr<Communicator> communicator;  ///< over the members
  std::vector<int> members;                    ///< ranks, by their rank in the communicator
};

/// Capability of a Strategy whose ranks have different places: some train on the same samples, or hold different parts
/// of the state. Compute's thread.
class Placement {
 public:
  virtual DataShard data_shard() const = 0;
  /// False: another rank counts the same samples and their loss.
  virtual bool counts_samples() const = 0;
  /// Empty: all are alike, or a lost rank's part comes back in another way.
  virtual std::optional<ReplicaGroup> replica_group() const = 0;

 protected:
  ~Placement() = default;
};

}  // namespace troupe

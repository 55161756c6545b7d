#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// Members leave between two steps.
struct Parting {
  std::vector<int> leaving;  ///< ranks of this generation
  std::uint64_t generation = 0;
  std::int64_t step = 0;  ///< the one that is run next
  std::string note;       ///< comes back with a state that is restored (Snapshots)
};

/// Capability of a Strategy whose job goes on with fewer ranks. Without it a rank that is to leave stops the job, which
/// saves first. Compute's thread.
class Handover {
 public:
  /// Collective of all members, before some leave: the others get what only the leaving ones hold. A rejoin without
  /// them follows, or one with them if a rank was lost meanwhile. False, on all ranks: the job can't go on without
  /// these, and nothing was done.
  virtual bool hand_over(Optimizer& optimizer, const Parting& parting) = 0;

 protected:
  ~Handover() = default;
};

}  // namespace troupe

#pragma once
#include <map>
#include <string>

#include "actors/compute/compute_core.hpp"
#include "actors/recovery/heal.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// Gives the state to ranks that lack it. Newcomers get the model when they join, and the optimizer's state when it is
/// first needed. A replica that was found to differ is healed, too. Compute's thread.
class StateHealing {
 public:
  explicit StateHealing(ComputeCore& core) : core_(core) {}

  /// Small things of the program that a newcomer needs and a checkpoint keeps, equal on all ranks.
  std::map<std::string, std::string>& notes() noexcept { return notes_; }
  /// Collective, at the start of a generation: the model, and what the strategy and the program keep. Throws
  /// Error(state_lost) if a part of the state died with its rank.
  void heal_model();
  /// Collective, before the optimizer's state is used. Does nothing if all have it.
  void settle_optimizer(Optimizer& optimizer);
  /// Collective over `communicator`.
  void heal_optimizer(Optimizer& optimizer, const HealRoles& roles, Communicator& communicator);

 private:
  ReplicaGroup replica_group() const;

  ComputeCore& core_;
  std::map<std::string, std::string> notes_;
};

}  // namespace troupe

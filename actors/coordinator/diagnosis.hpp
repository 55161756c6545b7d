#pragma once
#include <optional>
#include <span>

#include "actors/messages/messages.hpp"

namespace troupe {

/// Decides which rank keeps the others waiting, by the places of the heard ranks (of `ranks`) on one communicator.
/// Pure.
///
/// A rank is accused only on proof. It is inside another collective than the others at the same place of the sequence.
/// Or its Compute stands in a collective that the ranks which wait for its gradients have not launched, and can't. Or
/// it has left the training loop. A rank that is merely behind is slow, and slow is not wrong: nullopt.
std::optional<ErrorReport> diagnose(std::span<const CollectiveState> states, std::size_t ranks);

}  // namespace troupe

#pragma once
#include <optional>
#include <span>

#include "actors/messages/messages.hpp"

namespace troupe {

/// Decides who keeps the others waiting, from where the ranks that were heard (of `ranks`) stand on one communicator.
/// Pure.
///
/// A rank is accused on proof only: it is inside another collective than the others at the same place of the sequence;
/// or its Compute stands in a collective of its own that those who wait for its gradients have not launched, and can't;
/// or it has left the training loop. A rank that is merely behind is slow, and slow is not wrong: nullopt.
std::optional<ErrorReport> diagnose(std::span<const CollectiveState> states, std::size_t ranks);

}  // namespace troupe

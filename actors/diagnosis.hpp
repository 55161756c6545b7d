#pragma once
#include <optional>
#include <span>

#include "actors/messages.hpp"

namespace troupe {

/// Decides who keeps the others waiting, from where every rank stands on one lane. Pure.
///
/// A rank is accused on proof only: it is inside another collective than the others at the same place of the sequence, or it has left the
/// training loop. A rank that is merely behind is slow, and slow is not wrong: nullopt.
std::optional<ErrorReport> diagnose(std::span<const CollectiveState> states);

}  // namespace troupe

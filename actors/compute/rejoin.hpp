#pragma once
#include <cstdint>

#include "actors/messages/membership.hpp"

namespace troupe {

/// Where a rank stands that is about to enter the next generation.
struct RankProgress {
  std::int64_t steps_done = 0;
  std::int64_t voted_step = -1;  ///< the last step that it voted on: its gradients are reduced and still there
  bool whole = true;             ///< has all state
  bool in_step = true;           ///< has an optimizer at hand to commit a step with
  bool goes_back = false;        ///< keeps snapshots: all ranks go back to one
};

enum class Rejoin : std::uint8_t {
  roll_back,  ///< what it has begun is undone and runs again
  commit,     ///< somebody committed the step that it voted on: it commits it too, by the votes that come with the
              ///< membership
  refuse      ///< its state fits nobody's
};

/// What becomes of the step that a rank was in. Pure: the coordinator's plan and all ranks decide by the same facts.
Rejoin how_to_rejoin(const Membership& next, const RankProgress& progress) noexcept;

}  // namespace troupe

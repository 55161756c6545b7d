#include "actors/coordinator/stall_inspector.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "actors/coordinator/diagnosis.hpp"

namespace troupe {

bool StallInspector::report(const CollectiveState& state, Time now) {
  constexpr std::chrono::milliseconds kAskAgain{1'000};
  auto& one = communicators_[state.communicator];
  one.states[state.rank] = state;
  one.news = true;
  // Once for all that wait in it, and again: who was on the way then may have ended since.
  if (!state.in_flight || (state.sequence <= one.asked && now - one.asked_at < kAskAgain)) return false;
  one.asked = state.sequence;
  one.asked_at = now;
  return true;
}

std::optional<ErrorReport> StallInspector::judge(std::size_t ranks) {
  for (auto& [name, one] : communicators_) {
    if (!std::exchange(one.news, false)) continue;
    std::vector<CollectiveState> states;
    for (const auto& [rank, newest] : one.states) states.push_back(newest);
    if (auto accused = diagnose(states, ranks)) return accused;
  }
  return std::nullopt;
}

std::size_t StallInspector::most_reports() const noexcept {
  std::size_t most = 0;
  for (const auto& [name, one] : communicators_) most = std::max(most, one.states.size());
  return most;
}

}  // namespace troupe

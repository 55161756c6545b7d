#include "actors/coordinator/stall_inspector.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "actors/coordinator/diagnosis.hpp"

namespace troupe {

bool StallInspector::report(const CollectiveState& state, Time now) {
  constexpr std::chrono::milliseconds kAskAgain{1'000};
  auto& lane = lanes_[state.lane];
  lane.states[state.rank] = state;
  lane.news = true;
  // Once for all that wait in it, and again: who was on the way then may have ended since.
  if (!state.in_flight || (state.sequence <= lane.asked && now - lane.asked_at < kAskAgain)) return false;
  lane.asked = state.sequence;
  lane.asked_at = now;
  return true;
}

std::optional<ErrorReport> StallInspector::judge(std::size_t ranks) {
  for (auto& [name, lane] : lanes_) {
    if (!std::exchange(lane.news, false)) continue;
    std::vector<CollectiveState> states;
    for (const auto& [rank, newest] : lane.states) states.push_back(newest);
    if (auto accused = diagnose(states, ranks)) return accused;
  }
  return std::nullopt;
}

std::size_t StallInspector::most_reports() const noexcept {
  std::size_t most = 0;
  for (const auto& [name, lane] : lanes_) most = std::max(most, lane.states.size());
  return most;
}

}  // namespace troupe

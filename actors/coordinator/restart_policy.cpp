#include "actors/coordinator/restart_policy.hpp"

#include <algorithm>
#include <functional>

namespace troupe {
namespace {

using std::chrono::milliseconds;

/// Oldest first, those within the window.
std::vector<milliseconds> recent(std::span<const milliseconds> ages, milliseconds window) {
  std::vector<milliseconds> kept;
  for (const auto age : ages) {
    if (age <= window) kept.push_back(age);
  }
  std::sort(kept.begin(), kept.end(), std::greater<>());
  return kept;
}

/// Until no more than `most` of these are within the window.
milliseconds wait_for(const std::vector<milliseconds>& ages, std::size_t most, const RestartLimits& limits) {
  const auto surplus = ages.size() - most;
  return limits.window - ages[surplus - 1];
}

std::string text(const char* what, std::size_t times, const RestartLimits& limits) {
  return std::string(what) + std::to_string(times) + (times == 1 ? " time" : " times") + " within " +
         std::to_string(limits.window.count() / 1000) + " s";
}

}  // namespace

RestartDecision may_restart(std::span<const milliseconds> slot_deaths, std::span<const milliseconds> host_deaths,
                            const RestartLimits& limits) {
  const auto most = static_cast<std::size_t>(std::max(limits.most, 0));
  const auto most_of_host = static_cast<std::size_t>(std::max(limits.most_of_host, 0));
  const auto of_slot = recent(slot_deaths, limits.window);
  if (of_slot.size() > most) return {false, wait_for(of_slot, most, limits), text("died ", of_slot.size(), limits)};
  std::vector<milliseconds> events;
  for (const auto age : recent(host_deaths, limits.window)) {
    if (events.empty() || events.back() - age > limits.one_event) events.push_back(age);
  }
  if (events.size() > most_of_host)
    return {false, wait_for(events, most_of_host, limits), text("is on a host that failed ", events.size(), limits)};
  return {};
}

bool is_program_fault(const LifeEnd& before, const LifeEnd& now) {
  constexpr std::int64_t kHeard = 2;  // heartbeats are fewer than steps
  if (now.cause.empty() || now.cause != before.cause) return false;
  return now.steps_made <= kHeard || std::abs(now.steps_made - before.steps_made) <= kHeard;
}

}  // namespace troupe

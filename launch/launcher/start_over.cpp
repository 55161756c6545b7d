#include "launch/launcher/start_over.hpp"

#include <chrono>
#include <climits>
#include <cstdio>
#include <vector>

#include "actors/coordinator/restart_policy.hpp"

namespace troupe {

int run_until_kept(const RecoveryOptions& recovery, const std::function<LaunchOutcome(int starts_over)>& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> losses;
  for (int starts_over = 0;; ++starts_over) {
    const auto outcome = run(starts_over);
    if (!outcome.state_lost || !recovery.enabled) return outcome.code;
    losses.push_back(Clock::now());
    std::vector<std::chrono::milliseconds> ages;
    ages.reserve(losses.size());
    for (const auto& at : losses)
      ages.push_back(std::chrono::duration_cast<std::chrono::milliseconds>(losses.back() - at));
    const RestartLimits limits{recovery.max_restarts, INT_MAX, recovery.restart_window, {}};
    if (!may_restart(ages, {}, limits).start) return outcome.code;
    std::fprintf(stderr, "troupe: %s: all ranks are started again, from the last checkpoint if there is one\n",
                 outcome.state_lost->cause.c_str());
  }
}

}  // namespace troupe

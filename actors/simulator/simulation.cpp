#include "actors/simulator/simulation.hpp"

namespace troupe::simulator {
namespace {

using namespace std::chrono_literals;

std::string invariant_of(const Outcome& outcome) { return outcome.violation ? outcome.violation->substr(0, 2) : ""; }

}  // namespace

JobOptions job_of_seed(std::uint64_t seed) {
  Draw draw(seed, "job of seed");
  JobOptions options;
  options.seed = seed;
  options.ranks = static_cast<int>(draw.in(2, 6));
  options.hosts = static_cast<int>(draw.in(1, 3));
  options.spares = draw.once_in(4) ? 1 : 0;
  options.recovery.hang_after = 20s;
  options.recovery.park_after = 20s;
  options.recovery.max_restarts = 5;
  options.recovery.restart_window = 60s;
  options.faults = draw_faults(seed, options.ranks, options.hosts, options.steps);
  return options;
}

Outcome simulate(const JobOptions& options) {
  Job job(options);
  job.run();
  Outcome outcome;
  outcome.violation = job.history().violation();
  outcome.log_hash = job.world().log_hash();
  outcome.log = job.world().lines;
  outcome.events = job.world().jobs_run;
  outcome.messages = job.world().messages;
  outcome.steps = job.history().furthest();
  outcome.starts = job.starts();
  outcome.time = job.world().time();
  return outcome;
}

JobOptions shrink(const JobOptions& options) {
  auto best = options;
  best.keep_log = false;
  const auto wanted = invariant_of(simulate(best));
  if (wanted.empty()) return options;
  const auto still_fails = [&](const JobOptions& candidate) { return invariant_of(simulate(candidate)) == wanted; };
  // One after the other is enough for so few; what falls away may make another one needless.
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (std::size_t i = 0; i < best.faults.size(); ++i) {
      auto candidate = best;
      candidate.faults.erase(candidate.faults.begin() + static_cast<std::ptrdiff_t>(i));
      if (!still_fails(candidate)) continue;
      best = std::move(candidate);
      smaller = true;
      break;
    }
  }
  for (std::size_t i = 0; i < best.faults.size(); ++i) {
    for (;;) {
      auto candidate = best;
      candidate.faults[i].lasts /= 2;
      if (candidate.faults[i].lasts < 10ms || !still_fails(candidate)) break;
      best = std::move(candidate);
    }
  }
  if (best.spares > 0) {
    auto candidate = best;
    candidate.spares = 0;
    if (still_fails(candidate)) best = std::move(candidate);
  }
  return best;
}

}  // namespace troupe::simulator

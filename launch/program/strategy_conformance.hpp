#pragma once
#include <functional>
#include <string>
#include <vector>

#include "launch/config/config.hpp"

namespace troupe {

/// The claims of a strategy, for the suite to check.
struct ConformanceOptions {
  std::string strategy;  ///< registered under this name
  std::function<void(Config&)>
      configure;                 ///< its settings, and those of ddp beside it; `strategy` says which; may be empty
  std::vector<int> ranks{2, 4};  ///< worlds in which it must train as well as one rank does
  double loss_bound = 1e-4;      ///< the largest final distance from one rank's loss, as a share of that one's fall
  int schedules = 100;           ///< random ones
  bool same_bits = true;         ///< the same job has the same losses, for any schedule and any death
  std::function<void(const std::string&)> log;  ///< gets a line for each run; may be empty
};

/// The result of `strategy_conformance`.
struct ConformanceReport {
  std::vector<std::string> failures;  ///< each with the action and its result
  int jobs = 0;                       ///< that were run
  int deaths = 0;                     ///< of ranks, in them
  double worst_gap = 0;               ///< the largest distance from one rank's loss, in the units of loss_bound
  std::string strategy;               ///< its name

  bool passed() const noexcept { return failures.empty(); }  ///< all held
  std::string to_string() const;                             ///< a line for each failure, or that it conforms
};

/// The suite that every strategy of ours passes, for a user's own. Trains a small model on simulated ranks (threads of
/// this process, with their true actors, communicators and numerics; one job at a time) and checks that it
///
/// 1. converges: on each world of `ranks` the last loss, over all samples, is within loss_bound of one rank's under
///    ddp;
/// 2. survives a death: if a rank is killed at any place of a step, or between two steps, the job goes on with a
///    replacement. It does every step, and ends within loss_bound.
///    If its replicas are equal (Strategy::replicas_equal), it has the bits of the undisturbed job (with same_bits);
/// 3. never deadlocks: under `schedules` random schedules, on 2 to 4 ranks, no job waits until a deadline ends the
///    wait. Ranks are held up at random places for a few ms, and in one of four schedules one dies.
///    With same_bits, jobs without a death have the losses of the undisturbed one to the last bit.
///    A schedule is named by its number, and is
///    the same each time.
///    If ranks hold shards of the state, no rank dies before the first snapshot.
///
/// A job that does not end in 120 s is a failure, and its threads are left behind. Throws Error(usage) for an unknown
/// strategy.
ConformanceReport strategy_conformance(const ConformanceOptions& options);

}  // namespace troupe

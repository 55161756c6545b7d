#pragma once
#include <functional>
#include <string>
#include <vector>

#include "launch/config/config.hpp"

namespace troupe {

/// What a strategy says of itself, to be held against it.
struct ConformanceOptions {
  std::string strategy;  ///< registered under this name
  std::function<void(Config&)>
      configure;                 ///< its settings, and those of ddp beside it; `strategy` says which; may be empty
  std::vector<int> ranks{2, 4};  ///< worlds in which it is to train as well as one rank does
  double loss_bound = 1e-4;      ///< how far from one rank's loss it may end, as a share of how far that one's fell
  int schedules = 100;           ///< random ones
  bool same_bits = true;         ///< the same job has the same losses, whatever the schedule and who dies
  std::function<void(const std::string&)> log;  ///< told what is run; may be empty
};

/// What `strategy_conformance` found.
struct ConformanceReport {
  std::vector<std::string> failures;  ///< each with what was done, and what came of it
  int jobs = 0;                       ///< that were run
  int deaths = 0;                     ///< of ranks, in them
  double worst_gap = 0;               ///< the largest distance from one rank's loss, as loss_bound counts it
  std::string strategy;               ///< its name

  bool passed() const noexcept { return failures.empty(); }  ///< all held
  std::string to_string() const;                             ///< a line for each failure, or that it conforms
};

/// The suite that every strategy of ours passes, for one of a user's own. Trains a small model on simulated ranks
/// (threads of this process, with their true actors, communicators and numerics; one job at a time) and checks that it
///
/// 1. converges: on each world of `ranks` the last loss, over all samples, is within loss_bound of one rank's under
/// ddp;
/// 2. survives a death: with a rank killed at any place of a step, also between two steps, the job goes on with a
/// replacement, does every
///    step, and ends within loss_bound; if its replicas are equal (Strategy::replicas_equal), with the bits of the
///    undisturbed job (with same_bits);
/// 3. never deadlocks: under `schedules` random schedules, on 2 to 4 ranks, with ranks held up at random places for a
/// few ms, and in one of
///    four a death, no job waits until a deadline ends the wait; with same_bits, those without a death have the losses
///    of the undisturbed one to the last bit. A schedule is named by its number, and is the same each time. Where ranks
///    hold shards of the state, nobody dies before the first snapshot.
///
/// A job that does not end in 120 s is a failure, and its threads are left behind. Throws Error(usage) for an unknown
/// strategy.
ConformanceReport strategy_conformance(const ConformanceOptions& options);

}  // namespace troupe

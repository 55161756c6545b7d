#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "actors/step/vote.hpp"
#include "actors/stragglers/straggler.hpp"

namespace troupe {

/// The result of a step.
struct StepResult : StepNumbers {
  /// The step of these numbers: StepReport::step, or with a late vote the step before; -1: there is none yet.
  std::int64_t measured_step = 0;
  bool committed = true;  ///< false: skipped or to be repeated, `reason` says why
  std::string reason;
  double loss_scale = 1;  ///< of the step
};

/// The report of one optimizer step. The same on all ranks, but for the times.
struct StepReport : StepResult {
  std::int64_t step = 0;  ///< 0-based number of the step in the run
  bool pending = false;   ///< one share of the step is done, another one comes (DemandShares): only `step`
                          ///< counts
  bool repeat = false;    ///< a rank was lost or healed: the micro-batches come again, nothing of the step was applied
  double lr = 0;
  int stop_signal = 0;  ///< a rank was asked to stop: end the loop now
  double step_ms = 0;   ///< from the end of the step before to the end of this one
  // On a device the times of communication are the device's (DeviceTimes). They are of the steps that were over at the
  // end of this one.
  double exposed_ms = 0;  ///< compute waited for the reducer and the vote
  double reduce_ms = 0;   ///< the reducer was inside collectives
  double optimizer_ms = 0;
  double inside_ms =
      0;  ///< compute waited for other ranks within forward and backward (FSDP's gathers, SyncBatchNorm, stages)
  std::int32_t buckets = 0;
  std::int32_t launched_before_end = 0;  ///< of them, while backward was going on
  double message_us = 0;       ///< of the step's critical path, in mailboxes and messages between compute and reducer
  double bucket_queue_ms = 0;  ///< full buckets waited for the reducer: the sum over buckets
  std::int64_t bucket_bytes = 0;      ///< of all buckets
  double data_ms = 0;                 ///< compute waited for the loader: the sum over the step's batches
  double batch_queue_ms = 0;          ///< loaded batches waited for compute: the sum over the step's
  std::vector<SectionTimes> own;      ///< each rank's time for its own part of the step; empty if there was no vote
  std::vector<Straggler> stragglers;  ///< ranks that are slow now, the same on all ranks
  std::vector<std::string>
      notices;  ///< news for the user: a rank became slow, a replica was healed; the same on all ranks
};

/// Copies a step's decision into the fields of `report`.
void report_decision(StepReport& report, const Decision& decision);

}  // namespace troupe

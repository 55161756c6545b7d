#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "actors/metrics/validation_report.hpp"
#include "actors/step/step_report.hpp"

namespace troupe {

/// A program's functions for the places of its loop, on every rank's thread; any may be empty. An exception ends the
/// job.
///
/// When a rank is lost in on_epoch or on_validation, all ranks do the call again, a replacement too: Rank::state then
/// has its content from before the call.
struct Callbacks {
  /// The optimizer has updated the parameters: the place for the program's own change of them, an average or a clamp.
  /// Once for each step that is applied, on every rank, before any other can be lost. No collectives. Refused with
  /// pipelines and sharded strategies, whose ranks hold parts of the parameters, and with vote late.
  std::function<void(std::int64_t step)> on_update;
  /// A step is over, applied or skipped (StepReport::committed). Not for steps that come again. No collectives.
  std::function<void(const StepReport& report)> on_step;
  /// An epoch is over, numbered from 0; before its validation. Collectives are allowed.
  std::function<void(std::int64_t epoch)> on_epoch;
  /// Held-out data has been evaluated. Collectives are allowed.
  std::function<void(const ValidationReport& report)> on_validation;
  /// A checkpoint is on disk, in this folder. On rank 0 alone, at its next step or at the end. No collectives.
  std::function<void(const std::string& path)> on_save;
  /// Called at each epoch's end, after its validation, and every log_interval steps. If any rank returns true, the loop
  /// ends for all as after the last step: with a validation, if the epoch is not over, and a checkpoint.
  std::function<bool()> should_stop;
};

}  // namespace troupe

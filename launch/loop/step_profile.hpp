#pragma once
#include <cstdint>
#include <mutex>
#include <string>

#include "actors/step/step_report.hpp"
#include "actors/step/time_sums.hpp"

namespace troupe {

/// The times of one rank's steps: sums over all its steps, and a table of their means for `--profile`. Pure.
class StepProfile {
 public:
  /// Adds a step. `compute_ms`: from a batch's arrival to the end of its backward, over all micro-batches.
  void add(const StepReport& report, double compute_ms);
  /// One line for each part, in ms a step and in percent. The parts add up to the step; the reducer works beside them.
  std::string table() const;
  /// As Rank::overlap.
  double overlap() const noexcept { return times_.overlap(); }
  /// As Rank::exposed_communication.
  double exposed_communication() const noexcept { return times_.share(times_.exposed_ms + times_.inside_ms); }
  std::int64_t steps() const noexcept { return steps_; }  ///< counted so far
  /// Another rank's steps, or another life's.
  void add(const StepProfile& other);
  /// One line with the parts of the two shares.
  std::string describe_overlap() const;

 private:
  std::int64_t steps_ = 0;
  TimeSums times_;
  double compute_ms_ = 0;
  std::int64_t buckets_ = 0, launched_before_end_ = 0;
};

/// The steps of all ranks in this process since its last troupe::main or troupe::run began, for a test after a run. Any
/// thread.
class ProcessProfile {
 public:
  /// Adds one rank's steps.
  void add(const StepProfile& rank);
  /// Forgets all steps.
  void reset();
  /// The sum so far.
  StepProfile get() const;

 private:
  mutable std::mutex mutex_;
  StepProfile sum_;  // guarded by mutex_
};
/// The profile of this process.
ProcessProfile& profile_of_process();

/// Of the last troupe::main or troupe::run of this process, all its ranks together; see Rank::overlap,
/// Rank::exposed_communication.
inline double overlap() { return profile_of_process().get().overlap(); }
/// As `overlap`: see Rank::exposed_communication.
inline double exposed_communication() { return profile_of_process().get().exposed_communication(); }

}  // namespace troupe

#pragma once
#include <chrono>
#include <utility>
#include <vector>

#include "actors/compute/compute_core.hpp"
#include "actors/compute/device_times.hpp"
#include "actors/step/step_report.hpp"
#include "tensor_io/base/span_ranges.hpp"

namespace troupe {

/// The time of a rank's own part of a step: forward, backward and the wait for data, without the waits for other ranks.
/// By the host's clock, on a device by the device's. Compute's thread.
class StepClock {
 public:
  explicit StepClock(const ComputeCore& core) : core_(core) {}

  /// A generation begins, or the first.
  void reset();
  /// The step to come begins, if it has not: a range for profilers until `end_step`. Its time began before.
  void enter_step();
  /// A micro-batch is there: its forward begins.
  void begin_section();
  /// The part under way turns out to be another one than forward.
  void rename_section(const char* name) noexcept { section_range_.begin(name); }
  /// The part, forward or backward, is over, and goes into traces as `name`; the next part, `next`, begins.
  void end_section(DeviceTimes::Part part, const char* name, const char* next = nullptr);
  void count_data_wait(double milliseconds) { own_.data_ms += static_cast<float>(milliseconds); }
  /// At the end of a share of the step.
  void count_share_wait(double milliseconds) { shares_wait_ms_ += milliseconds; }

  void end_backward() { device_times_.end_backward(); }
  /// The gradients are there: `waited_ms` after the step's last backward.
  void report_reduction(StepReport& report, const BucketsReduced& reduced, double waited_ms);
  /// Of a step that was decided.
  static void report_buckets(StepReport& report, const GradientSummary& summary);
  /// On a device: after the host's wait for the step's numbers, or without such a wait with a late vote.
  void report_device(StepReport& report);
  /// For this rank's vote. The next step's time begins.
  SectionTimes take_own() { return std::exchange(own_, {}); }
  double take_inside() { return std::exchange(inside_ms_, 0); }

  /// Work since the last step (a trace was gathered) is no part of the next one's `step_ms`.
  void begin_step() noexcept { step_started_ = std::chrono::steady_clock::now(); }
  void end_step(StepReport& report);

 private:
  void mark();
  float own_time_since_mark();
  std::vector<TimedInterval> take_device_waits();

  const ComputeCore& core_;
  SectionTimes own_;           // of the step under way
  double inside_ms_ = 0;       // ... and what compute waited within forward and backward
  double shares_wait_ms_ = 0;  // ... at the ends of its shares
  DeviceTimes device_times_;
  std::chrono::steady_clock::time_point mark_ = std::chrono::steady_clock::now();
  std::chrono::nanoseconds waited_at_mark_{0};  // on the program's communicator and the strategy's own
  std::chrono::steady_clock::time_point step_started_ = std::chrono::steady_clock::now();
  OpenRange step_range_, section_range_;
};

}  // namespace troupe

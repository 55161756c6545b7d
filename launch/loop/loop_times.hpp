#pragma once
#include <chrono>
#include <utility>

#include "actors/step/step_report.hpp"
#include "launch/loop/step_profile.hpp"

namespace troupe {

/// The times of a loop's steps outside of Compute. Compute's thread.
class LoopTimes {
 public:
  /// A batch is there, or the loop may get the next one.
  void begin_forward() noexcept { forward_started_ = std::chrono::steady_clock::now(); }
  /// A micro-batch's backward is over.
  void end_backward() noexcept {
    const auto started = std::exchange(forward_started_, std::chrono::steady_clock::now());
    compute_ms_ += std::chrono::duration<double, std::milli>(forward_started_ - started).count();
  }
  /// The loop waited this long for a batch, and a batch this long for the loop.
  void count_data_wait(double milliseconds) noexcept { data_ms_ += milliseconds; }
  void count_queue(double milliseconds) noexcept { queue_ms_ += milliseconds; }

  /// The step is over.
  void end_step(StepReport& report) {
    report.data_ms = data_ms_;
    report.batch_queue_ms = queue_ms_;
    profile_.add(report, compute_ms_);
    forget_step();
    begin_forward();
  }
  /// The step under way begins anew.
  void forget_step() noexcept { data_ms_ = compute_ms_ = queue_ms_ = 0; }
  const StepProfile& profile() const noexcept { return profile_; }

 private:
  StepProfile profile_;
  double data_ms_ = 0, compute_ms_ = 0, queue_ms_ = 0;  // of the step under way
  std::chrono::steady_clock::time_point forward_started_ = std::chrono::steady_clock::now();
};

}  // namespace troupe

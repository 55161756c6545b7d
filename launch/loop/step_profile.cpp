#include "launch/loop/step_profile.hpp"

#include <algorithm>

#include "launch/process/formatted.hpp"

namespace troupe {

void StepProfile::add(const StepReport& report, double compute_ms) {
  ++steps_;
  times_.add(report);
  compute_ms_ += compute_ms;
  buckets_ += report.buckets;
  launched_before_end_ += report.launched_before_end;
}

void StepProfile::add(const StepProfile& other) {
  steps_ += other.steps_;
  times_.add(other.times_);
  compute_ms_ += other.compute_ms_;
  buckets_ += other.buckets_;
  launched_before_end_ += other.launched_before_end_;
}

std::string StepProfile::describe_overlap() const {
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, steps_));
  return formatted(
      "overlap %.3f, exposed communication %.3f of %lld steps: %.3f ms a step in collectives, %.3f of them "
      "hidden; compute waited "
      "%.3f ms of %.3f",
      overlap(), exposed_communication(), static_cast<long long>(steps_), times_.reduce_ms / steps,
      times_.hidden_ms / steps, (times_.exposed_ms + times_.inside_ms) / steps, times_.step_ms / steps);
}

void ProcessProfile::add(const StepProfile& rank) {
  const std::lock_guard lock(mutex_);
  sum_.add(rank);
}

void ProcessProfile::reset() {
  const std::lock_guard lock(mutex_);
  sum_ = {};
}

StepProfile ProcessProfile::get() const {
  const std::lock_guard lock(mutex_);
  return sum_;
}

ProcessProfile& profile_of_process() {
  static ProcessProfile profile;
  return profile;
}

std::string StepProfile::table() const {
  if (steps_ == 0) return "profile: no step was made\n";
  const auto steps = static_cast<double>(steps_);
  std::string text;
  const auto print = [&](const char* pattern, auto... values) { text += formatted(pattern, values...); };
  const auto row = [&](const char* what, double ms) {
    print("  %-36s %10.3f ms %6.1f %%\n", what, ms / steps, 100 * times_.share(ms));
  };
  print("profile: where the time of a step went (this rank, mean of %lld steps)\n", static_cast<long long>(steps_));
  row("data wait", times_.data_ms);
  row("forward and backward", compute_ms_);
  row("exposed communication, with the vote", times_.exposed_ms);
  row("optimizer", times_.optimizer_ms);
  row("rest: validation, checkpoints, logs",
      std::max(0.0, times_.step_ms - times_.data_ms - compute_ms_ - times_.exposed_ms - times_.optimizer_ms));
  row("step", times_.step_ms);
  if (buckets_ == 0) return text;
  print("  %-36s %10.3f ms\n", "reducer busy, beside these", times_.reduce_ms / steps);
  print("  %-36s %10.1f %% of that or more\n", "  overlapped", 100 * times_.overlap());
  print("  %-36s %10.1f of %.1f buckets a step\n", "  launched before backward ended",
        static_cast<double>(launched_before_end_) / steps, static_cast<double>(buckets_) / steps);
  return text;
}

}  // namespace troupe

#include "launch/loop/step_profile.hpp"

#include <algorithm>

#include "launch/process/formatted.hpp"

namespace troupe {

void StepProfile::add(const StepReport& report, double compute_ms) {
  ++steps_;
  step_ms_ += report.step_ms;
  data_ms_ += report.data_ms;
  compute_ms_ += compute_ms;
  exposed_ms_ += report.exposed_ms;
  optimizer_ms_ += report.optimizer_ms;
  reduce_ms_ += report.reduce_ms;
  inside_ms_ += report.inside_ms;
  hidden_ms_ += std::max(0.0, report.reduce_ms - report.exposed_ms);
  buckets_ += report.buckets;
  launched_before_end_ += report.launched_before_end;
}

void StepProfile::add(const StepProfile& other) {
  steps_ += other.steps_;
  step_ms_ += other.step_ms_;
  data_ms_ += other.data_ms_;
  compute_ms_ += other.compute_ms_;
  exposed_ms_ += other.exposed_ms_;
  optimizer_ms_ += other.optimizer_ms_;
  reduce_ms_ += other.reduce_ms_;
  inside_ms_ += other.inside_ms_;
  hidden_ms_ += other.hidden_ms_;
  buckets_ += other.buckets_;
  launched_before_end_ += other.launched_before_end_;
}

std::string StepProfile::describe_overlap() const {
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, steps_));
  return formatted(
      "overlap %.3f, exposed communication %.3f of %lld steps: %.3f ms a step in collectives, %.3f of them "
      "hidden; compute waited "
      "%.3f ms of %.3f",
      overlap(), exposed_communication(), static_cast<long long>(steps_), reduce_ms_ / steps, hidden_ms_ / steps,
      (exposed_ms_ + inside_ms_) / steps, step_ms_ / steps);
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
    print("  %-36s %10.3f ms %6.1f %%\n", what, ms / steps, step_ms_ > 0 ? 100 * ms / step_ms_ : 0);
  };
  print("profile: where the time of a step went (this rank, mean of %lld steps)\n", static_cast<long long>(steps_));
  row("data wait", data_ms_);
  row("forward and backward", compute_ms_);
  row("exposed communication, with the vote", exposed_ms_);
  row("optimizer", optimizer_ms_);
  row("rest: validation, checkpoints, logs",
      std::max(0.0, step_ms_ - data_ms_ - compute_ms_ - exposed_ms_ - optimizer_ms_));
  row("step", step_ms_);
  if (buckets_ == 0) return text;
  print("  %-36s %10.3f ms\n", "reducer busy, beside these", reduce_ms_ / steps);
  print("  %-36s %10.1f %% of that or more\n", "  overlapped", reduce_ms_ > 0 ? 100 * hidden_ms_ / reduce_ms_ : 0);
  print("  %-36s %10.1f of %.1f buckets a step\n", "  launched before backward ended",
        static_cast<double>(launched_before_end_) / steps, static_cast<double>(buckets_) / steps);
  return text;
}

}  // namespace troupe

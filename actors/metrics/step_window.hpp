#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "actors/step/step_report.hpp"
#include "actors/step/time_sums.hpp"

namespace troupe {

/// The time that each rank spent in its sections. The sums begin anew if the world size changes. Pure.
class SectionSums {
 public:
  /// Times of one step, by rank; empty: they were not gathered.
  void add(const std::vector<SectionTimes>& ranks);
  std::vector<SectionTimes> means() const;

 private:
  std::vector<SectionTimes> sums_;  // by rank
  std::int64_t steps_ = 0;
};

/// The results of a few steps: sums while it is filled, means when it is read. Pure.
struct StepWindow {
  std::int64_t steps = 0, skipped = 0, first_step = 0;
  double loss_sum = 0, samples = 0, correct = 0;
  double max_loss = -std::numeric_limits<double>::infinity();
  TimeSums times;
  SectionSums sections;
  double last_lr = 0, last_norm = 0, last_loss_scale = 1;
  struct {
    std::int64_t number = 0, bytes = 0;
  } buckets;
  std::vector<Straggler> stragglers;  ///< at the last step
  LoggedValues logged;                ///< of committed steps

  void add(const StepReport& report);
  /// Means over the samples of committed steps; NaN (null in JSON) if all steps were skipped.
  double loss() const { return samples > 0 ? loss_sum / samples : std::numeric_limits<double>::quiet_NaN(); }
  double accuracy() const { return samples > 0 ? correct / samples : std::numeric_limits<double>::quiet_NaN(); }
  /// Of a sum over the steps; 0 without steps.
  double mean(double sum) const { return steps > 0 ? sum / static_cast<double>(steps) : 0; }
  double mean_step_ms() const { return mean(times.step_ms); }
  double per_second(double count) const { return times.step_ms > 0 ? 1000 * count / times.step_ms : 0; }
  double steps_per_second() const { return per_second(static_cast<double>(steps)); }
  double samples_per_second() const { return per_second(samples); }
  double exposed_share() const { return times.share(times.exposed_ms); }
  double data_share() const { return times.share(times.data_ms); }
};

}  // namespace troupe

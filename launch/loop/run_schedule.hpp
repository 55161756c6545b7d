#pragma once
#include <cstdint>

#include "launch/config/config.hpp"
#include "tensor_io/optimizer/optimizer.hpp"
#include "tensor_io/optimizer/schedule.hpp"

namespace troupe {

/// The learning rate of a run's steps, by the config's lr, the config's or the program's schedule, and the run's
/// length. Compute's thread.
class RunSchedule {
 public:
  /// `config` must outlive it.
  explicit RunSchedule(const Config& config) : config_(config) {}

  void set_length(std::int64_t steps_per_epoch, std::int64_t total_steps) noexcept {
    steps_per_epoch_ = steps_per_epoch;
    total_steps_ = total_steps;
  }
  /// As Rank::schedule.
  void set_own(LrSchedule factor);
  /// 0 until a loader was made.
  std::int64_t steps_per_epoch() const noexcept { return steps_per_epoch_; }
  std::int64_t total_steps() const noexcept { return total_steps_; }
  /// As Rank::learning_rate and Rank::rate_for, of step `step`.
  double learning_rate(std::int64_t step) const { return scheduled(config_, step); }
  double rate_for(const Optimizer& optimizer, std::int64_t step) const;

 private:
  double scheduled(const OptimizerOptions& options, std::int64_t step) const;
  double own_factor(std::int64_t step, std::int64_t total) const;

  const Config& config_;
  LrSchedule own_;  // empty: the config's
  std::int64_t steps_per_epoch_ = 0, total_steps_ = 0;
};

}  // namespace troupe

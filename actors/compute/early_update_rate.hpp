#pragma once
#include <optional>

#include "actors/compute/compute_core.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// The rate with which a strategy makes a step's update during backward (early_update), before `step` names it.
/// Compute's thread.
class EarlyUpdateRate {
 public:
  explicit EarlyUpdateRate(ComputeCore& core) : core_(core) {}

  /// Throws Error(usage) for settings that want the whole gradient first.
  void check_options() const;
  void expect(double lr) noexcept { expected_ = lr; }
  /// Backward of the step's last micro-batch begins.
  void begin_update();
  /// Throws Error(usage) if `step` names another rate than the one that its update began with, or another optimizer
  /// than the steps before.
  void check(const Optimizer& optimizer, double lr) const;
  bool has_begun() const noexcept { return begun_.has_value(); }
  /// Collective, after a step.
  void prepare(Optimizer& optimizer);

  void begin_step() noexcept { begun_.reset(); }
  /// The step's micro-batches are over, or come again.
  void forget_expected() noexcept { expected_.reset(); }
  /// A generation begins.
  void forget_optimizer() noexcept { prepared_for_ = 0; }

 private:
  ComputeCore& core_;
  std::optional<double> expected_;  // of the step under way
  std::optional<double> begun_;     // the strategy makes the step's update itself, with this one
  std::uint64_t prepared_for_ = 0;  // the id of the one that all steps of the membership are to have
};

}  // namespace troupe

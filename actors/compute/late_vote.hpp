#pragma once
#include <cstdint>
#include <optional>

#include "actors/compute/compute_core.hpp"
#include "actors/compute/device_numbers.hpp"
#include "actors/compute/step_losses.hpp"
#include "actors/compute/vote_exchange.hpp"
#include "actors/step/step_report.hpp"
#include "tensor_io/optimizer/optimizer.hpp"
#include "tensor_io/optimizer/step_decision_on_device.hpp"

namespace troupe {

/// A vote that is one step late (TrainingOptions::vote): the device decides whether a step is applied, and the ranks
/// vote on the result of the step before. Compute's thread.
class LateVote {
 public:
  /// Whether the options ask for it, and this rank trains on a device. Throws Error(usage) if that can't be.
  static bool is_wanted(const ComputeCore& core);
  LateVote(ComputeCore& core, StepLosses& losses, VoteExchange& votes);

  void begin_step();
  /// The gradient that backward starts from.
  at::Tensor start_of_backward(const at::Tensor& loss, double weight);
  /// The same as the factor of a backward that is a graph: () on the device.
  at::Tensor start_of_replay(double weight);

  /// Instead of the wait: launches the step's decision, and sends its numbers. The vote gets the numbers of the step
  /// before. Returns the gradient norm of that step.
  double decide(GradientSummary& summary, bool wants_norm);
  /// The step whose numbers the vote has, if there was one.
  std::optional<std::int64_t> measured() const noexcept;
  /// The votes had the numbers of an earlier step: settles that step.
  void settle_by(const Decision& decision);
  /// Instead of the host's commit: waits for nothing.
  void commit(const Decision& decision, Optimizer& optimizer, double lr);
  void report(StepReport& report, const Decision& decision);
  /// Collective, between steps: waits for the result of the last step, and votes on it.
  const std::optional<StepReport>& settle(bool wants_norm);
  /// A generation begins.
  void forget();

 private:
  double take_numbers(GradientSummary& summary, bool wants_norm);
  double steps_micro_batches() const { return static_cast<double>(core_.options.training.grad_accum_steps); }

  ComputeCore& core_;
  StepLosses& losses_;
  VoteExchange& votes_;
  DeviceLossScale scale_;
  DeviceDecision decision_;            // of the step under way
  DeviceNumbers numbers_[2];           // by step parity
  std::int64_t unvoted_ = -1;          // the step whose numbers no vote has had
  std::optional<StepReport> settled_;  // the result of the last step that was settled, until a report has it
};

}  // namespace troupe

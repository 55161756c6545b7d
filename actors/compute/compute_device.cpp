// Compute's numbers of a step on a device: what the losses and gradients came to is there, and the host reads it, in
// the step or one late.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>
#include <utility>

#include "actors/compute/compute.hpp"

#include "actors/strategy/late_voting.hpp"

namespace troupe {
namespace {

// Which parameter it was nobody knows any more: its gradient has been overwritten.
constexpr std::int32_t kSomeParameter = std::numeric_limits<std::int32_t>::max();

}  // namespace

// Losses, gradient norm and whether all is finite, in one copy, which is on its way when this returns.
void Compute::send_numbers(DeviceNumbers& numbers, const at::Tensor& totals, const at::Tensor& skip) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (auto& loss : numbers.losses) {
    parts.push_back(std::exchange(loss.value, at::Tensor()).to(at::kDouble).view(1));
    loss.has_correct = loss.correct.defined();
    if (loss.has_correct) parts.push_back(std::exchange(loss.correct, at::Tensor()).to(at::kDouble).view(1));
  }
  numbers.has_totals = totals.defined();
  if (totals.defined()) parts.push_back(totals);
  if (skip.defined()) parts.push_back(skip.to(at::kDouble).view(1));
  numbers.values = at::Tensor();
  if (parts.empty()) return;
  const auto on_device = at::cat(parts);
  numbers.values =
      at::empty(on_device.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(on_device.is_cuda()));
  numbers.values.copy_(on_device, /*non_blocking=*/true);
  const auto device = services_.program_lane->device();
  numbers.over.emplace(device);
  numbers.over->record(DeviceStream::current(device));
}

// After the wait. Counts the losses in the vote; returns the gradient's norm, with the loss scale in it.
double Compute::take_numbers(DeviceNumbers& numbers) {
  if (!numbers.values.defined()) return 0;
  const auto* value = numbers.values.const_data_ptr<double>();
  for (const auto& loss : std::exchange(numbers.losses, {})) {
    count_value(*value++, loss.samples, loss.counts);
    if (loss.has_correct) numbers.correct += *value++;
  }
  double squares = 0;
  if (numbers.has_totals) {
    squares = *value++;
    numbers.not_finite = *value++ > 0;
  }
  const auto* end = numbers.values.const_data_ptr<double>() + numbers.values.numel();
  numbers.skipped = value != end && *value != 0;
  return std::sqrt(squares);
}

// The waiting vote's. Returns the norm.
double Compute::read_device(GradientSummary& summary) {
  DeviceNumbers numbers;
  numbers.losses = std::exchange(device_losses_, {});
  send_numbers(numbers, summary.device_checks.defined() ? summary.device_checks.sum(0) : at::Tensor(), {});
  if (!numbers.over) return 0;
  services_.program_lane->wait_on_host(*numbers.over, "losses and gradient norm");
  const double norm = take_numbers(numbers);
  vote_.correct += numbers.correct;
  if (numbers.not_finite) summary.not_finite_parameter = strategy_->find_not_finite();
  return norm;
}

bool Compute::checks_late_vote() const {
  const auto& training = options_.training;
  if (training.vote != "late" || services_.program_lane->device().is_cpu()) return false;
  const auto refuse = [](const std::string& why, const char* instead) {
    throw Error(ErrorCode::usage, "vote", "late: " + why, instead);
  };
  if (options_.may_recover)
    refuse(
        "a step is applied before the ranks have said that all is well, and this job is to outlive the loss of a rank",
        "start it with --no-recovery, or leave vote at step");
  const auto able = strategy_->capabilities();
  if (able.get<LateVoting>() == nullptr)
    refuse("strategy " + strategy_->name() + " " + able.refusal<LateVoting>("waits for the vote"),
           "leave vote at step");
  return true;
}

// Where the device keeps the loss scale, a loss that is not finite must reach the gradients, which the device decides
// by.
at::Tensor Compute::start_of_late_backward(const at::Tensor& loss, double weight) {
  if (loss.is_cpu()) {
    throw Error(complete({ErrorCode::usage,
                          -1,
                          {},
                          -1,
                          "vote",
                          "late: the loss is on the CPU, which has waited for the device",
                          "compute it on the device, or leave vote at step"}));
  }
  const bool poisoned = services_.status->poisoned.exchange(false);
  const auto factor = late_->scale.factor_of(loss, poisoned ? std::nan("") : weight,
                                             static_cast<double>(options_.training.grad_accum_steps));
  return loss.to(factor.scalar_type()) * factor;
}

// In the place of the wait: what decides on the step is launched, and its numbers sent; the vote gets those of the step
// before. Returns that one's norm.
double Compute::decide_late(GradientSummary& summary) {
  auto& next = late_->numbers[static_cast<std::size_t>(steps_done() % 2)];
  next = {};
  next.step = steps_done();
  next.losses = std::exchange(device_losses_, {});
  next.samples = std::exchange(vote_.samples, 0);
  next.correct = std::exchange(vote_.correct, 0);
  const auto device = services_.program_lane->device();
  const auto totals = summary.device_checks.defined()
                          ? summary.device_checks.sum(0)
                          : at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(device));
  late_->decision = decide_on_device(totals, late_->scale.value(), options_.training.clip_norm, wants_norm());
  send_numbers(next, totals, late_->decision.skip);
  return take_late_numbers(summary);
}

// The numbers of an earlier step go into the vote. The host is at most a step ahead: it waits only for a device that is
// further behind.
double Compute::take_late_numbers(GradientSummary& summary) {
  if (late_->unvoted < 0) return 0;
  auto& numbers = late_->numbers[static_cast<std::size_t>(late_->unvoted % 2)];
  if (!numbers.over->done())
    services_.program_lane->wait_on_host(*numbers.over, "losses and gradient norm of the step before");
  const double norm = take_numbers(numbers);
  vote_.samples = numbers.samples;
  vote_.correct = numbers.correct;
  summary.not_finite_parameter = numbers.not_finite ? kSomeParameter : -1;
  return wants_norm() ? norm / loss_scaler_.scale() : 0;
}

// `votes` had the numbers of step late_->unvoted: what that step came to.
void Compute::settle_by(const Decision& decision) {
  const auto step = std::exchange(late_->unvoted, -1);
  if (step < 0) return;
  const bool skipped = late_->numbers[static_cast<std::size_t>(step % 2)].skipped;
  if (decision.not_finite && !skipped) {
    throw Error(ErrorReport{
        ErrorCode::not_finite, decision.culprit, "compute", step, "vote",
        decision.reason + ", and the gradients that came of it are: the step was applied before anybody saw that",
        "leave vote at step, or let backward pass on what is not finite"});
  }
  StepReport report;
  report.step = report.measured_step = step;
  report.loss_scale = loss_scaler_.scale();
  fill_report(report, decision);
  loss_scaler_.update(decision.not_finite);
  late_->settled = std::move(report);
}

void Compute::commit_late(const Decision& decision, Optimizer& optimizer, double lr) {
  capability<LateVoting>()->end_step_on_device(decision.used, decision.rebuild, late_->decision);
  fault_point("committed", steps_done());
  optimizer.step_unless(late_->decision.skip, lr);
  late_->scale.update(late_->decision.skip);
  late_->unvoted = steps_done();
  end_step();
}

void Compute::fill_late_report(StepReport& report, const Decision& decision) {
  const auto earlier = std::exchange(late_->settled, std::nullopt);
  report.measured_step = earlier ? earlier->step : -1;
  report.stop_signal = decision.stop_signal;
  if (!earlier) return;
  report.committed = earlier->committed;
  report.reason = earlier->reason;
  report.loss = earlier->loss;
  report.max_loss = earlier->max_loss;
  report.samples = earlier->samples;
  report.correct = earlier->correct;
  report.gradient_norm = earlier->gradient_norm;
  report.loss_scale = earlier->loss_scale;
}

const std::optional<StepReport>& Compute::settle() {
  static const std::optional<StepReport> nothing;
  if (!late_) return nothing;
  if (late_->unvoted >= 0) {
    vote_ = Vote{};
    vote_.step = steps_done();
    GradientSummary none;
    vote_.gradient_norm = take_late_numbers(none);
    vote_.not_finite_parameter = none.not_finite_parameter;
    vote_.used.resize(strategy_->parameter_names().size());
    settle_by(decide_by(exchange_votes()));
  }
  return late_->settled;
}

}  // namespace troupe

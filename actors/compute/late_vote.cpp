#include "actors/compute/late_vote.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "actors/strategy/late_voting.hpp"
#include "tensor_io/base/fault_point.hpp"

namespace troupe {
namespace {

// Which parameter it was is not known any more: its gradient has been overwritten.
constexpr std::int32_t kSomeParameter = std::numeric_limits<std::int32_t>::max();

}  // namespace

bool LateVote::is_wanted(const ComputeCore& core) {
  if (core.options.training.vote != "late" || core.device().is_cpu()) return false;
  const auto refuse = [](const std::string& why, const char* instead) {
    throw Error(ErrorCode::usage, "vote", "late: " + why, instead);
  };
  if (core.options.may_recover)
    refuse("a step is applied before the ranks have voted on it, so a job that recovers from lost ranks can't use it",
           "start the job with --no-recovery, or leave vote at step");
  const auto able = core.strategy->capabilities();
  if (able.get<LateVoting>() == nullptr)
    refuse("strategy " + core.strategy->name() + " " + able.refusal<LateVoting>("waits for the vote"),
           "leave vote at step");
  return true;
}

LateVote::LateVote(ComputeCore& core, StepLosses& losses, VoteExchange& votes)
    : core_(core), losses_(losses), votes_(votes), scale_(core.options.training, core.device()) {}

void LateVote::begin_step() {
  if (unvoted_ < 0) scale_.load(core_.loss_scaler);
}

// Where the device keeps the loss scale, a loss that is not finite must reach the gradients, which the device decides
// by.
at::Tensor LateVote::start_of_backward(const at::Tensor& loss, double weight) {
  if (loss.is_cpu()) {
    core_.refuse("vote", "late: the loss is on the CPU, so the host has already waited for the device",
                 "compute it on the device, or leave vote at step");
  }
  const auto factor = scale_.factor_of(loss, losses_.weight_or_poison(weight), steps_micro_batches());
  return loss.to(factor.scalar_type()) * factor;
}

at::Tensor LateVote::start_of_replay(double weight) {
  return scale_.start(losses_.weight_or_poison(weight), steps_micro_batches());
}

double LateVote::decide(GradientSummary& summary, bool wants_norm) {
  auto& vote = votes_.mine();
  auto& next = numbers_[static_cast<std::size_t>(core_.step() % 2)];
  next = {};
  next.step = core_.step();
  next.losses = losses_.take_device_losses();
  next.samples = std::exchange(vote.samples, 0);
  next.correct = std::exchange(vote.correct, 0);
  const auto totals = summary.device_checks.defined()
                          ? summary.device_checks.sum(0)
                          : at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(core_.device()));
  decision_ = decide_on_device(totals, scale_.value(), core_.options.training.clip_norm, wants_norm);
  next.send(core_.device(), totals, decision_.skip);
  return take_numbers(summary, wants_norm);
}

// The numbers of an earlier step go into the vote. The host is at most a step ahead: it waits only for a device that is
// further behind.
double LateVote::take_numbers(GradientSummary& summary, bool wants_norm) {
  if (unvoted_ < 0) return 0;
  auto& numbers = numbers_[static_cast<std::size_t>(unvoted_ % 2)];
  if (!numbers.over->done())
    core_.program_communicator().wait_on_host(*numbers.over, "losses and gradient norm of the step before");
  const double norm = numbers.take(losses_);
  votes_.mine().samples = numbers.samples;
  votes_.mine().correct = numbers.correct;
  summary.not_finite_parameter = numbers.not_finite ? kSomeParameter : -1;
  return wants_norm ? norm / core_.loss_scaler.scale() : 0;
}

std::optional<std::int64_t> LateVote::measured() const noexcept {
  return unvoted_ >= 0 ? std::optional(unvoted_) : std::nullopt;
}

void LateVote::settle_by(const Decision& decision) {
  const auto step = std::exchange(unvoted_, -1);
  if (step < 0) return;
  const bool skipped = numbers_[static_cast<std::size_t>(step % 2)].skipped;
  if (decision.not_finite && !skipped) {
    throw Error(ErrorReport{
        ErrorCode::not_finite, decision.culprit, "compute", step, "vote",
        decision.reason + ", but the gradients computed from it are, so the step had been applied before the vote",
        "leave vote at step, or make backward pass NaN and infinity on to the gradients"});
  }
  StepReport report;
  report.step = report.measured_step = step;
  report.loss_scale = core_.loss_scaler.scale();
  report_decision(report, decision);
  core_.loss_scaler.update(decision.not_finite);
  settled_ = std::move(report);
}

void LateVote::commit(const Decision& decision, Optimizer& optimizer, double lr) {
  if (core_.on_update)
    core_.refuse("on_update", "with vote late the device decides whether a step is applied",
                 "set vote to step, or leave on_update out");
  core_.capability<LateVoting>()->end_step_on_device(decision.used, decision.rebuild, decision_);
  fault_point("committed", core_.step());
  optimizer.step_unless(decision_.skip, lr);
  scale_.update(decision_.skip);
  unvoted_ = core_.step();
}

void LateVote::report(StepReport& report, const Decision& decision) {
  const auto earlier = std::exchange(settled_, std::nullopt);
  report.measured_step = -1;
  if (earlier) {
    const StepResult& result = *earlier;
    static_cast<StepResult&>(report) = result;
  }
  report.stop_signal = decision.stop_signal;
}

const std::optional<StepReport>& LateVote::settle(bool wants_norm) {
  if (unvoted_ >= 0) {
    votes_.begin();
    GradientSummary none;
    votes_.mine().gradient_norm = take_numbers(none, wants_norm);
    votes_.mine().not_finite_parameter = none.not_finite_parameter;
    votes_.mine().used.resize(core_.strategy->parameter_names().size());
    const auto decision = votes_.decide_by(votes_.exchange(), measured());
    votes_.count_skipped(decision);
    settle_by(decision);
  }
  return settled_;
}

void LateVote::forget() {
  unvoted_ = -1;
  settled_.reset();
}

}  // namespace troupe

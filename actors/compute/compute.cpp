#include "actors/compute/compute.hpp"

#include <signal.h>

#include <cmath>
#include <limits>
#include <utility>

#include "actors/strategy/demand_shares.hpp"
#include "actors/strategy/device_memory.hpp"
#include "actors/strategy/early_updates.hpp"
#include "actors/strategy/meetings.hpp"
#include "actors/strategy/snapshots.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/communicator/communicator_errors.hpp"

namespace troupe {
namespace {

// It may have to be restarted first.
constexpr std::chrono::seconds kCoordinatorAway{60};

// What a rank reports that does not reach others: it may go on without them, or they without it.
ErrorReport of_link(const LinkFault& fault, std::vector<std::int32_t>& unreachable) {
  auto why = fault.report();
  why.code = ErrorCode::peer_lost;
  unreachable.assign(fault.ranks().begin(), fault.ranks().end());
  return why;
}

}  // namespace

Compute::Compute(caf::actor_system& system, ComputeOptions options) : core_(system, std::move(options)) {}

// ---------------------------------------------------------------- generations

void Compute::join(CommunicatorBuilder builder, RankSupervisorActor supervisor, std::shared_ptr<RankStatus> status,
                   std::chrono::milliseconds timeout) {
  builder_ = std::move(builder);
  auto& services = core_.services;
  services.supervisor = std::move(supervisor);
  services.status = std::move(status);
  std::optional<ErrorReport> why;
  std::vector<std::int32_t> unreachable;
  for (;;) {
    if (why) caf::anon_send(services.supervisor, core_.protocol.interruption(*why, std::exchange(unreachable, {})));
    const auto next = core_.mailbox.await_membership(timeout);
    try {
      return enter(next);
    } catch (const LinkFault& fault) {  // as in rejoin; where a job begins it is a mistake in its set-up
      if (next.generation <= 1 || services.status->job_over) throw;
      why = of_link(fault, unreachable);
    } catch (const Error& error) {
      if (!may_be_recovered(error.code()) || services.status->job_over) throw;
      why = error.report();
    }
  }
}

void Compute::enter(const Membership& next) {
  core_.protocol.join(next);
  runner_.begin_generation();
  early_.forget_optimizer();
  overflowed_ = false;
  if (late_) late_->forget();
  core_.services = builder_(next);
  show_steps_done();
  core_.program_communicator().ledger().set_step(steps_done());
  core_.mailbox.drop_of_last_generation();
}

void Compute::show_steps_done() {
  core_.services.status->steps_done = steps_done();
  runner_.move_on();
}

void Compute::resume_at(std::int64_t step) {
  core_.protocol.resumed(step);
  show_steps_done();
}

void Compute::leave_loop() {
  if (world_size() == 1) return;
  caf::anon_send(core_.services.supervisor, core_.protocol.end_of_loop());
  LeaveLoop answer;
  do {
    answer = core_.mailbox.receive<LeaveLoop>("coordinator", "the end of the other ranks' loops", kCoordinatorAway);
  } while (!core_.protocol.may_leave(answer));
}

void Compute::recover(const Error& error) {
  if (!may_be_recovered(error.code())) throw error;
  rejoin(error.report(), nullptr, 0);
}

std::optional<Decision> Compute::rejoin(ErrorReport why, Optimizer* optimizer, double lr) {
  const auto started = std::chrono::steady_clock::now();
  recovery_.cause = why.cause;
  auto& strategy = core_.strategy;
  std::optional<Decision> decision;
  std::vector<std::int32_t> unreachable;
  bool rolled_back = false;
  for (;;) {
    if (core_.services.status->job_over || !may_be_recovered(why.code)) {
      core_.mailbox.await_abort();
      throw Error(complete(why));
    }
    caf::anon_send(core_.services.supervisor,
                   core_.protocol.interruption(complete(why), std::exchange(unreachable, {})));
    Membership next;
    try {
      next = core_.mailbox.await_membership(options().timeout + kCoordinatorAway);
    } catch (const Error&) {
      if (strategy && !decision && !rolled_back) strategy->roll_back();  // what is committed may still be saved
      throw;
    }
    try {
      const auto way = core_.protocol.leave_for(next, optimizer != nullptr);
      if (way == Rejoin::commit) {
        decision = decide_by(votes_.decode(next.votes));
        commit(*decision, *optimizer, lr);
      } else if (strategy && !rolled_back && (!decision || core_.capability<Snapshots>() != nullptr)) {
        strategy->roll_back();
        rolled_back = true;
      }
      enter(next);
      if (strategy) {
        strategy->rejoin(core_.strategy_context(!core_.protocol.whole()));
        begin_generation();
        heal();
        strategy->set_rollback_point();
        if (shares_per_rank() > 0) runner_.move_on();  // which share comes next goes by the new rank
      }
      recovery_.ms = milliseconds_since(started);
      return decision;
    } catch (const LinkFault& fault) {  // the coordinator hears all ranks, and decides who is left out
      why = of_link(fault, unreachable);
    } catch (const Error& error) {
      why = error.report();
    }
  }
}

void Compute::begin_generation() {
  votes_.allocate();
  pace_.reset();
  clock_.reset();
  optimizer_bytes_.reset();
  runner_.forget_graphs();
}

// With the newcomers.
void Compute::heal() {
  healing_.heal_model();
  go_back();
  if (auto* meetings = core_.capability<Meetings>()) meetings->meet(steps_done());
}

// A strategy that keeps snapshots has gone back to one, on all ranks.
void Compute::go_back() {
  if (!snapshots_.went_back()) return;
  show_steps_done();
  core_.program_communicator().ledger().set_step(steps_done());
}

std::optional<StepReport> Compute::last_step() const {
  const auto& votes = core_.protocol.group().votes;
  if (votes.empty() || !core_.strategy) return std::nullopt;
  StepReport report;
  report_decision(report, decide_by(votes_.decode(votes)));
  report.step = report.measured_step = membership().resume_step - 1;
  return report;
}

// ---------------------------------------------------------------- the model

void Compute::distribute(std::shared_ptr<torch::nn::Module> model) {
  if (core_.strategy)
    throw Error(ErrorCode::usage, "distribute", "this rank already has a model",
                "put several networks into one torch::nn::Module");
  core_.take_model(std::move(model));
  for (;;) {
    try {
      make_strategy_of_rank();
      core_.strategy->attach(core_.model);
      fault_point("distribute", steps_done());
      begin_generation();
      core_.protocol.must_heal() ? heal() : go_back();
      break;
    } catch (const Error& error) {
      core_.strategy.reset();
      core_.protocol.keeps_snapshots(false);
      recover(error);
    }
  }
  core_.became_distributed();
  core_.strategy->set_rollback_point();
  runner_.begin_model();
  clock_.begin_step();
}

void Compute::make_strategy_of_rank() {
  core_.make_strategy();
  late_ = LateVote::is_wanted(core_) ? std::make_unique<LateVote>(core_, losses_, votes_) : nullptr;
  early_.check_options();
  runner_.prepare(late_.get());
}

// While the optimizer is there: an error's way up ends it. Before its first step: whoever asks for its state later may
// have changed it, so that on a device it would be read once more.
void Compute::note_optimizer(Optimizer& optimizer) {
  std::vector<at::Tensor> moments;
  for (const auto& [name, tensor] : optimizer.state()) moments.push_back(tensor);
  optimizer_bytes_ = bytes_on(core_.device(), moments);
}

std::vector<HeldMemory> Compute::held_memory() const {
  const auto* memory = core_.capability<DeviceMemory>();
  auto held = memory == nullptr ? std::vector<HeldMemory>() : memory->held_memory();
  if (core_.strategy) held.push_back({"optimizer state", optimizer_bytes_.value_or(0)});
  return held;
}

// ---------------------------------------------------------------- a step

std::vector<Vote> Compute::vote(const GradientSummary& summary, double norm) {
  auto& mine = votes_.mine();
  mine.layout_hash = summary.layout_hash ^ core_.code_hash;
  mine.not_finite_parameter = summary.not_finite_parameter;
  mine.made_by_hook = summary.made_by_hook ? 1 : 0;
  mine.gradient_norm = norm;
  mine.stop_signal = services().status->end_for_vote(membership().generation);
  mine.rebuild = summary.order_changed ? 1 : 0;
  mine.used = summary.used;
  mine.parameter_hash = replicas_.parameter_hash_if_due();
  mine.own = clock_.take_own();
  return votes_.exchange();
}

Decision Compute::decide_by(const std::vector<Vote>& votes) const {
  return votes_.decide_by(votes, late_ ? late_->measured() : std::nullopt);
}

// With a scaler the norm also shows what overflowed only in the sum over ranks.
bool Compute::wants_norm() const { return options().training.clip_norm > 0 || core_.loss_scaler.enabled(); }

double Compute::gradient_norm() {
  return wants_norm() ? core_.strategy->gradient_norm() / core_.loss_scaler.scale() : 0;
}

// Where the host decides: waits for what a device has of the step. Returns the gradient's norm.
double Compute::wait_for_numbers(GradientSummary& summary) {
  const bool has_norm = summary.device_checks.defined();
  DeviceNumbers numbers;
  numbers.losses = losses_.take_device_losses();
  numbers.send(core_.device(), has_norm ? summary.device_checks.sum(0) : at::Tensor(), {});
  double norm = 0;
  if (numbers.over) {
    core_.program_communicator().wait_on_host(*numbers.over, "losses and gradient norm");
    norm = numbers.take(losses_);
    votes_.mine().correct += numbers.correct;
    if (numbers.not_finite) summary.not_finite_parameter = core_.strategy->find_not_finite();
  }
  return has_norm && wants_norm() ? norm / core_.loss_scaler.scale() : gradient_norm();
}

void Compute::apply(Optimizer& optimizer, double lr, double norm, double gradient_factor) {
  // Same guard against division by zero as torch.nn.utils.clip_grad_norm_.
  const double clip = options().training.clip_norm;
  double factor = gradient_factor / core_.loss_scaler.scale();
  if (clip > 0 && norm + 1e-6 > clip) factor *= clip / (norm + 1e-6);
  if (factor != 1) core_.strategy->scale_gradients(factor);
  if (auto* early = core_.capability<EarlyUpdates>()) return early->update(optimizer, lr);
  optimizer.step(lr);
}

void Compute::commit(const Decision& decision, Optimizer& optimizer, double lr) {
  auto& strategy = *core_.strategy;
  strategy.end_step(decision.used, decision.rebuild, decision.commit);
  fault_point("committed", steps_done());
  if (decision.commit && !early_.has_begun())
    apply(optimizer, lr,
          strategy.replicas_equal() ? decision.gradient_norm : votes_.mine().gradient_norm * decision.gradient_factor,
          decision.gradient_factor);
  if (decision.commit && core_.on_update) core_.on_update(steps_done());
  core_.loss_scaler.update(decision.not_finite);
  end_step();
}

void Compute::end_step() {
  fault_point("optimizer", steps_done());
  early_.begin_step();
  forget_micro_batches();
  votes_.log().end_step();
  core_.protocol.end_step();
  show_steps_done();
}

void Compute::forget_micro_batches() {
  runner_.end_step();
  overflowed_ = false;
}

// The average has a gradient of parameters that were wrong. What the decision says of the plan and of used parameters
// holds for the step as it comes again.
void Compute::run_step_again(const Decision& decision, StepReport& report) {
  core_.strategy->end_step(decision.used, decision.rebuild, false);
  forget_micro_batches();
  runner_.move_on();
  report.committed = false, report.repeat = true;
  report.reason = "a replica was healed";
}

// Members leave, between two steps.
void Compute::part(const Decision& decision, Optimizer& optimizer, StepReport& report) {
  if (decision.leaving.empty() || report.stop_signal != 0) return;
  if (!snapshots_.hand_over(optimizer, decision.leaving)) report.stop_signal = SIGTERM;  // it can't go on without them
}

// Whether the step has another share for this rank.
bool Compute::end_share(Optimizer& optimizer, double lr) {
  settle_optimizer(optimizer);  // it is used before the vote
  TracePhase exchange("exchange with the server");
  const bool has_another = core_.capability<DemandShares>()->end_share([&] {
    const double norm = gradient_norm();
    overflowed_ = overflowed_ || !std::isfinite(norm);
    if (!overflowed_) apply(optimizer, lr, norm);  // else the next share's loss would not be finite either
  });
  exchange.end();
  clock_.count_share_wait(milliseconds_since(exchange.began()));
  runner_.end_share(has_another);
  return has_another;
}

const std::optional<StepReport>& Compute::settle() {
  static const std::optional<StepReport> nothing;
  return late_ ? late_->settle(wants_norm()) : nothing;
}

StepReport Compute::step(Optimizer& optimizer, double lr) {
  runner_.check_complete();
  auto& strategy = *core_.strategy;
  StepReport report;
  report.step = report.measured_step = steps_done();
  report.lr = optimizer.first_rate(lr);
  report.loss_scale = core_.loss_scaler.scale();
  strategy.shard_optimizer(optimizer);
  early_.check(optimizer, lr);
  try {
    snapshots_.take_if_due(optimizer, /*in_step=*/true);
    if (shares_per_rank() > 0 && end_share(optimizer, lr)) {
      report.committed = false, report.pending = true;
      return report;
    }
    TracePhase waiting("wait for gradients");
    clock_.end_backward();
    auto summary = strategy.reduce_gradients();
    waiting.end();
    fault_point("reduced", steps_done());
    clock_.report_reduction(report, summary.reduced, milliseconds_since(waiting.began()));
    double norm = late_ ? late_->decide(summary, wants_norm()) : wait_for_numbers(summary);
    clock_.report_device(report);
    if (overflowed_) norm = std::numeric_limits<double>::infinity();
    settle_optimizer(optimizer);
    TracePhase voting("vote");
    const auto votes = vote(summary, norm);
    voting.end();
    if (world_size() > 1) report.exposed_ms += milliseconds_since(voting.began());
    const auto decision = decide_by(votes);
    votes_.count_skipped(decision);
    const bool healed = replicas_.heal_diverged(votes, optimizer, report);
    pace_.watch(votes, report);
    if (healed && !late_) {  // with a late vote the device has the step already
      run_step_again(decision, report);
      clock_.end_step(report);
      return report;
    }
    TracePhase updating("optimizer");
    const bool is_first = !optimizer_bytes_;
    if (is_first) note_optimizer(optimizer);
    if (late_) {
      late_->settle_by(decision);
      late_->commit(decision, optimizer, lr);
      end_step();
      late_->report(report, decision);
    } else {
      commit(decision, optimizer, lr);
      report_decision(report, decision);
    }
    if (is_first && *optimizer_bytes_ == 0) note_optimizer(optimizer);  // one that makes its state in its first step
    updating.end();
    report.optimizer_ms = milliseconds_since(updating.began());
    StepClock::report_buckets(report, summary);
    report.inside_ms = clock_.take_inside();
    strategy.after_update();
    early_.prepare(optimizer);
    for (auto& notice : core_.take_notices()) report.notices.push_back(std::move(notice));
    strategy.set_rollback_point();
    snapshots_.take_if_due(optimizer, /*in_step=*/false);
    part(decision, optimizer, report);
  } catch (const Error& error) {
    if (!may_be_recovered(error.code())) throw;
    const auto rolled_forward = rejoin(error.report(), &optimizer, lr);
    if (rolled_forward) report_decision(report, *rolled_forward);
    if (steps_done() <= report.step) {  // not where it failed after the commit, or is committed now
      report.committed = false, report.repeat = true;
      report.reason = membership().reason;
      if (steps_done() < report.step) report.reason += ", from the snapshot of step " + std::to_string(steps_done());
    }
  }
  if (core_.protocol.parted()) rejoin({.code = ErrorCode::aborted, .cause = "members leave"}, &optimizer, lr);
  clock_.end_step(report);
  return report;
}

}  // namespace troupe

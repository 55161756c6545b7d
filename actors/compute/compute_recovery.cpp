// Compute between two generations: how a rank leaves the one that was interrupted and joins the next.
#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "actors/compute/compute.hpp"
#include "actors/compute/heal.hpp"
#include "actors/compute/heal_header.hpp"
#include "actors/compute/rejoin.hpp"
#include "actors/strategy/saved_state.hpp"
#include "actors/strategy/snapshots.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/communicator/communicator_errors.hpp"

namespace troupe {

RankInterrupted Compute::interruption(const ErrorReport& why, const std::vector<int>& unreachable) const {
  RankInterrupted report;
  report.process = options_.process;
  report.generation = membership_.generation;
  report.steps_done = step_;
  report.voted_step = voted_step_;
  report.tasks_done = tasks_done_;
  report.distributed = distributed_;
  report.whole = whole_ && distributed_;
  report.why = why.to_string();
  report.hung = why.code == ErrorCode::timeout;
  report.unreachable.assign(unreachable.begin(), unreachable.end());
  report.goes_back = capability<Snapshots>() != nullptr;
  report.save = save_begun_;
  if (votes_step_ >= 0) {
    const auto& out = vote_out_[votes_step_ % 2];
    report.votes_step = votes_step_;
    report.votes.assign(reinterpret_cast<const char*>(out.data_ptr<std::uint8_t>()),
                        static_cast<std::size_t>(out.numel()));
  }
  return report;
}

Membership Compute::await_membership(std::chrono::milliseconds timeout) {
  std::optional<Membership> next;
  while (!next) {
    self_->receive(
        [&](Membership& membership) {
          if (membership.generation > membership_.generation) next = std::move(membership);
        },
        [](InterruptRanks&) {}, [](LaneFailed&) {}, [](BucketsReduced&) {},
        [&](RankFailed& failed) { throw_failure(failed.report); }, [&](AbortJob& job) { throw_abort(job.report); },
        caf::after(timeout) >>
            [&] {
              throw Error(
                  ErrorReport{ErrorCode::peer_lost,
                              rank_,
                              "compute",
                              step_,
                              "membership",
                              "the coordinator announced none within " + std::to_string(timeout.count() / 1000) + " s",
                              {}});
            });
  }
  return std::move(*next);
}

void Compute::enter(const Membership& next) {
  membership_ = next;
  rank_ = next.rank_of(options_.process);
  if (rank_ < 0)
    throw Error(ErrorReport{ErrorCode::fenced, -1, "compute", step_, {}, "the job goes on without this process", {}});
  whole_ = !next.members[static_cast<std::size_t>(rank_)].newcomer;
  heal_pending_ = optimizer_pending_ = next.has_newcomers();
  micro_batch_ = 0;
  has_share_ = false;
  prepared_for_ = nullptr;
  shares_wait_ms_ = 0;
  voted_step_ = votes_step_ = -1;
  tasks_done_ = next.tasks_done;
  if (late_) late_->unvoted = -1, late_->settled.reset();
  services_ = builder_(next);
  set_steps_done(next.resume_step);
  services_.program_lane->ledger().set_step(step_);
  // What the reducer said about the old lane before it left it.
  bool more = true;
  while (more) {
    self_->receive([](const LaneFailed&) {}, [](const BucketsReduced&) {}, [](const InterruptRanks&) {},
                   caf::after(std::chrono::seconds(0)) >> [&] { more = false; });
  }
}

std::optional<Decision> Compute::rejoin(ErrorReport why, Optimizer* optimizer, double lr) {
  const auto started = std::chrono::steady_clock::now();
  auto decision = rejoin_next(std::move(why), optimizer, lr);
  recovery_ms_ = milliseconds_since(started);
  return decision;
}

std::optional<Decision> Compute::rejoin_next(ErrorReport why, Optimizer* optimizer, double lr) {
  std::optional<Decision> decision;
  std::vector<int> unreachable;
  bool rolled_back = false;
  for (;;) {
    if (services_.status->job_over || !may_be_recovered(why.code)) {
      self_->receive([&](AbortJob& job) { throw_abort(job.report); }, caf::after(std::chrono::seconds(1)) >> [] {});
      throw Error(complete(why));
    }
    caf::anon_send(services_.supervisor, interruption(complete(why), std::exchange(unreachable, {})));
    Membership next;
    try {
      next = await_membership(options_.timeout + std::chrono::seconds(60));
    } catch (const Error&) {
      if (strategy_ && !decision && !rolled_back) strategy_->roll_back();  // what is committed may still be saved
      throw;
    }
    try {
      const bool goes_back = capability<Snapshots>() != nullptr;
      const auto way = how_to_rejoin(next, {step_, voted_step_, whole_, optimizer != nullptr, goes_back});
      if (way == Rejoin::commit) {
        decision = decide_by(decode_votes(next.votes));
        commit(*decision, *optimizer, lr);
      } else if (way == Rejoin::refuse) {
        throw Error(ErrorReport{ErrorCode::internal,
                                rank_,
                                "compute",
                                step_,
                                "recovery",
                                "the others go on at step " + std::to_string(next.resume_step),
                                {}});
      } else if (strategy_ && !rolled_back && (goes_back || !decision)) {
        strategy_->roll_back();
        rolled_back = true;
      }
      enter(next);
      if (strategy_) {
        strategy_->rejoin(strategy_context(!whole_));
        allocate_votes();
        heal();
        go_back();
        strategy_->set_rollback_point();
        if (shares_per_rank() > 0) move_on();  // which share comes next goes by the new rank
      }
      return decision;
    } catch (const LinkFault& fault) {  // the coordinator hears all ranks, and decides who is left out
      why = fault.report();
      why.code = ErrorCode::peer_lost;
      unreachable = fault.ranks();
    } catch (const Error& error) {
      why = error.report();
    }
  }
}

// A strategy that keeps snapshots has gone back to one, on all ranks.
void Compute::go_back() {
  auto* snapshots = capability<Snapshots>();
  const auto restored = snapshots == nullptr ? std::nullopt : snapshots->take_restored();
  if (!restored) return;
  const auto note = nlohmann::json::parse(restored->note);
  loss_scaler_.load(note["loss_scale"].get<double>(), note["loss_scale_growth_tracker"].get<std::int64_t>());
  whole_ = true;
  optimizer_pending_ = false;  // the optimizer gets its part when it is next seen
  tasks_done_ = 0;
  set_steps_done(restored->step);
  services_.program_lane->ledger().set_step(step_);
}

// Every so many steps, and at the start of a generation: the copies of the one before are another cut's, and those of
// its dead are gone.
void Compute::take_snapshot_if_due(Optimizer& optimizer) {
  const auto every = options_.training.snapshot_every;
  auto* snapshots = capability<Snapshots>();
  if (every <= 0 || !options_.may_recover || snapshots == nullptr) return;
  if (snapshot_generation_ == membership_.generation && (micro_batch_ != 0 || step_ % every != 0)) return;
  const nlohmann::json note{{"loss_scale", loss_scaler_.scale()},
                            {"loss_scale_growth_tracker", loss_scaler_.growth_tracker()}};
  snapshots->take_snapshot(optimizer, membership_.generation, step_, note.dump());
  snapshot_generation_ = membership_.generation;
}

std::optional<StepReport> Compute::last_step() const {
  if (membership_.votes.empty() || !strategy_) return std::nullopt;
  StepReport report;
  fill_report(report, decide_by(decode_votes(membership_.votes)));
  report.step = report.measured_step = membership_.resume_step - 1;
  return report;
}

void Compute::recover(const Error& error) {
  if (!may_be_recovered(error.code())) throw error;
  rejoin(error.report(), nullptr, 0);
}

void Compute::heal() {
  auto& lane = *services_.program_lane;
  const auto donor = heal_roles(membership_).first_donor;
  HealHeader header;
  if (rank_ == donor)
    header = {strategy_->saved_state().state(), notes_, loss_scaler_.scale(), loss_scaler_.growth_tracker()};
  header = HealHeader::of(lane.broadcast_bytes(rank_ == donor ? header.to_text() : std::string(), donor, "heal"));
  const auto group = replica_group();
  const auto roles = heal_roles(membership_, !strategy_->replicas_equal(), group.members);
  // On all ranks alike, so that nobody waits for what nobody has.
  const auto orphans = lane.all_gather_bytes(roles.first_donor < 0 ? "lost" : "", "heal");
  for (std::size_t r = 0; r < orphans.size(); ++r) {
    if (orphans[r].empty()) continue;
    throw Error(
        ErrorReport{ErrorCode::state_lost, static_cast<int>(r), "compute", step_, "recovery",
                    "no other rank holds the part of the model that the lost rank " + std::to_string(r) + " had",
                    "start again with --resume latest; a mesh with dp=2 keeps a copy of each part"});
  }
  auto model = strategy_->replicated_tensors();
  const auto buffers = std::stable_partition(
      model.begin(), model.end(),
      [known = model_->named_buffers()](const auto& entry) { return !known.contains(entry.first); });
  auto of_buffers = roles;
  of_buffers.first_alone = roles.first_alone || !options_.strategy.broadcast_buffers;  // each rank has its own then
  heal_tensors({model.begin(), buffers}, roles, *group.lane, "model");
  if (buffers != model.end()) heal_tensors({buffers, model.end()}, of_buffers, *group.lane, "buffers");
  if (const auto own = strategy_->strategy_tensors(); !own.empty())
    heal_tensors(own, heal_roles(membership_), lane, "the strategy's tensors");
  strategy_->saved_state().load_state(header.strategy);
  notes_ = header.notes;
  loss_scaler_.load(header.loss_scale, header.growth_tracker);
  heal_pending_ = false;
}

void Compute::settle_optimizer(Optimizer& optimizer) {
  if (!optimizer_pending_) return;
  strategy_->shard_optimizer(optimizer);  // a save may be the first that sees it
  const auto group = replica_group();
  heal_optimizer(optimizer, heal_roles(membership_, !strategy_->replicas_equal(), group.members), *group.lane);
  optimizer_pending_ = false;
}

ReplicaGroup Compute::replica_group() const {
  const auto* placement = capability<Placement>();
  auto group = placement == nullptr ? std::nullopt : placement->replica_group();
  return group ? std::move(*group) : ReplicaGroup{services_.program_lane, {}};
}

void Compute::heal_optimizer(Optimizer& optimizer, const HealRoles& roles, Communicator& lane) {
  const bool receiving = roles.newcomer[static_cast<std::size_t>(lane.rank())];
  auto state = receiving ? NamedTensors{} : optimizer.state();
  const auto shapes = lane.broadcast_bytes(shapes_of(state), roles.first_donor, "heal");
  if (receiving) state = zeros_of_shapes(shapes);
  heal_tensors(state, roles, lane, "optimizer state");
  if (receiving) optimizer.load_state(state);
  whole_ = true;
}

}  // namespace troupe

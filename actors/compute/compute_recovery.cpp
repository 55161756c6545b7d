// Compute between two generations: how a rank leaves the one that was interrupted and joins the next.
#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "actors/compute/compute.hpp"
#include "actors/compute/heal.hpp"
#include "actors/compute/heal_header.hpp"
#include "actors/strategy/saved_state.hpp"
#include "actors/strategy/snapshots.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/communicator/communicator_errors.hpp"

namespace troupe {

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
                              rank(),
                              "compute",
                              steps_done(),
                              "membership",
                              "the coordinator announced none within " + std::to_string(timeout.count() / 1000) + " s",
                              {}});
            });
  }
  return std::move(*next);
}

void Compute::enter(const Membership& next) {
  protocol_.join(StepGroup::of(next));
  membership_ = next;
  micro_batch_ = 0;
  has_share_ = false;
  prepared_for_ = nullptr;
  shares_wait_ms_ = 0;
  if (late_) late_->unvoted = -1, late_->settled.reset();
  services_ = builder_(next);
  show_steps_done();
  services_.program_lane->ledger().set_step(steps_done());
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
  std::vector<std::int32_t> unreachable;
  bool rolled_back = false;
  for (;;) {
    if (services_.status->job_over || !may_be_recovered(why.code)) {
      self_->receive([&](AbortJob& job) { throw_abort(job.report); }, caf::after(std::chrono::seconds(1)) >> [] {});
      throw Error(complete(why));
    }
    caf::anon_send(services_.supervisor, protocol_.interruption(complete(why), std::exchange(unreachable, {})));
    Membership next;
    try {
      next = await_membership(options_.timeout + std::chrono::seconds(60));
    } catch (const Error&) {
      if (strategy_ && !decision && !rolled_back) strategy_->roll_back();  // what is committed may still be saved
      throw;
    }
    try {
      const auto way = protocol_.leave_for(StepGroup::of(next), optimizer != nullptr);
      if (way == Rejoin::commit) {
        decision = decide_by(decode_votes(next.votes));
        commit(*decision, *optimizer, lr);
      } else if (strategy_ && !rolled_back && (!decision || capability<Snapshots>() != nullptr)) {
        strategy_->roll_back();
        rolled_back = true;
      }
      enter(next);
      if (strategy_) {
        strategy_->rejoin(strategy_context(!protocol_.whole()));
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
      unreachable.assign(fault.ranks().begin(), fault.ranks().end());
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
  protocol_.went_back(restored->step);
  show_steps_done();
  services_.program_lane->ledger().set_step(steps_done());
}

// Every so many steps, and at the start of a generation: the copies of the one before are another cut's, and those of
// its dead are gone.
void Compute::take_snapshot_if_due(Optimizer& optimizer) {
  const auto every = options_.training.snapshot_every;
  auto* snapshots = capability<Snapshots>();
  if (every <= 0 || !options_.may_recover || snapshots == nullptr) return;
  if (snapshot_generation_ == membership_.generation && (micro_batch_ != 0 || steps_done() % every != 0)) return;
  const nlohmann::json note{{"loss_scale", loss_scaler_.scale()},
                            {"loss_scale_growth_tracker", loss_scaler_.growth_tracker()}};
  snapshots->take_snapshot(optimizer, membership_.generation, steps_done(), note.dump());
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
  if (rank() == donor)
    header = {strategy_->saved_state().state(), notes_, loss_scaler_.scale(), loss_scaler_.growth_tracker()};
  header = HealHeader::of(lane.broadcast_bytes(rank() == donor ? header.to_text() : std::string(), donor, "heal"));
  const auto group = replica_group();
  const auto roles = heal_roles(membership_, !strategy_->replicas_equal(), group.members);
  // On all ranks alike, so that nobody waits for what nobody has.
  const auto orphans = lane.all_gather_bytes(roles.first_donor < 0 ? "lost" : "", "heal");
  for (std::size_t r = 0; r < orphans.size(); ++r) {
    if (orphans[r].empty()) continue;
    throw Error(
        ErrorReport{ErrorCode::state_lost, static_cast<int>(r), "compute", steps_done(), "recovery",
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
  protocol_.healed();
}

void Compute::settle_optimizer(Optimizer& optimizer) {
  if (!protocol_.must_settle_optimizer()) return;
  strategy_->shard_optimizer(optimizer);  // a save may be the first that sees it
  const auto group = replica_group();
  heal_optimizer(optimizer, heal_roles(membership_, !strategy_->replicas_equal(), group.members), *group.lane);
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
  protocol_.settled_optimizer();
}

}  // namespace troupe

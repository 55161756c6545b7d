#include "actors/compute/state_healing.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "actors/recovery/heal_header.hpp"
#include "actors/strategy/saved_state.hpp"

namespace troupe {

void StateHealing::heal_model() {
  auto& communicator = core_.program_communicator();
  const auto donor = heal_roles(core_.membership()).first_donor;
  HealHeader header;
  if (core_.rank() == donor)
    header = {core_.strategy->saved_state().state(), notes_, core_.loss_scaler.scale(),
              core_.loss_scaler.growth_tracker()};
  header = HealHeader::of(
      communicator.broadcast_bytes(core_.rank() == donor ? header.to_text() : std::string(), donor, "heal"));
  const auto group = replica_group();
  const auto roles = heal_roles(core_.membership(), !core_.strategy->replicas_equal(), group.members);
  // On all ranks alike, so that no rank waits for what none has.
  const auto orphans = communicator.all_gather_bytes(roles.first_donor < 0 ? "lost" : "", "heal");
  for (std::size_t r = 0; r < orphans.size(); ++r) {
    if (orphans[r].empty()) continue;
    throw Error(
        ErrorReport{ErrorCode::state_lost, static_cast<int>(r), "compute", core_.step(), "recovery",
                    "no other rank holds the part of the model that the lost rank " + std::to_string(r) + " had",
                    "start again with --resume auto; a mesh with dp=2 keeps a copy of each part"});
  }
  auto model = core_.strategy->replicated_tensors();
  const auto buffers = std::stable_partition(
      model.begin(), model.end(),
      [known = core_.model->named_buffers()](const auto& entry) { return !known.contains(entry.first); });
  auto of_buffers = roles;
  of_buffers.first_alone =
      roles.first_alone || !core_.options.strategy.broadcast_buffers;  // each rank has its own then
  heal_tensors({model.begin(), buffers}, roles, *group.communicator, "model");
  if (buffers != model.end()) heal_tensors({buffers, model.end()}, of_buffers, *group.communicator, "buffers");
  if (const auto own = core_.strategy->strategy_tensors(); !own.empty())
    heal_tensors(own, heal_roles(core_.membership()), communicator, "the strategy's tensors");
  core_.strategy->saved_state().load_state(header.strategy);
  notes_ = header.notes;
  core_.loss_scaler.load(header.loss_scale, header.growth_tracker);
  core_.protocol.healed();
}

void StateHealing::settle_optimizer(Optimizer& optimizer) {
  if (!core_.protocol.must_settle_optimizer()) return;
  core_.strategy->shard_optimizer(optimizer);  // a save may be the first that sees it
  const auto group = replica_group();
  heal_optimizer(optimizer, heal_roles(core_.membership(), !core_.strategy->replicas_equal(), group.members),
                 *group.communicator);
}

ReplicaGroup StateHealing::replica_group() const {
  const auto* placement = core_.capability<Placement>();
  auto group = placement == nullptr ? std::nullopt : placement->replica_group();
  return group ? std::move(*group) : ReplicaGroup{core_.services.program_communicator, {}};
}

void StateHealing::heal_optimizer(Optimizer& optimizer, const HealRoles& roles, Communicator& communicator) {
  const bool receiving = roles.newcomer[static_cast<std::size_t>(communicator.rank())];
  auto state = receiving ? NamedTensors{} : optimizer.state();
  const auto shapes = communicator.broadcast_bytes(shapes_of(state), roles.first_donor, "heal");
  if (receiving) state = zeros_of_shapes(shapes, core_.device());
  heal_tensors(state, roles, communicator, "optimizer state");
  if (receiving) optimizer.load_state(state);
  core_.protocol.settled_optimizer();
}

}  // namespace troupe

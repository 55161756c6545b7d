#include "actors/compute/replica_check.hpp"

#include <string>

#include "actors/messages/rank_list.hpp"
#include "actors/recovery/heal.hpp"
#include "actors/step/divergence.hpp"

namespace troupe {

// Not the buffers: forward has changed them, on each rank by its own samples.
NamedTensors ReplicaCheck::parameters() const {
  auto tensors = core_.strategy->replicated_tensors();
  std::erase_if(tensors,
                [buffers = core_.model->named_buffers()](const auto& entry) { return buffers.contains(entry.first); });
  return tensors;
}

bool ReplicaCheck::is_due() const {
  const auto every = core_.options.training.verify_every;
  return every != 0 && (core_.step() + 1) % every == 0 && core_.world_size() > 1 && core_.strategy->replicas_equal();
}

std::uint64_t ReplicaCheck::parameter_hash_if_due() const {
  if (!is_due()) return 0;
  const auto compared = parameters();
  return compared.empty() ? 0 : hash_tensors(compared);
}

bool ReplicaCheck::heal_diverged(const std::vector<Vote>& votes, Optimizer& optimizer, StepReport& report) {
  const auto divergence = find_divergence(votes);
  if (!divergence) return false;
  std::string hosts;
  for (const int rank : divergence->diverged) {
    const auto& host = core_.membership().members[static_cast<std::size_t>(rank)].host;
    hosts += (hosts.empty() ? "" : ", ") + host;
  }
  const auto& rule = core_.options.training.on_divergence;
  if (rule == "stop" || (!divergence->majority && rule != "rank_0")) {
    throw Error(ErrorReport{
        ErrorCode::mismatch, divergence->diverged.front(), "compute", core_.step(), "comparing parameters",
        divergence->describe() + " (" + hosts + ")" +
            (divergence->majority ? ""
                                  : ", and no side has more than half of the ranks, so it is unknown which is right"),
        "check the memory of these hosts, and start again with --resume auto; on_divergence can heal instead of "
        "stopping"});
  }
  HealRoles roles{divergence->trusted.front(), std::vector<bool>(votes.size(), false), false};
  for (const int rank : divergence->diverged) roles.newcomer[static_cast<std::size_t>(rank)] = true;
  if (roles.newcomer[static_cast<std::size_t>(core_.rank())]) core_.protocol.lost_state();
  heal_tensors(parameters(), roles, core_.program_communicator(), "model");
  healing_.heal_optimizer(optimizer, roles, core_.program_communicator());
  report.notices.push_back("step " + std::to_string(core_.step()) + ": " + divergence->describe() + " (" + hosts +
                           "): healed from " + rank_list(divergence->trusted) +
                           (divergence->majority ? "" : ", rank 0's side"));
  return true;
}

}  // namespace troupe

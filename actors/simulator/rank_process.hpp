#pragma once
#include <caf/all.hpp>

#include <memory>

#include "actors/rank/rank_supervisor.hpp"
#include "actors/simulator/world.hpp"

namespace troupe::simulator {

class RankModel;

/// One life of a rank: its process and the actors in it. It stays as long as the job, also once the process has ended.
struct RankProcess {
  Process* process = nullptr;
  ProcessId id;
  caf::strong_actor_ptr coordinator;  ///< a proxy
  std::shared_ptr<RankStatus> status = std::make_shared<RankStatus>();
  RankSupervisorActor supervisor;
  const RankSupervisorState* supervisor_state = nullptr;  ///< valid while the process lives
  caf::actor compute;
  std::unique_ptr<RankModel> model;  ///< the state of `compute`
};

}  // namespace troupe::simulator

#pragma once
#include <caf/all.hpp>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.hpp"
#include "actors/rank_supervisor.hpp"

namespace troupe {

/// One per job: who takes part, where ranks leave their addresses for each other, who is to blame when collectives stall, and the end of
/// the job: the first failure ends it for all ranks within a second.
using CoordinatorActor = caf::typed_actor<caf::replies_to<JoinJob>::with<JoinAccepted>,        //
                                          caf::reacts_to<PutValue>,                            //
                                          caf::replies_to<GetValue>::with<bool, std::string>,  // there or not, and its value
                                          caf::reacts_to<CollectiveState>,                     //
                                          caf::replies_to<RankEnded>::with<bool>,              // acknowledged
                                          caf::reacts_to<StopJob>>;

struct CoordinatorOptions {
  std::string job_id;
  int world_size = 1;
};

struct CoordinatorState {
  struct Member {
    RankSupervisorActor supervisor;
    JoinJob joined;
    std::optional<ErrorReport> ended;
  };

  CoordinatorActor::behavior_type make_behavior();
  JoinAccepted join(const JoinJob& join, const caf::strong_actor_ptr& sender);
  void put(PutValue value) { values.insert_or_assign(std::move(value.key), std::move(value.value)); }
  void consider(const CollectiveState& state);
  void end(const RankEnded& ended);
  void lost(const caf::down_msg& down);
  void abort(const ErrorReport& reason);
  void stop(const StopJob& stop);

  CoordinatorActor::pointer self = nullptr;
  CoordinatorOptions options;
  std::map<int, Member> members;
  std::map<std::string, std::string> values;
  std::map<std::string, std::map<int, CollectiveState>> stalled;  // by lane, by rank: the newest report of each
  std::optional<ErrorReport> aborted;
  static inline const char* name = "coordinator";
};

CoordinatorActor::behavior_type coordinator(CoordinatorActor::stateful_pointer<CoordinatorState> self, CoordinatorOptions options);

}  // namespace troupe

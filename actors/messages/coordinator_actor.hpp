#pragma once
#include <caf/all.hpp>

#include <string>

#include "actors/messages/messages.hpp"

namespace troupe {

/// A host's agent, as the coordinator knows it.
using NodeAgentActor = caf::typed_actor<caf::reacts_to<StartRank>, caf::reacts_to<KillRank>, caf::reacts_to<JobOver>>;

/// The launcher's own agent by name, beside those of the hosts. It has no ranks, and speaks for hosts without an agent.
inline constexpr const char* kLauncher = "(launcher)";

/// One per job. It decides on the memberships, on replacements of dead ranks, on the rank at fault if collectives
/// stall, and on the end of the job. Ranks leave their addresses for each other with it. It takes no part in a step:
/// ranks train on while it is away.
using CoordinatorActor =
    caf::typed_actor<caf::replies_to<JoinJob>::with<JoinAccepted>,        //
                     caf::replies_to<JoinNode>::with<std::string>,        // why it may not; empty: it may
                     caf::reacts_to<PutValue>,                            //
                     caf::replies_to<GetValue>::with<bool, std::string>,  // there or not, and its value
                     caf::reacts_to<Membership>,                          //
                     caf::reacts_to<CollectiveState>,                     //
                     caf::reacts_to<Heartbeat>,                           //
                     caf::reacts_to<RankInterrupted>,                     //
                     caf::reacts_to<LeaveNotice>,                         //
                     caf::reacts_to<RankExited>,                          //
                     caf::reacts_to<PartSaved>,                           //
                     caf::reacts_to<CheckpointPublished>,                 //
                     caf::reacts_to<LoopDone>,                            //
                     caf::replies_to<RankEnded>::with<bool>,              // acknowledged
                     caf::reacts_to<CoordinatorTick>>;

/// The messages that other processes may send it: all but its own clock.
using MessagesToCoordinator =
    std::tuple<JoinJob, JoinNode, PutValue, GetValue, Membership, CollectiveState, Heartbeat, RankInterrupted,
               LeaveNotice, RankExited, PartSaved, CheckpointPublished, LoopDone, RankEnded>;

}  // namespace troupe

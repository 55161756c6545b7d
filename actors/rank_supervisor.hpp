#pragma once
#include <caf/all.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.hpp"
#include "tensor_io/communicator.hpp"

namespace troupe {

/// A communicator that the supervisor watches and, when the job fails, aborts.
struct RegisterLane {
  std::string name;
  std::shared_ptr<Communicator> communicator;
};
/// Looks at the ledgers: sent by the supervisor to itself.
struct CheckLanes {};
/// Compute has left its loop: `report.code` ok, or why not. Answered once the coordinator knows.
struct FinishRank {
  ErrorReport report;
};

/// Ask the coordinator to let this rank in; the supervisor is the address by which it knows the rank.
struct JoinRank {
  std::chrono::milliseconds timeout{30'000};
};

/// Root of a rank's actors: knows who failed, tells the coordinator, frees everyone who waits.
using RankSupervisorActor = caf::typed_actor<caf::replies_to<JoinRank>::with<JoinAccepted>,  //
                                             caf::reacts_to<RegisterLane>,                   //
                                             caf::reacts_to<RankFailed>,                     //
                                             caf::reacts_to<AbortJob>,                       //
                                             caf::reacts_to<StopJob>,                        //
                                             caf::reacts_to<ReportCollectives>,              //
                                             caf::reacts_to<CheckLanes>,                     //
                                             caf::replies_to<FinishRank>::with<bool>>;

/// Set by the process's signal handler: SIGINT or SIGTERM. Every rank of the process reads it with its vote.
inline std::atomic<int> process_stop_signal{0};

/// What other threads of a rank may ask without a message.
struct RankStatus {
  std::atomic<int> stop_signal{0};      ///< SIGINT or SIGTERM was received: finish the step
  std::atomic<bool> loop_ended{false};  ///< Compute has left its loop
};

struct RankSupervisorOptions {
  int rank = 0;
  JoinJob join;
  caf::strong_actor_ptr coordinator;  ///< a CoordinatorActor; empty for a rank that is alone
  caf::actor compute;                 ///< told of an abort, so that it stops waiting for messages
  std::shared_ptr<RankStatus> status;
  std::shared_ptr<Rendezvous> rendezvous;
  std::chrono::milliseconds check_interval{100};
  std::chrono::milliseconds stall_after{300};  ///< a collective that waits longer is reported to the coordinator
};

struct RankSupervisorState {
  RankSupervisorActor::behavior_type make_behavior();
  caf::result<JoinAccepted> join(std::chrono::milliseconds timeout);
  void fail(const ErrorReport& report);
  void abort(const ErrorReport& reason);
  void check_lanes();
  CollectiveState state_of(const RegisterLane& lane) const;
  caf::result<bool> finish(const ErrorReport& report);

  RankSupervisorActor::pointer self = nullptr;
  RankSupervisorOptions options;
  std::vector<RegisterLane> lanes;
  std::optional<ErrorReport> aborted;
  static inline const char* name = "rank supervisor";
};

RankSupervisorActor::behavior_type rank_supervisor(RankSupervisorActor::stateful_pointer<RankSupervisorState> self,
                                                   RankSupervisorOptions options);

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::JoinRank)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RegisterLane)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::CheckLanes)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::FinishRank)

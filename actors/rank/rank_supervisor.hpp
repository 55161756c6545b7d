#pragma once
#include <caf/all.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/membership.hpp"
#include "actors/messages/messages.hpp"
#include "actors/rank/save_relay.hpp"
#include "actors/step/vote.hpp"
#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// A communicator that the supervisor watches as long as there is one, and aborts when its generation or the job is
/// over.
struct RegisterCommunicator {
  std::string name;
  std::uint64_t generation = 1;
  std::weak_ptr<Communicator> communicator;
  std::shared_ptr<CollectiveLedger> ledger;  ///< for the dump, also once the communicator is gone

  RegisterCommunicator() = default;
  RegisterCommunicator(std::string name_of, std::uint64_t generation_of, const std::shared_ptr<Communicator>& watched)
      : name(std::move(name_of)), generation(generation_of), communicator(watched), ledger(watched->shared_ledger()) {}

  void abort(const ErrorReport& reason) const {
    if (const auto watched = communicator.lock()) watched->abort(reason);
  }
};
/// As RegisterCommunicator, for the builder of communicators.
struct RegisterRendezvous {
  std::uint64_t generation = 1;
  std::shared_ptr<Rendezvous> rendezvous;
};
/// The actor that gets the coordinator's decisions about checkpoints: the rank's Checkpointer.
struct RegisterCheckpointer {
  caf::actor checkpointer;
};
/// Looks at the ledgers: sent by the supervisor to itself.
struct CheckCommunicators {};
/// Compute has left its loop: `report.code` ok, or the reason. Answered once the coordinator knows, the job is over, or
/// no coordinator was heard for `park_after`.
struct FinishRank {
  ErrorReport report;
};
/// Ask the coordinator to let this rank in; the supervisor is the address by which it knows the rank.
struct JoinRank {
  std::chrono::milliseconds timeout{30'000};
};
/// The coordinator was restarted and found again; empty: it was not found in time.
struct CoordinatorFound {
  caf::strong_actor_ptr coordinator;
};

/// Root of a rank's actors: it learns of failures, reports them to the coordinator, and frees all waits. Outlives the
/// coordinator: it looks for a restarted one while the rank trains on.
using RankSupervisorActor = caf::typed_actor<caf::replies_to<JoinRank>::with<JoinAccepted>,  //
                                             caf::reacts_to<RegisterCommunicator>,           //
                                             caf::reacts_to<RegisterRendezvous>,             //
                                             caf::reacts_to<RankFailed>,                     //
                                             caf::reacts_to<RankInterrupted>,                //
                                             caf::reacts_to<Membership>,                     //
                                             caf::reacts_to<ReportMembership>,               //
                                             caf::reacts_to<InterruptRanks>,                 //
                                             caf::reacts_to<FenceRank>,                      //
                                             caf::reacts_to<AbortJob>,                       //
                                             caf::reacts_to<ReportCollectives>,              //
                                             caf::reacts_to<RegisterCheckpointer>,           //
                                             caf::reacts_to<PartSaved>,                      //
                                             caf::reacts_to<PublishCheckpoint>,              //
                                             caf::reacts_to<CheckpointPublished>,            //
                                             caf::reacts_to<SaveEnded>,                      //
                                             caf::reacts_to<LoopDone>,                       //
                                             caf::reacts_to<LeaveLoop>,                      //
                                             caf::reacts_to<LeaveJob>,                       //
                                             caf::reacts_to<CoordinatorFound>,               //
                                             caf::reacts_to<CoordinatorBeat>,                //
                                             caf::reacts_to<InjectFault>,                    //
                                             caf::reacts_to<CheckCommunicators>,             //
                                             caf::replies_to<FinishRank>::with<bool>>;

/// Set by the process's signal handler: SIGINT or SIGTERM. Every rank of the process reads it with its vote.
inline std::atomic<int> process_stop_signal{0};

/// The state that other threads of a rank may read without a message.
struct RankStatus {
  /// The end in this rank's vote in a generation: a signal, VoteNumbers::kLeaves or 0.
  std::uint8_t end_for_vote(std::uint64_t generation) const {
    int signal = process_stop_signal.load();
    if (signal == 0) signal = stop_signal.load();
    return signal == 0 && leaves == generation ? VoteNumbers::kLeaves : static_cast<std::uint8_t>(signal);
  }

  std::atomic<int> stop_signal{0};          ///< SIGINT or SIGTERM was received: finish the step
  std::atomic<std::uint64_t> leaves{0};     ///< the generation that this rank is to leave, by its next vote
  std::atomic<bool> loop_ended{false};      ///< Compute has left its loop
  std::atomic<bool> awaits_reducer{false};  ///< Compute waits for the step's buckets
  std::atomic<bool> job_over{false};        ///< aborted, or its end is known: all waits are over
  std::atomic<bool> poisoned{false};        ///< --chaos: the next backward's gradients are NaN
  std::atomic<std::int64_t> steps_done{0};
};

/// Looks for a restarted coordinator until it is found, `patience` is over (null then), or `stopped` is true.
/// Blocks.
using FindCoordinator =
    std::function<caf::strong_actor_ptr(std::chrono::milliseconds patience, const std::function<bool()>& stopped)>;

struct RankSupervisorOptions {
  JoinJob join;                       // identifies this process
  caf::strong_actor_ptr coordinator;  ///< a CoordinatorActor; empty for a rank that is alone
  FindCoordinator reconnect;          ///< on a separate thread; empty: the job ends with its coordinator
  /// Looks for the coordinator without a thread that calls `reconnect`: CoordinatorFound comes within the given time.
  /// May be empty.
  std::function<void(const RankSupervisorActor&, std::chrono::milliseconds patience)> find_coordinator;
  /// The coordinator's new address. The supervisor's thread.
  std::function<void(const caf::strong_actor_ptr&)> on_coordinator;
  /// The file for this rank's last collectives after a hang; empty: none. `log`, if there is one, gets a line about
  /// it.
  std::string ledger_path;
  std::function<void(const std::string&)> log;
  /// --chaos: kills, stops or slows this process. Empty (a simulated rank): it is spared.
  std::function<void(ChaosKind, std::chrono::milliseconds)> hurt;
  caf::actor compute;  ///< gets memberships, interruptions and the end, so that it stops waiting for messages
  std::shared_ptr<RankStatus> status;
  std::chrono::milliseconds check_interval{100};
  std::chrono::milliseconds stall_after{300};  ///< a collective that waits longer is reported to the coordinator
};

struct RankSupervisorState {
  struct Place {
    std::uint64_t generation = 0;  // that it is in; 0: none yet
    int rank = -1;                 // in it
    caf::message membership;       // as it came
  };

  RankSupervisorActor::behavior_type make_behavior();
  caf::result<JoinAccepted> join(std::chrono::milliseconds timeout);
  void fail(const ErrorReport& report);
  void abort(ErrorReport reason);
  std::string dump_if_hung(const ErrorReport& reason);
  void interrupt(const InterruptRanks& message);
  bool enter(const Membership& next);
  void lost_coordinator();
  void park(const std::string& why);
  void found_coordinator(const caf::strong_actor_ptr& coordinator);
  void check_communicators();
  void inject(const InjectFault& fault);
  void watch(const RegisterCommunicator& communicator);
  std::optional<CollectiveState> state_of(const RegisterCommunicator& watched, caf::actor_clock::time_point at) const;
  void told_of_part(PartSaved part);
  caf::result<bool> finish(const ErrorReport& report);
  void tell_end();
  void let_go();
  int rank() const;
  caf::actor_clock::time_point now() const;
  template <class Message>
  void tell_coordinator(const Message& message);

  RankSupervisorActor::pointer self = nullptr;
  RankSupervisorOptions options;
  Place place;
  std::uint64_t interrupted = 0;                    // generations up to this one are over
  ErrorReport interruption;                         // why the last one is
  std::optional<RankInterrupted> last_interrupted;  // repeated to a restarted coordinator ...
  std::optional<LoopDone> loop_done;                // ... and so is this
  bool waits_to_leave = false;                      // the loop, until all have come to its end
  std::optional<RankEnded> end;                     // ... and this
  std::optional<caf::typed_response_promise<bool>> waits_for_end;
  std::vector<RegisterCommunicator> communicators;
  std::shared_ptr<Rendezvous> rendezvous;
  SaveRelay saves;
  std::optional<ErrorReport> aborted;
  caf::actor_clock::time_point heard_coordinator, last_check;
  std::chrono::milliseconds park_after{60'000};  // unheard; the coordinator sets it when it lets the rank in
  std::int64_t stale = 0;                        // messages of former generations: dropped
  std::uint64_t dumped = 0;                      // the generation whose ledgers were dumped
  static inline const char* name = "rank supervisor";
};

RankSupervisorActor::behavior_type rank_supervisor(RankSupervisorActor::stateful_pointer<RankSupervisorState> self,
                                                   RankSupervisorOptions options);

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::JoinRank)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RegisterCommunicator)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RegisterCheckpointer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RegisterRendezvous)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::CheckCommunicators)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::FinishRank)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::CoordinatorFound)

#pragma once
#include <caf/all.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "actors/messages/chaos.hpp"
#include "actors/messages/fields.hpp"
#include "actors/messages/membership.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tensor_io/device/timed_mark.hpp"
#include "tensor_io/layout/named_state.hpp"

/// Every message of the project. Events are in the past tense, commands in the imperative. A message that crosses
/// processes is one of the WireMessages; any other stays inside a rank and is marked so for CAF.
namespace troupe {

// ---------------------------------------------------------------- any actor of a rank -> RankSupervisor
/// An actor, or user code that it runs, failed; the rank cannot go on.
struct RankFailed {
  ErrorReport report;
};

// ---------------------------------------------------------------- Compute <-> DataLoader
/// The consumer has room for `credits` more batches.
struct GrantBatches {
  std::int32_t credits = 0;
};
struct BatchLoaded {
  std::shared_ptr<const Batch> batch;
  double load_ms = 0;          ///< time of loading, in the worker
  std::int64_t loaded_ns = 0;  ///< steady clock: since then it waits for compute
};
/// All epochs are over.
struct DataEnded {};

// ---------------------------------------------------------------- Compute <-> Reducer
/// Bucket `index` of this step's plan is full. The reducer launches buckets in plan order, in whatever order these
/// arrive.
struct BucketReady {
  std::int64_t step = 0;
  std::int32_t index = 0;
  std::int64_t sent_ns = 0;  ///< steady clock
};
/// All buckets of the step are reduced.
struct BucketsReduced {
  std::int64_t step = 0;
  std::int32_t buckets = 0;
  std::int32_t launched_before_end = 0;  ///< of them, before backward ended: the source of overlap
  double busy_ms = 0;                    ///< time inside collectives and hooks
  std::int64_t awaited_ns = 0;   ///< steady clock: when the last bucket could have been taken from the mailbox ...
  std::int64_t taken_ns = 0;     ///< ... when it was ...
  std::int64_t finished_ns = 0;  ///< ... and when this was sent
  double queued_ms = 0;          ///< full buckets waited for the reducer: the sum over buckets
  std::int64_t bytes = 0;        ///< of all buckets
  std::vector<TimedInterval>
      on_device;  ///< on a device: when its stream was in the collectives and hook of each bucket, in order
};

// ---------------------------------------------------------------- Compute <-> Checkpointer
struct SaveCheckpoint {
  std::shared_ptr<const CheckpointPart> part;
  SaveAttempt attempt;
  std::uint64_t generation = 0;
  bool best = false;  ///< also becomes the `best` checkpoint
  std::size_t live =
      0;  ///< the first `live` tensors of the part are the model's own: PartCopied follows when they may change again
};
struct PartCopied {};
struct CheckpointSaved {
  std::int64_t step = 0;
  std::string path;
  std::int64_t bytes = 0;
  double seconds = 0;   ///< of the second phase
  std::string warning;  ///< not empty: the checkpoint is good, but old ones could not be removed
};
struct CheckpointFailed {
  std::int64_t step = 0;
  ErrorReport report;
};

// ---------------------------------------------------------------- Checkpointer <-> Coordinator, by way of the
// RankSupervisor
/// The first phase of a save is over on this rank: its part is on disk, or (code not ok) will not be.
struct PartSaved {
  ProcessId process;
  std::uint64_t generation = 0;
  SaveAttempt attempt;
  std::int32_t rank = 0, ranks = 1;
  bool best = false;
  ErrorReport report;
};
/// Coordinator -> one rank: all parts are there, make a checkpoint of them.
struct PublishCheckpoint {
  SaveAttempt attempt;
  std::int32_t ranks = 1;
  bool best = false;
};
/// Coordinator -> all ranks: the outcome of the save.
struct SaveEnded {
  SaveAttempt attempt;
  CheckpointSaved saved;
  ErrorReport report;
};
inline SaveEnded failed_save(const SaveAttempt& attempt, const ErrorReport& report) {
  return {attempt, {attempt.step, {}, 0, 0, {}}, report};
}
/// Its publisher is done, or has failed. Repeated to a coordinator that was restarted.
struct CheckpointPublished {
  ProcessId process;
  SaveEnded ended;
};

// ---------------------------------------------------------------- rank <-> Coordinator
struct JoinJob {
  std::string job_id;
  ProcessId process;
  std::int32_t world_size = 1;
  std::string host;
  std::string build_id;
  std::string config_hash;
  bool spare = false;
  std::uint64_t generation = 0;  ///< of which it is a member: it only comes back to a coordinator that was restarted
};
struct JoinAccepted {
  std::string refused;                  ///< not empty: why not
  std::int64_t park_after_ms = 60'000;  ///< a rank that hears no `CoordinatorBeat` for this long is cut off
};
/// Coordinator -> a member: report your membership. The coordinator was started again, and does not know that one. The
/// answer is a Membership.
struct ReportMembership {};
/// Several times a second, from every member and spare.
struct Heartbeat {
  ProcessId process;
  std::uint64_t generation = 0;
  std::int64_t steps_done = 0;
};
/// Looks at the clock: sent by the coordinator to itself.
struct CoordinatorTick {};
/// Coordinator -> ranks, twice a second: it can be reached.
struct CoordinatorBeat {};
/// Coordinator -> ranks: this generation is over, its collectives are to be given up; a new membership follows.
struct InterruptRanks {
  std::uint64_t generation = 0;
  ErrorReport reason;
};
/// Coordinator -> a member: say with the next vote that you leave (LeaveNotice). Repeated until it has stopped.
struct LeaveJob {
  std::uint64_t generation = 0;
};
/// Coordinator -> a process that the job has given up: end, touch nothing (exit code 76).
struct FenceRank {
  ProcessId process;
  std::string reason;
};
/// Compute -> Reducer and back: a collective was given up; the generation is over, the rank is not.
struct CommunicatorFailed {
  ErrorReport report;
};

// ---------------------------------------------------------------- node agent <-> Coordinator
struct JoinNode {
  std::string job_id;
  std::string host;
  std::vector<ProcessId> started;  ///< the processes that it runs already
  bool only_asks = false;          ///< a question: may it join?
};
/// Start a process in this slot.
struct StartRank {
  ProcessId process;
  std::int32_t restarts = 0;  ///< how many lives the slot had before
};
/// Kill this incarnation, in whatever state it is.
struct KillRank {
  ProcessId process;
  std::string reason;
};
/// This process is to leave the job between two steps, and its slot stays empty on that host. Repeated to a coordinator
/// that was restarted.
struct LeaveNotice {
  ProcessId process;
  std::string why;  ///< "SIGTERM"
};
/// A process has ended, by waitpid.
struct RankExited {
  ProcessId process;
  std::int32_t wait_status = 0;
};
/// The job is over for this reason (code ok: it is done).
struct JobOver {
  ErrorReport report;
  std::int32_t exit_code = 0;
};
struct PutValue {
  std::string key;
  std::string value;
};
struct GetValue {
  std::string key;
};
/// The place of a rank on one communicator: sent when the rank has waited long, and on request.
/// The communicator whose collectives Compute's thread launches itself, and the Reducer's.
inline constexpr const char* kProgramCommunicator = "program";
inline constexpr const char* kGradientCommunicator = "buckets";
struct CollectiveState {
  std::uint64_t generation = 0;  ///< of this rank and communicator
  std::int32_t rank = 0;
  std::string communicator;
  bool in_flight = false;
  std::uint64_t sequence = 0;     ///< of the collective under way, or of the last one finished
  std::uint64_t fingerprint = 0;  ///< of the collective under way
  std::string what;               ///< its description
  std::int64_t step = -1;
  double waited_ms = 0;
  bool ended = false;           ///< the rank has left its training loop
  bool awaits_reducer = false;  ///< its Compute waits for its own Reducer, and does nothing else meanwhile
  std::uint64_t program_sequence =
      0;  ///< on the communicator of Compute itself: of the collective under way, or of the last one finished
  std::string program_what;  ///< the collective that Compute itself has waited in for a while; empty: none
};
struct ReportCollectives {
  std::string communicator;
};
/// Why a rank has ended with `interrupted`: its own process was asked to, by a signal.
inline constexpr const char* kAskedToStop = "it was asked to stop";
/// A rank is done (code ok) or failed.
struct RankEnded {
  ProcessId process;
  ErrorReport report;
};
/// Coordinator -> ranks: the job is over for this reason; abort every wait.
struct AbortJob {
  ErrorReport report;
};
/// Coordinator -> one rank: hurt yourself (--chaos).
struct InjectFault {
  ChaosKind kind = ChaosKind::kill;
  std::int64_t lasts_ms = 0;
};

/// The messages that cross processes, and the values in them: CAF writes all fields, in the order of their declaration.
using WireMessages =
    std::tuple<ErrorReport, ProcessId, Member, Membership, SaveAttempt, CheckpointSaved, JoinJob, JoinAccepted,
               ReportMembership, Heartbeat, CoordinatorTick, CoordinatorBeat, InterruptRanks, RankInterrupted,
               FenceRank, InjectFault, LoopDone, LeaveLoop, LeaveJob, RankEnded, AbortJob, PartSaved, PublishCheckpoint,
               SaveEnded, CheckpointPublished, PutValue, GetValue, CollectiveState, ReportCollectives, JoinNode,
               StartRank, KillRank, LeaveNotice, RankExited, JobOver>;
template <class T, class Messages>
inline constexpr bool is_one_of = false;
template <class T, class... Messages>
inline constexpr bool is_one_of<T, std::tuple<Messages...>> = (std::is_same_v<T, Messages> || ...);

template <class Inspector, class T>
requires is_one_of<T, WireMessages>
typename Inspector::result_type inspect(Inspector& f, T& x) {
  static const std::string name(name_of_struct<T>());
  return std::apply([&](auto&... field) { return f(caf::meta::type_name(name.c_str()), field...); }, fields_of(x));
}
/// Registers them in a CAF configuration.
inline void add_wire_messages(caf::actor_system_config& config) {
  const auto add = [&]<class... T>(const std::tuple<T...>*) {
    (config.add_message_type<T>(std::string(name_of_struct<T>())), ...);
  };
  add(static_cast<const WireMessages*>(nullptr));
}

}  // namespace troupe

// They stay inside a rank.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RankFailed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::CommunicatorFailed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::GrantBatches)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BatchLoaded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::DataEnded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BucketReady)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BucketsReduced)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PartCopied)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::CheckpointFailed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SaveCheckpoint)

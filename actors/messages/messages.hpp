#pragma once
#include <caf/all.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/messages/chaos.hpp"
#include "actors/messages/membership.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tensor_io/device/timed_mark.hpp"
#include "tensor_io/layout/named_state.hpp"

/// Every message of the project. Events are in the past tense, commands in the imperative. A message that crosses a
/// process has an `inspect`; one that carries tensors by reference stays inside a rank and is marked so for CAF.
namespace troupe {

// ---------------------------------------------------------------- any actor of a rank -> RankSupervisor
/// An actor, or user code that it runs, failed; the rank cannot go on.
struct RankFailed {
  ErrorReport report;
};

// ---------------------------------------------------------------- Compute <-> DataLoader
/// The consumer has room for so many more batches.
struct GrantBatches {
  std::int32_t credits = 0;
};
struct BatchLoaded {
  std::shared_ptr<const Batch> batch;
  double load_ms = 0;          ///< what it cost, in the worker
  std::int64_t loaded_ns = 0;  ///< steady clock: since then it waits for compute
};
/// All epochs are over.
struct DataEnded {};

// ---------------------------------------------------------------- Compute <-> Reducer
/// Bucket `index` of this step's plan is full. The reducer launches buckets in plan order, whatever order these come
/// in.
struct BucketReady {
  std::int64_t step = 0;
  std::int32_t index = 0;
  std::int64_t sent_ns = 0;  ///< steady clock
};
/// All buckets of the step are reduced.
struct BucketsReduced {
  std::int64_t step = 0;
  std::int32_t buckets = 0;
  std::int32_t launched_before_end = 0;  ///< of them, before backward ended: what overlap is made of
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
      0;  ///< the first tensors of the part are the model's own: PartCopied follows when they may change again
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
/// Coordinator -> all ranks: what came of it.
struct SaveEnded {
  SaveAttempt attempt;
  CheckpointSaved saved;
  ErrorReport report;
};
inline SaveEnded failed_save(const SaveAttempt& attempt, const ErrorReport& report) {
  return {attempt, {attempt.step, {}, 0, 0, {}}, report};
}
/// It did, or could not. Said again to a coordinator that was restarted.
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
  std::uint64_t generation = 0;  ///< that it is a member of: it only comes back to a coordinator that was restarted
};
struct JoinAccepted {
  std::string refused;                  ///< not empty: why not
  std::int64_t park_after_ms = 60'000;  ///< a rank that hears no `CoordinatorBeat` for so long is cut off
};
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
/// Coordinator -> a process that the job has given up: end, touch nothing (exit code 76).
struct FenceRank {
  ProcessId process;
  std::string reason;
};
/// Compute -> Reducer and back: a collective was given up; the generation is over, the rank is not.
struct LaneFailed {
  ErrorReport report;
};

// ---------------------------------------------------------------- node agent <-> Coordinator
struct JoinNode {
  std::string job_id;
  std::string host;
  std::vector<ProcessId> started;  ///< what it runs already
};
/// Start a process in this slot.
struct StartRank {
  ProcessId process;
  std::int32_t restarts = 0;  ///< how many lives the slot had before
};
/// Kill this incarnation, whatever state it is in.
struct KillRank {
  ProcessId process;
  std::string reason;
};
/// A process has ended: waitpid says so.
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
/// Where a rank stands on one lane (communicator): sent when it has waited long, and on request.
/// The lane whose collectives Compute's thread launches itself, and the Reducer's.
inline constexpr const char* kProgramLane = "program";
inline constexpr const char* kBucketLane = "buckets";
struct CollectiveState {
  std::uint64_t generation = 0;  ///< whose rank and lane these are
  std::int32_t rank = 0;
  std::string lane;
  bool in_flight = false;
  std::uint64_t sequence = 0;     ///< of the collective under way, or of the last one finished
  std::uint64_t fingerprint = 0;  ///< of the collective under way
  std::string what;               ///< its description
  std::int64_t step = -1;
  double waited_ms = 0;
  bool ended = false;           ///< the rank has left its training loop
  bool awaits_reducer = false;  ///< its Compute waits for its own Reducer, and does nothing else meanwhile
  std::uint64_t program_sequence =
      0;  ///< on the lane of Compute itself: of the collective under way, or of the last one finished
  std::string program_what;  ///< the collective that Compute itself has waited in for a while; empty: none
};
struct ReportCollectives {
  std::string lane;
};
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
/// Finish the step, write a checkpoint, end: Ctrl-C, SIGTERM.
struct StopJob {
  std::int32_t signal = 2;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ErrorReport& x) {
  auto code = static_cast<std::uint8_t>(x.code);
  auto store = [&]() -> caf::error {
    x.code = static_cast<ErrorCode>(code);
    return caf::none;
  };
  return f(caf::meta::type_name("ErrorReport"), code, x.rank, x.actor, x.step, x.operation, x.cause, x.remedy,
           caf::meta::load_callback(store));
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, InjectFault& x) {
  auto kind = static_cast<std::uint8_t>(x.kind);
  auto store = [&]() -> caf::error {
    x.kind = static_cast<ChaosKind>(kind);
    return caf::none;
  };
  return f(caf::meta::type_name("InjectFault"), kind, x.lasts_ms, caf::meta::load_callback(store));
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ProcessId& x) {
  return f(caf::meta::type_name("ProcessId"), x.slot, x.incarnation);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Member& x) {
  return f(caf::meta::type_name("Member"), x.process, x.host, x.newcomer);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Membership& x) {
  return f(caf::meta::type_name("Membership"), x.generation, x.members, x.resume_step, x.tasks_done, x.votes, x.reason);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RankInterrupted& x) {
  return f(caf::meta::type_name("RankInterrupted"), x.process, x.generation, x.steps_done, x.voted_step, x.tasks_done,
           x.distributed, x.whole, x.votes_step, x.votes, x.why, x.hung, x.unreachable, x.goes_back, x.save);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RankFailed& x) {
  return f(caf::meta::type_name("RankFailed"), x.report);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, GrantBatches& x) {
  return f(caf::meta::type_name("GrantBatches"), x.credits);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, DataEnded&) {
  return f(caf::meta::type_name("DataEnded"));
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, BucketReady& x) {
  return f(caf::meta::type_name("BucketReady"), x.step, x.index, x.sent_ns);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, BucketsReduced& x) {
  return f(caf::meta::type_name("BucketsReduced"), x.step, x.buckets, x.launched_before_end, x.busy_ms, x.awaited_ns,
           x.taken_ns, x.finished_ns, x.queued_ms, x.bytes);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, CheckpointSaved& x) {
  return f(caf::meta::type_name("CheckpointSaved"), x.step, x.path, x.bytes, x.seconds, x.warning);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, CheckpointFailed& x) {
  return f(caf::meta::type_name("CheckpointFailed"), x.step, x.report);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SaveAttempt& x) {
  return f(caf::meta::type_name("SaveAttempt"), x.step, x.id);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PartCopied&) {
  return f(caf::meta::type_name("PartCopied"));
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PartSaved& x) {
  return f(caf::meta::type_name("PartSaved"), x.process, x.generation, x.attempt, x.rank, x.ranks, x.best, x.report);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PublishCheckpoint& x) {
  return f(caf::meta::type_name("PublishCheckpoint"), x.attempt, x.ranks, x.best);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SaveEnded& x) {
  return f(caf::meta::type_name("SaveEnded"), x.attempt, x.saved, x.report);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, CheckpointPublished& x) {
  return f(caf::meta::type_name("CheckpointPublished"), x.process, x.ended);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JoinJob& x) {
  return f(caf::meta::type_name("JoinJob"), x.job_id, x.process, x.world_size, x.host, x.build_id, x.config_hash,
           x.spare, x.generation);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JoinAccepted& x) {
  return f(caf::meta::type_name("JoinAccepted"), x.refused, x.park_after_ms);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Heartbeat& x) {
  return f(caf::meta::type_name("Heartbeat"), x.process, x.generation, x.steps_done);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, CoordinatorTick&) {
  return f(caf::meta::type_name("CoordinatorTick"));
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, CoordinatorBeat&) {
  return f(caf::meta::type_name("CoordinatorBeat"));
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, InterruptRanks& x) {
  return f(caf::meta::type_name("InterruptRanks"), x.generation, x.reason);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, FenceRank& x) {
  return f(caf::meta::type_name("FenceRank"), x.process, x.reason);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LaneFailed& x) {
  return f(caf::meta::type_name("LaneFailed"), x.report);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JoinNode& x) {
  return f(caf::meta::type_name("JoinNode"), x.job_id, x.host, x.started);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StartRank& x) {
  return f(caf::meta::type_name("StartRank"), x.process, x.restarts);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, KillRank& x) {
  return f(caf::meta::type_name("KillRank"), x.process, x.reason);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RankExited& x) {
  return f(caf::meta::type_name("RankExited"), x.process, x.wait_status);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobOver& x) {
  return f(caf::meta::type_name("JobOver"), x.report, x.exit_code);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PutValue& x) {
  return f(caf::meta::type_name("PutValue"), x.key, x.value);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, GetValue& x) {
  return f(caf::meta::type_name("GetValue"), x.key);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, CollectiveState& x) {
  return f(caf::meta::type_name("CollectiveState"), x.generation, x.rank, x.lane, x.in_flight, x.sequence,
           x.fingerprint, x.what, x.step, x.waited_ms, x.ended, x.awaits_reducer, x.program_sequence, x.program_what);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ReportCollectives& x) {
  return f(caf::meta::type_name("ReportCollectives"), x.lane);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LoopDone& x) {
  return f(caf::meta::type_name("LoopDone"), x.process, x.generation, x.steps_done);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, LeaveLoop& x) {
  return f(caf::meta::type_name("LeaveLoop"), x.generation, x.steps_done);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, RankEnded& x) {
  return f(caf::meta::type_name("RankEnded"), x.process, x.report);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, AbortJob& x) {
  return f(caf::meta::type_name("AbortJob"), x.report);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StopJob& x) {
  return f(caf::meta::type_name("StopJob"), x.signal);
}

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BatchLoaded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SaveCheckpoint)

#pragma once
#include <caf/all.hpp>

#include <functional>

#include "actors/coordinator/chaos_injector.hpp"
#include "actors/coordinator/failure_detector.hpp"
#include "actors/coordinator/interruption.hpp"
#include "actors/coordinator/leave_notices.hpp"
#include "actors/coordinator/membership_plan.hpp"
#include "actors/coordinator/message_filter.hpp"
#include "actors/coordinator/recovery_progress.hpp"
#include "actors/coordinator/resumption.hpp"
#include "actors/coordinator/save_rounds.hpp"
#include "actors/coordinator/senders.hpp"
#include "actors/coordinator/slot_table.hpp"
#include "actors/coordinator/stall_inspector.hpp"

namespace troupe {

constexpr std::chrono::milliseconds kCoordinatorTick{100};

/// GetValue's key of the run that the job belongs to, for ranks and agents.
inline constexpr const char* kRunKey = "run";

struct CoordinatorOptions {
  std::string job_id;
  std::string run;  ///< the value of kRunKey
  int world_size = 1;
  RecoveryOptions recovery;
  std::optional<ChaosOptions> chaos;                ///< hurts ranks on purpose
  std::chrono::milliseconds join_timeout{120'000};  ///< for all ranks to join at the start
  /// `record` gets a membership before it is announced: the journal. `log` gets lines for the user. Both may be empty.
  std::function<void(const Membership&)> record;
  std::function<void(const std::string&)> log;
  std::optional<Membership> resumed;  ///< from the journal: ranks of this generation are expected back
  int life = 0;  ///< how many coordinators the job had before: ranks may know a newer membership than the journal
  /// How much later than `fence_after` a member may come back: members that look for it at several ports need longer.
  std::chrono::milliseconds comes_back_late{0};
  bool without_journal = false;  ///< it is lost, or not whole: memberships may have been announced that are not in it
  /// A simulator replaces these: the plan of the next membership, and the numbers of processes.
  std::function<MembershipAnswer(const MembershipQuestion&)> plan = plan_membership;
  std::function<std::uint64_t()> draw_incarnation = random_incarnation;
};

/// The coordinator's shell: its parts decide, and it sends the messages that they return. It decides itself on the
/// phase of the job, and on the members of the next generation.
struct CoordinatorState {
  enum class Phase { forming, training, recovering, over };

  void start();
  CoordinatorActor::behavior_type make_behavior();
  JoinAccepted join(const JoinJob& join, const caf::strong_actor_ptr& sender);
  std::string join_node(const JoinNode& node, const caf::strong_actor_ptr& sender);
  void tell_again(const JoinJob& join, const RankSupervisorActor& supervisor);
  void consider(const CollectiveState& state);
  void saved(const PartSaved& part);
  void published(const CheckpointPublished& message);
  void loop_done(const LoopDone& done);
  void heard(const Heartbeat& beat);
  void interrupted(const RankInterrupted& report);
  void exited(const RankExited& exit);
  void exited_before_join(const RankExited& exit);
  void ended(const RankEnded& ended);
  void down(const caf::down_msg& down);
  void tick();

  bool fence_silent();
  void lose(int slot, const std::string& why, bool proved);
  void fence(int slot, const std::string& why);
  void kill(const ProcessId& process, const std::string& host, const std::string& why);
  void replace(int slot);
  void recover(const ErrorReport& reason, bool parted = false);
  void enter(Phase next);
  void plan();
  void announce(Membership next);
  void send(const RankMessages& messages);
  void abort(const ErrorReport& reason, int code = 0);
  void end_job(const JobOver& end);
  caf::actor_clock::time_point now() const { return self->clock().now(); }

  CoordinatorActor::pointer self = nullptr;
  CoordinatorOptions options;
  Phase phase = Phase::forming;
  caf::actor_clock::time_point since;  // the phase began, or was prolonged
  JobOver verdict;                     // of a job that is over
  std::vector<ProcessId> unproved;     // lost members of this generation whose death is not proved yet
  ProcessTable processes;
  SlotTable slots;
  Senders senders{processes, slots, options.log};
  RendezvousStore values;
  SaveRounds saves;
  LeaveNotices notices;
  StallInspector stalls;
  ChaosInjector chaos;
  FailureDetector detector;
  MessageFilter filter;
  Resumption resumption;
  RecoveryProgress progress;
  Interruption interruption;
  static inline const char* name = "coordinator";
};

/// Writes a membership into the journal. If that fails, the ranks know it, and report it to the next coordinator.
void write_down(const Membership& next, const CoordinatorOptions& options);
/// A member reports its membership to a coordinator that has been started again.
void take_over(CoordinatorState& state, const Membership& known);
/// A host's agent asks that one of its processes leave.
void take_notice(CoordinatorState& state, const LeaveNotice& notice, bool drill = false);
/// The end of a job all of whose ranks have ended well, the last with this report.
JobOver end_of_all(const CoordinatorState& state, const ErrorReport& last);
/// A process that is no member leaves, and ends well.
void let_go(CoordinatorState& state, const ProcessId& process);
/// Asks members to leave, and lets go of those that have left.
void let_leave(CoordinatorState& state);
/// How many members did not come back to a coordinator that has been started again; nullopt: it is too early to say.
std::optional<std::size_t> settle_resumption(CoordinatorState& state);

/// Why the generation of a rank that was interrupted is over.
ErrorReport report_of(const RankInterrupted& interrupted, int rank);

CoordinatorActor::behavior_type coordinator(CoordinatorActor::stateful_pointer<CoordinatorState> self,
                                            CoordinatorOptions options);

}  // namespace troupe

#pragma once
#include <caf/all.hpp>

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/coordinator/restart_policy.hpp"
#include "actors/coordinator/save_round.hpp"
#include "actors/messages/chaos.hpp"
#include "actors/messages/coordinator_actor.hpp"
#include "actors/messages/membership.hpp"
#include "actors/messages/messages.hpp"
#include "actors/rank/rank_supervisor.hpp"

namespace troupe {

constexpr std::chrono::milliseconds kCoordinatorTick{100};

/// What happens when a rank is lost.
struct RecoveryOptions {
  bool enabled = false;  ///< false: the job ends
  int min_ranks = 1;
  int min_start = 0;                             ///< ranks that the job may begin with; 0: all
  std::chrono::milliseconds last_call{120'000};  ///< for more ranks than min_start to join at the start
  int max_restarts = 3;                          ///< of one slot, within `restart_window`
  std::chrono::milliseconds restart_window{600'000};
  std::chrono::milliseconds replace_timeout{5'000};
  std::chrono::milliseconds link_hold_down{30'000};  ///< before a slot whose link has failed is started again
  std::chrono::milliseconds suspect_after{1'000};
  std::chrono::milliseconds fence_after{3'000};
  std::chrono::milliseconds hang_after{
      60'000};  ///< for a survivor to leave a step that was interrupted; it is killed then
  std::chrono::milliseconds park_after{60'000};  ///< without a quorum
};

/// GetValue's key of the job's id and the run's folder, a line each.
inline constexpr const char* kRunKey = "run";

struct CoordinatorOptions {
  std::string job_id;
  std::string run_dir;  ///< the run's folder, for who asks for kRunKey
  int world_size = 1;
  RecoveryOptions recovery;
  std::optional<ChaosOptions> chaos;                ///< hurts ranks on purpose
  std::chrono::milliseconds join_timeout{120'000};  ///< for all ranks to join at the start
  /// A membership, before it is announced: the journal. And lines for the user. Both may be empty.
  std::function<void(const Membership&)> record;
  std::function<void(const std::string&)> log;
  std::optional<Membership> resumed;  ///< from the journal: ranks of this generation are expected back
  /// What a simulator replaces: who trains next, and the numbers of processes.
  std::function<MembershipAnswer(const MembershipQuestion&)> plan = plan_membership;
  std::function<std::uint64_t()> draw_incarnation = random_incarnation;
};

struct CoordinatorState {
  using Clock = std::chrono::steady_clock;
  enum class Phase { forming, training, recovering, over };
  struct Process {
    RankSupervisorActor supervisor;
    JoinJob joined;
    bool member = false;
    bool suspected = false, fenced = false;
    bool hurt = false;  // on purpose: its death does not count
    std::int64_t steps_done = 0;
    std::optional<ErrorReport> ended;
    std::optional<RankInterrupted> interrupted;
    caf::actor_clock::time_point heard;
  };
  struct Slot {
    std::vector<caf::actor_clock::time_point> deaths;
    std::string host;
    bool starting = false, absent = false;
    bool cooling = false;  // died too often to be started again now
    int restarts = 0;
    std::uint64_t next_incarnation = 0;
    caf::actor_clock::time_point held_until;  // not started before: a link of its host's has failed
  };

  CoordinatorActor::behavior_type make_behavior();
  JoinAccepted join(const JoinJob& join, const caf::strong_actor_ptr& sender);
  bool join_node(const JoinNode& node, const caf::strong_actor_ptr& sender);
  void tell_again(const JoinJob& join, const RankSupervisorActor& supervisor);
  void put(PutValue value);
  void consider(const CollectiveState& state);
  void judge_lanes();
  void heard(const Heartbeat& beat);
  void interrupted(const RankInterrupted& report);
  void exited(const RankExited& exit);
  void end(const RankEnded& ended);
  void down(const caf::down_msg& down);
  void abort(const ErrorReport& reason, int code = 0);
  void stop(const StopJob& stop);
  void tick();
  void part_saved(const PartSaved& part);
  void published(const CheckpointPublished& message);

  void lose(int slot, const std::string& why, bool proved);
  void fence(int slot, const std::string& why);
  void replace(int slot);
  RestartDecision restart_decision(int slot);
  void restart_cooled();
  bool is_nonsense(const std::string& problem);
  bool is_stale(std::uint64_t generation, const char* what);
  void recover(const ErrorReport& reason);
  bool all_accounted_for(bool late);
  void plan();
  void announce(Membership next);
  void over_if_all_ended();
  void lost_in_saves(const ProcessId& process, const std::string& why);
  void interrupted_in_saves(const RankInterrupted& report);
  void go_on_with_saves();
  void remember(const SaveEnded& ended);
  void tell_of_slow_saves();
  void hurt_ranks();
  void end_chaos();
  void say(const std::string& text) const;
  int rank_of(int slot) const;
  int member_rank(const ProcessId& process) const;
  void make_current(Membership next);
  void plan_if_all_are_heard();
  caf::actor_clock::time_point now() const;

  struct Save {
    SaveRound round;
    caf::actor_clock::time_point told;
  };

  CoordinatorActor::pointer self = nullptr;
  CoordinatorOptions options;
  Phase phase = Phase::forming;
  Membership current;
  ErrorReport interruption;                        // why the last generation that was interrupted is over
  std::map<int, int> rank_by_slot;                 // of its members
  std::set<int> unheard;                           // slots of members that have not left the interrupted generation
  std::map<int, Process> processes;                // by slot: the newest life
  std::map<caf::actor_addr, int> slot_of_address;  // of those that are there
  std::map<int, Slot> slots;
  std::map<std::string, NodeAgentActor> agents;  // by host
  std::vector<ProcessId> unproved;               // lost members of this generation whose death nobody has seen
  std::map<std::string, std::string> values;
  struct Lane {
    std::map<int, CollectiveState> states;  // by rank: the newest
    std::uint64_t asked = 0;                // all have been asked about the collective of this number
    caf::actor_clock::time_point asked_at;
    bool news = false;  // since it was last judged
  };
  std::map<std::string, Lane> stalled;  // by name
  std::vector<Save> saves;              // under way
  std::deque<SaveEnded> ended_saves;
  std::optional<ErrorReport> aborted;
  std::optional<ChaosRun> chaos;
  std::optional<caf::actor_clock::time_point> first_step;  // that chaos counts from
  caf::actor_clock::time_point begun, since, last_tick;    // of this coordinator; of the phase; of the last tick
  std::int64_t last_resume = -1;
  int ticks = 0;
  std::int64_t stale = 0;        // messages of former generations, or of processes that the job has given up: dropped
  std::uint64_t stale_told = 0;  // the generation in which the user was told
  std::uint64_t nonsense = 0;    // messages that were dropped
  int fruitless = 0;             // recoveries without a step in between
  std::vector<int> gone;         // slots of the journal's members that their agent does not run any more
  static inline const char* name = "coordinator";
};

CoordinatorActor::behavior_type coordinator(CoordinatorActor::stateful_pointer<CoordinatorState> self,
                                            CoordinatorOptions options);

}  // namespace troupe

#pragma once
#include <caf/all.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/coordinator/coordinator.hpp"
#include "actors/coordinator/membership_plan.hpp"
#include "actors/simulator/agent_model.hpp"
#include "actors/simulator/checkpoint_directory.hpp"
#include "actors/simulator/data_connections.hpp"
#include "actors/simulator/fault.hpp"
#include "actors/simulator/history.hpp"
#include "actors/simulator/launcher_model.hpp"
#include "actors/simulator/rank_model.hpp"
#include "actors/simulator/rank_process.hpp"
#include "actors/simulator/world.hpp"

namespace troupe::simulator {

struct JobOptions {
  std::uint64_t seed = 1;
  int ranks = 4, hosts = 2, spares = 0, min_ranks = 1;
  std::int64_t steps = 60, save_every = 10;
  milliseconds collective_timeout{5'000};
  RecoveryOptions recovery;
  bool user_collectives = false;  ///< the program has two collectives in each step
  std::vector<Fault> faults;
  /// Instead of plan_membership: a planted bug.
  std::function<MembershipAnswer(const MembershipQuestion&)> plan;
  bool keep_log = false;
};

/// A whole job in a world: its parts, its faults, and the user, who starts the job again if its exit code says so. The
/// coordinator and every rank's supervisor are real. Models are Compute (RankModel) and Checkpointer, the launcher, the
/// agents, the checkpoint directory and the transport of tensors.
class Job {
 public:
  explicit Job(JobOptions options);
  ~Job();

  /// Until the job is done, or a promise is broken.
  void run();
  /// One event; false: over.
  bool step();

  World& world() noexcept { return world_; }
  History& history() noexcept { return history_; }
  const JobOptions& options() const noexcept { return options_; }
  bool done() const noexcept { return done_; }
  int starts() const noexcept { return starts_; }
  std::string id() const { return "job " + std::to_string(starts_); }
  CoordinatorState* coordinator_state() noexcept { return launcher_.coordinator_state(); }
  RankModel* rank_in(int slot) noexcept;
  /// Messages that supervisors have dropped because they were of former generations.
  std::int64_t stale_at_ranks() const;
  const std::optional<JobOver>& verdict() const noexcept { return verdict_; }
  void inflict(const Fault& fault);

  // For the models.
  /// False: the rank dies here.
  bool comes_to(RankProcess& rank, const char* point, std::int64_t step);
  void start_rank(const Process& agent, const ProcessId& id);
  RankProcess* living(const ProcessId& id);  ///< null: it does not live
  void exit_rank(RankProcess& rank, int code);
  void kill_rank(RankProcess& rank);
  void kill_ranks_on(int host);
  std::uint64_t draw_incarnation() noexcept { return ++incarnations_; }
  void heard(const JobOver& over);  ///< an agent did
  bool is_slow(int slot) const { return slow_slots_.contains(slot); }
  /// A fault ends after this time.
  void note_fault(milliseconds after = milliseconds(0)) { calm_from_ = std::max(calm_from_, world_.now() + after); }
  LauncherModel& launcher() noexcept { return launcher_; }
  CheckpointDirectory& checkpoints() noexcept { return checkpoints_; }
  DataConnections& data() noexcept { return data_; }
  bool resumes() const noexcept { return starts_ > 1; }

 private:
  void start_job();
  void join_rank(RankProcess& rank);
  void rank_ended(RankProcess& rank, int wait_status);
  RankProcess* living(int slot);
  AgentModel* agent_of(int host);  // null: it does not live
  void look_at_agents();
  void end_of_start();
  void check();
  void check_bounds(const CoordinatorState& state);
  void freeze(Process& process, milliseconds lasts);

  JobOptions options_;
  World world_;
  History history_;
  Draw draw_;
  std::vector<Fault> at_points_;
  Time calm_from_{};  // the end of all faults
  LauncherModel launcher_{*this};
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<std::unique_ptr<AgentModel>> agents_, former_agents_;
  DataConnections data_{world_};
  std::set<int> slow_slots_;
  CheckpointDirectory checkpoints_{world_, history_};
  std::optional<JobOver> verdict_;
  std::uint64_t incarnations_ = 100;
  int starts_ = 0;
  bool done_ = false;
};

}  // namespace troupe::simulator

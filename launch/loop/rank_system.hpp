#pragma once
#include <caf/all.hpp>

#include <memory>
#include <string>

#include "actors/compute/compute.hpp"
#include "actors/coordinator/coordinator.hpp"
#include "actors/coordinator/coordinator_rendezvous.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/communicator/choice/communicator_settings.hpp"

namespace troupe {

class Rank;
class RunLock;

struct RankSystemOptions {
  ProcessId process{0, 0};  ///< incarnation 0: drawn at random
  int world_size = 1;       ///< that the job began with
  bool spare = false;
  std::string host = "localhost";
  std::string interface_address = "127.0.0.1";
  std::string job_id;
  std::string run_id;      ///< of the run that the job is a life of; empty: the job's
  bool begins = true;      ///< false: the job has had another life, and what lies in its folders may be its own
  std::string page_token;  ///< for visitors of the live page; the same in every process of a job with keys
  std::string build_id;
  std::string ledger_path;  ///< for the last collectives, when somebody hangs; empty: none
  std::string config_hash;
  TrainingOptions training;
  StrategyOptions strategy;
  CommunicatorSettings communicator;
  at::Device device = at::kCPU;          ///< where the rank trains
  std::shared_ptr<NcclApi> nccl;         ///< empty: the one that the program was built with
  std::shared_ptr<TraceRecorder> trace;  ///< what the rank's threads record into; empty: nobody asked for a trace
  std::shared_ptr<RunLock> run_lock;     ///< rank 0 takes it before it writes to run_dir; empty: somebody else has it
  CoordinatorActor coordinator;
  std::function<void(ChaosKind, std::chrono::milliseconds)>
      hurt;  ///< --chaos: kills, stops or slows this process; empty: it is spared
  /// Told of the rank's root before it joins, by which a rank is ended that has no process of its own. That root has a
  /// thread then, which `hurt` may hold up. May be empty.
  std::function<void(const RankSupervisorActor&)> on_supervisor;
  bool recovery = true;       ///< false: the first rank that is lost ends the job
  FindCoordinator reconnect;  ///< empty: the job ends with its coordinator
};

/// The actors of one rank and its two communicators. The thread that constructs it is Compute's. Ranks may share a
/// process and its actor_system.
///
/// Two communicators: the reducer launches buckets on one, in plan order; the compute thread launches what it waits for
/// (vote, SyncBatchNorm, buffers, the user's own) on the other, in program order. Each has one thread and one order, so
/// they can't wait for each other in a circle. A generation has communicators of its own; the actors stay.
class RankSystem {
 public:
  /// Collective; a spare waits here until it is needed. Throws what kept the rank from joining, after telling the
  /// others; Error(ok) in a spare that was not needed.
  RankSystem(caf::actor_system& system, RankSystemOptions options);
  /// Ends the actors. A rank that did not `finish` is reported as failed.
  ~RankSystem();
  RankSystem(const RankSystem&) = delete;
  RankSystem& operator=(const RankSystem&) = delete;

  Compute& compute() noexcept { return *compute_; }
  const RankSystemOptions& options() const noexcept { return options_; }
  caf::actor_system& system() noexcept { return system_; }
  const RankSupervisorActor& supervisor() const noexcept { return supervisor_; }

  /// The loop is over: tells the coordinator, waits until it knows. `report.code` ok, or why not.
  void finish(const ErrorReport& report);
  /// As `finish`, for an exception that ended the loop: fills in rank, actor and step. Returns the report.
  ErrorReport fail(const std::exception_ptr& error);

 private:
  void shut_down();
  Compute::Services make_communicators(const Membership& membership);

  caf::actor_system& system_;
  RankSystemOptions options_;
  std::shared_ptr<RankStatus> status_ = std::make_shared<RankStatus>();
  std::shared_ptr<CoordinatorLink> link_;
  std::unique_ptr<Compute> compute_;
  RankSupervisorActor supervisor_;
  ReducerActor reducer_;
  std::shared_ptr<StepProgress> progress_ = std::make_shared<StepProgress>();
  bool finished_ = false;
};

/// What a Rank stands on; not for programs.
RankSystem& system_of(Rank& rank) noexcept;

/// An exception as a report: a troupe::Error's own, anything else as the user's. `device`: where the rank trains.
ErrorReport report_of(const std::exception_ptr& error, c10::Device device = c10::kCPU);

}  // namespace troupe

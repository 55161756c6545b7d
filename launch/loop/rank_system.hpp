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
  int world_size = 1;       ///< at the job's beginning
  bool spare = false;
  std::string host = "localhost";
  std::string interface_address = "127.0.0.1";
  std::string job_id;
  std::string run_id;      ///< of the run that the job is a life of; empty: the job's
  bool begins = true;      ///< false: the job has had another life, and its folders may hold that one's files
  std::string page_token;  ///< for visitors of the live page; the same in every process of a job with keys
  std::string build_id;
  std::string ledger_path;  ///< for the last collectives after a hang; empty: none
  std::string config_hash;
  TrainingOptions training;
  StrategyOptions strategy;
  CommunicatorSettings communicator;
  at::Device device = at::kCPU;          ///< the rank's
  std::shared_ptr<NcclApi> nccl;         ///< empty: the one that the program was built with
  std::shared_ptr<TraceRecorder> trace;  ///< for the records of the rank's threads; empty: no trace was requested
  std::shared_ptr<RunLock> run_lock;     ///< rank 0 takes it before it writes to run_dir; empty: it is taken already
  CoordinatorActor coordinator;
  std::function<void(ChaosKind, std::chrono::milliseconds)>
      hurt;  ///< --chaos: kills, stops or slows this process; empty: it is spared
  /// Called with the rank's root before it joins; with it, a rank that shares a process can be ended. That root then
  /// has its own thread, which `hurt` may hold up. May be empty.
  std::function<void(const RankSupervisorActor&)> on_supervisor;
  bool recovery = true;       ///< false: the first rank that is lost ends the job
  FindCoordinator reconnect;  ///< empty: the job ends with its coordinator
};

/// The actors of one rank and its two communicators. The thread that constructs it is Compute's. Ranks may share a
/// process and its actor_system.
///
/// Two communicators: the reducer launches buckets on one, in plan order. The compute thread launches the collectives
/// that it waits for on the other (vote, SyncBatchNorm, buffers, the user's), in program order. Each has one thread and
/// one order, so they can't wait for each other in a circle. Each generation has new communicators; the actors stay.
class RankSystem {
 public:
  /// Collective; a spare waits here until it is needed. Throws the error that kept the rank from joining, after
  /// informing the others; Error(ok) in a spare that was not needed.
  RankSystem(caf::actor_system& system, RankSystemOptions options);
  /// Ends the actors. A rank that did not `finish` is reported as failed.
  ~RankSystem();
  RankSystem(const RankSystem&) = delete;
  RankSystem& operator=(const RankSystem&) = delete;

  Compute& compute() noexcept { return *compute_; }
  const RankSystemOptions& options() const noexcept { return options_; }
  caf::actor_system& system() noexcept { return system_; }
  const RankSupervisorActor& supervisor() const noexcept { return supervisor_; }

  /// Every troupe::nn::BatchNorm of the model takes its statistics over all ranks, of this generation and of those to
  /// come. Throws Error(usage) as convert_sync_batchnorm. Compute's thread.
  void synchronise_norms(const std::shared_ptr<torch::nn::Module>& model);

  /// The loop is over: reports to the coordinator, and waits until it knows. `report.code` ok, or the failure.
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
  std::weak_ptr<torch::nn::Module> synchronised_;  // its norms meet on the program's communicator
  std::shared_ptr<StepProgress> progress_ = std::make_shared<StepProgress>();
  bool finished_ = false;
};

/// The system of a Rank; not for programs.
RankSystem& system_of(Rank& rank) noexcept;

/// An exception as a report: a troupe::Error's own, any other as the user's. `device`: the rank's.
ErrorReport report_of(const std::exception_ptr& error, c10::Device device = c10::kCPU);

}  // namespace troupe

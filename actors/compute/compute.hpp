#pragma once
#include <torch/torch.h>
#include <caf/all.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "actors/compute/compute_core.hpp"
#include "actors/compute/early_update_rate.hpp"
#include "actors/compute/late_vote.hpp"
#include "actors/compute/micro_batch_runner.hpp"
#include "actors/compute/replica_check.hpp"
#include "actors/compute/snapshot_schedule.hpp"
#include "actors/compute/state_healing.hpp"
#include "actors/compute/step_clock.hpp"
#include "actors/compute/step_losses.hpp"
#include "actors/compute/step_pace.hpp"
#include "actors/compute/vote_exchange.hpp"
#include "actors/messages/messages.hpp"
#include "actors/step/step_report.hpp"
#include "actors/strategy/strategy.hpp"
#include "tensor_io/memory/memory_shortage.hpp"
#include "tensor_io/optimizer/loss_scaler.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// The last change of membership, as this rank saw it.
struct LastRecovery {
  double ms = 0;      ///< from the news of it until this rank could go on; 0: there was none
  std::string cause;  ///< why the membership before ended, as this rank heard first; empty: it was no member
};

/// The rank's trainer: owns module and optimizer state, runs the steps. It is an actor with a mailbox, and its thread
/// is the user's: the program's own loop, or the framework's, calls it.
///
/// backward and step form a transaction. A step's changes (weights, buffers' broadcast, bucket plan) are made after the
/// vote, on all ranks or on none.
class Compute {
 public:
  using Services = ComputeServices;

  Compute(caf::actor_system& system, ComputeOptions options);

  /// The address that the other actors answer to.
  caf::actor address() const { return core_.mailbox.address(); }
  /// The mailbox in which they answer.
  ComputeMailbox& mailbox() { return core_.mailbox; }

  /// Makes the communicators of a generation; throws a recoverable error if the generation is interrupted meanwhile.
  using CommunicatorBuilder = std::function<Services(const Membership&)>;
  /// Waits for the first membership and joins it: at once for a job's own ranks, at the first loss for a spare. Throws
  /// Error(ok) in a spare that was not needed.
  void join(CommunicatorBuilder builder, RankSupervisorActor supervisor, std::shared_ptr<RankStatus> status,
            std::chrono::milliseconds timeout);
  /// After `error` in a collective outside of a step: joins the next generation if the error is recoverable, else
  /// throws it.
  void recover(const Error& error);
  const LastRecovery& last_recovery() const noexcept { return recovery_; }

  int rank() const noexcept { return core_.rank(); }
  int world_size() const noexcept { return core_.world_size(); }
  const Membership& membership() const noexcept { return core_.membership(); }
  Strategy& strategy() { return *core_.strategy; }
  Communicator& program_communicator() { return core_.program_communicator(); }
  const Services& services() const { return core_.services; }
  const ComputeOptions& options() const { return core_.options; }
  LossScaler& loss_scaler() noexcept { return core_.loss_scaler; }
  MetricLog& metric_log() noexcept { return votes_.log(); }
  DataShard data_shard() const { return core_.data_shard(); }
  std::int64_t shares_per_rank() const { return core_.shares_per_rank(); }
  ErrorReport complete(ErrorReport report) const { return core_.complete(std::move(report)); }

  /// As VoteExchange::set_dataset.
  void set_dataset(std::int64_t samples, std::uint64_t files_hash) noexcept { votes_.set_dataset(samples, files_hash); }
  /// The loader's micro-batches have `samples` samples, over all ranks. From now on they are split as the options say
  /// (balance); the job began with `ranks` ranks. Throws Error(usage) if they can't be.
  void split_batches(std::int64_t samples, int ranks) { pace_.split_batches(samples, ranks); }
  /// The samples of a micro-batch of the next step, by rank, the same on all ranks; empty: equal parts. It changes in
  /// `step` and with the membership.
  const std::vector<std::int64_t>& batch_split() const noexcept { return pace_.batch_split(); }

  void set_on_update(std::function<void(std::int64_t step)> update) { core_.on_update = std::move(update); }
  /// As StateHealing::notes.
  std::map<std::string, std::string>& notes() noexcept { return healing_.notes(); }
  /// The report of the step before this membership's first, if known: a newcomer that becomes rank 0 has to log it.
  std::optional<StepReport> last_step() const;
  /// A task between two steps (validation, saving), numbered as in StepProtocol. If a rank is lost in one of them, all
  /// ranks have to do it again.
  bool task_due(int index) const noexcept { return core_.protocol.task_due(index); }
  void task_done(int index) noexcept { core_.protocol.task_done(index); }
  void begin_step_time() noexcept { clock_.begin_step(); }
  /// As StepClock::enter_step.
  void enter_step() { clock_.enter_step(); }

  /// Collective: hands the model to the strategy of the options.
  void distribute(std::shared_ptr<torch::nn::Module> model);

  /// Seeds LibTorch's generator for this forward: a function of (seed, step, micro-batch, rank), not of earlier
  /// forwards.
  void seed_forward() { runner_.seed_forward(); }
  /// Backward of one micro-batch's loss. Throws Error(usage) for a sum in a step that has a mean already, or the
  /// reverse, and for a sum with settings that need the gradient's factor before the vote.
  void backward(const MicroBatchLoss& loss) { runner_.backward(loss); }
  void backward(const at::Tensor& mean, double samples, const CorrectSamples& correct = 0.0, double weight = 1) {
    backward({{mean, correct}, samples, weight});
  }
  void expect_elements(double elements) noexcept { losses_.expect_elements(elements); }
  /// Optional: the rate of the coming `step`, known before its last backward; with early_update the update begins
  /// there.
  void expect_rate(double lr) noexcept { early_.expect(lr); }
  /// Instead of seed_forward and backward, if micro-batches are graphs of the device (uses_graphs).
  void run_graphed(const GraphedMicroBatch& micro_batch) { runner_.run_graphed(micro_batch); }
  /// cuda_graphs is set, and this rank trains on a device. Since distribute.
  bool uses_graphs() const noexcept { return runner_.graphs() != nullptr; }
  /// Kinds of micro-batches that are graphs now.
  std::size_t graphs_written() const noexcept { return uses_graphs() ? runner_.graphs()->written() : 0; }
  /// Instead of seed_forward and backward, for a strategy that orders the step's micro-batches itself: `forward` runs
  /// one of them.
  void run_micro_batches(const std::function<MicroBatchLoss(std::int64_t micro_batch)>& forward) {
    runner_.run_ordered(forward);
  }
  /// The rank waited this long for its data loader: part of the rank's own time of the step.
  void count_data_wait(double milliseconds) { clock_.count_data_wait(milliseconds); }
  /// Reduce, vote, apply. Throws Error(usage) if micro-batches are missing.
  ///
  /// With a late vote on a device (TrainingOptions::vote) nothing here waits for the device. It decides whether the
  /// step is applied, and the next step's report has the result. An error about it comes then, or from settle.
  StepReport step(Optimizer& optimizer, double lr);
  /// With a late vote: waits for the result of the last step, and votes on it; collective, between steps. The next
  /// step's report has the result, too. Empty if there was no such step, or no late vote. Call it before anything is
  /// saved, and when the steps are over.
  const std::optional<StepReport>& settle();

  std::int64_t steps_done() const noexcept { return core_.step(); }
  std::int64_t micro_batch() const noexcept { return runner_.micro_batch(); }
  /// The state is now that of a checkpoint.
  void resume_at(std::int64_t step);
  /// The last step and all that follows it are done: returns on all ranks or on none. Throws what interrupts the wait;
  /// call it again after recover.
  void leave_loop();

  /// Collective, before the optimizer's state is used: newcomers of this generation get it from the others. Does
  /// nothing the second time.
  void settle_optimizer(Optimizer& optimizer) { healing_.settle_optimizer(optimizer); }
  /// This rank's part of the save with this id is on its way. A rank that is interrupted before ends that save for all.
  void begins_save(std::string id) { core_.protocol.begins_save(std::move(id)); }

  /// The memory that this rank holds on its device, by its use.
  std::vector<HeldMemory> held_memory() const;

 private:
  void show_steps_done();
  void enter(const Membership& next);
  std::optional<Decision> rejoin(ErrorReport why, Optimizer* optimizer, double lr);
  void make_strategy_of_rank();
  void begin_generation();
  void heal();
  void go_back();
  void note_optimizer(Optimizer& optimizer);
  double wait_for_numbers(GradientSummary& summary);
  std::vector<Vote> vote(const GradientSummary& summary, double norm);
  Decision decide_by(const std::vector<Vote>& votes) const;
  void run_step_again(const Decision& decision, StepReport& report);
  void part(const Decision& decision, Optimizer& optimizer, StepReport& report);
  bool end_share(Optimizer& optimizer, double lr);
  bool wants_norm() const;
  double gradient_norm();
  void apply(Optimizer& optimizer, double lr, double norm, double gradient_factor = 1);
  void commit(const Decision& decision, Optimizer& optimizer, double lr);
  void end_step();
  void forget_micro_batches();

  ComputeCore core_;
  CommunicatorBuilder builder_;
  StepClock clock_{core_};
  VoteExchange votes_{core_};
  StepLosses losses_{core_, votes_.mine()};
  StateHealing healing_{core_};
  SnapshotSchedule snapshots_{core_};
  ReplicaCheck replicas_{core_, healing_};
  StepPace pace_{core_};
  EarlyUpdateRate early_{core_};
  std::unique_ptr<LateVote> late_;  // empty: the vote waits for the step's numbers
  MicroBatchRunner runner_{core_, votes_, losses_, early_, clock_, replicas_};
  bool overflowed_ = false;                      // an update within the step was not finite
  std::optional<std::int64_t> optimizer_bytes_;  // of its state, from its first step on
  LastRecovery recovery_;
};

}  // namespace troupe

#pragma once
#include <torch/torch.h>
#include <caf/all.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "actors/compute/batch_split.hpp"
#include "actors/compute/device_times.hpp"
#include "actors/compute/heal.hpp"
#include "actors/compute/loss.hpp"
#include "actors/compute/step_protocol.hpp"
#include "actors/compute/straggler.hpp"
#include "actors/compute/training_options.hpp"
#include "actors/compute/vote.hpp"
#include "actors/messages/messages.hpp"
#include "actors/rank/rank_supervisor.hpp"
#include "actors/rank/reducer.hpp"
#include "actors/rank/thread_actor.hpp"
#include "actors/strategy/demand_shares.hpp"
#include "actors/strategy/placement.hpp"
#include "actors/strategy/strategy.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tensor_io/memory/memory_shortage.hpp"
#include "tensor_io/optimizer/loss_scaler.hpp"
#include "tensor_io/optimizer/optimizer.hpp"
#include "tensor_io/optimizer/step_decision_on_device.hpp"

namespace troupe {

/// What one optimizer step was. The same on all ranks, but for the times.
struct StepReport {
  std::int64_t step = 0;  ///< 0-based number of the step in the run
  /// Of which `committed`, `reason`, the loss, the samples, the norm and the loss scale are: `step`, or with a late
  /// vote the step before; -1: there is none yet.
  std::int64_t measured_step = 0;
  bool committed = true;  ///< false: skipped or to be repeated, `reason` says why
  bool pending = false;   ///< one share of the step is done, another one comes (DemandShares): no field but
                          ///< `step` counts
  bool repeat = false;    ///< a rank was lost or healed: the micro-batches come again, nothing of the step was applied
  std::string reason;
  double loss = 0;      ///< mean over the samples of all ranks and micro-batches, or over the elements of Loss::sum
  double max_loss = 0;  ///< the largest of the ranks' means
  double samples = 0;   ///< of all ranks
  double correct = 0;
  double gradient_norm = 0;  ///< 0 where neither clipping nor a caller asked for it
  double lr = 0;
  double loss_scale = 1;  ///< that the step ran with
  int stop_signal = 0;    ///< a rank was asked to stop: end the loop now
  double step_ms = 0;     ///< from the end of the step before to the end of this one
  // On a device the times of communication are the device's (DeviceTimes): of the steps that were over when this one's
  // end was written.
  double exposed_ms = 0;  ///< compute waited for the reducer and the vote
  double reduce_ms = 0;   ///< the reducer was inside collectives
  double optimizer_ms = 0;
  double inside_ms =
      0;  ///< compute waited for other ranks within forward and backward (FSDP's gathers, SyncBatchNorm, stages)
  std::int32_t buckets = 0;
  std::int32_t launched_before_end = 0;  ///< of them, while backward was going on
  double message_us = 0;       ///< of the step's critical path, in mailboxes and messages between compute and reducer
  double bucket_queue_ms = 0;  ///< full buckets waited for the reducer: the sum over buckets
  std::int64_t bucket_bytes = 0;  ///< of all buckets
  double data_ms = 0;             ///< compute waited for the loader: the sum over the step's batches
  double batch_queue_ms = 0;      ///< loaded batches waited for compute: the sum over the step's
  std::vector<SectionTimes> own;  ///< what each rank spent on its own part of the step; empty where there was no vote
  std::vector<Straggler> stragglers;  ///< ranks that are slow now, the same on all ranks
  std::vector<std::string>
      notices;  ///< news for the user: a rank became slow, a replica was healed; the same on all ranks
};

struct ComputeOptions {
  ProcessId process;
  TrainingOptions training;
  StrategyOptions strategy;
  std::chrono::milliseconds timeout{60'000};  ///< for a message of the rank's other actors
  bool may_recover = false;  ///< the job outlives the loss of a rank, so copies of sharded state are of use
};

class StepGraphs;
struct StepGraph;

/// The rank's trainer: owns module and optimizer state, runs the steps. It is an actor with a mailbox, and its thread
/// is the user's: the program's own loop, or the framework's, calls it.
///
/// backward and step form a transaction: what a step changes (weights, buffers' broadcast, bucket plan) changes after
/// the vote, on all ranks or on none.
class Compute {
 public:
  Compute(caf::actor_system& system, ComputeOptions options);
  ~Compute();

  /// The address that the other actors answer to.
  caf::actor address() const { return self_.handle(); }
  caf::blocking_actor& mailbox() { return *self_; }

  struct Services {
    RankSupervisorActor supervisor;
    ReducerActor reducer;
    std::shared_ptr<Communicator> bucket_lane;
    std::shared_ptr<Communicator> program_lane;
    std::shared_ptr<StepProgress> progress;
    std::shared_ptr<RankStatus> status;
  };
  /// Makes the lanes of a generation; throws what may be recovered if the generation is interrupted meanwhile.
  using LaneBuilder = std::function<Services(const Membership&)>;
  /// Waits for the first membership and joins it: at once for a job's own ranks, at the first loss for a spare. Throws
  /// Error(ok) in a spare that was not needed.
  void join(LaneBuilder builder, RankSupervisorActor supervisor, std::shared_ptr<RankStatus> status,
            std::chrono::milliseconds timeout);
  /// After `error` in a collective outside of a step: joins the next generation, if the error may be recovered. Throws
  /// what can't be.
  void recover(const Error& error);
  /// How long the last change of membership took this rank, from the news of it until it could go on; 0: there was
  /// none.
  double recovery_ms() const noexcept { return recovery_ms_; }

  int rank() const noexcept { return protocol_.rank(); }
  int world_size() const noexcept { return membership_.world_size(); }
  const Membership& membership() const noexcept { return membership_; }

  /// Of the data that the steps from now on are drawn from: a rank with another number of samples, or other files
  /// (Dataset::files_hash), is named at the vote.
  void set_dataset(std::int64_t samples, std::uint64_t files_hash) noexcept {
    dataset_size_ = samples;
    data_hash_ = static_cast<std::uint32_t>(files_hash ^ files_hash >> 32U);
  }

  /// The loader's micro-batches have so many samples, over all ranks: from now on they are shared out as the options
  /// say (balance); the job began with `ranks` ranks. Throws Error(usage) where that can't be.
  void share_batches(std::int64_t samples, int ranks);
  /// Of a micro-batch of the next step, samples by rank, the same on all ranks; empty: equal parts. It changes in
  /// `step` and with the membership.
  const std::vector<std::int64_t>& batch_shares() const noexcept { return shares_.by_rank(); }

  /// Changes with each step's decision, the same on all ranks.
  LossScaler& loss_scaler() noexcept { return loss_scaler_; }

  /// Small things of the program that a newcomer needs and a checkpoint keeps, equal on all ranks.
  std::map<std::string, std::string>& notes() noexcept { return notes_; }
  /// What the step before this membership's first came to, as far as anybody knows: a newcomer to rank 0 has to log it.
  std::optional<StepReport> last_step() const;
  /// What lies between two steps (validation, saving), numbered from 0 after each step: whether number `index` is still
  /// to be done. After a loss in one of them it is to be done again, on all ranks.
  bool task_due(int index) const noexcept { return protocol_.task_due(index); }
  void task_done(int index) noexcept { protocol_.task_done(index); }
  /// What was done since the last step (a trace was gathered) is no part of the next one's `step_ms`.
  void begin_step_time() noexcept { step_started_ = std::chrono::steady_clock::now(); }

  /// Collective: hands the model to the strategy of the options.
  void distribute(std::shared_ptr<torch::nn::Module> model);

  /// Seeds LibTorch's generator for this forward: a function of (seed, step, micro-batch, rank), not of what ran
  /// before.
  void seed_forward();
  struct MicroBatchLoss {
    Loss loss;
    double samples = 0;  ///< of the micro-batch
    /// Of a mean: this rank's share of the global batch times world size, 1 where all ranks have as many samples. 0: it
    /// counts nothing.
    double weight = 1;
  };
  /// Backward of one micro-batch's loss. Throws Error(usage) for a sum where a step has a mean already or the other way
  /// round, and with settings that need the gradient's factor before the vote (refuse_sum).
  void backward(const MicroBatchLoss& loss);
  void backward(const at::Tensor& mean, double samples, const CorrectSamples& correct = 0.0, double weight = 1) {
    backward({{mean, correct}, samples, weight});
  }
  /// About how many elements a step's batch has. Gradients of sums are reduced divided by it, so that half precision
  /// holds them, and get the exact factor with the vote. The same on all ranks.
  void expect_elements(double elements) noexcept { expected_elements_ = elements; }
  /// Optional: the rate of the coming `step`, known before its last backward; with early_update the update begins
  /// there.
  void expect_rate(double lr) noexcept { expected_rate_ = lr; }
  /// In the place of seed_forward and backward, where micro-batches are graphs of the device (uses_graphs).
  struct GraphedMicroBatch {
    std::vector<at::Tensor> inputs;  ///< on the device; all that changes from one micro-batch to the next
    double samples = 0, weight = 1;  ///< as backward's
    std::string kind;                ///< other numbers of the host's that forward depends on: another graph for each
    /// Called with `inputs`, or with tensors of their shapes that have no values, or not at all: it launches kernels
    /// and does nothing else. Returns a mean.
    std::function<Loss(const std::vector<at::Tensor>& inputs)> forward;
  };
  void run_graphed(const GraphedMicroBatch& micro_batch);
  /// cuda_graphs is set, and this rank trains on a device. Since distribute.
  bool uses_graphs() const noexcept { return graphs_ != nullptr; }
  /// Kinds of micro-batches that are graphs now.
  std::size_t graphs_written() const noexcept;
  /// In the place of seed_forward and backward, for a strategy that orders the step's micro-batches itself: `forward`
  /// runs one of them.
  void run_micro_batches(const std::function<MicroBatchLoss(std::int64_t micro_batch)>& forward);
  /// Which part of the data this rank trains on.
  DataShard data_shard() const;
  /// Of a strategy whose ranks take a step's batch by demand; 0: it has none, or before distribute.
  std::int64_t shares_per_rank() const;
  /// The rank waited so long for its data loader: part of its own time of the step.
  void count_data_wait(double milliseconds) { own_.data_ms += static_cast<float>(milliseconds); }
  /// Reduce, vote, apply. Throws Error(usage) if micro-batches are missing.
  ///
  /// With a late vote on a device (TrainingOptions::vote) nothing here waits for it: whether the step is applied is
  /// decided there, and what it came to is in the next step's report. An error about it comes then, or from settle.
  StepReport step(Optimizer& optimizer, double lr);
  /// With a late vote: waits for what the last step came to, and votes on it; collective, between steps. The next
  /// step's report has it, too. Nothing where there was no such step, or no late vote. Before anything is saved, and
  /// when the steps are over.
  const std::optional<StepReport>& settle();

  std::int64_t steps_done() const noexcept { return protocol_.steps_done(); }
  std::int64_t micro_batch() const noexcept { return micro_batch_; }
  /// The state is a checkpoint's.
  void resume_at(std::int64_t step);

  /// Receives one message of type T; throws what a failing actor or an abort reports, Error(timeout) naming `what` and
  /// `actor`.
  template <class T>
  T receive(const char* actor, const char* what) {
    std::optional<T> result;
    while (!result) {
      self_->receive(
          [&](T& message) { result = std::move(message); }, [&](RankFailed& failed) { throw_failure(failed.report); },
          [&](LaneFailed& failed) { throw Error(failed.report); },
          [&](InterruptRanks& message) { throw_interrupted(message); }, [&](AbortJob& job) { throw_abort(job.report); },
          caf::after(options_.timeout) >> [&] { throw_timeout(actor, what); });
    }
    return std::move(*result);
  }
  /// As receive, of a stream that ends with a message of type End: nothing then.
  template <class T, class End>
  std::optional<T> receive_next(const char* actor, const char* what) {
    std::optional<T> result;
    self_->receive([&](T& message) { result = std::move(message); }, [](End&) {},
                   [&](RankFailed& failed) { throw_failure(failed.report); },
                   [&](InterruptRanks& message) { throw_interrupted(message); },
                   [&](AbortJob& job) { throw_abort(job.report); },
                   caf::after(options_.timeout) >> [&] { throw_timeout(actor, what); });
    return result;
  }

  /// Throws what has interrupted this rank meanwhile, as a wait would; does not wait. For who goes on without one.
  void throw_if_interrupted() {
    self_->receive([&](RankFailed& failed) { throw_failure(failed.report); },
                   [&](InterruptRanks& message) { throw_interrupted(message); },
                   [&](AbortJob& job) { throw_abort(job.report); }, caf::after(std::chrono::seconds(0)) >> [] {});
  }

  /// Collective, before the optimizer's state is used: newcomers of this generation get it from the others. Does
  /// nothing the second time.
  void settle_optimizer(Optimizer& optimizer);
  /// This rank's part of the save with this id is on its way. A rank that is interrupted before ends that save for all.
  void begins_save(std::string id) { protocol_.begins_save(std::move(id)); }

  Strategy& strategy() { return *strategy_; }
  Communicator& program_lane() { return *services_.program_lane; }
  const Services& services() const { return services_; }
  const ComputeOptions& options() const { return options_; }

  /// What this rank holds on its device, by what it is.
  std::vector<HeldMemory> held_memory() const;

  /// `error` with rank, actor and step filled in where they are missing.
  ErrorReport complete(ErrorReport report) const;

 private:
  /// On a device: what a micro-batch's loss was, until the vote needs it.
  struct DeviceLoss {
    at::Tensor value;    // () there
    at::Tensor correct;  // the same; undefined where the host knows it
    double samples = 0;
    bool counts = true, has_correct = false;
  };
  /// What a step on a device came to, on its way to the host.
  struct DeviceNumbers {
    std::int64_t step = -1;
    std::vector<DeviceLoss> losses;
    double samples = 0, correct = 0;
    at::Tensor values;  // (n,) f64, pinned: losses, sum of squares and elements that are not finite, whether the device
                        // skipped the step
    std::optional<DeviceEvent> over;  // they are there
    bool has_totals = false;
    bool not_finite = false, skipped = false;  // once read
  };
  /// The state of a vote that is one step late.
  struct LateVote {
    LateVote(const LossScalerOptions& options, c10::Device device) : scale(options, device) {}
    DeviceLossScale scale;
    DeviceDecision decision;            // of the step under way
    DeviceNumbers numbers[2];           // by step parity
    std::int64_t unvoted = -1;          // the step whose numbers no vote has had
    std::optional<StepReport> settled;  // ... and what those of the last one came to, until a report has it
  };

  template <class Capability>
  Capability* capability() const {
    return strategy_ ? strategy_->capability<Capability>() : nullptr;
  }
  [[noreturn]] void throw_failure(const ErrorReport& report);
  [[noreturn]] void throw_abort(const ErrorReport& report);
  [[noreturn]] void throw_interrupted(const InterruptRanks& message);
  [[noreturn]] void throw_timeout(const char* actor, const char* what);
  void move_on();
  void show_steps_done();
  Share place() const;
  void seed_micro_batch();
  void refuse_unfrozen() const;
  void begin_votes();
  void check_is_scalar(const at::Tensor& loss) const;
  void check_loss(const Loss& loss) const;
  void refuse_sum() const;
  void check_micro_batch_is_due() const;
  void count_loss(const MicroBatchLoss& loss);
  void backward_begun(const MicroBatchLoss& loss);
  double backward_factor(const MicroBatchLoss& loss);
  std::vector<Vote> vote(const GradientSummary& summary, double norm);
  std::vector<Vote> exchange_votes();
  std::vector<Vote> decode_votes(std::string_view votes) const;
  Decision decide_by(const std::vector<Vote>& votes) const;
  float own_time_since_mark();
  void mark_time();
  std::vector<TimedInterval> take_device_waits();
  void begin_section();
  void end_section(DeviceTimes::Part part);
  void tell_device_times(StepReport& report);
  void note_optimizer(Optimizer& optimizer);
  NamedTensors replicated_parameters();
  std::uint64_t parameter_hash_if_due();
  bool heal_diverged(const std::vector<Vote>& votes, Optimizer& optimizer, StepReport& report);
  void run_step_again(const Decision& decision, StepReport& report);
  void end_step_time(StepReport& report);
  void watch_pace(const std::vector<Vote>& votes, StepReport& report);
  bool end_share(Optimizer& optimizer, double lr);
  bool wants_norm() const;
  double gradient_norm();
  void apply(Optimizer& optimizer, double lr, double norm, double gradient_factor = 1);
  void commit(const Decision& decision, Optimizer& optimizer, double lr);
  void end_step();
  void forget_micro_batches();
  void fill_report(StepReport& report, const Decision& decision) const;

  Membership await_membership(std::chrono::milliseconds timeout);
  StrategyContext strategy_context(bool newcomer);
  void enter(const Membership& next);
  void allocate_votes();
  void count_value(double value, double samples, bool counts);
  void send_numbers(DeviceNumbers& numbers, const at::Tensor& totals, const at::Tensor& skip);
  double take_numbers(DeviceNumbers& numbers);
  double read_device(GradientSummary& summary);
  bool checks_late_vote() const;
  void check_early_update() const;
  bool verifies_now() const;
  void begin_update();
  void check_begun_update(const Optimizer& optimizer, double lr) const;
  std::unique_ptr<StepGraphs> make_graphs() const;
  void write(StepGraph& graph, const GraphedMicroBatch& micro_batch);
  void replay(StepGraph& graph, const GraphedMicroBatch& micro_batch);
  at::Tensor start_of_written_backward(const at::Tensor& loss, const at::Tensor& factor) const;
  at::Tensor start_of_late_backward(const at::Tensor& loss, double weight);
  double decide_late(GradientSummary& summary);
  double take_late_numbers(GradientSummary& summary);
  void settle_by(const Decision& decision);
  void commit_late(const Decision& decision, Optimizer& optimizer, double lr);
  void fill_late_report(StepReport& report, const Decision& decision);
  std::optional<Decision> rejoin(ErrorReport why, Optimizer* optimizer, double lr);
  std::optional<Decision> rejoin_next(ErrorReport why, Optimizer* optimizer, double lr);
  void heal();
  ReplicaGroup replica_group() const;
  void take_snapshot_if_due(Optimizer& optimizer);
  void go_back();
  void heal_optimizer(Optimizer& optimizer, const HealRoles& roles, Communicator& lane);

  // Constant after construction.
  ComputeOptions options_;
  ThreadActor self_;
  LaneBuilder builder_;

  // Compute's own thread.
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<Strategy> strategy_;
  StepProtocol protocol_;
  std::int64_t micro_batch_ = 0;
  bool has_share_ = false;                          // of the step under way, after one that is done
  bool overflowed_ = false;                         // an update within the step was not finite
  std::optional<double> expected_rate_;             // of the step under way
  double expected_elements_ = 1, sum_divisor_ = 1;  // of a step; what a rank's sums are divided by before backward
  std::optional<double> begun_rate_;                // the strategy makes the step's update itself, with this one
  const Optimizer* prepared_for_ = nullptr;  // the one that all steps of the membership are to have; not to be used
  double shares_wait_ms_ = 0;                // at the ends of the step's shares
  Services services_;
  Membership membership_;
  std::uint64_t snapshot_generation_ = 0;  // of the last snapshot that has ended
  std::map<std::string, std::string> notes_;
  std::vector<std::string> notices_;  // for the next report
  NamedTensors frozen_;               // did not require a gradient when the model was distributed
  LossScaler loss_scaler_;
  std::shared_ptr<ForwardPosition> position_ = std::make_shared<ForwardPosition>();  // the model's layers read it
  Vote vote_;
  std::vector<DeviceLoss> device_losses_;
  std::unique_ptr<LateVote> late_;      // empty: the vote waits for the step's numbers
  std::unique_ptr<StepGraphs> graphs_;  // empty: micro-batches are launched kernel by kernel
  std::int64_t dataset_size_ = 0;
  std::uint32_t data_hash_ = 0;
  SectionTimes own_;      // of the step under way
  double inside_ms_ = 0;  // ... and what compute waited within forward and backward
  DeviceTimes device_times_;
  std::optional<std::int64_t> optimizer_bytes_;  // of its state, from its first step on
  double recovery_ms_ = 0;
  std::chrono::steady_clock::time_point mark_ = std::chrono::steady_clock::now();
  std::chrono::nanoseconds waited_at_mark_{0};  // on the program lane and the strategy's own
  StragglerWatch pace_;
  BatchShares shares_;
  at::Tensor vote_in_, votes_out_;
  std::chrono::steady_clock::time_point step_started_ = std::chrono::steady_clock::now();
};

}  // namespace troupe

#pragma once
#include <torch/torch.h>
#include <caf/all.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/messages.hpp"
#include "actors/rank_supervisor.hpp"
#include "actors/reducer.hpp"
#include "actors/strategy.hpp"
#include "actors/training_options.hpp"
#include "actors/vote.hpp"
#include "tensor_io/communicator.hpp"
#include "tensor_io/dropout.hpp"
#include "tensor_io/optimizer.hpp"

namespace troupe {

/// What one optimizer step was. The same on all ranks, but for the times.
struct StepReport {
  std::int64_t step = 0;  ///< 0-based number of the step in the run
  bool committed = true;  ///< false: skipped, `reason` says why
  std::string reason;
  double loss = 0;     ///< mean over the samples of all ranks and micro-batches
  double samples = 0;  ///< of all ranks
  double correct = 0;
  double gradient_norm = 0;  ///< 0 where neither clipping nor a caller asked for it
  double lr = 0;
  int stop_signal = 0;    ///< a rank was asked to stop: end the loop now
  double step_ms = 0;     ///< from the end of the step before to the end of this one
  double exposed_ms = 0;  ///< compute waited for the reducer and the vote
  double reduce_ms = 0;   ///< the reducer was inside collectives
  double optimizer_ms = 0;
  std::int32_t buckets = 0;
  std::int32_t launched_before_end = 0;  ///< of them, while backward was going on
};

struct ComputeOptions {
  int rank = 0;
  int world_size = 1;
  TrainingOptions training;
  StrategyOptions strategy;
  std::chrono::milliseconds timeout{60'000};  ///< for a message of the rank's other actors
};

/// The rank's trainer: owns module and optimizer state, runs the steps. It is an actor with a mailbox, and its thread is the user's: the
/// program's own loop, or the framework's, calls it.
///
/// backward and step form a transaction: what a step changes (weights, buffers' broadcast, bucket plan) changes after the vote, on all
/// ranks or on none.
class Compute {
 public:
  Compute(caf::actor_system& system, ComputeOptions options);
  ~Compute();

  /// The address that the other actors answer to.
  caf::actor address() const { return caf::actor(self_); }
  caf::blocking_actor& mailbox() { return *self_; }

  struct Services {
    RankSupervisorActor supervisor;
    ReducerActor reducer;
    std::shared_ptr<Communicator> bucket_lane;
    std::shared_ptr<Communicator> program_lane;
    std::shared_ptr<StepProgress> progress;
    std::shared_ptr<RankStatus> status;
  };
  void connect(Services services);

  /// Collective: hands the model to the strategy of the options.
  void distribute(std::shared_ptr<torch::nn::Module> model);

  /// Seeds LibTorch's generator for this forward: a function of (seed, step, micro-batch, rank), not of what ran before.
  void seed_forward();
  /// Backward of one micro-batch's mean loss over `samples` samples, of which `correct` were right. `weight`: this rank's share of the
  /// global batch times world size; 1 where all ranks have as many samples.
  void backward(const at::Tensor& loss, double samples, double correct = 0, double weight = 1);
  /// Reduce, vote, apply. Throws Error(usage) if micro-batches are missing.
  StepReport step(Optimizer& optimizer, double lr);

  std::int64_t steps_done() const noexcept { return step_; }
  std::int64_t micro_batch() const noexcept { return micro_batch_; }
  void set_steps_done(std::int64_t step);

  /// Receives one message of type T; throws what a failing actor or an abort reports, Error(timeout) naming `what` and `actor`.
  template <class T>
  T receive(const char* actor, const char* what) {
    std::optional<T> result;
    while (!result) {
      self_->receive([&](T& message) { result = std::move(message); }, [&](RankFailed& failed) { throw_failure(failed.report); },
                     [&](AbortJob& job) { throw_abort(job.report); }, caf::after(options_.timeout) >> [&] { throw_timeout(actor, what); });
    }
    return std::move(*result);
  }
  /// As receive, of a stream that ends with a message of type End: nothing then.
  template <class T, class End>
  std::optional<T> receive_next(const char* actor, const char* what) {
    std::optional<T> result;
    self_->receive([&](T& message) { result = std::move(message); }, [](End&) {}, [&](RankFailed& failed) { throw_failure(failed.report); },
                   [&](AbortJob& job) { throw_abort(job.report); }, caf::after(options_.timeout) >> [&] { throw_timeout(actor, what); });
    return result;
  }

  Strategy& strategy() { return *strategy_; }
  Communicator& program_lane() { return *services_.program_lane; }
  const Services& services() const { return services_; }
  const ComputeOptions& options() const { return options_; }

  /// `error` with rank, actor and step filled in where they are missing.
  ErrorReport complete(ErrorReport report) const;

 private:
  [[noreturn]] void throw_failure(const ErrorReport& report);
  [[noreturn]] void throw_abort(const ErrorReport& report);
  [[noreturn]] void throw_timeout(const char* actor, const char* what);
  void move_on();
  Decision vote(const GradientSummary& summary, double norm);

  // Constant after connect.
  ComputeOptions options_;
  caf::scoped_actor self_;
  Services services_;

  // Compute's own thread.
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<Strategy> strategy_;
  std::int64_t step_ = 0;
  std::int64_t micro_batch_ = 0;
  std::shared_ptr<ForwardPosition> position_ = std::make_shared<ForwardPosition>();  // the model's layers read it
  Vote vote_;
  at::Tensor vote_out_, vote_in_;
  std::chrono::steady_clock::time_point step_started_ = std::chrono::steady_clock::now();
};

}  // namespace troupe

#pragma once
#include <functional>
#include <memory>

#include "actors/compute/compute_core.hpp"
#include "actors/compute/early_update_rate.hpp"
#include "actors/compute/late_vote.hpp"
#include "actors/compute/micro_batch_graphs.hpp"
#include "actors/compute/replica_check.hpp"
#include "actors/compute/step_clock.hpp"
#include "actors/compute/step_losses.hpp"
#include "actors/compute/vote_exchange.hpp"
#include "actors/strategy/demand_shares.hpp"
#include "tensor_io/layers/dropout.hpp"

namespace troupe {

/// Forward and backward of a step's micro-batches, launched one by one, as graphs of the device, or in the strategy's
/// order. Compute's thread.
class MicroBatchRunner {
 public:
  MicroBatchRunner(ComputeCore& core, VoteExchange& votes, StepLosses& losses, EarlyUpdateRate& early, StepClock& clock,
                   const ReplicaCheck& replicas);

  /// The strategy is there and has not got the model. `late`: nullptr if the host decides on steps.
  void prepare(LateVote* late);
  /// The model is on all ranks.
  void begin_model();
  /// A generation begins.
  void begin_generation() noexcept;
  void forget_graphs();

  void seed_forward();
  void backward(const MicroBatchLoss& micro_batch);
  void run_graphed(const GraphedMicroBatch& micro_batch);
  void run_ordered(const std::function<MicroBatchLoss(std::int64_t micro_batch)>& forward);
  const MicroBatchGraphs* graphs() const noexcept { return graphs_.get(); }

  std::int64_t micro_batch() const noexcept { return micro_batch_; }
  /// Throws Error(usage) if micro-batches of the step are missing.
  void check_complete() const;
  /// The step has another share for this rank, whose micro-batches come next, or not.
  void end_share(bool has_another);
  /// The step is over, or comes again.
  void end_step() noexcept;
  /// The next forward's place in the data: random numbers go by it.
  void move_on();

 private:
  class InStrategysOrder;
  Share place() const;
  void seed();
  bool begins_step() const noexcept { return micro_batch_ == 0 && !has_share_; }
  void begin_step();
  void check_model() const;
  void check_is_due() const;
  void count(const MicroBatchLoss& micro_batch);
  void run_backward(const MicroBatchLoss& micro_batch);
  void end_micro_batch();

  ComputeCore& core_;
  VoteExchange& votes_;
  StepLosses& losses_;
  EarlyUpdateRate& early_;
  StepClock& clock_;
  const ReplicaCheck& replicas_;
  LateVote* late_ = nullptr;
  std::unique_ptr<MicroBatchGraphs> graphs_;  // empty: micro-batches are launched kernel by kernel
  std::shared_ptr<ForwardPosition> position_ = std::make_shared<ForwardPosition>();  // the model's layers read it
  std::int64_t micro_batch_ = 0;
  bool has_share_ = false;  // of the step under way, after one that is done
};

}  // namespace troupe

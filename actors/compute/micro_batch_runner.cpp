#include "actors/compute/micro_batch_runner.hpp"

#include <string>

#include "actors/strategy/micro_batch_order.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/random_seed.hpp"

namespace troupe {
namespace {

constexpr const char* kBoth = "forward and backward";  // a part that is not cut

}  // namespace

MicroBatchRunner::MicroBatchRunner(ComputeCore& core, VoteExchange& votes, StepLosses& losses, EarlyUpdateRate& early,
                                   StepClock& clock, const ReplicaCheck& replicas)
    : core_(core), votes_(votes), losses_(losses), early_(early), clock_(clock), replicas_(replicas) {}

void MicroBatchRunner::prepare(LateVote* late) {
  late_ = late;
  if (core_.shares_per_rank() > 0 && core_.options.training.grad_accum_steps > 1) {
    throw Error(ErrorCode::usage, "grad_accum_steps", core_.strategy->name() + " cuts a step's batch itself",
                "leave it at 1");
  }
  graphs_ = MicroBatchGraphs::make(core_, losses_, late_);
  const char* why = nullptr;  // they use the gradient before the ranks' counts are known
  if (core_.options.strategy.early_update) why = "early_update updates parameters";
  if (core_.shares_per_rank() > 0) why = "the strategy's server updates parameters";
  if (graphs_) why = "cuda_graphs fixes what is computed";
  if (late_ != nullptr) why = "vote late lets the device update parameters";
  losses_.refuse_sums(why);
}

void MicroBatchRunner::begin_model() {
  place_dropout(*core_.model, position_);
  move_on();
}

void MicroBatchRunner::begin_generation() noexcept {
  votes_.log().give_up_step();
  micro_batch_ = 0;
  has_share_ = false;
}

void MicroBatchRunner::forget_graphs() {
  if (graphs_) graphs_->forget();
}

// Random numbers are those of the samples, whichever rank has them.
Share MicroBatchRunner::place() const {
  if (const auto* shares = core_.capability<DemandShares>()) return shares->next_share();
  return {micro_batch_, core_.data_shard().index};
}

void MicroBatchRunner::move_on() {
  const auto at = place();
  *position_ = {core_.options.training.seed, core_.step(), at.micro_batch, at.index, position_->visit + 1};
}

void MicroBatchRunner::seed_forward() {
  if (micro_batch_ == 0 && core_.strategy) {
    core_.strategy->set_rollback_point();
    if (auto* shares = core_.capability<DemandShares>()) shares->begin_forward(core_.step());
  }
  seed();
  votes_.log().begin_micro_batch();
  clock_.begin_section();
}

void MicroBatchRunner::seed() {
  const auto at = place();
  seed_generator(core_.options.training.seed,
                 {static_cast<std::uint64_t>(core_.step()), static_cast<std::uint64_t>(at.micro_batch),
                  static_cast<std::uint64_t>(at.index)},
                 core_.services.program_communicator ? core_.device() : at::kCPU);
}

void MicroBatchRunner::begin_step() {
  core_.refuse_unfrozen();
  votes_.begin();
  early_.begin_step();
  losses_.begin();
  if (late_ != nullptr) late_->begin_step();
  core_.program_communicator().ledger().set_step(core_.step());
  core_.strategy->begin_step(core_.step());
}

void MicroBatchRunner::check_model() const {
  if (core_.strategy) return;
  throw Error(ErrorCode::usage, "backward", "no model was distributed", "call rank.distribute(model) before the loop");
}

void MicroBatchRunner::check_is_due() const {
  const auto all = core_.options.training.grad_accum_steps;
  if (micro_batch_ < all) return;
  core_.refuse("backward", "all " + std::to_string(all) + " micro-batches of the step are done",
               "call rank.step(optimizer) after the last one");
}

void MicroBatchRunner::check_complete() const {
  const auto all = core_.options.training.grad_accum_steps;
  if (micro_batch_ == all) return;
  core_.refuse(
      "step",
      "only " + std::to_string(micro_batch_) + " of " + std::to_string(all) + " micro-batches have run backward",
      "call rank.backward for each micro-batch");
}

void MicroBatchRunner::backward(const MicroBatchLoss& micro_batch) {
  check_model();
  check_is_due();
  if (core_.capability<MicroBatchOrder>() != nullptr) {
    core_.refuse("backward",
                 "strategy " + core_.strategy->name() + " runs a step's forwards and backwards in its own order",
                 "call rank.run_micro_batches, or leave the loop to troupe::run");
  }
  losses_.check_is_scalar(micro_batch.loss.value);  // before anything of the step begins
  if (begins_step()) begin_step();
  losses_.check(micro_batch.loss);
  run_backward(micro_batch);
}

void MicroBatchRunner::count(const MicroBatchLoss& micro_batch) {
  losses_.count(micro_batch);
  const auto& elements = micro_batch.loss.elements;
  const auto weight = elements ? static_cast<double>(*elements) : micro_batch.samples;
  votes_.log().end_micro_batch(losses_.counts() && micro_batch.weight != 0 ? weight : 0);
}

void MicroBatchRunner::run_backward(const MicroBatchLoss& micro_batch) {
  const auto& loss = micro_batch.loss.value;
  clock_.end_section(DeviceTimes::Part::forward, "forward", "backward");
  fault_point("forward", core_.step());
  count(micro_batch);
  const bool last = micro_batch_ + 1 == core_.options.training.grad_accum_steps;
  // Not in a step that compares the replicas: one that differs is healed before the update.
  if (last && !replicas_.is_due()) early_.begin_update();
  core_.strategy->begin_backward(last, micro_batch.weight);
  fault_point("backward", core_.step());
  if (late_ != nullptr) {
    late_->start_of_backward(loss, micro_batch.weight).backward();
  } else if (const double factor = losses_.backward_factor(micro_batch); factor == 1) {
    loss.backward();
  } else {
    (loss * factor).backward();
  }
  core_.strategy->end_backward();
  clock_.end_section(DeviceTimes::Part::backward, "backward");
  end_micro_batch();
}

void MicroBatchRunner::end_micro_batch() {
  ++micro_batch_;
  move_on();
}

void MicroBatchRunner::run_graphed(const GraphedMicroBatch& micro_batch) {
  check_is_due();
  seed_forward();
  const bool first = micro_batch_ == 0, last = micro_batch_ + 1 == core_.options.training.grad_accum_steps;
  if (begins_step()) begin_step();  // which may lay out other buckets
  const auto turn = graphs_->next(micro_batch, first, last);
  if (turn.what == GraphKinds::Turn::run) {
    const StreamBetween place(graphs_->stream());
    const auto loss = micro_batch.forward(micro_batch.inputs);
    losses_.check(loss);
    return run_backward({loss, micro_batch.samples, micro_batch.weight});
  }
  fault_point("forward", core_.step());
  core_.strategy->begin_backward(last, micro_batch.weight);
  clock_.rename_section(kBoth);
  graphs_->run(turn, micro_batch, *position_);
  fault_point("backward", core_.step());
  clock_.end_section(DeviceTimes::Part::forward, kBoth);
  end_micro_batch();
}

class MicroBatchRunner::InStrategysOrder final : public MicroBatches {
 public:
  InStrategysOrder(MicroBatchRunner& runner, const std::function<MicroBatchLoss(std::int64_t)>& forward)
      : runner_(runner), forward_(forward) {}
  int count() const override { return static_cast<int>(runner_.core_.options.training.grad_accum_steps); }
  at::Tensor forward(int micro_batch) override {
    const auto result = run(micro_batch);
    fault_point("forward", runner_.core_.step());
    runner_.losses_.check(result.loss);
    runner_.count(result);
    if (result.weight == 0) return at::zeros({});  // no gradient comes from it: 0 times infinity is NaN
    return result.loss.value * runner_.losses_.backward_factor(result);
  }
  void try_forward(int micro_batch) override {
    (void)run(micro_batch);
    runner_.votes_.log().forget_micro_batch();
  }

 private:
  MicroBatchLoss run(int micro_batch) {
    runner_.micro_batch_ = micro_batch;
    runner_.move_on();
    runner_.seed();
    runner_.votes_.log().begin_micro_batch();
    return forward_(micro_batch);
  }
  MicroBatchRunner& runner_;
  const std::function<MicroBatchLoss(std::int64_t)>& forward_;
};

void MicroBatchRunner::run_ordered(const std::function<MicroBatchLoss(std::int64_t)>& forward) {
  check_model();
  auto* order = core_.capability<MicroBatchOrder>();
  if (order == nullptr) {
    core_.refuse("backward", "strategy " + core_.strategy->name() + " leaves the order of micro-batches to the loop",
                 "call rank.backward for each of them");
  }
  core_.strategy->set_rollback_point();
  clock_.begin_section();
  clock_.rename_section(kBoth);
  begin_step();
  InStrategysOrder work(*this, forward);
  order->run_micro_batches(work);
  votes_.log().forget_micro_batch();  // of a stage that is not the last: its forward ended before the loss
  fault_point("backward", core_.step());
  clock_.end_section(DeviceTimes::Part::forward, kBoth);
  micro_batch_ = core_.options.training.grad_accum_steps;
  move_on();
}

void MicroBatchRunner::end_share(bool has_another) {
  has_share_ = has_another;
  if (!has_another) return;
  micro_batch_ = 0;
  move_on();
}

void MicroBatchRunner::end_step() noexcept {
  micro_batch_ = 0;
  has_share_ = false;
  early_.forget_expected();
}

}  // namespace troupe

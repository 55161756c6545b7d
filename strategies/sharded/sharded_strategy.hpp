#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/strategy/device_memory.hpp"
#include "actors/strategy/evaluation.hpp"
#include "actors/strategy/handover.hpp"
#include "actors/strategy/late_voting.hpp"
#include "actors/strategy/peer_waits.hpp"
#include "actors/strategy/saved_state.hpp"
#include "actors/strategy/snapshots.hpp"
#include "actors/strategy/strategy.hpp"
#include "strategies/replicated/measured_order.hpp"
#include "strategies/replicated/model_sync.hpp"
#include "strategies/sharded/shard_groups.hpp"
#include "strategies/sharded/shard_snapshots.hpp"
#include "strategies/sharded/sharded_mode.hpp"
#include "strategies/sharded/sharded_parameters.hpp"
#include "strategies/sharded/sharded_units.hpp"
#include "strategies/sharded/sliced_optimizers.hpp"
#include "strategies/sharded/unit_gradients.hpp"
#include "strategies/sharded/unit_hooks.hpp"

namespace troupe {

/// Every rank owns a shard of the optimizer's state, and, depending on the mode, of gradients and parameters
/// (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020; Zhao et al.,
/// "PyTorch FSDP", VLDB 2023).
///
/// Gradients of a unit are averaged and cut while backward goes on. After the vote each rank updates its own slices,
/// and then forward sees the new values: at once if the shards lie in memory that all ranks map (one barrier, no byte
/// moved), else after an all-gather.
class ShardedStrategy final : public Strategy,
                              public SavedState,
                              public Snapshots,
                              public LateVoting,
                              public Evaluation,
                              public PeerWaits,
                              public DeviceMemory,
                              public Handover {
 public:
  explicit ShardedStrategy(StrategyContext context);
  ShardedStrategy(StrategyContext context, ShardedMode mode, ShardedPart part);
  ~ShardedStrategy() override;

  std::string name() const override { return context_.options.strategy; }
  StrategyCapabilities capabilities() override;
  void attach(std::shared_ptr<torch::nn::Module> model) override;
  void rejoin(StrategyContext context) override;
  /// The first part of attach and rejoin: the caller brings the values back itself.
  void place(std::shared_ptr<torch::nn::Module> model);
  void replace(StrategyContext context);
  NamedTensors replicated_tensors() override;
  const std::vector<std::string>& parameter_names() const override { return names_; }
  void set_rollback_point() override;
  void begin_step(std::int64_t step) override;
  void begin_backward(bool synchronise, double weight) override;
  void end_backward() override;
  GradientSummary reduce_gradients() override;
  std::int32_t find_not_finite() override { return gradients_->find_not_finite(); }
  double gradient_norm() override;
  void scale_gradients(double factor) override;
  void end_step(const std::vector<bool>& used, bool rebuild, bool commit) override;
  void end_step_on_device(const std::vector<bool>& used, bool rebuild, const DeviceDecision& decision) override;
  void roll_back() override;
  void after_update() override;
  void begin_evaluation() override;
  void end_evaluation() override {
    if (gathers_) gathers_->end_phase();
  }
  std::chrono::nanoseconds time_waited() const override {
    return gathers_ ? gathers_->counts().waited_time : std::chrono::nanoseconds(0);
  }
  std::vector<TimedInterval> take_device_waits() override {
    return gathers_ ? gathers_->take_device_waits() : std::vector<TimedInterval>();
  }
  void shard_optimizer(Optimizer& optimizer) override;
  bool shards_state() const override { return true; }
  std::vector<TensorPart> state_parts(Optimizer& optimizer, int rank, int world_size) override;
  void read_state(const StateReader& state, Optimizer& optimizer) override;
  void publish_state() override { parameters_->publish(); }
  bool hand_over(Optimizer& optimizer, const Parting& parting) override;
  void take_snapshot(Optimizer& optimizer, std::uint64_t generation, std::int64_t step,
                     const std::string& note) override;
  /// The tensors in a copy of this rank's shard; buffers are with the first rank of the group. Live tensors.
  NamedTensors snapshot_tensors(Optimizer& optimizer);
  /// Takes the part of a copy of shard `shard` that is this rank's now. publish_state follows, and shard_optimizer
  /// passes on the moments.
  void place_copy(std::int32_t shard, const ShardCopy& copy);
  void forget_restored_moments() { optimizers_.forget_restored(); }
  std::optional<Restored> take_restored() override { return snapshots_.take_restored(); }
  std::vector<HeldMemory> held_memory() const override;
  std::string describe() const override;
  /// The parameter's `.grad` was added to, and not by autograd.
  void gradient_arrived(const at::Tensor& parameter);

  ShardedParameters& parameters() { return *parameters_; }
  const UnitGradients& gradients() const { return *gradients_; }
  /// nullptr if the parameters are always there.
  const UnitGathers* gathers() const { return gathers_.get(); }

 private:
  void collect_parameters();
  void place_model(bool keep_values);
  void exchange_copies(Optimizer& optimizer, const Parting& parting);
  void restore();
  std::vector<ShardedUnit> units() const;
  void hook_units(const std::vector<ShardedUnit>& units);
  void end_micro_batchs_gathers();
  std::vector<ParameterLayout> layout() const;  // as it is now: requires_grad may have changed
  std::vector<ParameterLayout> shape() const;   // requires_grad: the parameter has a place

  StrategyContext context_;
  ShardedMode mode_;
  ShardedPart part_;
  std::shared_ptr<torch::nn::Module> model_;
  std::vector<std::string> names_;
  std::vector<ShardedParameters::Parameter> found_;  // until attach hands them over
  ShardGroups groups_;
  std::unique_ptr<ShardedParameters> parameters_;
  std::unique_ptr<UnitGradients> gradients_;
  std::shared_ptr<UnitGathers> gathers_;
  std::unique_ptr<UnitHooks> hooks_;
  std::unique_ptr<FlatBuffers> buffers_;
  ShardSnapshots snapshots_;
  SlicedOptimizers optimizers_;
  MeasuredOrder order_;  // of units' gradients
  int settling_ = 0;     // steps until the process's memory has its final size
  std::int64_t step_ = 0;
  bool reduces_ = true, last_ = true;  // of the backward under way
};

/// Makes `zero1`, `zero2` and `fsdp` known to make_strategy.
void register_sharded();

}  // namespace troupe

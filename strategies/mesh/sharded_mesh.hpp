#pragma once
#include "actors/strategy/snapshots.hpp"
#include "strategies/mesh/mesh_parallel.hpp"
#include "strategies/sharded/shard_snapshots.hpp"
#include "strategies/sharded/sharded_strategy.hpp"

namespace troupe {

/// A mesh with an axis `fsdp`: a rank's part after stages and shared layers is cut once more, into a shard for each of
/// `fsdp` ranks. These see different samples, as do `dp` copies of all that.
///
/// ShardedStrategy does it, over the ranks that hold the same part of the model, and knows which parameters lie
/// elsewhere. Sums and averages may change places. So gradients are averaged and cut first, and a pipeline, or ranks
/// with sequence parallel, add up only shards.
///
/// Without a pipeline a unit's parameters come and go, and its gradients are reduced, while forward and backward go on.
/// A pipeline has several micro-batches under way at once: gathered parameters stay until the step's end, and gradients
/// are whole until the last micro-batch (as in Liang et al., "TorchTitan", 2024, arXiv 2410.06511).
///
/// A lost rank's shard comes back from the copies of `snapshot_every`, and all ranks go back to that step; without a
/// copy: Error(state_lost).
class ShardedMesh final : public MeshParallel, public Snapshots {
 public:
  explicit ShardedMesh(StrategyContext context);

  StrategyCapabilities capabilities() override;
  void attach(std::shared_ptr<torch::nn::Module> model) override;
  void rejoin(StrategyContext context) override;
  NamedTensors replicated_tensors() override { return {}; }
  void set_rollback_point() override;
  void begin_step(std::int64_t step) override;
  void begin_evaluation() override;
  void end_evaluation() override { shards_->end_evaluation(); }
  void begin_backward(bool synchronise, double weight) override {
    parameters_.mark_uses(weight != 0);
    shards_->begin_backward(synchronise, weight);
  }
  void end_backward() override {
    shards_->end_backward();
    parameters_.mark_uses(true);
  }
  GradientSummary reduce_gradients() override;
  std::int32_t find_not_finite() override { return outer(shards_->find_not_finite()); }
  void scale_gradients(double factor) override { shards_->scale_gradients(factor); }
  void end_step(const std::vector<bool>& used, bool rebuild, bool commit) override;
  void roll_back() override;
  void after_update() override { shards_->after_update(); }
  std::chrono::nanoseconds time_waited() const override { return MeshParallel::time_waited() + shards_->time_waited(); }
  std::optional<ReplicaGroup> replica_group() const override { return std::nullopt; }
  void shard_optimizer(Optimizer& optimizer) override { shards_->shard_optimizer(optimizer); }
  bool shards_state() const override { return true; }
  std::vector<TensorPart> state_parts(Optimizer& optimizer, int rank, int world_size) override;
  void read_state(const StateReader& state, Optimizer& optimizer) override;
  void publish_state() override { shards_->publish_state(); }
  void take_snapshot(Optimizer& optimizer, std::uint64_t generation, std::int64_t step,
                     const std::string& note) override;
  std::optional<Restored> take_restored() override { return snapshots_.take_restored(); }
  std::string describe() const override;

  ShardedStrategy& shards() noexcept { return *shards_; }

 private:
  void hold_parameters() override;
  void clear_gradients() override {}
  void weight_arrived(const at::Tensor& weight) override { shards_->gradient_arrived(weight); }
  StrategyContext make_part();
  Mesh one_copy() const;
  void restore();
  /// The index here of one of ShardedStrategy's parameters; -1 stays.
  std::int32_t outer(std::int32_t parameter) const {
    return parameter < 0 ? parameter : outer_[static_cast<std::size_t>(parameter)];
  }
  const MeshParameters::Parameter& parameter_at(std::int32_t parameter) const {
    return parameters_.all()[static_cast<std::size_t>(outer(parameter))];
  }
  std::vector<at::Tensor> counted_gradients() const override;
  void add_stacked_parts(std::size_t parameter, const std::map<std::string, at::Tensor>& moments,
                         const std::map<std::string, at::ScalarType>& types, int turn, std::vector<TensorPart>& parts);
  at::Tensor gather_whole(std::size_t parameter, const at::Tensor& own, at::ScalarType dtype);

  std::unique_ptr<ShardedStrategy> shards_;
  std::vector<std::int32_t> outer_;                    // by ShardedStrategy's parameter
  std::shared_ptr<Communicator> part_, part_buckets_;  // of the ranks that hold the same part of the model
  ShardSnapshots snapshots_;
};

}  // namespace troupe

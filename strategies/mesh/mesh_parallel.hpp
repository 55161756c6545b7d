#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/strategy/evaluation.hpp"
#include "actors/strategy/micro_batch_order.hpp"
#include "actors/strategy/own_figures.hpp"
#include "actors/strategy/peer_waits.hpp"
#include "actors/strategy/placement.hpp"
#include "actors/strategy/saved_state.hpp"
#include "actors/strategy/strategy.hpp"
#include "strategies/mesh/flat_gradients.hpp"
#include "strategies/mesh/mesh.hpp"
#include "strategies/mesh/mesh_groups.hpp"
#include "strategies/mesh/mesh_parameters.hpp"
#include "strategies/mesh/rank_pipeline.hpp"
#include "strategies/mesh/stage_cut.hpp"
#include "strategies/mesh/tensor_plan.hpp"
#include "strategies/replicated/model_sync.hpp"

namespace troupe {

/// The model is cut over the ranks of a mesh: its chain of blocks into stages (pp), its layers into parts (tp), with
/// copies of all that (dp). If a mesh shards that as well (fsdp), it is a ShardedMesh.
///
/// - **pp.** A rank keeps the parameters of its stages' blocks and those outside of blocks. The latter are on all
///   stages, and their gradients are added up over the pipeline, so that tied weights need no setting. Each rank runs
///   its list of instructions (pipeline_schedule.hpp), and waits only for its inputs.
/// - **tp.** tensor_plan names the layers that are cut (tensor_plan.hpp).
/// - **dp.** Gradients are averaged once a step, after the last backward, in one collective.
///
/// A lost rank is healed by one with the same place in another copy. Without another copy (dp 1) its part is gone with
/// it: Error(state_lost), and the job begins anew from its last checkpoint. A job never goes on with fewer ranks than
/// its mesh has.
class MeshParallel : public Strategy,
                     public SavedState,
                     public Placement,
                     public MicroBatchOrder,
                     public Evaluation,
                     public PeerWaits,
                     public OwnFigures {
 public:
  explicit MeshParallel(StrategyContext context);

  std::string name() const override { return context_.options.strategy; }
  StrategyCapabilities capabilities() override;
  void attach(std::shared_ptr<torch::nn::Module> model) override;
  void rejoin(StrategyContext context) override;
  NamedTensors replicated_tensors() override;
  bool replicas_equal() const override { return false; }
  const std::vector<std::string>& parameter_names() const override { return parameters_.names(); }
  void set_rollback_point() override;
  void begin_evaluation() override {
    if (pipeline_) pipeline_->begin_evaluation();
  }
  void begin_step(std::int64_t step) override;
  void begin_backward(bool synchronise, double weight) override;
  void end_backward() override;
  void run_micro_batches(MicroBatches& work) override;
  GradientSummary reduce_gradients() override;
  std::int32_t find_not_finite() override { return gradients_->first_not_finite(); }
  double gradient_norm() override;
  void scale_gradients(double factor) override;
  void end_step(const std::vector<bool>& used, bool rebuild, bool commit) override;
  void roll_back() override;
  void after_update() override {}
  std::chrono::nanoseconds time_waited() const override;
  DataShard data_shard() const override { return {place_.dp * mesh_.fsdp + place_.fsdp, mesh_.dp * mesh_.fsdp}; }
  bool counts_samples() const override { return place_.tp == 0 && place_.pp == mesh_.pp - 1; }
  bool evaluate(const std::function<void()>& forward) override;
  std::optional<ReplicaGroup> replica_group() const override;
  void shard_optimizer(Optimizer& optimizer) override;
  bool shards_state() const override { return mesh_.tp * mesh_.pp > 1; }
  std::map<std::string, std::string> state() override;
  std::vector<TensorPart> state_parts(Optimizer& optimizer, int rank, int world_size) override;
  void read_state(const StateReader& state, Optimizer& optimizer) override;
  std::string describe() const override;
  Figures own_figures(std::int64_t) const override { return pipeline_ ? pipeline_->figures() : Figures(); }

  /// First block of each stage, and behind the last; empty before the model is cut.
  const std::vector<int>& borders() const noexcept { return cut_.borders(); }

 protected:
  /// This rank's part is known: allocates memory for its gradients.
  virtual void hold_parameters();
  /// Before a step: gradients are zero.
  virtual void clear_gradients();
  /// A weight's `.grad` was added to after its backward.
  virtual void weight_arrived(const at::Tensor&) {}
  std::uint64_t step_hash() const;
  /// Whether this rank's copy is the one that counts, if several ranks of a copy hold the parameter alike.
  bool counts(const MeshParameters::Parameter& parameter) const noexcept {
    return (parameter.block >= 0 || place_.pp == 0) && (parameter.cut.dim >= 0 || place_.tp == 0);
  }
  c10::Device device() const { return context_.program_communicator->device(); }
  /// Reduced ones, each on one rank.
  virtual std::vector<at::Tensor> counted_gradients() const;
  void abandon_run() {
    if (pipeline_) pipeline_->abandon();
  }
  bool has_buffer(const std::string& name) const { return cut_.holds(place_.pp, cut_.block_of(name)); }

  StrategyContext context_;
  Mesh mesh_;
  Mesh::Place place_;
  std::shared_ptr<torch::nn::Module> model_;
  MeshGroups groups_;
  std::unique_ptr<FlatBuffers> buffers_;
  MeshParameters parameters_;

 private:
  void measure(MicroBatches& work);
  void cut_by(const std::vector<double>& costs);
  void take_stages();
  void agree_on_cut();

  std::vector<TensorPlanEntry> plan_;
  StageCut cut_;
  std::unique_ptr<RankPipeline> pipeline_;  // with more than one stage
  std::optional<FlatGradients> gradients_;
  std::uint64_t layout_ = 0;
  std::set<std::uint64_t> placed_;
  std::int64_t step_ = 0;
};

/// Makes `pipeline` and `tensor_parallel` known to make_strategy: they differ only in the meaning of an empty mesh.
void register_mesh_parallel();

}  // namespace troupe

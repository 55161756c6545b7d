#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
#include "strategies/replicated/model_sync.hpp"
#include "strategies/sharded/shard_snapshots.hpp"
#include "strategies/sharded/sharded_parameters.hpp"
#include "strategies/sharded/unit_gradients.hpp"
#include "strategies/sharded/unit_hooks.hpp"

namespace troupe {

/// The differences between the sharded strategies.
struct ShardedMode {
  std::string name;  ///< zero1, zero2, full_shard ...
  bool keep_whole_gradients = false;
  bool gathers_units = false;  ///< parameters are whole only around their unit's calls, if memory is not common
  bool reshard_after_forward = false;
  bool has_replicas = false;  ///< shards of the ranks of a host, or of fsdp_shard_size ranks, and replicas of that
  bool shards = true;         ///< false: each rank holds everything
  bool keeps_units =
      false;  ///< gathered ones stay until the step's end: a pipeline's micro-batches are under way at once
  bool meets_in_backward = false;  ///< a rank comes to the end of its backward only if the others go on with theirs
};

/// The model's parameters, by name, if the ranks hold only a part of it: a mesh has cut it.
struct ShardedPart {
  std::set<std::string> elsewhere;  ///< that other ranks hold: not touched
  std::set<std::string> apart;      ///< in separate units, so that they lie alike even if the rest differs
  bool is_cut = false;              ///< the mesh itself checks all ranks' gradients
};

/// The mode that the options name. Throws Error(usage).
ShardedMode sharded_mode(const StrategyOptions& options);

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
  void forget_restored_moments() { restored_moments_.clear(); }
  std::optional<Restored> take_restored() override { return std::exchange(restored_, std::nullopt); }
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
  void make_groups();
  void place_model(bool keep_values);
  void exchange_copies(Optimizer& optimizer, const Parting& parting);
  void restore();
  void place_tensor(std::int32_t shard, std::string_view name, const at::Tensor& tensor);
  struct Unit {
    UnitMembers members;
    BlockCalls* block = nullptr;  // the unit comes and goes with its calls; nullptr: it has none
  };
  std::vector<Unit> units() const;
  void add_buckets(const std::vector<std::int32_t>& parameters, std::vector<Unit>& units) const;
  /// Parameters without a block, in units as large as buckets.
  std::vector<Unit> cut_into_buckets(const std::vector<std::int32_t>& parameters) const;
  void hook_units(const std::vector<Unit>& units);
  void end_micro_batchs_gathers();
  std::vector<ParameterLayout> layout() const;  // as it is now: requires_grad may have changed
  std::vector<ParameterLayout> shape() const;   // requires_grad: the parameter has a place

  StrategyContext context_;
  ShardedMode mode_;
  ShardedPart part_;
  std::shared_ptr<torch::nn::Module> model_;
  std::set<const c10::TensorImpl*> elsewhere_;
  std::vector<std::string> names_;
  std::vector<ShardedParameters::Parameter> found_;  // until attach hands them over
  std::shared_ptr<Communicator> group_, reduce_group_, replicas_;
  std::unique_ptr<ShardedParameters> parameters_;
  std::unique_ptr<UnitGradients> gradients_;
  std::shared_ptr<UnitGathers> gathers_;
  std::unique_ptr<UnitHooks> hooks_;
  std::unique_ptr<FlatBuffers> buffers_;
  ShardSnapshots snapshots_;
  std::optional<Restored> restored_;
  std::map<std::string, std::map<std::string, at::Tensor>>
      restored_moments_;                     // by parameter and slot, until an optimizer takes them
  int placings_ = 0, settling_ = 0;          // settling_: steps until the process's memory has its final size
  std::map<const Optimizer*, int> sharded_;  // at which placing
  std::vector<std::int32_t> last_arrival_;
  std::int64_t step_ = 0;
  bool measured_ = false;
  bool reduces_ = true, last_ = true;
  bool rebuild_pending_ = false;
};

/// The moments that the ranks of a group have, by name, without scalars. Collective.
std::map<std::string, at::ScalarType> moment_types(Optimizer& optimizer, Communicator& group);

/// The entries of `map`, by name, that belong to a parameter: its name, a dot, and more.
template <class Map>
Map entries_of(const Map& map, const std::string& parameter) {
  return Map(map.lower_bound(parameter + "."), map.lower_bound(parameter + "/"));  // '/' is the character behind '.'
}

/// Makes `zero1`, `zero2` and `fsdp` known to make_strategy.
void register_sharded();

}  // namespace troupe

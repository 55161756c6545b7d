#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/strategy/device_memory.hpp"
#include "actors/strategy/graph_capture.hpp"
#include "actors/strategy/handover.hpp"
#include "actors/strategy/late_voting.hpp"
#include "actors/strategy/saved_state.hpp"
#include "actors/strategy/strategy.hpp"
#include "strategies/replicated/gradient_buckets.hpp"
#include "strategies/replicated/model_sync.hpp"

namespace troupe {

/// A strategy with the whole model on every rank: the base of ddp, of diloco, and of most strategies of users.
///
/// It has the common part. Ranks agree on the model, rank 0's values go to all, and gradients are views of flat
/// tensors. Buffers are a transaction, newcomers are healed, and the ranks' checkpoint parts share out the state. Three
/// calls are left to override: combine_gradients (before the vote), after_update (after the optimizer), and joined, in
/// which the strategy makes its communicators and actors. Without any of them each rank trains alone.
class ReplicatedStrategy : public Strategy,
                           public SavedState,
                           public LateVoting,
                           public GraphCapture,
                           public DeviceMemory,
                           public Handover {
 public:
  explicit ReplicatedStrategy(StrategyContext context);

  // To override.
  /// False if replicas differ between steps (Strategy::replicas_equal). Gradients that only other ranks had stay
  /// undefined then, and a checkpoint has the mean of the replicas, and rank 0's optimizer.
  bool replicas_equal() const override { return true; }
  /// After each step that was not given up, on all ranks: the optimizer has changed parameters(). Collectives on the
  /// program communicator are allowed; their results must go to separate memory first, so that a failure leaves the
  /// parameters as they were.
  void after_update() override {}
  std::string name() const override { return context_.options.strategy; }
  std::string describe() const override { return name(); }

  // Done.
  StrategyCapabilities capabilities() override;
  void attach(std::shared_ptr<torch::nn::Module> model) override;
  void rejoin(StrategyContext context) override;
  NamedTensors replicated_tensors() override;
  const std::vector<std::string>& parameter_names() const override { return names_; }
  void set_rollback_point() override { buffers_->begin(); }
  void begin_step(std::int64_t step) override;
  void begin_backward(bool synchronise, double weight) override;
  void end_backward() override;
  GradientSummary reduce_gradients() override;
  std::int32_t find_not_finite() override { return buckets_->find_not_finite(); }
  double gradient_norm() override;
  void scale_gradients(double factor) override;
  void end_step(const std::vector<bool>& used, bool rebuild, bool commit) override;
  void end_step_on_device(const std::vector<bool>& used, bool rebuild, const DeviceDecision& decision) override;
  std::uint64_t captured_layout_version() const override { return buckets_->captured_layout_version(); }
  std::uint64_t gradients_so_far() const override { return buckets_->seen_hash(); }
  void begin_capture(DeviceGraph& graph) override;
  std::shared_ptr<const HostPart> end_capture() override;
  void on_replay(const HostPart& part) override;
  void roll_back() override;
  std::vector<TensorPart> state_parts(Optimizer& optimizer, int rank, int world_size) override;
  void read_state(const StateReader& state, Optimizer& optimizer) override;
  std::vector<HeldMemory> held_memory() const override;
  /// Replicas that differ become their mean, and so does the error that the hook carries.
  bool hand_over(Optimizer& optimizer, const Parting& parting) override;

 protected:
  // To override, too.
  /// This rank's gradients of the step are whole: turn gradients() in place into those that the optimizer applies.
  /// Every rank comes here, also one whose gradients are not finite. A collective on the program communicator is
  /// allowed. The step may come again after it.
  virtual void combine_gradients(GradientSummary& /*summary*/) {}
  /// A new generation, in attach and in each rejoin, with the model in place: context() has new communicators.
  /// Collective. Work under way on the old ones is gone.
  virtual void joined() {}
  /// During backward: all gradients of one bucket are there. Autograd's thread. For a backward that is a graph of the
  /// device, in send_bucket.
  virtual void bucket_full(std::int32_t /*bucket*/) {}
  /// For a backward that is a graph: each replay marks this event when the gradients of the bucket are there; nullptr:
  /// none.
  virtual std::shared_ptr<DeviceEvent> bucket_event(std::int32_t /*bucket*/) { return nullptr; }
  /// ... and the host's work then, for each bucket, in order: the device will come to the mark. Compute's
  /// thread.
  virtual void send_bucket(std::int32_t bucket) { bucket_full(bucket); }
  /// If replicas may differ: whether they do now. A checkpoint takes the mean then.
  virtual bool replicas_differ_now() const { return !replicas_equal(); }
  /// The hook whose state checkpoints keep for each rank; nullptr: there is none.
  virtual CommHook* hook() noexcept { return nullptr; }
  /// The part of its state that a checkpoint needs: nothing of sums under way.
  virtual NamedTensors hook_state() { return hook() == nullptr ? NamedTensors() : hook()->state(); }

  const StrategyContext& context() const noexcept { return context_; }
  /// Of the model, by name, those that require a gradient; live.
  const NamedTensors& parameters() const noexcept { return parameters_; }
  /// All gradients, one flat tensor per dtype, laid out alike on all ranks: (numel,). Each parameter's `.grad` is a
  /// view of one.
  const std::vector<at::Tensor>& gradients() const noexcept { return buckets_->flats(); }
  std::int64_t step() const noexcept { return step_; }
  torch::nn::Module& model() noexcept { return *model_; }
  GradientBuckets& buckets() noexcept { return *buckets_; }
  const GradientBuckets& buckets() const noexcept { return *buckets_; }
  bool attached() const noexcept { return buckets_ != nullptr; }
  FlatBuffers& buffers() noexcept { return *buffers_; }

 private:
  class Written;
  NamedTensors means_of_replicas();
  bool differs(bool is_buffer) const;
  void make_buckets();
  void on_full(std::int32_t bucket);
  std::string hook_prefix() const { return "strategy.hook." + context_.options.comm_hook + "."; }
  void read_hook_state(const StateReader& state);

  StrategyContext context_;
  std::shared_ptr<torch::nn::Module> model_;
  std::vector<std::string> names_;  // of all parameters
  NamedTensors parameters_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<FlatBuffers> buffers_;
  std::int64_t step_ = 0;
  bool synchronise_ = true;
  DeviceGraph* graph_ = nullptr;      // into which backward is captured
  std::shared_ptr<Written> written_;  // ... and the host's later work for it
};

}  // namespace troupe

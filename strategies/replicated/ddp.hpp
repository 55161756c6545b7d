#pragma once
#include <memory>
#include <utility>

#include "actors/strategy/early_updates.hpp"
#include "strategies/replicated/early_update.hpp"
#include "strategies/replicated/measured_order.hpp"
#include "strategies/replicated/replicated_strategy.hpp"

namespace troupe {

/// Every rank holds the whole model; gradients are averaged in buckets while backward goes on. The bucket design is
/// that of PyTorch's DDP (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
/// 2020).
class Ddp final : public ReplicatedStrategy, public EarlyUpdates {
 public:
  explicit Ddp(StrategyContext context);

  StrategyCapabilities capabilities() override;
  void attach(std::shared_ptr<torch::nn::Module> model) override;
  void rejoin(StrategyContext context) override;
  void begin_step(std::int64_t step) override;
  void end_step(const std::vector<bool>& used, bool rebuild, bool commit) override;
  void end_step_on_device(const std::vector<bool>& used, bool rebuild, const DeviceDecision& decision) override;
  void roll_back() override;
  bool begin_update(double lr) override;
  void update(Optimizer& optimizer, double lr) override;
  void after_update() override;
  void prepare_updates(Optimizer& optimizer) override;
  std::vector<HeldMemory> held_memory() const override;
  std::map<std::string, std::string> state() override;
  void load_state(const std::map<std::string, std::string>& state) override;
  std::string describe() const override;

  const BucketPlan& plan() const { return buckets().plan(); }
  /// The parameters' order in the next step's buckets.
  const std::vector<std::int32_t>& bucket_order() const;

 protected:
  void combine_gradients(GradientSummary& summary) override;
  void bucket_full(std::int32_t bucket) override;
  std::shared_ptr<DeviceEvent> bucket_event(std::int32_t bucket) override { return view_of(bucket).ready; }
  void send_bucket(std::int32_t bucket) override;
  CommHook* hook() noexcept override { return hook_.get(); }

 private:
  void install(const std::vector<std::int32_t>& order);
  void send_plan();
  const BucketView& view_of(std::int32_t bucket) const { return (*views_)[static_cast<std::size_t>(bucket)]; }
  void set_early(std::shared_ptr<EarlyUpdate> update);

  std::shared_ptr<CommHook> hook_;
  std::shared_ptr<EarlyUpdateHook> early_hook_;  // with early_update: hook_
  std::shared_ptr<EarlyUpdate> early_;  // ... after the first step whose buckets stay, of a generation and of new ones
  std::shared_ptr<std::vector<BucketView>> views_;  // the reducer's, of the plan
  at::Tensor checks_;                               // (buckets, 2), on a device: the reducer's checks of them
  MeasuredOrder order_;
  std::vector<std::int32_t> next_order_;  // of the buckets that the next step lays out; empty: they stay
  std::int64_t send_ns_ = 0;              // of this step, in the hooks
  bool step_open_ = false;                ///< it has begun, and is not committed
  bool rolled_back_ = false;              ///< it was open when it was rolled back
};

/// Makes `ddp` known to make_strategy.
void register_ddp();

}  // namespace troupe

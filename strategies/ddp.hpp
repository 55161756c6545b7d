#pragma once
#include <memory>

#include "actors/strategy.hpp"
#include "strategies/gradient_buckets.hpp"
#include "strategies/model_sync.hpp"

namespace troupe {

/// Every rank holds the whole model; gradients are averaged in buckets while backward goes on. The bucket design is that of PyTorch's DDP
/// (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020).
class Ddp final : public Strategy {
 public:
  explicit Ddp(StrategyContext context);

  std::string name() const override { return "ddp"; }
  void attach(std::shared_ptr<torch::nn::Module> model) override;
  void rejoin(StrategyContext context) override;
  NamedTensors replicated_tensors() override;
  const std::vector<std::string>& parameter_names() const override { return names_; }
  void remember_state() override;
  void begin_step(std::int64_t step) override;
  void begin_backward(bool synchronise, double weight) override;
  void end_backward() override;
  GradientSummary reduce_gradients() override;
  double gradient_norm() override;
  void scale_gradients(double factor) override;
  void end_step(const std::vector<bool>& used, bool rebuild, bool commit) override;
  void roll_back() override;
  void after_update() override;
  std::map<std::string, std::string> state() override;
  void load_state(const std::map<std::string, std::string>& state) override;
  std::string describe() const override;

  const BucketPlan& plan() const { return buckets_->plan(); }
  /// The parameters' order in the next step's buckets.
  const std::vector<std::int32_t>& bucket_order() const;

 private:
  void broadcast_model();
  void make_buckets();
  void install(const std::vector<std::int32_t>& order);

  StrategyContext context_;
  std::shared_ptr<torch::nn::Module> model_;
  std::vector<std::string> names_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<FlatBuffers> buffers_;
  std::shared_ptr<CommHook> hook_;
  std::vector<std::int32_t> last_arrival_;
  std::vector<std::int32_t> next_order_;  // of the buckets that the next step lays out; empty: they stay
  std::int64_t step_ = 0;
  std::int64_t send_ns_ = 0;  // of this step, in the hooks
  bool measured_ = false;     // the plan follows a measured order
  bool synchronise_ = true;
  bool rebuild_pending_ = false;
  bool step_open_ = false;    ///< it has begun, and is not committed
  bool rolled_back_ = false;  ///< it was open when it was rolled back
};

/// Makes `ddp` known to make_strategy.
void register_ddp();

}  // namespace troupe

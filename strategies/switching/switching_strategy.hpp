#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/strategy/saved_state.hpp"
#include "actors/strategy/strategy.hpp"
#include "strategies/switching/switch_plan.hpp"

namespace troupe {

/// A strategy that becomes another one between two steps (config: switch_at). It hands each call to the present
/// strategy, and holds no more memory than that one would alone.
///
/// A switch happens on all ranks or on none. First the data of other ranks (the mean of replicas that differ, with
/// their optimizers' state) comes into separate memory; then follows a barrier. After it only making the new
/// strategy can fail, and a new generation makes that good. If a rank has passed the barrier, all ranks have the
/// data. So in a new generation the ranks that were interrupted there follow those that were not; switches are
/// counted for that.
class SwitchingStrategy final : public Strategy, public SavedState {
 public:
  explicit SwitchingStrategy(StrategyContext context);

  /// Its own, and those of the present strategy.
  StrategyCapabilities capabilities() override;
  std::string name() const override { return phase_.strategy; }
  std::string describe() const override;
  void attach(std::shared_ptr<torch::nn::Module> model) override;
  void rejoin(StrategyContext context) override;
  NamedTensors replicated_tensors() override { return inner_ ? inner_->replicated_tensors() : NamedTensors{}; }
  bool replicas_equal() const override { return inner_ ? inner_->replicas_equal() : phase_.strategy == "ddp"; }
  NamedTensors strategy_tensors() override { return inner_ ? inner_->strategy_tensors() : NamedTensors{}; }
  const std::vector<std::string>& parameter_names() const override { return names_; }
  void set_rollback_point() override { inner_->set_rollback_point(); }
  void begin_step(std::int64_t step) override;
  void begin_backward(bool synchronise, double weight) override { inner_->begin_backward(synchronise, weight); }
  void end_backward() override { inner_->end_backward(); }
  GradientSummary reduce_gradients() override { return inner_->reduce_gradients(); }
  std::int32_t find_not_finite() override { return inner_->find_not_finite(); }
  double gradient_norm() override { return inner_->gradient_norm(); }
  void scale_gradients(double factor) override { inner_->scale_gradients(factor); }
  void end_step(const std::vector<bool>& used, bool rebuild, bool commit) override {
    inner_->end_step(used, rebuild, commit);
  }
  void roll_back() override {
    if (inner_) inner_->roll_back();
  }
  void after_update() override;
  std::map<std::string, std::string> state() override;
  void load_state(const std::map<std::string, std::string>& state) override;
  void shard_optimizer(Optimizer& optimizer) override { optimizer_ = &optimizer; }
  std::vector<TensorPart> state_parts(Optimizer& optimizer, int rank, int world_size) override {
    return inner_->saved_state().state_parts(optimizer, rank, world_size);
  }
  void read_state(const StateReader& state, Optimizer& optimizer) override;

 private:
  StrategyContext context_of(const StrategyPhase& phase) const;
  void install(std::int64_t done);
  void agree();
  void switch_to(const StrategyPhase& next, std::int64_t done);
  bool stage();
  void show();

  StrategyContext context_;
  std::vector<StrategyPhase> phases_;  // by steps
  std::shared_ptr<torch::nn::Module> model_;
  std::vector<std::string> names_;  // of all parameters
  std::unique_ptr<Strategy> inner_;
  StrategyPhase phase_;        // the phase that all ranks are to be in
  StrategyPhase installed_;    // the phase that inner_ was made for
  bool trained_ = false;       // a step has begun since this process joined
  std::int64_t switches_ = 0;  // in the run
  std::int64_t step_ = 0;
  Optimizer* optimizer_ = nullptr;  // of the step under way
  // The coming model and optimizer, of a switch that is under way.
  StrategyPhase next_;
  NamedTensors staged_model_, staged_optimizer_;
  bool staged_ = false;
  std::optional<StrategyPhase> given_up_;  // an impossible switch: not tried again in this generation

  std::map<std::string, at::Tensor> saved_own_;  // of a checkpoint, by name, until the strategy that wrote it is known
};

/// Makes `switch_at` work in make_strategy.
void register_switching();

}  // namespace troupe

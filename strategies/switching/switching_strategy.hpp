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

/// A strategy that becomes another one between two steps (config: switch_at). It hands each call to the strategy of the
/// time, which holds no more than that one would alone.
///
/// A switch is all ranks' or nobody's. What it takes of other ranks (the mean of replicas that differ, with their
/// optimizers' state) is brought into memory of its own first; then comes a barrier; what comes after it cannot fail
/// but for making the new strategy, which a new generation makes good. A rank that passed the barrier shows that all
/// have what it takes, so in a new generation those that were interrupted there follow those that were not; switches
/// are counted for that.
class SwitchingStrategy final : public Strategy, public SavedState {
 public:
  explicit SwitchingStrategy(StrategyContext context);

  /// Its own, and whatever the strategy of the time has.
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
  StrategyPhase phase_;        // what all ranks are to be in
  StrategyPhase installed_;    // what inner_ was made for
  bool trained_ = false;       // a step has begun since this process joined
  std::int64_t switches_ = 0;  // in the run
  std::int64_t step_ = 0;
  Optimizer* optimizer_ = nullptr;  // of the step under way
  // Of a switch that is under way: what the model and the optimizer will be.
  StrategyPhase next_;
  NamedTensors staged_model_, staged_optimizer_;
  bool staged_ = false;
  std::optional<StrategyPhase> given_up_;  // a switch that cannot be: not tried again in this generation

  std::map<std::string, at::Tensor> saved_own_;  // of a checkpoint, by name, until it is known which strategy wrote it
};

/// Lets make_strategy do what `switch_at` asks for.
void register_switching();

}  // namespace troupe

#pragma once
// A communication hook of a user's own that has a state: of what it has it sends three quarters, and owes the rest. It
// is linear, so that the reference can say what comes of it to the last digits.
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>

#include "actors/strategy/strategy.hpp"

namespace troupe::differential {

class OwingHook final : public CommHook {
 public:
  void reduce(BucketView& bucket, Communicator& communicator) override {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < bucket.names.size(); ++i) {
      auto& gradient = bucket.gradients[i];
      auto& owed = owed_[bucket.names[i]];
      owed.before = owed.now.defined() ? owed.now : at::zeros_like(gradient);
      owed.step = bucket.step;
      const auto all = gradient + owed.before;
      owed.now = all * 0.25;
      gradient.copy_(all * 0.75);
    }
    communicator.all_reduce(bucket.flat, ReduceOp::avg, bucket.label);
  }
  NamedTensors state() override {
    NamedTensors state;
    for (const auto& [name, owed] : owed_) state.emplace_back(name, owed.now);
    return state;
  }
  void load_state(const NamedTensors& state) override {
    owed_.clear();
    for (const auto& [name, value] : state) owed_[name].now = value.clone();
  }
  void roll_back(std::int64_t step) override {
    for (auto& [name, owed] : owed_) {
      if (owed.step == step) owed.now = owed.before;
    }
  }

  void hand_over(Communicator& communicator) override {
    for (auto& [name, owed] : owed_) {
      auto mean = owed.now.contiguous();
      communicator.all_reduce(mean, ReduceOp::avg, name);
      owed.now.copy_(mean);
    }
  }

  static void add() {
    register_comm_hook("owing", [](const StrategyOptions&) { return std::make_shared<OwingHook>(); });
  }

 private:
  struct Owed {
    at::Tensor now, before;
    std::int64_t step = -1;  // after which it is `now`
  };
  std::map<std::string, Owed> owed_;
};

}  // namespace troupe::differential

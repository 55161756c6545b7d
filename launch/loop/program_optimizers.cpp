#include "launch/loop/program_optimizers.hpp"

#include "tensor_io/base/error.hpp"

namespace troupe {

Optimizer& ProgramOptimizers::adapted(torch::optim::Optimizer& optimizer, const torch::nn::Module& model) {
  auto& adapter = adapters_[&optimizer];
  if (adapter)
    adapter->follow(model);  // another one may lie at its address by now
  else
    adapter = std::make_unique<TorchOptimizer>(optimizer, model);
  return *adapter;
}

void ProgramOptimizers::use(Optimizer& optimizer) {
  if (optimizer.id() == current_) return;
  const auto refuse = [](const char* cause) {
    throw Error(
        ErrorCode::usage, "step", cause,
        "give all steps one optimizer, with a group for each part of the model; freeze what a step leaves alone");
  };
  if (kept_ != nullptr && kept_ != &optimizer) refuse("it was given a different optimizer than keep_checkpoints");
  if (former_.contains(optimizer.id()) && !optimizer.state().empty())
    refuse("two optimizers take turns, and a rank that replaces another gets the state of one");
  if (current_ != 0) former_.insert(current_);
  current_ = optimizer.id();
}

}  // namespace troupe

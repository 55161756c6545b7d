#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "tensor_io/optimizer/torch_optimizer.hpp"

namespace troupe {

/// The optimizers that a program's steps take. Ranks that replace others, snapshots and checkpoints have the state of
/// one, so another may take its place, and two may not take turns. Compute's thread.
class ProgramOptimizers {
 public:
  /// `optimizer` behind our interface, the same object each time; as its groups are now. Throws Error(usage) as
  /// TorchOptimizer does.
  Optimizer& adapted(torch::optim::Optimizer& optimizer, const torch::nn::Module& model);
  /// Checkpoints hold this one.
  void keep(const Optimizer& optimizer) noexcept { kept_ = &optimizer; }
  /// Before a step with it. Throws Error(usage) if checkpoints hold another one, and if it comes back after another.
  void use(Optimizer& optimizer);

 private:
  std::map<const torch::optim::Optimizer*, std::unique_ptr<TorchOptimizer>> adapters_;
  const Optimizer* kept_ = nullptr;
  std::uint64_t current_ = 0;
  std::set<std::uint64_t> former_;
};

}  // namespace troupe

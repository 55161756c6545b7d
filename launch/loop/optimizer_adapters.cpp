#include "launch/loop/optimizer_adapters.hpp"

#include "tensor_io/base/error.hpp"
#include "tensor_io/optimizer/torch_optimizer.hpp"

namespace troupe {

Optimizer& OptimizerAdapters::adapter_of(torch::optim::Optimizer& optimizer, const torch::nn::Module* model,
                                         const char* operation) {
  for (auto& [known, adapter] : adapters_) {
    if (known == &optimizer) return *adapter;
  }
  if (model == nullptr)
    throw Error(ErrorCode::usage, operation, "no model was distributed", "call rank.distribute(model) before the loop");
  adapters_.emplace_back(&optimizer, std::make_unique<TorchOptimizer>(optimizer, *model));
  return *adapters_.back().second;
}

}  // namespace troupe

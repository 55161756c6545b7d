#include "strategies/batch_norm/uncounted_forward.hpp"

#include "strategies/batch_norm/sync_batch_norm.hpp"

namespace troupe {

UncountedForward::UncountedForward(torch::nn::Module& model) : model_(model) {
  count_samples_in_sync_batchnorm(model, 0);
  for (const auto& module : model.modules()) {
    const auto* norm = dynamic_cast<nn::SynchronisedStatistics*>(module.get());
    if (norm != nullptr && norm->synchronised()) continue;  // its buffers tell of all ranks' samples
    for (const auto& buffer : module->buffers(/*recurse=*/false)) {
      if (buffer.defined()) before_.emplace_back(buffer, buffer.detach().clone());
    }
  }
}

UncountedForward::~UncountedForward() {
  count_samples_in_sync_batchnorm(model_, -1);
  const torch::NoGradGuard no_grad;
  for (auto& [buffer, before] : before_) buffer.copy_(before);
}

}  // namespace troupe

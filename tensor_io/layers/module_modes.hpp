#pragma once
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

namespace troupe {

/// At its end, also by an exception, brings each of a model's modules back to its training or eval mode of the
/// beginning. A program may keep single modules in eval().
class ModuleModes {
 public:
  explicit ModuleModes(const torch::nn::Module& model) {
    for (const auto& module : model.modules()) modes_.emplace_back(module, module->is_training());
  }
  ~ModuleModes() {
    for (const auto& [module, training] : modes_) {  // a module before its own, which its train() changes too
      if (module->is_training() != training) module->train(training);
    }
  }
  ModuleModes(const ModuleModes&) = delete;
  ModuleModes& operator=(const ModuleModes&) = delete;
  /// The modules stay as they are now.
  void forget() noexcept { modes_.clear(); }

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace troupe

#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "tensor_io/base/held_value.hpp"

namespace troupe {

/// Gradients of weights that a backward left for later: a zero-bubble pipeline computes them while it would wait.
/// LibTorch's engine computes both gradients of a matrix product in one node, so a layer has to take part:
/// troupe::nn::Linear does. Other parameters (norms, biases, embeddings) get their gradients at once.
class DeferredWeights {
 public:
  /// While it lives, a backward that this thread runs leaves the gradients of such weights here.
  class Scope : HeldValue<DeferredWeights*> {
   public:
    explicit Scope(DeferredWeights& weights);
  };
  /// Of the Scope that lives on this thread; nullptr if none does.
  static DeferredWeights* current() noexcept;

  void add(at::Tensor weight, std::function<at::Tensor()> gradient) {
    later_.emplace_back(std::move(weight), std::move(gradient));
  }
  /// Computes them and adds them to the weights' `.grad`. Returns the weights. Nothing is left then.
  std::vector<at::Tensor> run();
  std::size_t count() const noexcept { return later_.size(); }

 private:
  std::vector<std::pair<at::Tensor, std::function<at::Tensor()>>> later_;
};

}  // namespace troupe

#include "tensor_io/layers/deferred_weights.hpp"

#include <ATen/core/grad_mode.h>

namespace troupe {
namespace {

thread_local DeferredWeights* deferring = nullptr;

}  // namespace

DeferredWeights::Scope::Scope(DeferredWeights& weights) : HeldValue(deferring, &weights) {}

DeferredWeights* DeferredWeights::current() noexcept { return deferring; }

std::vector<at::Tensor> DeferredWeights::run() {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> weights;
  for (auto& [weight, gradient] : std::exchange(later_, {})) {
    auto& sum = weight.mutable_grad();
    if (sum.defined()) {
      sum.add_(gradient());
    } else {
      sum = gradient();
    }
    weights.push_back(weight);
  }
  return weights;
}

}  // namespace troupe

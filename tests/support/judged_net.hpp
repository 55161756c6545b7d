#pragma once
// A small net with BatchNorm, and data whose two classes a plane parts: for tests that train, save and evaluate.
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "actors/step/loss.hpp"
#include "tensor_io/data/datasets.hpp"

namespace troupe::testing {

struct JudgedNetImpl : torch::nn::Module {
  torch::nn::Linear body = register_module("body", torch::nn::Linear(4, 6));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(6, 2));
  at::Tensor forward(const at::Tensor& x) { return head(torch::tanh(norm(body(x)))); }
};
TORCH_MODULE(JudgedNet);

inline Loss judged_loss(JudgedNet& net, const Batch& batch) {
  const auto scores = net(batch.input);
  return {torch::nn::functional::cross_entropy(scores, batch.target), scores.argmax(1).eq(batch.target).sum()};
}

/// Inputs (size, width) and targets (size,).
inline std::pair<at::Tensor, at::Tensor> parted_samples(std::uint64_t seed, std::int64_t size, std::int64_t width) {
  const auto input = torch::randn({size, width}, at::detail::createCPUGenerator(seed));
  return {input, (input.sum(1) > 0).to(torch::kLong)};
}
inline std::shared_ptr<const Dataset> parted_data(std::uint64_t seed, std::int64_t size, std::int64_t width) {
  const auto [input, target] = parted_samples(seed, size, width);
  return std::make_shared<TensorDataset>(input, target);
}

}  // namespace troupe::testing

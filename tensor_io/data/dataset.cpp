#include "tensor_io/data/dataset.hpp"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <vector>

namespace troupe {

Batch Dataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  std::vector<at::Tensor> inputs, targets;
  inputs.reserve(indices.size());
  targets.reserve(indices.size());
  for (const auto index : indices) {
    auto example = get(index, context);
    inputs.push_back(std::move(example.input));
    targets.push_back(std::move(example.target));
  }
  Batch batch;
  batch.input = at::stack(inputs);
  batch.target = at::stack(targets);
  batch.index = at::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()), at::kLong);
  return batch;
}

}  // namespace troupe

#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <string>
#include <vector>

#include "tensor_io/data/dataset.hpp"
#include "tensor_io/layout/named_tensors.hpp"

namespace troupe::testing {

/// The bytes that a data set of pictures was made of, and its labels: NAME (n, c, h, w) u8, NAME_labels (n,) i64.
inline void add_pictures(const std::string& name, const Dataset& data, const std::vector<float>& mean,
                         const std::vector<float>& stddev, NamedTensors& read) {
  const auto per_channel = [](const std::vector<float>& values) { return at::tensor(values).view({-1, 1, 1}); };
  std::vector<at::Tensor> pictures, labels;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const auto example = data.get(i, {});
    pictures.push_back(((example.input * per_channel(stddev) + per_channel(mean)) * 255).round().to(at::kByte));
    labels.push_back(example.target);
  }
  read.emplace_back(name, at::stack(pictures).contiguous());
  read.emplace_back(name + "_labels", at::stack(labels));
}

}  // namespace troupe::testing

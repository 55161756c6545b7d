#include "tensor_io/checkpoint/state_reader.hpp"

#include <ATen/ops/empty.h>

namespace troupe {

void StateReader::read(const std::string& name, const at::Tensor& target) const {
  read(name, std::vector<std::int64_t>(static_cast<std::size_t>(target.dim()), 0), target);
}

at::Tensor StateReader::read(const std::string& name) const {
  const auto& entry = entries().at(name);
  auto tensor = at::empty(entry.shape, at::TensorOptions().dtype(entry.dtype));
  read(name, tensor);
  return tensor;
}

NamedTensors outlines(const StateReader& reader, std::string_view prefix) {
  NamedTensors tensors;
  for (const auto& [name, entry] : reader.entries()) {
    if (name.starts_with(prefix))
      tensors.emplace_back(name, at::empty({}, at::TensorOptions().dtype(entry.dtype)).expand(entry.shape));
  }
  return tensors;
}

}  // namespace troupe

#include "tensor_io/checkpoint/state_reader.hpp"

#include <ATen/ops/empty.h>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"

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

TensorsReader::TensorsReader(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    entries_.emplace(name, Entry{tensor.scalar_type(), tensor.sizes().vec()});
    tensors_.emplace(name, tensor);
  }
}

void TensorsReader::read(const std::string& name, at::IntArrayRef offsets, const at::Tensor& target) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Error(ErrorCode::internal, "reading a state", "there is no tensor " + name);
  target.copy_(block_of(found->second.detach(), offsets, target.sizes()));
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

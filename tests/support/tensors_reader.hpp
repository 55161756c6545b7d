#pragma once
#include <map>
#include <string>

#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/checkpoint/state_reader.hpp"

namespace troupe::testing {

/// Reads a state from tensors in memory.
class TensorsReader final : public StateReader {
 public:
  explicit TensorsReader(const NamedTensors& tensors) : tensors_(tensors.begin(), tensors.end()) {
    for (const auto& [name, tensor] : tensors)
      entries_.emplace(name, Entry{tensor.scalar_type(), tensor.sizes().vec()});
  }
  const std::map<std::string, Entry, std::less<>>& entries() const noexcept override { return entries_; }
  using StateReader::read;
  void read(const std::string& name, at::IntArrayRef offsets, const at::Tensor& target) const override {
    target.copy_(block_of(tensors_.at(name).detach(), offsets, target.sizes()));
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace troupe::testing

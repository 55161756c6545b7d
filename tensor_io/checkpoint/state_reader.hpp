#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// A source of a rank's state, read tensor by tensor and no more than it needs. One thread.
class StateReader {
 public:
  struct Entry {
    at::ScalarType dtype = at::ScalarType::Float;
    std::vector<std::int64_t> shape;
  };
  virtual ~StateReader() = default;
  /// The entries, by name.
  virtual const std::map<std::string, Entry, std::less<>>& entries() const noexcept = 0;
  /// The block that starts at `offsets` and has the shape of `target`, whose strides are any, and whose dtype is the
  /// entry's. Throws Error(bad_data), Error(io); Error(internal) for a block that is not there.
  virtual void read(const std::string& name, at::IntArrayRef offsets, const at::Tensor& target) const = 0;
  /// All of it.
  void read(const std::string& name, const at::Tensor& target) const;
  at::Tensor read(const std::string& name) const;
};

/// For compare_state: tensors without memory, of those whose name starts with `prefix`.
NamedTensors outlines(const StateReader& reader, std::string_view prefix);

}  // namespace troupe

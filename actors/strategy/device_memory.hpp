#pragma once
#include <vector>

#include "tensor_io/memory/memory_shortage.hpp"

namespace troupe {

/// Capability of a Strategy that reports its memory and the model's on this rank's device.
class DeviceMemory {
 public:
  /// For the report of a memory shortage there, after forward, backward or the optimizer has thrown.
  virtual std::vector<HeldMemory> held_memory() const = 0;

 protected:
  ~DeviceMemory() = default;
};

}  // namespace troupe

#pragma once
#include <vector>

#include "tensor_io/optimizer/step_decision_on_device.hpp"

namespace troupe {

/// Capability of a Strategy that can leave to the device whether a step is applied (vote late). Compute's thread.
class LateVoting {
 public:
  /// Instead of scale_gradients and end_step. Waits for nothing.
  virtual void end_step_on_device(const std::vector<bool>& used, bool rebuild, const DeviceDecision& decision) = 0;

 protected:
  ~LateVoting() = default;
};

}  // namespace troupe

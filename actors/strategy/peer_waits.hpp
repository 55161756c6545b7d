#pragma once
#include <chrono>
#include <vector>

#include "tensor_io/device/timed_mark.hpp"

namespace troupe {

/// Capability of a Strategy whose forward and backward wait for other ranks on communicators that it made. Compute's
/// thread.
class PeerWaits {
 public:
  /// So long they have waited; grows, in a generation.
  virtual std::chrono::nanoseconds time_waited() const = 0;
  /// On a device, in the place of time_waited: when compute's stream waited so since the last call.
  virtual std::vector<TimedInterval> take_device_waits() { return {}; }

 protected:
  ~PeerWaits() = default;
};

}  // namespace troupe

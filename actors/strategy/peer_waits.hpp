#pragma once
#include <chrono>
#include <vector>

#include "tensor_io/device/timed_mark.hpp"

namespace troupe {

/// Capability of a Strategy whose forward and backward wait for other ranks on communicators that it made. Compute's
/// thread.
class PeerWaits {
 public:
  /// The time that they have waited; grows, in a generation.
  virtual std::chrono::nanoseconds time_waited() const = 0;
  /// On a device, instead of time_waited: the waits of compute's stream since the last call.
  virtual std::vector<TimedInterval> take_device_waits() { return {}; }

 protected:
  ~PeerWaits() = default;
};

}  // namespace troupe

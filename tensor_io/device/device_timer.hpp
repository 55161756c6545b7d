#pragma once
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/device/timed_mark.hpp"

namespace troupe {

/// Notes when a device gets to points of its streams' work. The host runs ahead of a device, so the host's clock says
/// nothing of it.
///
/// Such an event costs the host about as much as the launch of a kernel, and nothing waits for it. Events are made once
/// and used again: as many as are under way at a time. Any thread.
class DeviceTimer {
 public:
  DeviceTimer();
  /// After what `stream` holds now; empty on the CPU. All streams are of one device.
  TimedMark mark(const DeviceStream& stream);

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;  // marks outlive the timer
};

/// When streams waited for other ranks, until somebody takes it. Not for two threads at a time.
class DeviceWaits {
 public:
  /// The stream has come to where it waits. Empty on the CPU, and where nobody takes what there is.
  TimedMark arrive(const DeviceStream& stream) { return waits_.size() < kMost ? timer_.mark(stream) : nullptr; }
  /// ... and has been told to wait.
  void leave(TimedMark arrived, const DeviceStream& stream) {
    if (arrived) waits_.push_back({std::move(arrived), timer_.mark(stream)});
  }
  std::vector<TimedInterval> take() { return std::exchange(waits_, {}); }

 private:
  static constexpr std::size_t kMost = 4096;
  DeviceTimer timer_;
  std::vector<TimedInterval> waits_;
};

}  // namespace troupe

#pragma once
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/device/timed_mark.hpp"

namespace troupe {

/// Notes when a device gets to points of its streams' work. The host runs ahead of a device, so the host's clock does
/// not show that.
///
/// Such an event costs the host about as much as the launch of a kernel, and nothing waits for it. Events are reused:
/// there are as many as are under way at a time. Any thread.
class DeviceTimer {
 public:
  DeviceTimer();
  /// After the present work of `stream`; empty on the CPU. All streams are of one device.
  TimedMark mark(const DeviceStream& stream);

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;  // marks outlive the timer
};

/// The waits of streams for other ranks, until they are taken. Not for two threads at a time.
class DeviceWaits {
 public:
  /// The stream has come to a wait. Empty on the CPU, and if the waits are not taken.
  TimedMark arrive(const DeviceStream& stream) { return waits_.size() < kMost ? timer_.mark(stream) : nullptr; }
  /// ... and now waits.
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

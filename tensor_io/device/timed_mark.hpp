#pragma once
#include <memory>

namespace troupe {

class DeviceEvent;

/// A point in a stream's work at which the device notes the time (DeviceTimer). Empty on the CPU. The last owner gives
/// the event back; any thread.
using TimedMark = std::shared_ptr<const DeviceEvent>;

/// From one point to another, in one stream or in two of the same device.
struct TimedInterval {
  TimedMark begin, end;
};

/// Whether the device is past the interval's end, so that its time is known. Does not wait. Throws c10::Error for a
/// device that has failed.
bool is_over(const TimedInterval& interval);
/// By the device's clock; 0 if the end was first, and without marks. The interval is over.
double milliseconds_of(const TimedInterval& interval);

}  // namespace troupe

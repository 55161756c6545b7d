#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

namespace troupe {

class DeviceEvent;

/// A queue of work on one device, in order. LibTorch's own streams, through the interface that all its devices have: no
/// file that includes this sees CUDA. On the CPU there is no queue: work is done when the call returns, and every wait
/// is over.
class DeviceStream {
 public:
  /// The calling thread's current one of `device`.
  static DeviceStream current(c10::Device device);
  /// Out of LibTorch's pool (32 of each priority per device). It stays the pool's.
  static DeviceStream from_pool(c10::Device device, bool high_priority);

  c10::Device device() const noexcept { return device_; }
  /// The cudaStream_t of CUDA; nullptr on the CPU.
  void* native() const;
  /// Work put here from now on starts after `event`. Does not wait on the host.
  void wait(const DeviceEvent& event) const;
  /// As wait. Also, if the tensor belongs to another stream, its memory is reused only after the work that this stream
  /// holds when the tensor is dropped.
  void use(const at::Tensor& tensor, const DeviceEvent& event) const;

 private:
  friend class DeviceEvent;
  friend class CurrentStream;
  DeviceStream(c10::Device device, std::optional<c10::Stream> stream) : device_(device), stream_(stream) {}
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

/// A mark in a stream. Without times, unless `timed`: such events cost a microsecond.
class DeviceEvent {
 public:
  explicit DeviceEvent(c10::Device device, bool timed = false);
  /// Marks the present end of `stream`; an earlier mark is forgotten.
  void record(const DeviceStream& stream);
  /// All work before the mark is over, or nothing was marked. Any thread. Throws c10::Error for a device that has
  /// failed.
  bool done() const;
  /// By the device's clock, from this mark to `end`; below 0 if that was first. Both are timed, of one device, and
  /// done.
  double milliseconds_until(const DeviceEvent& end) const;
  /// The cudaEvent_t of CUDA; nullptr before the first record.
  void* native() const { return event_ ? event_->eventId() : nullptr; }

 private:
  friend class DeviceStream;
  std::optional<c10::Event> event_;
};

/// Makes `stream`, and its device, the calling thread's current one for a scope.
class CurrentStream {
 public:
  explicit CurrentStream(const DeviceStream& stream);
  ~CurrentStream();
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;

 private:
  std::optional<c10::Stream> before_;
  std::optional<c10::Device> device_before_;
};

/// Between two looks at work of a device, in a wait that began at `began`: yields in the first 200 us, then sleeps 20
/// us.
void pause_between_looks(std::chrono::steady_clock::time_point began);
/// The only place in which the host waits for a device. Waits until `event` is over, with pause_between_looks (a
/// driver's own wait has no deadline). Calls `give_up` at each look, which throws to end the wait. Counts itself.
void host_wait(const DeviceEvent& event, const std::function<void()>& give_up);
/// The number of these waits in this process.
std::int64_t host_waits() noexcept;

/// Whether `device` refuses a mark in the calling thread's current stream. After a failed kernel CUDA does so for as
/// long as the process lives; after a wrong call it does not. Never true of the CPU. Does not wait.
bool has_failed(c10::Device device) noexcept;

}  // namespace troupe

#include "tensor_io/device/device_stream.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/prctl.h>

#include <atomic>
#include <thread>

namespace troupe {
namespace {

constexpr unsigned long kTimerSlackNs = 1'000;
constexpr std::chrono::microseconds kYielding{200}, kBetweenLooks{20};
std::atomic<std::int64_t> waits{0};

}  // namespace

DeviceStream DeviceStream::current(c10::Device device) {
  if (device.is_cpu()) return {device, std::nullopt};
  return {device, c10::impl::VirtualGuardImpl(device.type()).getStream(device)};
}

DeviceStream DeviceStream::from_pool(c10::Device device, bool high_priority) {
  if (device.is_cpu()) return {device, std::nullopt};
  return {device, c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, high_priority)};
}

void* DeviceStream::native() const {
  return stream_ ? c10::impl::getDeviceGuardImpl(device_.type())->getStreamNativeHandle(*stream_) : nullptr;
}

void DeviceStream::wait(const DeviceEvent& event) const {
  if (stream_ && event.event_) event.event_->block(*stream_);
}

void DeviceStream::use(const at::Tensor& tensor, const DeviceEvent& event) const {
  wait(event);
  if (stream_) c10::impl::VirtualGuardImpl(device_.type()).recordDataPtrOnStream(tensor.storage().data_ptr(), *stream_);
}

// LibTorch's own default is an event without a time, a device's one with it.
DeviceEvent::DeviceEvent(c10::Device device, bool timed) {
  if (!device.is_cpu())
    event_.emplace(device.type(), timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
}

void DeviceEvent::record(const DeviceStream& stream) {
  if (event_ && stream.stream_) event_->record(*stream.stream_);
}

bool DeviceEvent::done() const {
  if (!event_) return true;
  // CUDA asks in the thread's current device, and makes a context there if there is none.
  const c10::DeviceGuard place(event_->device());
  return event_->query();
}

double DeviceEvent::milliseconds_until(const DeviceEvent& end) const {
  if (!event_ || !end.event_) return 0;
  const c10::DeviceGuard place(event_->device());  // it asks whether both are over
  return event_->elapsedTime(*end.event_);
}

CurrentStream::CurrentStream(const DeviceStream& stream) {
  if (!stream.stream_) return;
  const c10::impl::VirtualGuardImpl guard(stream.device_.type());
  device_before_ = guard.exchangeDevice(stream.device_);
  before_ = guard.exchangeStream(*stream.stream_);
}

CurrentStream::~CurrentStream() {
  if (!before_) return;
  const c10::impl::VirtualGuardImpl guard(before_->device_type());
  guard.exchangeStream(*before_);
  guard.uncheckedSetDevice(*device_before_);
}

void pause_between_looks(std::chrono::steady_clock::time_point began) {
  // The system wakes a thread up to 50 us late, unless it is asked not to.
  static thread_local const int sharp = prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  (void)sharp;
  if (std::chrono::steady_clock::now() - began < kYielding) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

void host_wait(const DeviceEvent& event, const std::function<void()>& give_up) {
  waits.fetch_add(1, std::memory_order_relaxed);
  const auto began = std::chrono::steady_clock::now();
  while (!event.done()) {
    give_up();
    pause_between_looks(began);
  }
}

std::int64_t host_waits() noexcept { return waits.load(std::memory_order_relaxed); }

bool has_failed(c10::Device device) noexcept {
  if (device.is_cpu()) return false;
  try {
    DeviceEvent mark(device);
    mark.record(DeviceStream::current(device));
    mark.done();
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

}  // namespace troupe

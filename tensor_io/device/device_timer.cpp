#include "tensor_io/device/device_timer.hpp"

#include <algorithm>
#include <mutex>

namespace troupe {

struct DeviceTimer::Pool {
  std::mutex mutex;
  // Guarded by mutex.
  std::vector<std::unique_ptr<DeviceEvent>> free;
  std::size_t made = 0;
};

DeviceTimer::DeviceTimer() : pool_(std::make_shared<Pool>()) {}

TimedMark DeviceTimer::mark(const DeviceStream& stream) {
  if (stream.device().is_cpu()) return nullptr;
  std::unique_ptr<DeviceEvent> event;
  {
    const std::lock_guard lock(pool_->mutex);
    if (!pool_->free.empty()) {
      event = std::move(pool_->free.back());
      pool_->free.pop_back();
    } else {
      pool_->free.reserve(++pool_->made);  // giving back must not fail
    }
  }
  if (!event) event = std::make_unique<DeviceEvent>(stream.device(), true);
  event->record(stream);
  return std::shared_ptr<DeviceEvent>(event.release(), [pool = pool_](DeviceEvent* used) {
    const std::lock_guard lock(pool->mutex);
    pool->free.emplace_back(used);
  });
}

bool is_over(const TimedInterval& interval) {
  return (!interval.begin || interval.begin->done()) && (!interval.end || interval.end->done());
}

double milliseconds_of(const TimedInterval& interval) {
  return interval.begin && interval.end ? std::max(0.0, interval.begin->milliseconds_until(*interval.end)) : 0;
}

}  // namespace troupe

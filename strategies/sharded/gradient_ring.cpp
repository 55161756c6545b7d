#include "strategies/sharded/gradient_ring.hpp"

#include <ATen/ops/empty.h>

#include <chrono>

namespace troupe {
namespace {

constexpr int kBuffers = 2;                   // that go round
constexpr std::chrono::seconds kPatience(2);  // before an extra one is made

}  // namespace

GradientRing::GradientRing(Communicator& communicator, std::int64_t numel, at::ScalarType dtype) : numel_(numel) {
  for (int i = 0; i < kBuffers; ++i)
    buffers_.push_back({communicator.allocate(numel, dtype), Use::free, DeviceEvent(communicator.device())});
}

// Memory that was not the communicator's goes back to compute's stream.
GradientRing::~GradientRing() {
  try {
    for (const auto& buffer : buffers_) DeviceStream::current(buffer.memory.device()).wait(buffer.reduced);
  } catch (const c10::Error&) {  // the device has failed: nothing runs there any more
  }
}

GradientRing::Buffer* GradientRing::in_use(Use use) {
  for (auto& buffer : buffers_) {
    if (buffer.use == use) return &buffer;
  }
  return nullptr;
}

GradientRing::Buffer& GradientRing::buffer_of(const at::Tensor& memory) {
  for (auto& buffer : buffers_) {
    // An empty one has no address.
    if (memory.numel() > 0 ? buffer.memory.data_ptr() == memory.data_ptr() : buffer.memory.is_alias_of(memory))
      return buffer;
  }
  throw Error(ErrorCode::internal, "gradient ring", "a buffer that is not in the ring");
}

at::Tensor GradientRing::take(std::int64_t numel, bool may_wait) {
  std::unique_lock lock(mutex_);
  auto* buffer = in_use(Use::free);
  if (buffer == nullptr && may_wait) {
    given_back_.wait_for(lock, kPatience, [&] {
      buffer = in_use(Use::free);
      return broken_ || buffer != nullptr || in_use(Use::reducing) == nullptr;
    });
  }
  if (buffer == nullptr) {
    const auto& first = buffers_.front().memory;
    buffer =
        &buffers_.emplace_back(Buffer{at::empty({numel_}, first.options()), Use::free, DeviceEvent(first.device())});
  }
  buffer->use = Use::filling;
  DeviceStream::current(buffer->memory.device()).wait(buffer->reduced);
  return buffer->memory.narrow(0, 0, numel);
}

void GradientRing::hand_over(const at::Tensor& buffer) {
  std::lock_guard lock(mutex_);
  buffer_of(buffer).use = Use::reducing;
}

void GradientRing::give_back(const at::Tensor& buffer) {
  {
    std::lock_guard lock(mutex_);
    auto& mine = buffer_of(buffer);
    mine.use = Use::free;
    mine.reduced.record(DeviceStream::current(mine.memory.device()));
  }
  given_back_.notify_one();
}

void GradientRing::break_up() {
  {
    std::lock_guard lock(mutex_);
    broken_ = true;
  }
  given_back_.notify_all();
}

void GradientRing::reset() {
  std::lock_guard lock(mutex_);
  for (auto& buffer : buffers_) buffer.use = Use::free;
}

std::int64_t GradientRing::bytes() const {
  std::lock_guard lock(mutex_);
  std::int64_t bytes = 0;
  for (const auto& buffer : buffers_) bytes += static_cast<std::int64_t>(buffer.memory.nbytes());
  return bytes;
}

}  // namespace troupe

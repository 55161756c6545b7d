#include "strategies/gradient_ring.hpp"

#include <ATen/ops/empty.h>

namespace troupe {

GradientRing::GradientRing(Communicator& lane, int count, std::int64_t numel, at::ScalarType dtype, std::chrono::milliseconds patience)
    : patience_(patience), numel_(numel), count_(count) {
  for (int i = 0; i < count; ++i) buffers_.push_back({lane.allocate(numel, dtype), Use::free});
}

GradientRing::Buffer* GradientRing::in_use(Use use) {
  for (auto& buffer : buffers_) {
    if (buffer.use == use) return &buffer;
  }
  return nullptr;
}

void GradientRing::set_use(const at::Tensor& memory, Use use) {
  for (auto& buffer : buffers_) {
    if (buffer.memory.data_ptr() == memory.data_ptr()) buffer.use = use;
  }
}

at::Tensor GradientRing::take(std::int64_t numel, bool may_wait) {
  std::unique_lock lock(mutex_);
  auto* buffer = in_use(Use::free);
  if (buffer == nullptr && may_wait) {
    given_back_.wait_for(lock, patience_, [&] {
      buffer = in_use(Use::free);
      return broken_ || buffer != nullptr || in_use(Use::reducing) == nullptr;
    });
  }
  if (buffer == nullptr) buffer = &buffers_.emplace_back(Buffer{at::empty({numel_}, buffers_.front().memory.options()), Use::free});
  buffer->use = Use::filling;
  return buffer->memory.narrow(0, 0, numel);
}

void GradientRing::hand_over(const at::Tensor& buffer) {
  std::lock_guard lock(mutex_);
  set_use(buffer, Use::reducing);
}

void GradientRing::give_back(const at::Tensor& buffer) {
  {
    std::lock_guard lock(mutex_);
    set_use(buffer, Use::free);
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

int GradientRing::extra() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(buffers_.size()) - count_;
}

}  // namespace troupe

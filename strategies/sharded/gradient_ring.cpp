#include "strategies/sharded/gradient_ring.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>

namespace troupe {
namespace {

constexpr std::chrono::seconds kPatience(5);  // longer than a slow link takes for one gradient

}  // namespace

GradientRing::GradientRing(Communicator& communicator, std::int64_t numel, at::ScalarType dtype) : numel_(numel) {
  for (int i = 0; i < kBuffers; ++i)
    buffers_.push_back({communicator.allocate(numel, dtype), Use::free, DeviceEvent(communicator.device()), i});
}

// Memory that was not the communicator's goes back to compute's stream.
GradientRing::~GradientRing() {
  try {
    for (const auto& buffer : buffers_) DeviceStream::current(buffer.memory.device()).wait(buffer.reduced);
  } catch (const c10::Error&) {  // the device has failed: nothing runs there any more
  }
}

GradientRing::Buffer& GradientRing::buffer_of(const at::Tensor& memory) {
  for (auto& buffer : buffers_) {
    // An empty one has no address.
    if (memory.numel() > 0 ? buffer.memory.data_ptr() == memory.data_ptr() : buffer.memory.is_alias_of(memory))
      return buffer;
  }
  throw Error(ErrorCode::internal, "gradient ring", "a buffer that is not in the ring");
}

// What the reducer has, it gives back turn by turn: the buffer comes if it, or the extra one of a turn of its, is
// there.
bool GradientRing::can_be_waited_for(const Buffer& own, std::int64_t turn) const {
  return std::any_of(buffers_.begin(), buffers_.end(), [&](const Buffer& buffer) {
    return buffer.use == Use::reducing && buffer.turn % kBuffers == turn % kBuffers && buffer.turn >= own.turn &&
           buffer.turn < turn;
  });
}

GradientRing::Buffer& GradientRing::extra() {
  for (auto buffer = buffers_.begin() + kBuffers; buffer != buffers_.end(); ++buffer) {
    if (buffer->use == Use::free) return *buffer;
  }
  const auto& first = buffers_.front().memory;
  return buffers_.emplace_back(Buffer{at::empty({numel_}, first.options()), Use::free, DeviceEvent(first.device()), 0});
}

at::Tensor GradientRing::take(std::int64_t turn, std::int64_t numel, bool may_wait) {
  std::unique_lock lock(mutex_);
  const auto is_free = [&] { return of_turn(turn).use == Use::free && of_turn(turn).turn == turn; };
  if (may_wait && !waited_in_vain_) {
    waited_in_vain_ = !given_back_.wait_for(
        lock, kPatience, [&] { return broken_ || is_free() || !can_be_waited_for(of_turn(turn), turn); });
  }
  auto& buffer = is_free() ? of_turn(turn) : extra();
  buffer.use = Use::filling;
  buffer.turn = turn;
  DeviceStream::current(buffer.memory.device()).wait(buffer.reduced);
  return buffer.memory.narrow(0, 0, numel);
}

void GradientRing::hand_over(const at::Tensor& buffer) {
  std::lock_guard lock(mutex_);
  buffer_of(buffer).use = Use::reducing;
}

at::Tensor GradientRing::in_turn(const at::Tensor& buffer) {
  std::lock_guard lock(mutex_);
  const auto& mine = buffer_of(buffer);
  const auto& own = of_turn(mine.turn);
  if (&mine == &own || buffer.is_cpu()) return buffer;
  DeviceStream::current(buffer.device()).wait(own.reduced);
  auto there = own.memory.narrow(0, 0, buffer.numel());
  there.copy_(buffer, /*non_blocking=*/true);
  return there;
}

void GradientRing::give_back(const at::Tensor& buffer) {
  {
    std::lock_guard lock(mutex_);
    auto& mine = buffer_of(buffer);
    auto& own = of_turn(mine.turn);
    const auto stream = DeviceStream::current(mine.memory.device());
    mine.use = Use::free;
    mine.reduced.record(stream);
    if (&mine != &own) own.reduced.record(stream);
    own.turn = mine.turn + kBuffers;
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
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].use = Use::free;
    buffers_[i].turn = static_cast<std::int64_t>(i);
  }
}

bool GradientRing::waited_in_vain() const {
  std::lock_guard lock(mutex_);
  return waited_in_vain_;
}

std::int64_t GradientRing::bytes() const {
  std::lock_guard lock(mutex_);
  std::int64_t bytes = 0;
  for (const auto& buffer : buffers_) bytes += static_cast<std::int64_t>(buffer.memory.nbytes());
  return bytes;
}

}  // namespace troupe

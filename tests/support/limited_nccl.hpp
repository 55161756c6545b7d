#pragma once
#include <map>
#include <mutex>

#include "tests/support/fake_device.hpp"
#include "tests/support/thread_nccl.hpp"

namespace troupe::test {

/// NCCL between threads whose memory is the fake device's.
class LimitedNccl final : public ThreadNccl {
 public:
  NcclResult memory(void** data, std::size_t bytes) override {
    if (!FakeDevice::take_beside(static_cast<std::int64_t>(bytes))) return NcclResult::unhandled_cuda_error;
    const auto result = ThreadNccl::memory(data, bytes);
    std::lock_guard lock(mutex_);
    sizes_[*data] = bytes;
    return result;
  }
  NcclResult free_memory(void* data) override {
    std::lock_guard lock(mutex_);
    FakeDevice::take_beside(-static_cast<std::int64_t>(sizes_.at(data)));
    sizes_.erase(data);
    return ThreadNccl::free_memory(data);
  }

 private:
  std::mutex mutex_;
  std::map<void*, std::size_t> sizes_;
};

}  // namespace troupe::test
